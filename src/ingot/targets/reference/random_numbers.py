"""Random draws: each a pure function of a seed, the number of the draw and the element's place.

Philox 4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011), as the CPU's
native code has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ingot.targets.reference.memory import Array

Words: TypeAlias = NDArray[np.uint64]

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_FACTORS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85


def philox(seed: int, draw: int, place: Array) -> tuple[Words, Words, Words, Words]:
    """128 random bits for each place, as four words of 32."""
    place = place.astype(np.uint64)
    a, b = place & _LOW, place >> _HALF
    c, d = (np.full_like(place, word) for word in (draw & 0xFFFFFFFF, draw >> 32))
    for turn in range(10):
        low, high = (
            np.uint64((part + turn * step) & 0xFFFFFFFF)
            for part, step in zip((seed & 0xFFFFFFFF, seed >> 32), _KEY_STEPS, strict=True)
        )
        first, second = _FACTORS[0] * a, _FACTORS[1] * c
        a, b, c, d = (second >> _HALF) ^ b ^ low, second & _LOW, (first >> _HALF) ^ d ^ high, first & _LOW
    return a, b, c, d


def _unit(high: Words, low: Words) -> NDArray[np.float64]:
    """53 bits as an integer below 2^53, of two words."""
    return (high >> np.uint64(5)).astype(np.float64) * 2.0**26 + (low >> np.uint64(6)).astype(np.float64)


def _uniform_f32(seed: int, draw: int, place: Array) -> Array:
    return (philox(seed, draw, place)[0] >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24)


def _uniform_f64(seed: int, draw: int, place: Array) -> Array:
    a, b, _, _ = philox(seed, draw, place)
    return _unit(a, b) * 2.0**-53


def _normal_f32(seed: int, draw: int, place: Array) -> Array:
    a, b, _, _ = philox(seed, draw, place)
    radius = ((a >> np.uint64(1)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-31)
    turned = (b.astype(np.uint32).view(np.int32) >> np.int32(8)).astype(np.float32)
    angle = turned * np.float32(np.float32(6.2831853) * np.float32(2.0**-24))
    return np.asarray(np.sqrt(-2 * np.log(radius.astype(np.float64))) * np.cos(angle.astype(np.float64)), np.float32)


def _normal_f64(seed: int, draw: int, place: Array) -> Array:
    a, b, c, d = philox(seed, draw, place)
    radius = (_unit(a, b) + 0.5) * 2.0**-53
    angle = (_unit(c, d) - 2.0**52) * (6.283185307179586 * 2.0**-53)
    return np.asarray(np.sqrt(-2 * np.log(radius)) * np.cos(angle))


def _multiply_high(x: Words, y: Words) -> Words:
    """The upper half of a product of 128 bits."""
    x0, x1, y0, y1 = x & _LOW, x >> _HALF, y & _LOW, y >> _HALF
    low = x1 * y0 + (x0 * y0 >> _HALF)
    middle = x0 * y1 + (low & _LOW)
    return np.asarray(x1 * y1 + (low >> _HALF) + (middle >> _HALF))


def _randint_i64(seed: int, draw: int, place: Array, low: Array, high: Array) -> Array:
    a, b, c, d = philox(seed, draw, place)
    start = low.astype(np.uint64)
    span = high.astype(np.uint64) - start
    upper, lower = a << _HALF | b, c << _HALF | d
    rest = upper * span
    carried = rest + _multiply_high(lower, span)
    return (start + _multiply_high(upper, span) + (carried < rest).astype(np.uint64)).view(np.int64)


DRAWS: dict[str, Callable[..., Array]] = {
    "uniform_f32": _uniform_f32,
    "uniform_f64": _uniform_f64,
    "normal_f32": _normal_f32,
    "normal_f64": _normal_f64,
    "randint_i64": _randint_i64,
}
