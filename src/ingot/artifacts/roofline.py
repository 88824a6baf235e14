"""Measured peak FLOP/s and bandwidth of this machine (roofline)."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ingot.codegen.build.cache import Cache
from ingot.codegen.build.isa import host
from ingot.codegen.build.toolchain import find
from ingot.config import Settings
from ingot.targets.cpu.codegen.headers import resource
from ingot_runtime.native.native_library import load_bytes

_TRIES = 3
_BYTES = 128 << 20  # a thread: more than caches hold


@dataclass(frozen=True, slots=True)
class Roofline:
    """Float32 operations and bytes read from memory, both in a second and by all threads together."""

    flops: float
    bytes: float

    def seconds(self, flops: float, moved: float) -> float:
        """The least time that so many operations and bytes take."""
        return max(flops / self.flops if self.flops else 0.0, moved / self.bytes if self.bytes else 0.0)


@functools.cache
def measure_roofline(threads: int) -> Roofline:
    """What `threads` threads reach here, the best of a few tries: about half a second, once in a process."""
    tries = range(_TRIES)
    return Roofline(max(_peak(threads, 0) for _ in tries), max(_peak(threads, _BYTES) for _ in tries))


def reading(threads: int, memory: NDArray[np.uint8]) -> float:
    """Bytes a second that `threads` threads reach now, in one try, when they read this memory, each its part."""
    return _peak(threads, memory.size // threads // 512 * 512, memory.ctypes.data)


def _peak(threads: int, each: int, data: int | None = None) -> float:
    peak = _library().ingot_peak
    peak.restype, peak.argtypes = ctypes.c_double, (ctypes.c_int, ctypes.c_int64, ctypes.c_void_p)
    found: float = peak(threads, each, data)
    return found


@functools.cache
def _library() -> ctypes.CDLL:
    text = resource("vectors.h") + resource("roofline.h")
    data = Cache.from_settings(Settings.from_environment()).read_library(text, host(), find())
    return load_bytes(memoryview(data))[0]
