"""The math functions as numpy sees them: each in a loop of its own, in one shared library compiled once a test run."""

from __future__ import annotations

import ctypes
import hashlib
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy
from filelock import FileLock

from ingot.codegen import math_library

FLAGS = [
    "-std=gnu11",
    "-O3",
    "-fPIC",
    "-shared",
    "-fopenmp-simd",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-Wall",
    "-Wextra",
    "-Werror",
]
SANITIZED = ("-fsanitize=undefined,float-cast-overflow", "-fno-sanitize-recover=all", "-O1", "-fno-wrapv")

TYPES = {
    "f32": ("float", numpy.float32),
    "f64": ("double", numpy.float64),
    "i8": ("int8_t", numpy.int8),
    "i16": ("int16_t", numpy.int16),
    "i32": ("int32_t", numpy.int32),
    "i64": ("int64_t", numpy.int64),
    "u8": ("uint8_t", numpy.uint8),
    "u16": ("uint16_t", numpy.uint16),
    "u32": ("uint32_t", numpy.uint32),
    "u64": ("uint64_t", numpy.uint64),
    "f16": ("uint16_t", numpy.uint16),
    "bf16": ("uint16_t", numpy.uint16),
}

UNARY = [
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "erf",
    "erfc",
    "erfinv",
    "sigmoid",
    "rsqrt",
    "sqrt",
    "lgamma",
    "digamma",
    "i0",
    "i1",
    "i0e",
    "i1e",
    "floor",
    "ceil",
    "trunc",
    "round",
    "fabs",
]
BINARY = ["pow", "atan2", "fmod", "remainder", "floor_divide", "nextafter", "hypot", "copysign"]
CONVERSIONS = [
    *(f"{a}_to_{b}" for a in ("f32", "f64") for b in ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")),
    *(f"{a}_to_{b}" for a in ("f32", "f64") for b in ("f16", "bf16")),
    "f16_to_f32",
    "bf16_to_f32",
]
ROUNDINGS = {"round_to_int": "i32", "round_to_float": "f32", "as_bf16": "f32", "as_f16": "f32"}
INTEGERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")
INTEGER_OPS = ("truncdiv", "floordiv", "truncmod", "remainder")


def loops() -> dict[str, str]:
    """For every function the C of a loop over arrays, named v_<function>."""
    out: dict[str, str] = {}

    def loop(name: str, arguments: str, statement: str) -> None:
        out[name] = (
            f"void v_{name}({arguments}, int64_t n)\n{{\n#pragma omp simd\n"
            f"    for (int64_t i = 0; i < n; i++) {statement}\n}}\n"
        )

    for kind in ("f32", "f64"):
        c = TYPES[kind][0]
        for name in UNARY:
            fn = f"ig_{name}_{kind}"
            loop(fn, f"const {c} *restrict x, {c} *restrict y", f"y[i] = {fn}(x[i]);")
        for integer in ("i32", "i64"):
            fn = f"ig_through_{integer}_{kind}"
            loop(fn, f"const {c} *restrict x, {c} *restrict y", f"y[i] = {fn}(x[i]);")
        for name in BINARY:
            fn = f"ig_{name}_{kind}"
            loop(fn, f"const {c} *restrict a, const {c} *restrict b, {c} *restrict y", f"y[i] = {fn}(a[i], b[i]);")
        fn = f"ig_ldexp_{kind}"
        loop(fn, f"const {c} *restrict a, const int32_t *restrict b, {c} *restrict y", f"y[i] = {fn}(a[i], b[i]);")
        fn = f"ig_frexp_{kind}"
        loop(fn, f"const {c} *restrict x, {c} *restrict y, int32_t *restrict e", f"y[i] = {fn}(x[i], &e[i]);")
    for name in CONVERSIONS:
        source, target = (TYPES[side][0] for side in name.split("_to_"))
        fn = f"ig_{name}"
        loop(fn, f"const {source} *restrict x, {target} *restrict y", f"y[i] = {fn}(x[i]);")
    for name, target in ROUNDINGS.items():
        fn = f"ig_{name}_f32"
        loop(fn, f"const float *restrict x, {TYPES[target][0]} *restrict y", f"y[i] = {fn}(x[i]);")
    for kind in INTEGERS:
        c = TYPES[kind][0]
        both = f"const {c} *restrict a, const {c} *restrict b, {c} *restrict y"
        for name in INTEGER_OPS:
            fn = f"ig_{name}_{kind}"
            out[fn] = (
                f"void v_{fn}({both}, int32_t *restrict status, int64_t n)\n{{\n"
                f"    for (int64_t i = 0; i < n; i++) y[i] = {fn}(a[i], b[i], &status[i]);\n}}\n"
            )
        loop(f"ig_pow_{kind}", both, f"y[i] = ig_pow_{kind}(a[i], b[i]);")
    return out


def compilers() -> list[str]:
    """Names of the C compilers of this machine: gcc, and clang by that name or as zig."""
    found = [name for name in ("gcc", "clang") if shutil.which(name)]
    return [*found, "zig"] if find_spec("ziglang") and "clang" not in found else found


def command(compiler: str) -> list[str]:
    return [sys.executable, "-m", "ziglang", "cc"] if compiler == "zig" else [compiler]


class Build(NamedTuple):
    compiler: str
    isa: str

    def __str__(self) -> str:
        return f"{self.compiler}-{self.isa}"


def host_isas() -> list[str]:
    """The instruction sets to try: the plain one first, the widest that this machine runs last."""
    if platform.machine() != "x86_64":
        return ["native"]
    flags = Path("/proc/cpuinfo").read_text().split()
    levels = {"x86-64-v3": {"avx2", "fma"}, "x86-64-v4": {"avx512f", "avx512bw", "avx512dq", "avx512vl"}}
    return ["x86-64", *(isa for isa, needed in levels.items() if needed <= set(flags))]


def builds() -> list[Build]:
    """Every instruction set with the first compiler, the widest with the others; the main one first."""
    first, *others = compilers()
    *narrow, widest = host_isas()
    return [Build(first, widest), *(Build(first, isa) for isa in narrow), *(Build(other, widest) for other in others)]


def isa_flags(build: Build) -> list[str]:
    width = ["-mprefer-vector-width=512"] if build.isa == "x86-64-v4" else []
    return [f"-march={build.isa.replace('-', '_') if build.compiler == 'zig' else build.isa}", *width]


def compile_c(folder: Path, source: str, compiler: str, flags: Sequence[str]) -> Path:
    """The compiled text in `folder`, where it is found again: workers of one run share it. A compiler's complaint
    fails the test."""
    line = [*command(compiler), *FLAGS, *flags]
    digest = hashlib.sha256("\0".join([source, *line]).encode()).hexdigest()[:16]
    target = folder / f"{compiler}-{digest}.so"
    with FileLock(folder / f"{target.name}.lock"):
        if not target.exists():
            text, partial = target.with_suffix(".c"), target.with_suffix(".partial")
            text.write_text(source)
            done = subprocess.run([*line, "-o", str(partial), str(text)], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr[-4000:]
            partial.rename(target)
    return target


def library_text() -> str:
    return math_library.source_of(math_library.functions()) + "\n" + "\n".join(loops().values())


def library(folder: Path, build: Build) -> ctypes.CDLL:
    """Every loop, compiled and linked with no library at all: a call into libm or libc would be an error."""
    alone = ["-nostdlib", "-Wl,-z,defs"] if build.compiler != "zig" else []
    # clang says which loops it could not vectorize
    quiet = ["-Wno-pass-failed"] if build.compiler != "gcc" else []
    flags = [*isa_flags(build), *quiet, *alone]
    return ctypes.CDLL(str(compile_c(folder, library_text(), build.compiler, flags)))


def call(lib: ctypes.CDLL, name: str, *inputs: numpy.ndarray, outputs: Sequence[str]) -> list[numpy.ndarray]:
    """Runs v_<name>; `outputs` are names of TYPES."""
    arrays = [numpy.ascontiguousarray(x) for x in inputs]
    results = [numpy.zeros(arrays[0].shape, TYPES[kind][1]) for kind in outputs]
    pointers = [ctypes.c_void_p(x.ctypes.data) for x in [*arrays, *results]]
    getattr(lib, f"v_{name}")(*pointers, ctypes.c_int64(arrays[0].size))
    return results
