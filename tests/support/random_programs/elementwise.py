"""Elementwise operators of random programs, and casts."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.support.random_programs.op_registry import (
    X,
    op,
    table,
    without_sign_of_zero,
)

table(
    ("float",),
    "never",
    {
        "sin": torch.sin,
        "cos": torch.cos,
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "exp": lambda x: torch.exp(x.clamp(-5, 3)),
        "exp2": lambda x: torch.exp2(x.clamp(-5, 3)),
        "expm1": lambda x: torch.expm1(x.clamp(-5, 3)),
        "log": lambda x: torch.log(x.abs() + 0.5),
        "log2": lambda x: torch.log2(x.abs() + 0.5),
        "log1p": lambda x: torch.log1p(x.abs()),
        "sqrt": lambda x: torch.sqrt(x.abs() + 0.5),
        "rsqrt": lambda x: torch.rsqrt(x.abs() + 0.5),
        "reciprocal": lambda x: torch.reciprocal(x.abs() + 0.5),
        "erf": torch.erf,
        "atan": torch.atan,
        "gelu": F.gelu,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "silu": F.silu,
        "elu": F.elu,
        "softplus": F.softplus,
        "mish": F.mish,
        "hardswish": F.hardswish,
        "leaky_relu": F.leaky_relu,
        "logsigmoid": F.logsigmoid,
    },
)
table(
    ("number",),
    "keep",
    {
        "neg": torch.neg,
        "abs": torch.abs,
        "relu": torch.relu,
        "square": torch.square,
        "clamp": lambda x: x.clamp(1, 3),
        "clamp_min": lambda x: x.clamp(min=2),
        "double": lambda x: x * 2,
        "minus_three": lambda x: 3 - x,
    },
)
table(
    ("number",),
    "needs",
    {
        "floor": torch.floor,
        "ceil": torch.ceil,
        "round": torch.round,
        "trunc": torch.trunc,
        "sign": torch.sign,
        "floor_by_three": lambda x: torch.div(x, 3, rounding_mode="floor"),
        "trunc_by_three": lambda x: torch.div(x, 3, rounding_mode="trunc"),
        "modulo_three": lambda x: torch.remainder(x, 3),
        "fmod_minus_three": lambda x: torch.fmod(x, -3),
        "above_one": lambda x: x > 1,
    },
)
table(("any",), "needs", {"logical_not": torch.logical_not, "equal_zero": lambda x: x == 0})
table(("any",), "keep", {"isnan": torch.isnan, "isinf": torch.isinf, "isfinite": torch.isfinite})
table(
    ("whole",),
    "keep",
    {"bitwise_not": torch.bitwise_not},
)
table(("int",), "keep", {"shifted": lambda x: (x << 3) >> 1, "low_bits": lambda x: x & 6})
table(
    ("any", "any"),
    "never",
    {
        "add": torch.add,
        "sub": torch.sub,
        "mul": torch.mul,
        "div": lambda x, y: x / (y.abs() + 0.5),
        "hypot": lambda x, y: torch.sqrt(x * x + y * y + 0.25),
        "add_scaled": lambda x, y: torch.add(x, y, alpha=3),
    },
)
table(
    ("any", "any"),
    "keep",
    {"maximum": without_sign_of_zero(torch.maximum), "minimum": without_sign_of_zero(torch.minimum)},
)
table(
    ("any", "any"),
    "needs",
    {
        "eq": torch.eq,
        "ne": torch.ne,
        "lt": torch.lt,
        "ge": torch.ge,
        "logical_and": torch.logical_and,
        "logical_xor": torch.logical_xor,
    },
)
table(
    ("whole", "whole"),
    "keep",
    {"bitwise_and": torch.bitwise_and, "bitwise_or": torch.bitwise_or, "bitwise_xor": torch.bitwise_xor},
)
table(("bool", "any", "any"), "keep", {"where": torch.where, "masked_fill": lambda m, x, y: y.masked_fill(m, 2)})


@op("any", arguments=lambda c, x: ((c.pick((torch.float32, torch.bfloat16, torch.float16, torch.float64)),), ()))
def to_float(x: X, dtype: torch.dtype) -> X:
    return x.to(dtype)


@op("any", exact="needs", arguments=lambda c, x: ((c.pick((torch.int64, torch.int32, torch.bool)),), ()))
def to_whole(x: X, dtype: torch.dtype) -> X:
    return x.to(dtype)


@op("whole")
def to_byte(x: X) -> X:
    return x.to(torch.uint8)
