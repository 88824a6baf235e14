"""Scalar operations of bodies on NumPy arrays: one function per name.

Values have the dtype that they are computed in: float32 or float64, an integer type, bool. What NumPy rounds carelessly
in float32, and what it has no function for, is computed in float64 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch

from ingot.lowering.dtypes import BYTES, INTEGERS
from ingot.targets.base import Fault
from ingot.targets.reference.memory import Array, round_to_bfloat16
from ingot_runtime.errors import DivisionByZero

Function: TypeAlias = Callable[..., Any]

# ---------------------------------------------------------------------- casts


def cast(value: Array, dtype: str) -> Array:
    """The value as this dtype; that of a half dtype stays float32, and is rounded."""
    if dtype == "bfloat16":
        return round_to_bfloat16(value.astype(np.float32))
    if dtype == "float16":
        return value.astype(np.float32).astype(np.float16).astype(np.float32)
    if dtype == "bool":
        return np.asarray(value != 0)
    if value.dtype.kind == "f" and dtype in INTEGERS:
        return _truncate(value, dtype)
    return value.astype(dtype)


def bitcast(value: Array, before: str, after: str) -> Array:
    """The bits of a value of a dtype as a value of another one; a half is computed in float32."""
    if before == "bfloat16":
        bits = (round_to_bfloat16(value).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    else:
        bits = value.astype(before, copy=False)
    if after == "bfloat16":
        return (bits.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return bits.view(after).astype(np.float32) if after == "float16" else bits.view(after)


def _truncate(value: Array, dtype: str) -> Array:
    """Towards zero. What does not fit is the smallest number of the type, as on x86; narrow types then keep the lowest
    bits."""
    if dtype == "uint64":
        high = value >= 2.0**63
        low = np.where(high, value - 2.0**63, value)
        fits = (low >= -(2.0**63)) & (low < 2.0**63)
        whole = np.where(fits, low, 0).astype(np.int64).astype(np.uint64)
        return np.where(fits, whole ^ (high.astype(np.uint64) << np.uint64(63)), np.uint64(1 << 63))
    through = "int32" if dtype in ("int8", "int16", "int32") else "int64"
    return _truncate_signed(value, through).astype(dtype)


def _truncate_signed(value: Array, through: str) -> Array:
    limits = np.iinfo(through)
    whole = np.trunc(value.astype(np.float64))
    fits = (whole >= float(limits.min)) & (whole < -float(limits.min))
    return np.where(fits, np.where(fits, whole, 0).astype(through), limits.min).astype(through)


# ---------------------------------------------------------------------- functions in float64


def _exactly(function: Function) -> Function:
    """Computes in float64 and rounds once."""

    def compute(*operands: Array) -> Any:
        return function(*(operand.astype(np.float64) for operand in operands)).astype(operands[0].dtype)

    return compute


def _special(function: Callable[[torch.Tensor], torch.Tensor]) -> Function:
    """A function that NumPy does not have, of torch's, in float64."""

    def compute(x: Array) -> Any:
        wide = np.ascontiguousarray(x, np.float64).reshape(-1)
        return function(torch.from_numpy(wide)).numpy().reshape(x.shape).astype(x.dtype)

    return compute


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1, small) / (1 + small))


_MAGIC = np.float32(1.5 * 2**23)


def _nearest(x: Array) -> Array:
    """The nearest integer of a number between -2^22 and 2^22, read off its bits as native code does."""
    shifted = np.ascontiguousarray(x + _MAGIC, np.float32)
    bits = np.asarray(shifted.view(np.uint32) - np.uint32(0x4B400000))
    return bits.view(np.int32).reshape(x.shape)


def _cast_through(through: str) -> Function:
    return lambda x: _truncate_signed(x, through).astype(x.dtype)


# ---------------------------------------------------------------------- by kind of dtype


def _choose(
    *, floating: Function | None = None, integer: Function | None = None, boolean: Function | None = None
) -> Function:
    def compute(*operands: Array) -> Any:
        kind = operands[0].dtype.kind
        chosen = floating if kind == "f" else boolean if kind == "b" and boolean is not None else integer
        if chosen is None:
            raise Fault(f"an operation has no meaning for {operands[0].dtype}")
        return chosen(*operands)

    return compute


def _identity(x: Array) -> Array:
    return x


def _sign(x: Array) -> Array:
    return np.asarray((x > 0).astype(x.dtype) - (x < 0).astype(x.dtype))


def _shift_left(a: Array, b: Array) -> Array:
    inside = (b >= 0) & (b < 8 * a.dtype.itemsize)
    return np.where(inside, np.left_shift(a, np.where(inside, b, 0).astype(b.dtype)), 0).astype(a.dtype)


def _shift_right(a: Array, b: Array) -> Array:
    most = 8 * a.dtype.itemsize - 1
    return np.asarray(np.right_shift(a, np.where((b < 0) | (b > most), most, b).astype(b.dtype)))


def _divide_checked(function: Function) -> Function:
    def compute(a: Array, b: Array) -> Any:
        if np.any(b == 0):
            raise DivisionByZero("An integer was divided by zero.")
        return function(a, b)

    return compute


def _truncdiv(a: Array, b: Array) -> Array:
    quotient = np.floor_divide(a, b)
    return np.asarray(quotient + ((np.remainder(a, b) != 0) & ((a < 0) != (b < 0))), a.dtype)


def _float_floormod(a: Array, b: Array) -> Array:
    rest = np.fmod(a, b)
    return np.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


def _float_floordiv(a: Array, b: Array) -> Array:
    """The floor of the exact quotient, as torch has it: a / b for a zero b."""
    rest = np.fmod(a, b)
    quotient = (a - rest) / b
    quotient = np.where((rest != 0) & ((rest < 0) != (b < 0)), quotient - 1, quotient)
    whole = np.floor(quotient)
    whole = np.where(quotient - whole > 0.5, whole + 1, whole)
    whole = np.where(quotient == 0, np.copysign(np.zeros_like(quotient), a / b), whole)
    return np.where(b == 0, a / b, whole)


def _integer_power(base: Array, exponent: Array) -> Array:
    """Modulo the size of the type; a negative exponent gives 0 unless the base is 1 or -1."""
    power = np.power(base, np.maximum(exponent, 0))
    parity = np.where(exponent % 2 == 0, 1, -1)
    below = np.where(base == 1, 1, np.where(base == -1, parity, 0)) if base.dtype.kind == "i" else 0
    return np.where(exponent < 0, below, power).astype(base.dtype)


_IN_FLOAT64: dict[str, Function] = {
    **{name: getattr(np, name) for name in ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "hypot")},
    **{name: getattr(np, name) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    **{name: getattr(np, f"arc{name[1:]}") for name in ("asin", "acos", "atan", "asinh", "acosh", "atanh", "atan2")},
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": _sigmoid,
}
_SPECIAL: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "erf": torch.erf,
    "erfc": torch.erfc,
    "erfinv": torch.erfinv,
    "lgamma": torch.lgamma,
    "digamma": torch.digamma,
    "i0": torch.special.i0,
    "i0e": torch.special.i0e,
    "i1": torch.special.i1,
    "i1e": torch.special.i1e,
}

SCALAR_OPS: dict[str, Function] = {
    **{name: _exactly(function) for name, function in _IN_FLOAT64.items()},
    **{name: _special(function) for name, function in _SPECIAL.items()},
    "add": _choose(floating=np.add, integer=np.add, boolean=np.logical_or),
    "sub": np.subtract,
    "mul": _choose(floating=np.multiply, integer=np.multiply, boolean=np.logical_and),
    "div": _choose(floating=np.divide),
    "reciprocal": _choose(floating=lambda x: (1 / x).astype(x.dtype)),
    "neg": np.negative,
    "square": lambda x: x * x,
    "positive": _identity,
    "abs": np.abs,
    "relu": lambda x: np.where(x < 0, np.zeros_like(x), x),
    "sign": _sign,
    "sgn": _sign,
    "max": np.maximum,
    "min": np.minimum,
    "fmax": np.fmax,
    "fmin": np.fmin,
    "sqrt": np.sqrt,
    "floor": _choose(floating=np.floor, integer=_identity),
    "ceil": _choose(floating=np.ceil, integer=_identity),
    "trunc": _choose(floating=np.trunc, integer=_identity),
    "round": _choose(floating=np.rint, integer=_identity),
    "copysign": np.copysign,
    "nextafter": np.nextafter,
    "pow": _choose(floating=_exactly(np.power), integer=_integer_power),
    "floordiv": _choose(floating=_float_floordiv, integer=_divide_checked(np.floor_divide)),
    "floormod": _choose(floating=_float_floormod, integer=_divide_checked(np.remainder)),
    "fmod": _choose(floating=np.fmod, integer=_divide_checked(np.fmod)),
    "truncdiv": _choose(integer=_divide_checked(_truncdiv)),
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "and": np.logical_and,
    "or": np.logical_or,
    "not": np.logical_not,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "bitand": np.bitwise_and,
    "bitor": np.bitwise_or,
    "bitxor": np.bitwise_xor,
    "bitwise_not": np.invert,
    "shl": _shift_left,
    "shr": _shift_right,
    "where": np.where,
    "round_to_int": _nearest,
    "round_to_float": lambda x: (x + _MAGIC) - _MAGIC,
    "through_i32": _cast_through("int32"),
    "through_i64": _cast_through("int64"),
}


def constant(value: int | float | bool, dtype: str) -> Array:
    """A number of this dtype; an integer that does not fit keeps its lowest bits."""
    if dtype in INTEGERS:
        bits = 8 * BYTES[dtype]
        return np.asarray(int(value) % (1 << bits), f"uint{bits}").view(dtype)
    return np.asarray(value, dtype)
