"""The math library as device text: every function compiles for every architecture, and in emulation gives the bits that
it gives on a CPU with fused multiply-adds; conversions of halves are exact."""

from __future__ import annotations

import ctypes
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ingot.codegen import math_library
from ingot.codegen.headers import PORTABLE
from ingot.targets.cuda.codegen.device_library import DeviceLibrary
from tests.support.cuda_emulation.kernels import build_text, check_cubin
from tests.support.cuda_emulation.toolkit import needs_nvrtc

NUMPY = {
    "float": np.float32,
    "double": np.float64,
    **{f"{sign}int{bits}_t": np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


@cache
def signatures() -> dict[str, tuple[str, tuple[str, ...]]]:
    """The result and the parameters, without their names, of every function of numbers."""
    names = [name for name in math_library.functions() if name != math_library.PRELUDE]
    text = re.sub(r"/\*.*?\*/", "", math_library.source_of(names), flags=re.DOTALL)
    found = {}
    for result, name, parameters in re.findall(r"^IG_(?:FN|SCALAR) (\w+) (ig_\w+)\(([^)]*)\)", text, re.MULTILINE):
        types = tuple(part.rsplit(" ", 1)[0] + " *" * ("*" in part) for part in parameters.split(", "))
        if result in NUMPY and all(one.removesuffix(" *") in (*NUMPY, "int") for one in types):
            found[name] = (result, types)
    return found


def loop_text(name: str) -> str:
    """A function over arrays, at place `i`. What it has pointers for is left."""
    result, types = signatures()[name]
    arguments, lines = [], []
    for number, type_ in enumerate(types):
        if type_.endswith("*"):
            lines.append(f"{type_.removesuffix(' *')} own{number} = 0;")
            arguments.append(f"&own{number}")
        else:
            arguments.append(f"(({type_} const *)x{number})[i]")
    return f"{{ {' '.join(lines)} (({result} *)y)[i] = {name}({', '.join(arguments)}); }}"


def device_text() -> str:
    kernels = []
    parameters = ", ".join(
        [*(f"const void *x{number}" for number in range(6)), "void *y", "int n", "ig_context context"]
    )
    for name in signatures():
        kernels.append(
            f'extern "C" __global__ void k_{name}({parameters})\n'
            f"{{ const int i = (int)(blockIdx.x * 64 + threadIdx.x); if (i < n) {loop_text(name)} }}\n"
            f"IG_KERNEL_ENTRY(k_{name})"
        )
    return "\n".join([DeviceLibrary(functions=set(signatures())).text(), *kernels])


def test_no_function_is_missed() -> None:
    """What is left out takes or gives a struct, and others call it."""
    left = set(math_library.functions()) - set(signatures()) - {math_library.PRELUDE}
    needed = {need for function in math_library.functions().values() for need in function.needs}
    assert len(signatures()) > 195
    assert left <= needed


@needs_nvrtc
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_every_function_compiles(architecture: str) -> None:
    assert check_cubin(device_text(), (architecture,))


@needs_nvrtc
def test_headers_of_extern_kernels_compile() -> None:
    library = DeviceLibrary(functions={"ig_exp_f64", "ig_log1p_f64"})
    for macro in ("IG_SORT(float64, double)", "IG_MODE(int8, int8_t)", "IG_SEARCH(float32, float)"):
        library.use("sort.h", macro)
    for macro in ("IG_SCAN(sum, +, 0, float32, float, double)", "IG_SCAN_PLACES(max, >=, int64, int64_t)"):
        library.use("scan.h", macro)
    library.use("scan.h", "IG_SCAN_LOGSUMEXP(float32, float)")
    for macro in ("IG_CHOLESKY(float64, double)", "IG_LU(float64, double)", "IG_TRIANGULAR(float64, double)"):
        library.use("linalg.h", macro)
    library.use("qr_svd.h")
    assert PORTABLE.read("qr_svd.h") in library.text()
    check_cubin(library.text())


# ---------------------------------------------------------------------- bits


@pytest.fixture(scope="module")
def on_device() -> ctypes.CDLL:
    return build_text(device_text())


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The same functions as the CPU target compiles them, for a CPU with fused multiply-adds."""
    folder: Path = tmp_path_factory.mktemp("math")
    names = sorted(signatures())
    parameters = ", ".join([*(f"const void *x{number}" for number in range(6)), "void *y", "int n"])
    loops = [f"void k_{name}({parameters}) {{ for (int i = 0; i < n; ++i) {loop_text(name)} }}" for name in names]
    text = "\n".join(
        ["#include <math.h>\n#define __FMA__ 1\n#define __SSE4_1__ 1", math_library.source_of(names), *loops]
    )
    source, library = folder / "math.c", folder / "math.so"
    source.write_text(text)
    flags = ["-std=gnu11", "-O1", "-fPIC", "-shared", "-ffp-contract=off", "-fwrapv", "-w"]
    subprocess.run(["gcc", *flags, "-o", library, source, "-lm"], check=True)
    return ctypes.CDLL(str(library))


def sample(type_: str, seed: int) -> NDArray[Any]:
    drawn = np.random.default_rng(seed)
    dtype = NUMPY[type_]
    if type_ in ("float", "double"):
        special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, 1e-40, 1e30, -745, 88.7, 3e-310, 2.5, 1e15])
        spread = drawn.standard_normal(185) * 10.0 ** drawn.integers(-8, 8, 185)
        with np.errstate(all="ignore"):
            return np.concatenate([special, spread]).astype(dtype)
    limits = np.iinfo(dtype)
    edges = np.array([limits.min, limits.max, 0, 1, 2, 3, 7, 31], dtype)
    return np.concatenate([edges, drawn.integers(max(limits.min, -1000), min(limits.max, 1000), 192).astype(dtype)])


def call(library: ctypes.CDLL, name: str, arguments: list[NDArray[Any]], *, emulated: bool) -> NDArray[Any]:
    result, _ = signatures()[name]
    count = len(arguments[0])
    made = np.zeros(count, NUMPY[result])
    pointers = [ctypes.c_void_p(one.ctypes.data) for one in arguments]
    pointers += [ctypes.c_void_p()] * (6 - len(pointers))
    given: list[Any] = [*pointers, ctypes.c_void_p(made.ctypes.data), ctypes.c_int(count)]
    if not emulated:
        getattr(library, f"k_{name}")(*given)
        return made
    given.append((ctypes.c_uint64 * 4)())
    addresses = (ctypes.c_void_p * len(given))(*[ctypes.addressof(one) for one in given])
    blocks = (ctypes.c_uint * 3)(-(-count // 64), 1, 1)
    getattr(library, f"k_{name}__entry")(addresses, blocks, 64, ctypes.c_size_t(0))
    return made


def test_emulated_functions_give_the_cpus_bits(on_device: ctypes.CDLL, on_cpu: ctypes.CDLL) -> None:
    for name, (_, types) in signatures().items():
        arguments = [sample(t.removesuffix(" *").replace("int *", "int32_t") if t != "int" else "int32_t", number)
                     for number, t in enumerate(types) if not t.endswith("*")]  # fmt: skip
        shortest = min(len(one) for one in arguments)
        arguments = [np.ascontiguousarray(one[:shortest]) for one in arguments]
        if name in ("ig_f32_to_bf16", "ig_f32_to_f16"):  # a device has one nan only
            arguments[0][np.isnan(arguments[0])] = 3
        if _divides(name):
            arguments[1][arguments[1] == 0] = 1
        ours, theirs = (call(lib, name, arguments, emulated=e) for lib, e in ((on_device, True), (on_cpu, False)))
        if ours.dtype.kind == "f":
            nan = np.isnan(ours) & np.isnan(theirs)
            ours, theirs = np.where(nan, 0, ours), np.where(nan, 0, theirs)
        assert ours.tobytes() == theirs.tobytes(), name


def _divides(name: str) -> bool:
    return bool(re.match(r"ig_(floordiv|truncdiv|remainder|truncmod|gcd|lcm)_[iu]", name))


def test_conversions_of_halves(on_device: ctypes.CDLL) -> None:
    """Every half, and floats between two of them: to nearest, ties to even; a nan stays one."""
    halves = np.arange(1 << 16, dtype=np.uint16)
    wide = call(on_device, "ig_f16_to_f32", [halves], emulated=True)
    np.testing.assert_array_equal(wide, halves.view(np.float16).astype(np.float32))
    back = call(on_device, "ig_f32_to_f16", [wide], emulated=True)
    number = ~np.isnan(wide)
    np.testing.assert_array_equal(back[number], halves[number])
    between = np.nextafter(wide[number], np.float32(np.inf))
    with np.errstate(all="ignore"):
        expected = between.astype(np.float16).view(np.uint16)
    np.testing.assert_array_equal(call(on_device, "ig_f32_to_f16", [between], emulated=True), expected)
    wide = call(on_device, "ig_bf16_to_f32", [halves], emulated=True)
    assert (wide.view(np.uint32) == halves.astype(np.uint32) << 16).all()
    number = ~np.isnan(wide)
    np.testing.assert_array_equal(call(on_device, "ig_f32_to_bf16", [wide], emulated=True)[number], halves[number])
    assert np.isnan(call(on_device, "ig_as_bf16_f32", [wide], emulated=True)[~number]).all()
    for name in ("ig_f32_to_bf16", "ig_f32_to_f16"):
        assert (call(on_device, name, [wide[~number]], emulated=True) == 0x7FFF).all()
