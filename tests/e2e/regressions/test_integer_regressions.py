"""Casts between floats and integers, and integers that no float64 has."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import ingot
from tests.support.pipeline_fixtures import build

X = torch.Tensor
INF, NAN = float("inf"), float("nan")
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


@pytest.mark.parametrize("wide", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_casts_to_integers_and_back_forget_the_sign_of_zero(wide: torch.dtype) -> None:
    def model(x: X) -> list[X]:
        back = [x.to(d).to(wide) for d in WHOLE]
        return [*back, *(1 / y for y in back), *(x.to(d).to(torch.int64) for d in WHOLE)]

    x = torch.tensor([-0.0, -0.3, 0.0, 0.7, -1.5, 300.0, -200.0, 3e9, -3e9, NAN, INF, -INF, 1e19, -1e19] * 3).to(wide)
    got, expected = build(model, (x,))(x), model(x)
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
    for a, b in zip(got, expected, strict=True):
        assert torch.equal(a.signbit(), b.signbit())


UNARY = (
    *("abs", "neg", "sign", "sgn", "square", "ceil", "floor", "trunc", "round", "bitwise_not"),
    *("logical_not", "relu", "isnan", "isinf", "signbit", "nan_to_num", "sum", "prod", "amax", "amin"),
    *("argmax", "median", "any", "all", "diff", "count_nonzero"),
)
BINARY = (
    *("add", "sub", "mul", "floor_divide", "fmod", "remainder", "maximum", "minimum", "fmax", "fmin"),
    *("bitwise_and", "bitwise_or", "bitwise_xor", "eq", "ne", "lt", "le", "gt", "ge", "logical_and"),
    *("logical_or", "logical_xor", "heaviside", "rsub", "isin"),
)
OTHERS: dict[str, Callable[[X, X], X]] = {
    "threshold": lambda a, b: F.threshold(a, 0.5, -1.0),
    "threshold, both cut": lambda a, b: F.threshold(a, -2.5, 2.9),
    "hardtanh": lambda a, b: F.hardtanh(a, -2, 100),
    "relu6": lambda a, b: F.relu6(a),
    "clamp": lambda a, b: a.clamp(0, 100),
    "clamp by a tensor": lambda a, b: torch.clamp(a, b, b),
    "add, alpha": lambda a, b: torch.add(a, b, alpha=3),
    "addcmul": lambda a, b: torch.addcmul(a, a, b, value=3),
    "where": lambda a, b: torch.where(a > b, a, b),
    "where of a number": lambda a, b: torch.where(a > 0, a, 1),
    "> 0.5": lambda a, b: a > 0.5,
    "== 2 ** 53": lambda a, b: a == float(2**53),
    "pow": lambda a, b: a**3,
    "% 7": lambda a, b: a % 7,
    "// -7": lambda a, b: torch.div(a, -7, rounding_mode="floor"),
    "trunc": lambda a, b: torch.div(a, 7, rounding_mode="trunc"),
    "7 - a": lambda a, b: 7 - a,
    "cumsum": lambda a, b: a.cumsum(0),
    "sort": lambda a, b: a.sort().values,
    "topk": lambda a, b: a.topk(3).values,
    "cummax": lambda a, b: a.cummax(0).values,
    "dot": lambda a, b: torch.dot(a, b),
    "bucketize": lambda a, b: torch.bucketize(a, b.sort().values),
    "bucketize of a number": lambda a, b: torch.bucketize(0.1, b.sort().values),
    "scatter_add": lambda a, b: a.scatter_add(0, torch.zeros_like(b, dtype=torch.int64), b),
    "amax into": lambda a, b: a.scatter_reduce(0, torch.zeros_like(b, dtype=torch.int64), b, "amax"),
    "masked_fill": lambda a, b: a.masked_fill(a > b, 1),
    "double": lambda a, b: a.double(),
    "and a tensor of rank 0": lambda a, b: torch.logical_and(a, torch.tensor(2**40)),
}


def extremes(dtype: torch.dtype) -> tuple[X, X]:
    """Integers at the ends and beyond what floats have, and divisors: neither 0 nor -1, which divide by a trap."""
    if dtype is torch.bool:
        return torch.tensor([True, False, True, False]), torch.tensor([True, True, True, True])
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    numbers = [0, 1, 7, low, high, low + 1, high - 1, high // 2 + 1, 3, -1, -7]
    numbers += [2**53 + 1, -(2**53) - 1, 1263830757729097974, 2**31, 2**24 + 1] if dtype is torch.int64 else []
    a = [n for n in numbers if low <= n <= high]
    b = [2 if n in (0, -1) else n for n in a[3:] + a[:3]]
    return torch.tensor(a, dtype=dtype), torch.tensor(b, dtype=dtype)


@pytest.mark.parametrize("dtype", WHOLE)
def test_integers_are_never_floats(dtype: torch.dtype) -> None:
    a, b = extremes(dtype)
    calls: dict[str, Callable[[X, X], X]] = dict(OTHERS)
    calls |= {name: lambda a, b, name=name: getattr(torch, name)(a) for name in UNARY}
    calls |= {name: lambda a, b, name=name: getattr(torch, name)(a, b) for name in BINARY}
    expected = {}
    for name, call in calls.items():
        try:
            expected[name] = call(a, b)
        except (RuntimeError, NotImplementedError):  # not of this dtype
            continue
    compiled = build(lambda a, b: {name: calls[name](a, b) for name in expected}, (a, b))
    torch.testing.assert_close(compiled(a, b), expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    "write",
    [
        lambda x, part: torch.select_scatter(x, part, 0, 1),
        lambda x, part: torch.slice_scatter(x, part[None], 0, 1, 2),
        lambda x, part: torch.diagonal_scatter(x, part),
        lambda x, part: torch.ops.aten.copy(x, part),
        lambda x, part: x.masked_fill(x > 0, part[0]) if not part.is_floating_point() else x.clone(),
    ],
    ids=["select_scatter", "slice_scatter", "diagonal_scatter", "copy", "masked_fill"],
)
@pytest.mark.parametrize(
    ("into", "of"),
    [
        (torch.int64, torch.float32),
        (torch.float32, torch.float64),
        (torch.bfloat16, torch.float32),
        (torch.uint8, torch.int64),
    ],
)
def test_what_is_written_takes_the_dtype_of_where_it_is_written(
    into: torch.dtype, of: torch.dtype, write: Callable[[X, X], X]
) -> None:
    x, part = torch.ones(4, 4, dtype=into), torch.full((4,), 2.7).to(of)
    program = ingot.capture(write, (x, part))
    core = ingot.transform(program, [ingot.passes.functionalize, ingot.passes.decompose])
    for run in (core, build(write, (x, part))):
        torch.testing.assert_close(run(x, part), write(x, part), rtol=0, atol=0)
