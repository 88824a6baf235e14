"""CUDA C++ text to a cubin, by NVRTC: NVIDIA's compiler as a library, which needs no GPU and no toolkit.

    compile_text(text, "sm_90a") -> bytes

It is a wheel, `nvidia-cuda-nvrtc`, of the extra `cuda`; one that a CUDA toolkit has installed serves as well.
"""

from __future__ import annotations

import ctypes
import sysconfig
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ingot.errors import CompileError, NoCompiler, format_error

# Functions that are not annotated are device functions. A product and a sum become one operation only where the text
# says so (ig_fma_f32): which ones a compiler joins depends on what lies around an expression, so the same expression,
# recomputed in another kernel, would have other bits; and the exact sums of the math library need each rounding.
FLAGS = (
    "--std=c++17",
    "--device-as-default-execution-space",
    "--fmad=false",
    "--device-int128",
    "--extra-device-vectorization",
    "--diag-suppress=177",
)
_LIBRARIES = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")
# Headers that device text may include, and NVRTC does not have.
_STDINT = """typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
typedef unsigned long uintptr_t;
#define INT64_C(x) x##L
#define UINT64_C(x) x##UL
#define INT64_MIN (-9223372036854775807L - 1)
#define INT64_MAX 9223372036854775807L
#define UINT64_MAX 18446744073709551615UL
#define INT32_MIN (-2147483647 - 1)
#define INT32_MAX 2147483647
#define UINT32_MAX 4294967295u
"""
HEADERS: Mapping[str, str] = {"stdint.h": _STDINT}


def compile_text(text: str, architecture: str, *, name: str = "model.cu", ptx: bool = False) -> bytes:
    """The text as a cubin for an architecture ("sm_90a"), or as PTX. Raises CompileError with NVRTC's log."""
    nvrtc = library()
    program = ctypes.c_void_p()
    sources = [HEADERS[header].encode() for header in HEADERS]
    names = [header.encode() for header in HEADERS]
    count = len(names)
    _check(
        nvrtc.nvrtcCreateProgram(
            ctypes.byref(program), text.encode(), name.encode(), count,
            (ctypes.c_char_p * count)(*sources), (ctypes.c_char_p * count)(*names),
        )
    )  # fmt: skip
    try:
        wanted = architecture.replace("sm_", "compute_") if ptx else architecture
        flags = [flag.encode() for flag in (*FLAGS, f"--gpu-architecture={wanted}")]
        status = nvrtc.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*flags))
        if status:
            raise CompileError(
                format_error(
                    f"NVRTC cannot compile the device text for {architecture}.",
                    why=_read(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).decode(errors="replace"),
                    fix="this is a bug in Ingot: please report it with the model",
                )
            )
        if ptx:
            return _read(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program)
        return _read(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def version() -> tuple[int, int]:
    """NVRTC's version. Raises NoCompiler."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return major.value, minor.value


@cache
def library() -> Any:
    """The loaded library. Raises NoCompiler where there is none."""
    tried = []
    for path in _candidates():
        try:
            for builtins in Path(path).parent.glob(
                "libnvrtc-builtins.so.*"
            ):  # which NVRTC finds only where it is loaded
                ctypes.CDLL(str(builtins))
            return ctypes.CDLL(path)
        except OSError as failure:
            tried.append(str(failure))
    raise NoCompiler(
        format_error(
            "NVRTC, which compiles CUDA kernels, is not installed.",
            why="; ".join(tried[:2]),
            fix='install it: pip install "ingot[cuda]"',
        )
    )


def _candidates() -> Iterator[str]:
    folder = Path(sysconfig.get_paths()["purelib"]) / "nvidia"
    for name in _LIBRARIES:
        yield from (str(path) for path in sorted(folder.glob(f"*/lib/{name}")))
    yield from _LIBRARIES  # wherever the system's loader looks


def _check(status: int) -> None:
    if status:
        nvrtc = library()
        nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise CompileError(
            format_error("NVRTC failed.", why=nvrtc.nvrtcGetErrorString(status).decode(), fix="install it again")
        )


def _read(ask_size: Any, ask: Any, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _check(ask_size(program, ctypes.byref(size)))
    memory = ctypes.create_string_buffer(size.value)
    _check(ask(program, memory))
    return memory.raw[: size.value]
