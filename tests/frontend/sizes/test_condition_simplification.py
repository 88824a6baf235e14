"""Conditions on sizes are simplified to equivalent ones, and a remainder that a min spoils becomes a range."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import sympy
import torch
from torch import nn
from torch.export import Dim

import ingot
from ingot import torch_internals as internals
from ingot.errors import DynamicShapeError, InputError
from ingot.frontend import capture_session
from ingot.frontend.sizes.condition_simplification import resolve_extremes, simplify_condition
from ingot.frontend.sizes.constraint_solver import follows_from_ranges
from ingot.frontend.sizes.operator_sizes import holds
from ingot.ir.symbolic_dims import format_dim

f = internals.sympy_functions
b, n = (sympy.Symbol(f"s_{name}", integer=True, nonnegative=True) for name in "bn")
Min, Max, Mod, FloorDiv, PythonMod = f.Min, f.Max, f.Mod, f.FloorDiv, f.PythonMod
Eq, Ne = sympy.Eq, sympy.Ne


def from_one(low: int = 1, high: Any = internals.int_oo) -> dict[sympy.Symbol, Any]:
    return {b: internals.ValueRanges(low, high), n: internals.ValueRanges(1, internals.int_oo)}


@pytest.mark.parametrize(
    ("condition", "simpler"),
    [
        (Eq(Mod(4 * b * Min(63, n) ** 2, 4 * b * n), 0), "min(63, n)**2 % n == 0"),
        (Eq(Mod(4 * b * f.PowByNatural(Min(63, n), 2), 4 * b * n), 0), "min(63, n)**2 % n == 0"),
        (Ne(Mod(b * (n + 1), b * 7), 0), "(1 + n) % 7 != 0"),
        (Eq(PythonMod(b * (n - 9), b * 7), 0), "(-9 + n) % 7 == 0"),
        (Eq(Mod(6 * b * n, 4 * b), 0), "(3*n) % 2 == 0"),
        (Eq(4 * b * n**2, 4 * b * n * FloorDiv(b * (n + 5), 3 * b)), "n == (5 + n)//3"),
        (4 * b * Min(63, n) <= 4 * b * n, "min(63, n) <= n"),
        (Eq(FloorDiv(n**2, n), n), "True"),
        (Eq(Mod(4 * b * n**2, 4 * b * n), 0), "True"),
        (Eq(4 * b * Min(63, n), FloorDiv(4 * b * Min(63, n) ** 2, Min(63, n))), "True"),
    ],
)
def test_positive_factors_are_cancelled(condition: sympy.Basic, simpler: str) -> None:
    assert format_dim(simplify_condition(condition, from_one())) == simpler


@pytest.mark.parametrize(
    ("condition", "ranges"),
    [
        pytest.param(Eq(Mod(b * Min(63, n), b * n), 0), from_one(0), id="a factor that may be 0"),
        pytest.param(Eq(PythonMod((b - 4) * Min(63, n), (b - 4) * n), 0), from_one(2), id="one that may be negative"),
        pytest.param(Eq(PythonMod((b - 9) * Min(63, n), (b - 9) * n), 0), from_one(1, 8), id="one that is negative"),
        pytest.param((b - 9) * n <= (b - 9) * Min(63, n), from_one(1, 8), id="a negative factor of an inequality"),
        pytest.param(Eq(Mod(b * Min(63, n) + b, b * n), 0), from_one(), id="a factor of one term only"),
        pytest.param(Eq(b * f.IntTrueDiv(n, 3), b * f.IntTrueDiv(n, 5)), from_one(), id="floats"),
    ],
)
def test_other_factors_are_kept(condition: sympy.Basic, ranges: dict[sympy.Symbol, Any]) -> None:
    assert simplify_condition(condition, ranges) == condition


def test_a_remainder_other_than_zero_keeps_the_factor() -> None:
    condition = Eq(Mod(b * Max(63, n), b * n), 6)
    simpler = simplify_condition(condition, from_one())
    assert simpler.free_symbols == {b, n}
    for sizes in every_size(1, 80):
        assert holds(condition, sizes) == holds(simpler, sizes)
    assert holds(condition, {b: 1, n: 57}) and not holds(condition, {b: 2, n: 57})


def every_size(low: int, high: int = 7) -> list[dict[sympy.Symbol, int]]:
    return [{b: x, n: y} for x, y in itertools.product(range(low, min(high, 7) + 1), range(1, high + 1))]


class Generator:
    """Random conditions over b and n, many of them with a common factor."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def factor(self, depth: int) -> sympy.Basic:
        number = sympy.Integer(self.random.randint(1, 6))
        small = [b, n, b, n, number, b - number, Min(number, n), Max(number, b), n + number]
        if depth == 0:
            return self.random.choice(small)
        kind = self.random.choice([FloorDiv, PythonMod, Min, Max, None, None])
        return kind(self.product(depth - 1), self.product(depth - 1)) if kind else self.random.choice(small)

    def product(self, depth: int) -> sympy.Basic:
        factors = [self.factor(depth) for _ in range(self.random.randint(1, 3))]
        return sympy.Mul(*(x ** self.random.choice([1, 1, 1, 2]) for x in factors))

    def condition(self) -> sympy.Basic:
        shared, left, right = (self.product(1) for _ in range(3))
        relation = self.random.choice([Eq, Ne, sympy.Le, sympy.Lt, sympy.Ge, sympy.Gt])
        if self.random.random() < 0.5:
            right = self.random.choice([PythonMod, FloorDiv])(shared * left, shared * right)
            return relation(right, self.random.choice([0, 0, 0, 1, 2, b]))
        return relation(shared * left, shared * right)


@pytest.mark.parametrize("low", [0, 1, 2])
def test_random_conditions_mean_what_they_meant(low: int) -> None:
    ranges = {b: internals.ValueRanges(low, 7), n: internals.ValueRanges(1, 7)}
    changed = 0
    for seed in range(120):
        try:
            condition = Generator(1000 * low + seed).condition()
        except ZeroDivisionError:
            continue
        simpler = simplify_condition(condition, ranges)
        changed += simpler != condition
        for sizes in every_size(low):
            assert holds(simpler, sizes) == holds(condition, sizes), (seed, condition, simpler, sizes)
    assert changed > 30


@pytest.mark.parametrize("low", [0, 1])
def test_random_conditions_without_extremes_mean_what_they_meant(low: int) -> None:
    resolved_some = 0
    for seed in range(120):
        made = Generator(5000 + seed)
        try:
            condition = made.condition()
        except ZeroDivisionError:
            continue
        example = {b: made.random.randint(max(low, 1), 7), n: made.random.randint(1, 7)}
        ranges = {b: internals.ValueRanges(low, 7), n: internals.ValueRanges(1, 7)}
        resolved, needs = resolve_extremes(condition, example, ranges)
        assert all(holds(need, example) for need in needs)
        resolved_some += bool(needs)
        for sizes in every_size(low):
            if all(holds(need, sizes) for need in needs):
                assert holds(resolved, sizes) == holds(condition, sizes), (seed, condition, resolved, sizes)
    assert resolved_some > 20


def test_extremes_are_resolved_as_at_the_example() -> None:
    condition, needs = resolve_extremes(Eq(Mod(Min(63, n) ** 2, Max(n, 3)), 0), {n: 7}, from_one())
    assert condition == sympy.true
    assert {format_dim(need) for need in needs} == {"n <= 63", "n >= 3"}
    condition = Eq(Mod(Min(63, n), b), 0)
    assert resolve_extremes(condition, {b: 1, n: 7}, from_one(0)) == (condition, ())
    condition, needs = resolve_extremes(Eq(Min(63, n) * 2, 2 * n), {n: 70}, from_one())
    assert [format_dim(need) for need in needs] == ["63 <= n"]


# ---------------------------------------------------------------------- captured


class Buckets(nn.Module):
    """Adds a bias from a square table of limited size: a view of it has to have the rows of x."""

    table: torch.Tensor

    def __init__(self, rows: int = 63) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(rows, rows))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length = x.shape
        near = self.table[:length, :length]
        near = near.expand(batch, 4, *near.shape).reshape(-1)
        return near.view(batch, 4, length, -1) + x[:, None, :, None]


def test_a_remainder_that_a_min_spoils_is_a_range() -> None:
    model = Buckets()
    program = ingot.capture(model, (torch.randn(3, 7),), dynamic_shapes={"x": {0: "batch", 1: "length"}})
    compiled = ingot.compile(program, threads=1)
    assert {dim.name: (dim.low, dim.high) for dim in program.dims} == {"batch": (1, None), "length": (1, 63)}
    for batch, length in ((3, 7), (1, 1), (2, 1), (1, 5), (5, 62), (4, 63)):
        x = torch.randn(batch, length)
        assert torch.equal(program(x), model(x))
        assert torch.equal(compiled(x), model(x))
    # 63 * 63 is a multiple of 81, so that a view exists there; it is not a row of the table for each row of x.
    for length in (64, 81, 100):
        for run in (program, compiled):
            with pytest.raises(InputError, match="length"):
                run(torch.randn(2, length))


def test_a_declared_range_is_not_narrowed() -> None:
    shapes = {"x": {0: Dim("batch"), 1: Dim("length", min=1, max=70)}}
    with pytest.raises(DynamicShapeError, match=r"(?s)length.*declared in \[1, 70\].*max=63"):
        ingot.capture(Buckets(), (torch.randn(3, 7),), dynamic_shapes=shapes)
    within = {"x": {0: Dim("batch", min=1), 1: Dim("length", min=1, max=63)}}
    program = ingot.capture(Buckets(), (torch.randn(3, 7),), dynamic_shapes=within)
    assert {dim.name: (dim.low, dim.high) for dim in program.dims} == {"batch": (1, None), "length": (1, 63)}


@pytest.mark.parametrize(
    ("condition", "low", "follows"),
    [
        (Eq(Max(1, 16 * b) * Max(1, 8 * n), 128 * b * n), 1, True),
        (Eq(Max(1, 16 * b) * Max(1, 8 * n), 128 * b * n), 0, False),
        (Eq(b, n), 1, False),
        (Eq(Max(2, b) * n, b * n), 1, False),
        (Eq(Max(1, b) * n, b * n), 2, True),
        (Eq(Max(1, n), n), 1, False),  # of one dim: it names the line that its bound comes from
    ],
)
def test_conditions_that_raised_bounds_prove_are_dropped(condition: sympy.Basic, low: int, follows: bool) -> None:
    assert follows_from_ranges(condition, {b: (low, None), n: (low, None)}) is follows


def test_a_strided_convolution_of_multiples_needs_no_equation(monkeypatch: pytest.MonkeyPatch) -> None:
    """One capture is enough: a second, wider one is made only where equations are left."""
    height, width = Dim("height"), Dim("width")
    net = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4)).eval()
    x = torch.randn(2, 3, 64, 96)
    sessions: list[Any] = []
    made = capture_session.CaptureSession.__init__
    monkeypatch.setattr(
        capture_session.CaptureSession, "__init__", lambda *a, **k: (sessions.append(1), made(*a, **k))[1]
    )
    program = ingot.capture(net, (x,), dynamic_shapes=({0: "batch", 2: 32 * height, 3: 32 * width},))
    assert not [c for c in program.constraints if isinstance(c.condition, sympy.Eq)] and len(sessions) == 1
    for size in ((1, 3, 32, 32), (3, 3, 64, 32)):
        image = torch.randn(size)
        torch.testing.assert_close(program(image), net(image))
