"""Half-precision operators round as they do in eager: numbers beside them, and results that another operator reads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from tests.support.pipeline_fixtures import build

X = torch.Tensor
HALVES = [torch.bfloat16, torch.float16]
# No half dtype has any of these.
NUMBERS = (0.1, 1.001, 3.3, 1 / 3, 0.7)
aten = torch.ops.aten


def scalar(number: float) -> X:
    return torch.tensor(number)


# Operators with a number, or a tensor of rank 0 and another dtype, beside a half.
BESIDE: dict[str, Callable[[X, float], X]] = {
    "add": lambda x, c: x + c,
    "add of rank 0": lambda x, c: x + scalar(c),
    "add to rank 0": lambda x, c: scalar(c) + x,
    "add of rank 0, float64": lambda x, c: x + scalar(c).double(),
    "sub": lambda x, c: x - c,
    "rsub": lambda x, c: c - x,
    "sub from rank 0": lambda x, c: scalar(c) - x,
    "mul": lambda x, c: x * c,
    "mul by rank 0": lambda x, c: x * scalar(c),
    "mul of rank 0": lambda x, c: aten.mul.Tensor(scalar(c), x),
    "div": lambda x, c: x / c,
    "div of a number": lambda x, c: c / x,
    "div of rank 0": lambda x, c: aten.div.Tensor(scalar(c), x),
    "floor division": lambda x, c: x // c,
    "div, floor": lambda x, c: torch.div(x, c, rounding_mode="floor"),
    "div, trunc": lambda x, c: torch.div(x, c, rounding_mode="trunc"),
    "fmod": torch.fmod,
    "remainder": torch.remainder,
    "remainder of a number": lambda x, c: aten.remainder.Scalar_Tensor(c, x),
    "clamp": lambda x, c: x.clamp(-c, c),
    "clamp_min": lambda x, c: x.clamp_min(c),
    "clamp_max": lambda x, c: x.clamp_max(c),
    "clamp by rank 0": lambda x, c: x.clamp(min=scalar(c).to(x.dtype)),
    "hardtanh": lambda x, c: F.hardtanh(x, -c, c),
    "maximum": lambda x, c: torch.maximum(x, scalar(c)),
    "fmin": lambda x, c: torch.fmin(x, scalar(c)),
    "where": lambda x, c: torch.where(x > c, x, c),
    "where, first": lambda x, c: torch.where(x > 0, c, x),
    "masked_fill": lambda x, c: x.masked_fill(x > c, c),
    "full_like": lambda x, c: torch.full_like(x, c),
    "fill_": lambda x, c: x.clone().fill_(c),
    "new_full": lambda x, c: x.new_full((3,), c),
    "index_fill": lambda x, c: x.index_fill(0, torch.tensor([1]), c),
    "pad": lambda x, c: F.pad(x, (1, 1), value=c),
    "nan_to_num": lambda x, c: torch.nan_to_num(x * float("nan"), nan=c),
    "copysign": lambda x, c: torch.copysign(x, -c),
    "leaky_relu": F.leaky_relu,
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "threshold": lambda x, c: F.threshold(x, c, c / 3),
    "addcmul": lambda x, c: torch.addcmul(x, x, x, value=c),
    "scatter": lambda x, c: x.scatter(0, torch.tensor([1]), c),
    "==": lambda x, c: x == c,
    "!=": lambda x, c: x != c,
    "<": lambda x, c: x < c,
    "<=": lambda x, c: x <= c,
    ">": lambda x, c: x > c,
    ">=": lambda x, c: x >= c,
    "== rank 0": lambda x, c: x == scalar(c),
    "> rank 0": lambda x, c: x > scalar(c),
    "> rank 0, float64": lambda x, c: x > scalar(c).double(),
    "== full_like": lambda x, c: torch.full_like(x, c) == x,
    "heaviside": lambda x, c: torch.heaviside(x - x, scalar(c).to(x.dtype)),
    "== 3": lambda x, c: x == 3,
    "isin": lambda x, c: torch.isin(x, torch.tensor([c], dtype=x.dtype)),
    "bucketize": lambda x, c: torch.bucketize(x, torch.tensor([-c, c], dtype=x.dtype)),
}
# These compute a power or a logarithm, so that torch and native code may round to neighbours.
ROUNDED: dict[str, Callable[[X, float], X]] = {
    "pow": lambda x, c: x.abs() ** c,
    "pow of a number": lambda x, c: c**x,
    "elu": F.elu,
    "celu": F.celu,
    "softplus": F.softplus,
    "lerp": lambda x, c: torch.lerp(x, x * 2, c),
    "add, alpha": lambda x, c: torch.add(x, x, alpha=c),
    "addcdiv": lambda x, c: torch.addcdiv(x, x, x.abs() + 1, value=c),
    "xlogy": lambda x, c: torch.xlogy(x, c),
}


def values(dtype: torch.dtype, *numbers: float) -> X:
    drawn = torch.randn(60, generator=torch.Generator().manual_seed(0)) * 3
    return torch.cat([torch.tensor([*numbers, *(-n for n in numbers), 0.0, 1.0, 3.0]), drawn]).to(dtype)


def differences(expected: X, got: X) -> X:
    """How many neighbours apart the elements lie."""
    assert (expected.dtype, expected.shape) == (got.dtype, got.shape)
    if expected.dtype not in HALVES:
        return (expected != got).long()
    places = [torch.where(x.view(torch.int16) < 0, -(x.view(torch.int16) & 0x7FFF).long(), x.view(torch.int16).long())
              for x in (expected, got)]  # fmt: skip
    return torch.where(expected.isnan() & got.isnan(), 0, (places[0] - places[1]).abs())


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("table", "apart"), [(BESIDE, 0), (ROUNDED, 1)])
def test_numbers_beside_halves_round_as_in_eager(
    table: dict[str, Callable[[X, float], X]], apart: int, dtype: torch.dtype
) -> None:
    calls = {(name, number): (f, number) for name, f in table.items() for number in NUMBERS}

    def model(x: X) -> list[X]:
        return [f(x, number) for f, number in calls.values()]

    x = values(dtype, *NUMBERS)
    results = zip(calls, model(x), build(model, (x,))(x), strict=True)
    wrong = [name for name, expected, got in results if int(differences(expected, got).max()) > apart]
    assert not wrong


# What turns the smallest difference into another result.
JUMPS: dict[str, Callable[[X, X], X]] = {
    "float": lambda y, z: y.float(),
    "long": lambda y, z: (y * 100).long(),
    "bool": lambda y, z: (y - z).bool(),
    "==": lambda y, z: y == z,
    ">": lambda y, z: y > z,
    "floor": lambda y, z: torch.floor(y * 8),
    "ceil": lambda y, z: torch.ceil(y * 8),
    "round": lambda y, z: torch.round(y * 8),
    "trunc": lambda y, z: torch.trunc(y * 8),
    "frac": lambda y, z: torch.frac(y),
    "sign": lambda y, z: torch.sign(y - z),
    "remainder": lambda y, z: torch.remainder(y, 0.125),
    "floor division": lambda y, z: y // 0.125,
    "argmax": lambda y, z: y.argmax(),
    "max": lambda y, z: y.max(0).indices,
    "argsort": lambda y, z: y.argsort(stable=True),
    "topk": lambda y, z: y.topk(5).values,
    "bucketize": lambda y, z: torch.bucketize(y, z.sort().values),
    "isclose": lambda y, z: torch.isclose(y, z, rtol=0.0, atol=0.0),
    "heaviside": lambda y, z: torch.heaviside(y - z, z),
    "where": lambda y, z: torch.where(y > z, 1.0, 2.0),
    "cummax": lambda y, z: y.cummax(0).indices,
    "eq of float": lambda y, z: y.float() == z.float(),
    "int8": lambda y, z: (y * 4).to(torch.int8),
}


@pytest.mark.parametrize("dtype", HALVES)
def test_results_round_before_what_jumps(dtype: torch.dtype) -> None:
    def model(x: X, z: X) -> dict[str, list[X]]:
        chains = [x * 0.1 + x, x / 3 - z, torch.sqrt(x.abs()) * z, (x + 0.1) * (x - 0.1)]
        return {name: [jump(y, z) for y in chains] for name, jump in JUMPS.items()}

    x = values(dtype, *NUMBERS)
    z = x * 0.1 + x
    torch.testing.assert_close(build(model, (x, z))(x, z), model(x, z), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    "product", [lambda x, w: x @ w, lambda x, w: F.conv1d(x.t()[None], w.t()[:, :, None])[0].t()], ids=["mm", "conv"]
)
def test_sums_of_products_round_before_their_epilogue(product: Callable[[X, X], X], dtype: torch.dtype) -> None:
    """Integers, of which float32 has every sum and the halves do not."""

    def model(x: X, w: X) -> tuple[X, ...]:
        y = product(x, w)
        return y.float(), y + 1, torch.remainder(y, 2), y == product(x, w).float(), (y * 3 + x[:, :1]).float()

    draw = torch.Generator().manual_seed(0)
    x, w = (torch.randint(-40, 40, size, generator=draw).to(dtype) for size in ((17, 64), (64, 33)))
    x = x / (1 if dtype is torch.bfloat16 else 2)
    torch.testing.assert_close(build(model, (x, w))(x, w), model(x, w), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("dim", [-1, 0])
def test_sums_round_before_the_rows_that_read_them(dim: int, dtype: torch.dtype) -> None:
    def model(x: X) -> tuple[X, ...]:
        total = x.sum(dim, keepdim=True)
        return total.float(), x - total, (x + total) == total, torch.floor(total / 4) + x, (total - x).argmax(dim)

    x = torch.randint(0, 60, (33, 40), generator=torch.Generator().manual_seed(0)).to(dtype)
    torch.testing.assert_close(build(model, (x,))(x), model(x), rtol=0, atol=0)


def test_float32_is_not_rounded() -> None:
    x = torch.randn(50, generator=torch.Generator().manual_seed(0))
    compiled = build(lambda x: ((x * 0.1 + x) * 3).floor(), (x,))
    assert "as_bf16" not in compiled.source and "as_f16" not in compiled.source


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("constant", [torch.bool, torch.int64, torch.int8])
def test_a_constant_of_another_dtype_becomes_a_half(constant: torch.dtype, dtype: torch.dtype) -> None:
    def function(x: X) -> X:
        return torch.ones_like(x, dtype=constant).to(dtype) + 0.5 + torch.full_like(x, 2.5).to(constant).to(dtype) * x

    x = values(dtype, *NUMBERS)
    assert torch.equal(build(function, (x,))(x), function(x))
