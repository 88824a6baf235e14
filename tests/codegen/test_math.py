"""The real functions of codegen/c/math_*.h against float64 and mpmath: within 4 units in the last place, 2 for exp and
log, over every range, inf, nan, zeros and denormals included."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath
import numpy
import pytest
import torch
from mpmath import mp, mpf

from tests.codegen.math_harness import UNARY, builds, call, library

Array = numpy.ndarray
BUILDS = builds()
TIGHT = {"exp": 2.0, "log": 2.0}
EXACT = ("sqrt", "floor", "ceil", "trunc", "round", "fabs")


@pytest.fixture(scope="module", params=BUILDS, ids=str)
def lib(request: pytest.FixtureRequest, compiled_folder: Path) -> ctypes.CDLL:
    return library(compiled_folder, request.param)


@pytest.fixture(scope="module")
def main_lib(compiled_folder: Path) -> ctypes.CDLL:
    return library(compiled_folder, BUILDS[0])


def of_torch(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Array], Array]:
    return lambda x: function(torch.from_numpy(x)).numpy()


REFERENCE_F64: dict[str, Callable[[Array], Array]] = {
    "exp": numpy.exp,
    "exp2": numpy.exp2,
    "expm1": numpy.expm1,
    "log": numpy.log,
    "log2": numpy.log2,
    "log10": numpy.log10,
    "log1p": numpy.log1p,
    "sin": numpy.sin,
    "cos": numpy.cos,
    "tan": numpy.tan,
    "asin": numpy.arcsin,
    "acos": numpy.arccos,
    "atan": numpy.arctan,
    "sinh": numpy.sinh,
    "cosh": numpy.cosh,
    "tanh": numpy.tanh,
    "asinh": numpy.arcsinh,
    "acosh": numpy.arccosh,
    "atanh": numpy.arctanh,
    "erf": of_torch(torch.erf),
    "erfc": of_torch(torch.erfc),
    "erfinv": of_torch(torch.erfinv),
    "sigmoid": of_torch(torch.sigmoid),
    "rsqrt": lambda x: 1 / numpy.sqrt(x),
    "sqrt": numpy.sqrt,
    "lgamma": of_torch(torch.lgamma),
    "digamma": of_torch(torch.digamma),
    # torch has nan where the scaled function vanishes as fast as the exponential grows, and loses the sign of zero.
    "i0": lambda x: numpy.where(numpy.isinf(x), numpy.inf, of_torch(torch.special.i0)(x)),
    "i1": lambda x: numpy.copysign(numpy.where(numpy.isinf(x), numpy.inf, of_torch(torch.special.i1)(x)), x),
    "i0e": of_torch(torch.special.i0e),
    "i1e": lambda x: numpy.copysign(of_torch(torch.special.i1e)(x), x),
    "floor": numpy.floor,
    "ceil": numpy.ceil,
    "trunc": numpy.trunc,
    "round": numpy.rint,
    "fabs": numpy.abs,
}

SPECIAL = [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 8.0, 10.0, 28.0, 88.72283, 88.72284, 87.33655, 103.97, 103.98, 149.0]
SPECIAL += [150.0, 127.99999, 1e-45, 1e-40, 1.1754944e-38, 3.4028235e38, 709.782, 710.4, 744.5, 745.2, 1e22, 1e308]
SPECIAL += [2.2250738585072014e-308, 5e-324, numpy.pi / 2, numpy.pi, 1 - 2.0**-24, 1 - 2.0**-53, 1 + 2.0**-23]


def points_f32(stride: int) -> Array:
    """Every stride-th of all floats, a fine grid around 0, integers and special values."""
    bits = numpy.arange(0, 2**32, stride, dtype=numpy.uint64).astype(numpy.uint32)
    with numpy.errstate(over="ignore", under="ignore"):
        special = numpy.array([*SPECIAL, numpy.inf, numpy.nan]).astype(numpy.float32)
    grid = numpy.linspace(-20, 20, 2**20 // stride * 16 + 1).astype(numpy.float32)
    whole = numpy.arange(-200, 201).astype(numpy.float32)
    return numpy.concatenate([bits.view(numpy.float32), special, -special, grid, whole])


def ulps_f32(got: Array, true: Array) -> Array:
    """How far each float is from the true value; inf where one is nan alone, or a zero has the other sign."""
    with numpy.errstate(all="ignore"):
        nearest = true.astype(numpy.float32)
        # Of the largest float numpy says inf.
        unit = numpy.spacing(numpy.minimum(numpy.abs(nearest), numpy.float32(3.4e38))).astype(numpy.float64)
        # An inf stands for the float that would follow the largest one.
        as_number = numpy.where(numpy.isinf(got), numpy.copysign(numpy.float64(2.0**128), got), got)
        bounded = numpy.clip(true, -(2.0**128), 2.0**128)
        error = numpy.abs(as_number - bounded) / unit
        both_nan = numpy.isnan(got) & numpy.isnan(true)
        error = numpy.where(both_nan, 0.0, numpy.where(numpy.isnan(error), numpy.inf, error))
        # The sign of an underflowed result too.
        return numpy.where(~both_nan & (numpy.signbit(got) != numpy.signbit(true)) & (got == true), numpy.inf, error)


def check_f32(lib: ctypes.CDLL, name: str, x: Array) -> None:
    (got,) = call(lib, f"ig_{name}_f32", x, outputs=["f32"])
    with numpy.errstate(all="ignore"):
        true = REFERENCE_F64[name](x.astype(numpy.float64))
    error = ulps_f32(got, true)
    worst = int(numpy.argmax(error))
    limit = 0.5 if name in EXACT else TIGHT.get(name, 4.0)
    assert error[worst] <= limit, f"{name}({x[worst]!r}) is {got[worst]!r}, not {true[worst]!r}: {error[worst]} ulp"


def test_every_function_has_a_reference() -> None:
    assert set(REFERENCE_F64) == set(UNARY)


@pytest.mark.parametrize("name", UNARY)
def test_f32(main_lib: ctypes.CDLL, name: str) -> None:
    check_f32(main_lib, name, points_f32(4099))


def test_f32_of_every_build(lib: ctypes.CDLL) -> None:
    x = points_f32(65521)
    for name in UNARY:
        check_f32(lib, name, x)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in UNARY if n not in EXACT])
def test_f32_densely(main_lib: ctypes.CDLL, name: str) -> None:
    for start in range(0, 2**32, 2**28):
        bits = numpy.arange(start, start + 2**28, 97, dtype=numpy.uint64).astype(numpy.uint32)
        check_f32(main_lib, name, bits.view(numpy.float32))


def within(low: float, high: float, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: function(x) if low <= x <= high else mp.nan


INF = float("inf")
REFERENCE_MP: dict[str, Callable[[Any], Any]] = {
    "exp": mp.exp,
    "exp2": lambda x: mpf(2) ** x,
    "expm1": mp.expm1,
    "log": within(0, INF, mp.log),
    "log2": within(0, INF, lambda x: mp.log(x) / mp.log(2)),
    "log10": within(0, INF, mp.log10),
    "log1p": within(-1, INF, mp.log1p),
    "sin": mp.sin,
    "cos": mp.cos,
    "tan": mp.tan,
    "asin": within(-1, 1, mp.asin),
    "acos": within(-1, 1, mp.acos),
    "atan": mp.atan,
    "sinh": mp.sinh,
    "cosh": mp.cosh,
    "tanh": mp.tanh,
    "asinh": mp.asinh,
    "acosh": within(1, INF, mp.acosh),
    "atanh": within(-1, 1, mp.atanh),
    "erf": mp.erf,
    "erfc": mp.erfc,
    "erfinv": within(-1, 1, mp.erfinv),
    "sigmoid": lambda x: 1 / (1 + mp.exp(-x)),
    "rsqrt": within(0, INF, lambda x: 1 / mp.sqrt(x)),
    "lgamma": mp.loggamma,
    "digamma": mp.digamma,
    "i0": lambda x: mp.besseli(0, x),
    "i1": lambda x: mp.besseli(1, x),
    "i0e": lambda x: mp.besseli(0, x) * mp.exp(-abs(x)),
    "i1e": lambda x: mp.besseli(1, x) * mp.exp(-abs(x)),
}
# Where mpmath would need more memory than there is, or more time.
REACH = {"exp": 1e4, "exp2": 1e4, "expm1": 1e4, "sinh": 1e4, "cosh": 1e4, "sigmoid": 1e4, "erf": 50, "erfc": 50}
REACH |= {"i0": 2000, "i1": 2000, "i0e": 2000, "i1e": 2000}
POSITIVE = ("lgamma", "digamma")  # see test_gamma_functions_below_zero


def points_f64(name: str, count: int) -> Array:
    rng = numpy.random.default_rng(20240229)
    bits = rng.integers(0, 2**64, count, dtype=numpy.uint64).view(numpy.float64)
    spread = [rng.normal(0, scale, count) for scale in (0.1, 1, 10, 300)]
    near_one = [1 + rng.normal(0, scale, count // 4) for scale in (1e-12, 1e-6, 1e-3, 0.1)]
    # The last is the double nearest to a multiple of π/2.
    special = numpy.array([*SPECIAL, 1.4616321449683623, 6381956970095103 * 2.0**797])
    x = numpy.concatenate([bits, *spread, *near_one, rng.uniform(-1, 1, count), rng.uniform(-15, 15, count)])
    x = numpy.concatenate([x, special, -special])
    x = x[numpy.isfinite(x) & (numpy.abs(x) <= REACH.get(name, numpy.inf))]
    return x[x > 0] if name in POSITIVE else x


def ulps_f64(got: float, true: Any) -> float:
    if mp.isnan(true) or numpy.isnan(got):
        return 0.0 if mp.isnan(true) and numpy.isnan(got) else INF
    if mp.isinf(true):
        return 0.0 if got == float(true) else INF
    if true == 0:
        return 0.0 if got == 0 else INF
    bound = mpf(2) ** 1024
    exponent = min(max(mpmath.frexp(true)[1] - 53, -1074), 971)
    as_number = mp.sign(got) * bound if numpy.isinf(got) else mpf(float(got))
    return float(abs(as_number - min(max(true, -bound), bound)) / mpf(2) ** exponent)


def check_f64(lib: ctypes.CDLL, name: str, count: int) -> None:
    x = points_f64(name, count)
    (got,) = call(lib, f"ig_{name}_f64", x, outputs=["f64"])
    limit = TIGHT.get(name, 4.0)
    with mp.workprec(160):
        for argument, value in zip(x, got, strict=True):
            try:
                true = REFERENCE_MP[name](mpf(float(argument)))
            except (ZeroDivisionError, ValueError):
                continue  # a pole: test_special_values
            error = ulps_f64(value, true)
            assert error <= limit, f"{name}({argument!r}) is {value!r}, not {mpmath.nstr(true, 20)}: {error} ulp"


def test_every_inexact_function_has_a_reference() -> None:
    assert set(REFERENCE_MP) == set(UNARY) - set(EXACT)


@pytest.mark.parametrize("name", REFERENCE_MP)
def test_f64(main_lib: ctypes.CDLL, name: str) -> None:
    check_f64(main_lib, name, 400)


def test_f64_of_every_build(lib: ctypes.CDLL) -> None:
    for name in REFERENCE_MP:
        check_f64(lib, name, 60)


@pytest.mark.slow
@pytest.mark.parametrize("name", REFERENCE_MP)
def test_f64_densely(main_lib: ctypes.CDLL, name: str) -> None:
    check_f64(main_lib, name, 8000)


@pytest.mark.parametrize("name", EXACT)
def test_f64_exact(main_lib: ctypes.CDLL, name: str) -> None:
    halves = numpy.arange(-50, 50) / 2
    large = numpy.array([2.0**51 + 0.5, 2.0**52 - 0.5, 2.0**52 + 1, 2.0**53, 0.49999999999999994])
    x = numpy.concatenate([points_f64(name, 1000), halves, large, -large, [numpy.inf, -numpy.inf, numpy.nan]])
    (got,) = call(main_lib, f"ig_{name}_f64", x, outputs=["f64"])
    with numpy.errstate(all="ignore"):
        numpy.testing.assert_array_equal(got, REFERENCE_F64[name](x))
        assert numpy.array_equal(numpy.signbit(got), numpy.signbit(REFERENCE_F64[name](x))) or name == "sqrt"


NAN = float("nan")
SPECIAL_VALUES: dict[str, list[tuple[float, float]]] = {
    "exp": [(INF, INF), (-INF, 0.0), (NAN, NAN), (0.0, 1.0), (-0.0, 1.0)],
    "exp2": [(INF, INF), (-INF, 0.0), (NAN, NAN), (0.0, 1.0), (10.0, 1024.0), (-3.0, 0.125)],
    "expm1": [(INF, INF), (-INF, -1.0), (NAN, NAN), (0.0, 0.0), (-0.0, -0.0)],
    "log": [(INF, INF), (-INF, NAN), (NAN, NAN), (0.0, -INF), (-0.0, -INF), (1.0, 0.0), (-1.0, NAN)],
    "log2": [(INF, INF), (NAN, NAN), (0.0, -INF), (1.0, 0.0), (8.0, 3.0), (0.125, -3.0), (-1.0, NAN)],
    "log10": [(INF, INF), (NAN, NAN), (0.0, -INF), (1.0, 0.0), (1000.0, 3.0), (-1.0, NAN)],
    "log1p": [(INF, INF), (NAN, NAN), (-1.0, -INF), (0.0, 0.0), (-0.0, -0.0), (-2.0, NAN), (-INF, NAN)],
    "sin": [(INF, NAN), (-INF, NAN), (NAN, NAN), (0.0, 0.0), (-0.0, -0.0)],
    "cos": [(INF, NAN), (-INF, NAN), (NAN, NAN), (0.0, 1.0), (-0.0, 1.0)],
    "tan": [(INF, NAN), (NAN, NAN), (0.0, 0.0), (-0.0, -0.0)],
    "asin": [(INF, NAN), (NAN, NAN), (0.0, 0.0), (-0.0, -0.0), (1.0, numpy.pi / 2), (1.5, NAN)],
    "acos": [(INF, NAN), (NAN, NAN), (1.0, 0.0), (-1.0, numpy.pi), (-1.5, NAN)],
    "atan": [(INF, numpy.pi / 2), (-INF, -numpy.pi / 2), (NAN, NAN), (-0.0, -0.0)],
    "sinh": [(INF, INF), (-INF, -INF), (NAN, NAN), (-0.0, -0.0)],
    "cosh": [(INF, INF), (-INF, INF), (NAN, NAN), (0.0, 1.0)],
    "tanh": [(INF, 1.0), (-INF, -1.0), (NAN, NAN), (0.0, 0.0), (-0.0, -0.0)],
    "asinh": [(INF, INF), (-INF, -INF), (NAN, NAN), (-0.0, -0.0)],
    "acosh": [(INF, INF), (-INF, NAN), (NAN, NAN), (1.0, 0.0), (0.5, NAN)],
    "atanh": [(INF, NAN), (NAN, NAN), (1.0, INF), (-1.0, -INF), (-0.0, -0.0), (1.5, NAN)],
    "erf": [(INF, 1.0), (-INF, -1.0), (NAN, NAN), (0.0, 0.0), (-0.0, -0.0)],
    "erfc": [(INF, 0.0), (-INF, 2.0), (NAN, NAN), (0.0, 1.0)],
    "erfinv": [(1.0, INF), (-1.0, -INF), (NAN, NAN), (INF, NAN), (1.5, NAN), (0.0, 0.0), (-0.0, -0.0)],
    "sigmoid": [(INF, 1.0), (-INF, 0.0), (NAN, NAN), (0.0, 0.5)],
    "rsqrt": [(INF, 0.0), (0.0, INF), (-0.0, -INF), (-1.0, NAN), (NAN, NAN), (4.0, 0.5)],
    "lgamma": [
        (INF, INF),
        (-INF, INF),
        (NAN, NAN),
        (0.0, INF),
        (-0.0, INF),
        (-1.0, INF),
        (-7.0, INF),
        (1.0, 0.0),
        (2.0, 0.0),
    ],
    "digamma": [(INF, INF), (-INF, NAN), (NAN, NAN), (0.0, -INF), (-0.0, INF), (-1.0, NAN)],
    "i0": [(INF, INF), (-INF, INF), (NAN, NAN), (0.0, 1.0)],
    "i1": [(INF, INF), (-INF, -INF), (NAN, NAN), (-0.0, -0.0)],
    "i0e": [(INF, 0.0), (-INF, 0.0), (NAN, NAN), (0.0, 1.0)],
    "i1e": [(INF, 0.0), (-INF, -0.0), (NAN, NAN), (-0.0, -0.0)],
}


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_special_values(lib: ctypes.CDLL, kind: str) -> None:
    dtype = {"f32": numpy.float32, "f64": numpy.float64}[kind]
    # Vectors and their remainders are different code: the values stand in both.
    for name, table in SPECIAL_VALUES.items():
        x, want = (numpy.array(column * 41, dtype) for column in zip(*table, strict=True))
        (got,) = call(lib, f"ig_{name}_{kind}", x, outputs=[kind])
        numpy.testing.assert_array_equal(got, want, err_msg=name)
        known = ~numpy.isnan(want)
        numpy.testing.assert_array_equal(numpy.signbit(got[known]), numpy.signbit(want[known]), err_msg=name)


def test_gamma_functions_below_zero(main_lib: ctypes.CDLL) -> None:
    """Within a few units of the larger of 1 and the result: near a zero that is not within a few of the result."""
    rng = numpy.random.default_rng(1)
    x = numpy.concatenate([-rng.uniform(0, 30, 1000), -(10.0 ** rng.uniform(-300, 0, 200))])
    for name in POSITIVE:
        (got,) = call(main_lib, f"ig_{name}_f64", x, outputs=["f64"])
        for argument, value in zip(x, got, strict=True):
            with mp.workprec(160):
                true = mp.re(REFERENCE_MP[name](mpf(float(argument))))
                # The derivative's size is the cotangent's, squared; its argument is rounded once.
                steep = abs(mp.digamma(mpf(float(argument)))) ** 2 * abs(argument) if name == "digamma" else 0
                allowed = (20 * max(1, abs(true)) + 4 * steep + 4 * abs(argument)) * mpf(2) ** -53
                assert abs(mpf(float(value)) - true) <= allowed, (name, argument, value, true)


def pairs(kind: str, count: int) -> tuple[Array, Array]:
    """Random bits, ordinary numbers, and every pair of special values."""
    rng = numpy.random.default_rng(5)
    dtype, word = (numpy.float32, numpy.uint32) if kind == "f32" else (numpy.float64, numpy.uint64)
    bits = rng.integers(0, numpy.iinfo(word).max, (2, count), dtype=word).view(dtype)
    ordinary = rng.normal(0, 10, (2, count)).astype(dtype)
    near = numpy.stack([1 + rng.normal(0, 1e-3, count), rng.normal(0, 3e4, count)]).astype(dtype)
    tiny, huge = numpy.finfo(dtype).smallest_subnormal, numpy.finfo(dtype).max
    values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 7.0, 1e9, 2.0**24 + 1, tiny, numpy.finfo(dtype).tiny, huge, INF, NAN]
    special = numpy.array(values + [-v for v in values], dtype)
    a, b = (grid.ravel() for grid in numpy.meshgrid(special, special))
    return numpy.concatenate([bits[0], ordinary[0], near[0], a]), numpy.concatenate([bits[1], ordinary[1], near[1], b])


def test_f32_of_two_arguments(lib: ctypes.CDLL) -> None:
    a, b = pairs("f32", 60_000)
    references: dict[str, Callable[[Array, Array], Array]] = {
        "pow": numpy.power,
        "atan2": numpy.arctan2,
        "hypot": numpy.hypot,
    }
    for name, reference in references.items():
        (got,) = call(lib, f"ig_{name}_f32", a, b, outputs=["f32"])
        with numpy.errstate(all="ignore"):
            true = reference(a.astype(numpy.float64), b.astype(numpy.float64))
        error = ulps_f32(got, true)
        worst = int(numpy.argmax(error))
        assert error[worst] <= 4, f"{name}({a[worst]!r}, {b[worst]!r}) is {got[worst]!r}, not {true[worst]!r}"


def test_f64_of_two_arguments(main_lib: ctypes.CDLL) -> None:
    a, b = pairs("f64", 1500)
    rng = numpy.random.default_rng(6)
    # Powers near the ends of the range, where the logarithm's error counts most.
    base = 10.0 ** rng.uniform(-300, 300, 1500)
    a = numpy.concatenate([a, base])
    b = numpy.concatenate([b, rng.uniform(-745, 710, 1500) / numpy.log(base)])
    references: dict[str, Callable[[Any, Any], Any]] = {"pow": mp.power, "atan2": mp.atan2, "hypot": mp.hypot}
    numpys = {"pow": numpy.power, "atan2": numpy.arctan2, "hypot": numpy.hypot}
    for name, reference in references.items():
        (got,) = call(main_lib, f"ig_{name}_f64", a, b, outputs=["f64"])
        with numpy.errstate(all="ignore"):
            rough = numpys[name](a, b)
        ordinary = numpy.isfinite(a) & numpy.isfinite(b) & numpy.isfinite(rough) & (rough != 0) & (a != 0)
        # numpy itself is exact on what is not: zeros, infs and nans.
        numpy.testing.assert_array_equal(got[~ordinary], rough[~ordinary], err_msg=name)
        numpy.testing.assert_array_equal(
            numpy.signbit(got[~ordinary & ~numpy.isnan(rough)]), numpy.signbit(rough[~ordinary & ~numpy.isnan(rough)])
        )
        with mp.workprec(200):
            for x, y, value in zip(a[ordinary], b[ordinary], got[ordinary], strict=True):
                error = ulps_f64(value, reference(mpf(float(x)), mpf(float(y))))
                assert error <= 4, f"{name}({x!r}, {y!r}) is {value!r}: {error} ulp"
