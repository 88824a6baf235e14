"""What must be exact: conversions, division with remainder, scaling, integers."""

from __future__ import annotations

import ctypes
import math
from pathlib import Path

import numpy
import pytest
import torch

from tests.codegen.math_harness import INTEGER_OPS, INTEGERS, TYPES, builds, call, library

Array = numpy.ndarray
BUILDS = builds()
INF, NAN = float("inf"), float("nan")


@pytest.fixture(scope="module", params=BUILDS, ids=str)
def lib(request: pytest.FixtureRequest, compiled_folder: Path) -> ctypes.CDLL:
    return library(compiled_folder, request.param)


@pytest.fixture(scope="module")
def main_lib(compiled_folder: Path) -> ctypes.CDLL:
    return library(compiled_folder, BUILDS[0])


def same_floats(got: Array, want: Array) -> None:
    """Equal bits, but a nan is a nan."""
    numpy.testing.assert_array_equal(numpy.isnan(got), numpy.isnan(want))
    known = ~numpy.isnan(want)
    word = {2: numpy.uint16, 4: numpy.uint32, 8: numpy.uint64}[want.itemsize]
    numpy.testing.assert_array_equal(got[known].view(word), want[known].view(word))


def floats(kind: str, count: int) -> Array:
    """Random bits, ordinary and special numbers."""
    rng = numpy.random.default_rng(11)
    dtype, word = (numpy.float32, numpy.uint32) if kind == "f32" else (numpy.float64, numpy.uint64)
    bits = rng.integers(0, numpy.iinfo(word).max, count, dtype=word).view(dtype)
    ordinary = rng.normal(0, 100, count).astype(dtype)
    info = numpy.finfo(dtype)
    values = [0.0, 0.5, 1.0, 1.5, 2.5, 3.0, 1e9, info.tiny, info.smallest_subnormal, info.max, INF, NAN]
    special = numpy.array(values + [-v for v in values], dtype)
    return numpy.concatenate([bits, ordinary, special])


class TestNarrowFloats:
    def test_every_float16(self, lib: ctypes.CDLL) -> None:
        every = numpy.arange(2**16, dtype=numpy.uint16)
        (got,) = call(lib, "ig_f16_to_f32", every, outputs=["f32"])
        same_floats(got, every.view(numpy.float16).astype(numpy.float32))

    def test_every_bfloat16(self, lib: ctypes.CDLL) -> None:
        every = numpy.arange(2**16, dtype=numpy.uint16)
        (got,) = call(lib, "ig_bf16_to_f32", every, outputs=["f32"])
        same_floats(got, (every.astype(numpy.uint32) << 16).view(numpy.float32))

    @pytest.mark.parametrize("kind", ["f32", "f64"])
    def test_narrowing(self, lib: ctypes.CDLL, kind: str) -> None:
        # Every narrow value, the halves between two, and the neighbours of both: where rounding decides.
        every = numpy.arange(2**16, dtype=numpy.uint16)
        narrow = torch.from_numpy(every.view(numpy.int16).copy())
        wide = torch.cat([narrow.view(t).to(torch.float64) for t in (torch.float16, torch.bfloat16)]).numpy()
        wide = numpy.sort(wide[numpy.isfinite(wide)])
        halves = (wide[1:] + wide[:-1]) / 2
        dtype = TYPES[kind][1]
        x = numpy.concatenate([wide, halves]).astype(dtype)
        x = numpy.concatenate([x, numpy.nextafter(x, dtype(INF)), numpy.nextafter(x, dtype(-INF)), floats(kind, 10**5)])
        for target, tensor_type in (("f16", torch.float16), ("bf16", torch.bfloat16)):
            (bits,) = call(lib, f"ig_{kind}_to_{target}", x, outputs=[target])
            got = torch.from_numpy(bits.view(numpy.int16)).view(tensor_type).to(torch.float32).numpy()
            wanted = torch.from_numpy(x).to(torch.float32).to(tensor_type).to(torch.float32).numpy()
            same_floats(got, wanted)
            if kind == "f32":
                (got,) = call(lib, f"ig_as_{target}_f32", x, outputs=["f32"])
                same_floats(got, wanted)

    def test_a_nan_whose_payload_is_low_stays_a_nan(self, main_lib: ctypes.CDLL) -> None:
        nans = numpy.array([0x7F800001, 0xFF800001, 0x7FC00000, 0x7FFFFFFF], numpy.uint32).view(numpy.float32)
        for target, first in (("f16", 0x7C00), ("bf16", 0x7F80)):
            (bits,) = call(main_lib, f"ig_f32_to_{target}", nans, outputs=[target])
            assert ((bits & 0x7FFF) > first).all()


class TestWholeNumbersFromFloats:
    @pytest.mark.parametrize("target", INTEGERS)
    @pytest.mark.parametrize("kind", ["f32", "f64"])
    def test_in_range(self, lib: ctypes.CDLL, kind: str, target: str) -> None:
        dtype, info = TYPES[kind][1], numpy.iinfo(TYPES[target][1])
        rng = numpy.random.default_rng(3)
        spread = numpy.concatenate([rng.uniform(info.min, info.max, 2000), rng.uniform(-3, 300, 2000)])
        ends = [float(info.min), float(info.max), info.min + 0.5, info.max - 0.5, 0.99, -0.99]
        x = numpy.concatenate([spread, ends]).astype(dtype)
        x = (
            x[(x > info.min - 1.0) & (x.astype(numpy.longdouble) <= info.max)]
            if info.bits < 64
            else x[(x >= info.min) & (x.astype(numpy.longdouble) <= info.max)]
        )
        (got,) = call(lib, f"ig_{kind}_to_{target}", x, outputs=[target])
        assert got.tolist() == [int(v) for v in x]

    def test_low_bits_like_torch(self, main_lib: ctypes.CDLL) -> None:
        x = numpy.array([-1.0, -1.5, 256.0, 300.7, -129.0, 65537.0], numpy.float32)
        for target, tensor_type in (("i8", torch.int8), ("u8", torch.uint8), ("i16", torch.int16)):
            (got,) = call(main_lib, f"ig_f32_to_{target}", x, outputs=[target])
            assert got.tolist() == torch.from_numpy(x).to(tensor_type).tolist()

    @pytest.mark.parametrize("kind", ["f32", "f64"])
    def test_out_of_range_is_defined(self, lib: ctypes.CDLL, kind: str) -> None:
        x = numpy.array([INF, -INF, NAN, 1e30, -1e30], TYPES[kind][1])
        expected = {"i32": -(2**31), "i64": -(2**63), "u64": 2**63, "u32": 0, "i16": 0, "u16": 0, "i8": 0, "u8": 0}
        for target, value in expected.items():
            (got,) = call(lib, f"ig_{kind}_to_{target}", x, outputs=[target])
            assert got.tolist() == [value] * 5, target

    @pytest.mark.parametrize("integer", ["i32", "i64"])
    @pytest.mark.parametrize("kind", ["f32", "f64"])
    def test_through_an_integer_is_both_casts(self, lib: ctypes.CDLL, kind: str, integer: str) -> None:
        ends = numpy.array([s * 2.0**e for s in (1, -1) for e in (31, 63)], TYPES[kind][1])
        near = [numpy.nextafter(ends, ends * 0), numpy.nextafter(ends, ends * 2), ends + 1, ends - 1, ends + 0.5]
        x = numpy.concatenate([floats(kind, 10**5), ends, *near, ends[2:] / 4096]).astype(TYPES[kind][1])
        (got,) = call(lib, f"ig_through_{integer}_{kind}", x, outputs=[kind])
        (whole,) = call(lib, f"ig_{kind}_to_{integer}", x, outputs=[integer])
        same_floats(got, whole.astype(TYPES[kind][1]))


class TestFloatDivision:
    @pytest.mark.parametrize("kind", ["f32", "f64"])
    def test_fmod(self, lib: ctypes.CDLL, kind: str) -> None:
        a, b = floats(kind, 3000), floats(kind, 3000)[::-1].copy()
        special = floats(kind, 0)
        a, b = (
            numpy.concatenate([x, g.ravel()]) for x, g in zip((a, b), numpy.meshgrid(special, special), strict=True)
        )
        (got,) = call(lib, f"ig_fmod_{kind}", a, b, outputs=[kind])
        with numpy.errstate(all="ignore"):
            same_floats(got, numpy.fmod(a, b))
        finite = numpy.isfinite(a) & numpy.isfinite(b) & (b != 0)
        # Python's own is exact for floats too.
        assert got[finite].tolist() == list(map(math.fmod, a[finite].tolist(), b[finite].tolist()))

    @pytest.mark.parametrize("kind", ["f32", "f64"])
    def test_remainder_and_floor_divide_like_torch(self, lib: ctypes.CDLL, kind: str) -> None:
        rng = numpy.random.default_rng(4)
        dtype = TYPES[kind][1]
        a, b = rng.normal(0, 50, (2, 2000)).astype(dtype)
        whole = rng.integers(-9, 10, (2, 1000)).astype(dtype)
        tenths = numpy.stack([rng.integers(-99, 99, 1000) * 0.1, rng.integers(1, 9, 1000) * 0.1]).astype(dtype)
        special = floats(kind, 0)
        grids = numpy.stack([g.ravel() for g in numpy.meshgrid(special, special)])
        a, b = (numpy.concatenate([x, w, t, g]) for x, w, t, g in zip((a, b), whole, tenths, grids, strict=True))
        for name, of_torch in (("remainder", torch.remainder), ("floor_divide", torch.floor_divide)):
            (got,) = call(lib, f"ig_{name}_{kind}", a, b, outputs=[kind])
            # One pair at a time: torch's vector code gives nan where a quotient overflows, its scalar code does not.
            want = [of_torch(x, y) for x, y in zip(torch.from_numpy(a), torch.from_numpy(b), strict=True)]
            same_floats(got, torch.stack(want).numpy())


class TestNearest:
    def test_halves_go_to_the_even_one(self, lib: ctypes.CDLL) -> None:
        """Both are for numbers between -2^22 and 2^22."""
        rng = numpy.random.default_rng(9)
        whole = rng.integers(-(2**22) + 1, 2**22, 20_000)
        near = [whole + step for step in (0, 0.5, 0.25, -0.25, 2**-23)]
        x = numpy.concatenate([*near, rng.normal(0, 3, 5_000), [0.0, -0.0, 0.5, -0.5, 1.5, 1e-30]]).astype(
            numpy.float32
        )
        x = x[numpy.abs(x) < 2**22]
        (got,) = call(lib, "ig_round_to_int_f32", x, outputs=["i32"])
        numpy.testing.assert_array_equal(got, numpy.rint(x).astype(numpy.int32))
        (got,) = call(lib, "ig_round_to_float_f32", x, outputs=["f32"])
        numpy.testing.assert_array_equal(got, numpy.rint(x))


class TestScaling:
    @pytest.mark.parametrize("kind", ["f32", "f64"])
    def test_ldexp_rounds_once(self, lib: ctypes.CDLL, kind: str) -> None:
        x = floats(kind, 20_000)
        rng = numpy.random.default_rng(8)
        n = numpy.concatenate([rng.integers(-300, 300, x.size - 8), [2**31 - 1, -(2**31), 5000, -5000, 0, 1, -1, 2100]])
        n = n.astype(numpy.int32)
        (got,) = call(lib, f"ig_ldexp_{kind}", x, n, outputs=[kind])
        with numpy.errstate(all="ignore"):
            same_floats(got, numpy.ldexp(x, n))

    @pytest.mark.parametrize("kind", ["f32", "f64"])
    def test_frexp(self, lib: ctypes.CDLL, kind: str) -> None:
        x = floats(kind, 20_000)
        got, exponent = call(lib, f"ig_frexp_{kind}", x, outputs=[kind, "i32"])
        want, want_exponent = numpy.frexp(x)
        same_floats(got, want)
        finite = numpy.isfinite(x)
        numpy.testing.assert_array_equal(exponent[finite], want_exponent[finite])

    @pytest.mark.parametrize("kind", ["f32", "f64"])
    def test_nextafter_and_copysign(self, lib: ctypes.CDLL, kind: str) -> None:
        special = floats(kind, 0)
        grids = [g.ravel() for g in numpy.meshgrid(special, special)]
        values = floats(kind, 3000)
        a, b = numpy.concatenate([grids[0], values]), numpy.concatenate([grids[1], values[::-1]])
        (got,) = call(lib, f"ig_nextafter_{kind}", a, b, outputs=[kind])
        with numpy.errstate(all="ignore"):
            same_floats(got, numpy.nextafter(a, b))
        (got,) = call(lib, f"ig_copysign_{kind}", a, b, outputs=[kind])
        same_floats(got, numpy.copysign(a, b))


def expected(op: str, a: int, b: int) -> int:
    """In Python's integers, which never wrap."""
    if op == "floordiv":
        return a // b
    if op == "remainder":
        return a % b
    quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return quotient if op == "truncdiv" else a - quotient * b


def wrapped(value: int, kind: str) -> int:
    info = numpy.iinfo(TYPES[kind][1])
    return (value - info.min) % 2**info.bits + info.min


def integer_pairs(kind: str) -> tuple[Array, Array]:
    """Every pair of the 8-bit types; of the others the ends, small numbers and random ones."""
    dtype, info = TYPES[kind][1], numpy.iinfo(TYPES[kind][1])
    if info.bits == 8:
        every = numpy.arange(info.min, info.max + 1).astype(dtype)
    else:
        rng = numpy.random.default_rng(9)
        ends = [info.min, info.min + 1, info.max, info.max - 1, *range(0 if info.min == 0 else -5, 6)]
        every = numpy.concatenate([numpy.array(ends, dtype), rng.integers(info.min, info.max, 60, dtype)])
    a, b = numpy.meshgrid(every, every)
    return a.ravel(), b.ravel()


class TestWholeNumbers:
    @pytest.mark.parametrize("kind", INTEGERS)
    @pytest.mark.parametrize("op", INTEGER_OPS)
    def test_division(self, lib: ctypes.CDLL, op: str, kind: str) -> None:
        a, b = integer_pairs(kind)
        got, status = call(lib, f"ig_{op}_{kind}", a, b, outputs=[kind, "i32"])
        assert status.tolist() == [5 if y == 0 else 0 for y in b.tolist()]
        want = [0 if y == 0 else wrapped(expected(op, x, y), kind) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
        assert got.tolist() == want

    @pytest.mark.parametrize("kind", INTEGERS)
    def test_power(self, lib: ctypes.CDLL, kind: str) -> None:
        a, b = integer_pairs(kind)
        (got,) = call(lib, f"ig_pow_{kind}", a, b, outputs=[kind])
        modulus = 2 ** numpy.iinfo(TYPES[kind][1]).bits
        for x, y, value in zip(a.tolist(), b.tolist(), got.tolist(), strict=True):
            if y < 0:
                assert value == (x ** (-y % 2) if abs(x) == 1 else 0), (x, y)
            else:
                assert value == wrapped(pow(x, y, modulus), kind), (x, y)
