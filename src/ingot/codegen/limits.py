"""The most that this machine can do: what a kernel's speed is to be compared with."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from importlib import resources

from ingot.codegen.cache import Cache
from ingot.codegen.isa import host
from ingot.codegen.toolchain import find
from ingot.settings import Settings

_TRIES = 3
_BYTES = 128 << 20  # a thread: more than caches hold


@dataclass(frozen=True, slots=True)
class Limits:
    """Float32 operations and bytes read from memory, both in a second and by all threads together."""

    flops: float
    bytes: float

    def seconds(self, flops: float, moved: float) -> float:
        """The least time that so many operations and bytes take."""
        return max(flops / self.flops if self.flops else 0.0, moved / self.bytes if self.bytes else 0.0)


@functools.cache
def measured(threads: int) -> Limits:
    """What `threads` threads reach here, the best of a few tries: about half a second, once in a process."""
    text = (resources.files("ingot.codegen") / "c" / "limits.h").read_text()
    path = Cache.from_settings(Settings.from_environment()).library(text, host(), find())
    peak = ctypes.CDLL(str(path)).ingot_peak
    peak.restype, peak.argtypes = ctypes.c_double, (ctypes.c_int, ctypes.c_int64)
    return Limits(max(peak(threads, 0) for _ in range(_TRIES)), max(peak(threads, _BYTES) for _ in range(_TRIES)))
