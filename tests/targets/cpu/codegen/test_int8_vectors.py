"""Vectors written by hand: what each function of c/simd.h gives, lane by lane."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy
import pytest
import torch

from ingot.targets.cpu.codegen.headers import resource
from tests.codegen.math_harness import builds, compile_c, isa_flags

MAIN = builds()[0]
pytestmark = pytest.mark.skipif(MAIN.isa != "x86-64-v4", reason="these vectors are of 64 bytes")

# Loops over arrays of a multiple of 16 values.
_LOOPS = """
#define LOOP(name, from, to, statement) \\
    void v_##name(const from *x, to *y, int64_t n) { for (int64_t i = 0; i < n; i += 16) { statement; } }
LOOP(erf, float, float, ig_lanes_put_f32(y + i, ig_lanes_near_erf_f32(ig_lanes_get_f32(x + i))))
LOOP(near, float, int32_t, ig_lanes_put_i32(y + i, ig_lanes_near_f32(ig_lanes_get_f32(x + i))))
LOOP(more, float, float, ig_lanes_put_f32(y + i, ig_lanes_more_f32(ig_lanes_get_f32(x + i), ig_lanes_same_f32(1))))
LOOP(less, float, float, ig_lanes_put_f32(y + i, ig_lanes_less_f32(ig_lanes_get_f32(x + i), ig_lanes_same_f32(1))))
LOOP(from_u8, uint8_t, int32_t, ig_lanes_put_i32(y + i, ig_lanes_get_u8(x + i)))
LOOP(from_i8, int8_t, int32_t, ig_lanes_put_i32(y + i, ig_lanes_get_i8(x + i)))
LOOP(to_u8, int32_t, uint8_t, ig_lanes_put_u8(y + i, ig_lanes_get_i32(x + i)))
"""


@pytest.fixture(scope="module")
def lib(compiled_folder: Path) -> ctypes.CDLL:
    source = "#include <string.h>\n" + resource("vectors.h") + resource("simd.h") + _LOOPS
    return ctypes.CDLL(str(compile_c(compiled_folder, source, MAIN.compiler, isa_flags(MAIN))))


def call(lib: ctypes.CDLL, name: str, x: numpy.ndarray, result: type) -> numpy.ndarray:
    x = numpy.ascontiguousarray(x[: x.size // 16 * 16])
    y = numpy.zeros(x.shape, result)
    getattr(lib, f"v_{name}")(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data), ctypes.c_int64(x.size))
    return y


def test_the_erf_before_a_rounding_is_right_to_six_digits(lib: ctypes.CDLL) -> None:
    x = numpy.concatenate([numpy.linspace(-6, 6, 1 << 20), numpy.geomspace(1e-30, 1e30, 1 << 16)]).astype(numpy.float32)
    error = numpy.abs(call(lib, "erf", x, numpy.float32) - torch.erf(torch.from_numpy(x).double()).numpy())
    assert error.max() < 6e-7


def test_rounding_is_half_to_even(lib: ctypes.CDLL) -> None:
    x = numpy.arange(-400_000, 400_000, dtype=numpy.float32) / 4
    numpy.testing.assert_array_equal(call(lib, "near", x, numpy.int32), numpy.rint(x))


def test_of_nan_and_a_number_the_second_counts(lib: ctypes.CDLL) -> None:
    x = numpy.array([numpy.nan, -numpy.inf, numpy.inf, 0.5] * 4, numpy.float32)
    numpy.testing.assert_array_equal(call(lib, "more", x, numpy.float32), [1, 1, numpy.inf, 1] * 4)
    numpy.testing.assert_array_equal(call(lib, "less", x, numpy.float32), [1, -numpy.inf, 1, 0.5] * 4)


def test_bytes_come_and_go(lib: ctypes.CDLL) -> None:
    every = numpy.arange(256)
    numpy.testing.assert_array_equal(call(lib, "from_u8", every.astype(numpy.uint8), numpy.int32), every)
    numpy.testing.assert_array_equal(call(lib, "from_i8", (every - 128).astype(numpy.int8), numpy.int32), every - 128)
    numpy.testing.assert_array_equal(call(lib, "to_u8", every.astype(numpy.int32), numpy.uint8), every)
