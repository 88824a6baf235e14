"""The CUDA target with images for this machine's CPU: the same kernels and host text, on an emulated driver."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import subprocess
import tempfile
from concurrent.futures import Executor
from pathlib import Path

from ingot.codegen.build.cache import Cache
from ingot.targets.cuda.build.image_parts import pack_parts
from ingot.targets.cuda.codegen.module_emitter import CudaSource
from ingot.targets.cuda.target import CudaTarget
from tests.support.cuda_emulation.kernels import build_library

_DRIVER = Path(__file__).with_name("driver.cpp")
_FOLDER = Path(tempfile.gettempdir()) / "ingot-cuda-emulation"


class EmulatedCudaTarget(CudaTarget):
    """Its image of every architecture is a library that the emulated driver loads."""

    def build_image(self, source: CudaSource, name: str, store: Cache, workers: Executor) -> bytes:
        # One library serves as every part: to compile each by itself takes many times as long.
        return pack_parts([self.build_part(source.device, name)] * len(source.parts))

    def build_part(self, text: str, name: str) -> bytes:
        # What only Hopper has is not in the text for other architectures.
        return build_library(text if name == "sm_90a" else f"#define IG_EMULATED_PLAIN 1\n{text}").read_bytes()

    def toolkit_version(self) -> int:
        return 13000


class EmulatedPartsTarget(EmulatedCudaTarget):
    """As on a GPU: each part has just its own kernels."""

    def build_image(self, source: CudaSource, name: str, store: Cache, workers: Executor) -> bytes:
        return pack_parts([self.build_part(text, name) for text in source.parts])


EMULATED = EmulatedCudaTarget()
EMULATED_PARTS = EmulatedPartsTarget()


def build_driver() -> Path:
    """The emulated driver, to be named in INGOT_CUDA_DRIVER."""
    text = _DRIVER.read_bytes()
    _FOLDER.mkdir(exist_ok=True)
    library = _FOLDER / f"driver-{hashlib.sha256(text).hexdigest()[:20]}.so"
    if not library.exists():
        made = library.with_suffix(f".{os.getpid()}.so")
        command = [
            "g++",
            "-std=c++17",
            "-O1",
            "-g",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-shared",
            "-fPIC",
            "-o",
            made,
            _DRIVER,
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:4000]
        made.rename(library)
    return library


class EmulatedDriver:
    """What the emulated driver tells of itself."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = ctypes.CDLL(str(path))
        self._library.ig_emulated_bytes.restype = ctypes.c_size_t

    def calls(self, name: str) -> int:
        """How often a function was called so far."""
        return int(self._library.ig_emulated_calls(name.encode()))

    @property
    def bytes(self) -> int:
        """Device memory that is in use."""
        return int(self._library.ig_emulated_bytes())

    @property
    def objects(self) -> int:
        """Modules, functions, streams, events and graphs that exist."""
        return int(self._library.ig_emulated_objects())

    @property
    def depth(self) -> int:
        """How many contexts this thread has pushed."""
        return int(self._library.ig_emulated_depth())


@functools.cache
def open_driver() -> EmulatedDriver:
    return EmulatedDriver(build_driver())
