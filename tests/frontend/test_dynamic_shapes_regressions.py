"""Dynamic dims at small sizes and at their bounds: right, refused by name at the call, or refused at capture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

import ingot
from ingot.errors import CaptureError, DynamicShapeError, InputError


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> Any:
        return self.function(x) if y is None else self.function(x, y)


def inside_poison(*shape: int) -> torch.Tensor:
    """A tensor whose neighbours in memory are conspicuous."""
    around = torch.full((shape[0] + 16, *shape[1:]), 1e30)
    tensor = around[8 : 8 + shape[0]]
    return tensor.copy_(torch.randn(shape))


# What works at every size from 1 on.
TOTAL: dict[str, Callable[..., torch.Tensor]] = {
    "x[:2]": lambda x: x[:2] * 2,
    "x[-2:]": lambda x: x[-2:] * 2,
    "x[2:]": lambda x: x[2:] * 2,
    "x[:-2]": lambda x: x[:-2] * 2,
    "x[1:3]": lambda x: torch.cat([x[1:3], x]),
    "x[2::2]": lambda x: x[2::2] * 2,
    "cat of slices": lambda x: torch.cat([x[2:], x[:-3], torch.ones(4, 3)]),
    "sums": lambda x: x[:2].sum(0) + x[-2:].sum(0) + x[3:].cumsum(0).sum(),
    "a bound above the example": lambda x: x[:20].sum(1),
}


@pytest.mark.parametrize("name", TOTAL)
def test_slices_at_small_sizes(name: str) -> None:
    function = TOTAL[name]
    program = ingot.capture(Function(function), (torch.randn(5, 3),), dynamic_shapes={"x": {0: "n"}})
    compiled = ingot.compile(program, threads=1)
    assert [(dim.low, dim.high) for dim in program.dims] == [(1, None)]
    for size in (1, 2, 3, 5, 24):
        x = inside_poison(size, 3)
        torch.testing.assert_close(program(x), function(x))
        torch.testing.assert_close(compiled(x), function(x))


@pytest.mark.parametrize("length", [2, 3, 5])
@pytest.mark.parametrize("function", [lambda y: y[:, ::2].exp(), lambda y: y[:, ::3].sum(1), lambda y: y[:, 1::2] + 1])
def test_which_stride_is_larger_excludes_no_size(length: int, function: Callable[..., torch.Tensor]) -> None:
    """Fake kernels compare strides to lay out their results: 8*l > 16, where every second of l rows of 8 is taken."""
    layer = nn.Linear(8, 8).bfloat16()
    model = Function(lambda x: function(layer(x)))
    shapes = {"x": {0: Dim("n", min=1, max=11), 1: Dim("l", min=1, max=11)}}
    with torch.no_grad():
        example = torch.randn(5, length, 8).bfloat16()
        compiled = ingot.compile(model.eval(), (example,), dynamic_shapes=shapes, threads=1)
        assert [(dim.low, dim.high) for dim in compiled.program.dims] == [(1, 11), (1, 11)]
        for rows, columns in ((1, 1), (2, 1), (1, 2), (3, 3), (11, 11)):
            x = torch.randn(rows, columns, 8).bfloat16()
            torch.testing.assert_close(compiled(x), model(x))


def test_an_operator_that_fails_at_small_sizes_is_named() -> None:
    shapes = {"x": {2: Dim("l", min=1, max=11)}}
    with pytest.raises(DynamicShapeError, match=r"(?s)holds for l >= 3 only.*aten.conv1d fails"):
        ingot.capture(nn.Conv1d(8, 4, 3), (torch.randn(1, 8, 5),), dynamic_shapes={"input": shapes["x"]})


# What eager refuses at size 1, with the dim that capture leaves.
PARTIAL: dict[str, tuple[Callable[..., torch.Tensor], int]] = {
    "narrow": (lambda x: x.narrow(0, 0, 2) * 2, 2),
    "topk": (lambda x: x.topk(2, 0)[0], 2),
    "topk of a slice": (lambda x: x[3:].topk(2, 0)[0], 5),
    "select": (lambda x: x.select(0, -2) * 2, 2),
    "unfold": (lambda x: x.unfold(0, 2, 1).sum(-1), 2),
    "conv1d": (lambda x: F.conv1d(x.t()[None], torch.ones(1, 3, 2)), 2),
    "avg_pool1d": (lambda x: F.avg_pool1d(x.t()[None], 2), 2),
    "select from the start": (lambda x: x.select(0, 2) * 2, 3),
    "an index": (lambda x: x[3, 1] * 2, 4),
    "select_scatter": (lambda x: x.select_scatter(torch.ones(3), 0, 3), 4),
    "select_scatter from the end": (lambda x: x.select_scatter(torch.ones(3), 0, -2), 2),
    "slice_scatter": (lambda x: x.slice_scatter(torch.ones(3, 3), 0, 1, 4), 4),
    "diagonal_scatter": (lambda x: x.diagonal_scatter(torch.ones(3)), 3),
    "squeeze of a slice": (lambda x: x[3:4].squeeze(0) * 2, 4),
    "a smaller image": (lambda x: F.interpolate(x.t()[None], scale_factor=0.4), 3),
    "reflect pad": (lambda x: F.pad(x.t()[None], (1, 1), mode="reflect"), 2),
}


@pytest.mark.parametrize("name", PARTIAL)
def test_sizes_that_an_operator_refuses(name: str) -> None:
    function, low = PARTIAL[name]
    program = ingot.capture(Function(function), (torch.randn(6, 3),), dynamic_shapes={"x": {0: "n"}})
    compiled = ingot.compile(program, threads=1)
    assert [dim.low for dim in program.dims] == [low]
    assert any(__file__ in constraint.source for constraint in program.constraints)
    for size in range(1, 8):
        x = inside_poison(size, 3)
        if size < low:
            for call in (program, compiled):
                with pytest.raises(InputError):
                    call(x)
        else:
            torch.testing.assert_close(compiled(x), function(x))


CHOICES: dict[str, Callable[..., torch.Tensor]] = {
    "max": lambda x: x.max(0)[0],
    "min": lambda x: x.min(-2)[0],
    "max of all": lambda x: x.max(),
    "min of all": lambda x: x.min(),
    "median": lambda x: x.median(0)[0],
    "nanmedian": lambda x: x.nanmedian(dim=0)[0],
    "mode": lambda x: x.mode(0)[0],
    "amax": lambda x: x.amax(0),
    "argmax": lambda x: x.argmax(0),
    "adaptive_avg_pool1d": lambda x: F.adaptive_avg_pool1d(x.t()[None], 2),
}


@pytest.mark.parametrize("name", CHOICES)
def test_one_of_no_elements_is_refused(name: str) -> None:
    function = CHOICES[name]
    with pytest.raises((RuntimeError, IndexError)):
        function(torch.empty(0, 3))
    program = ingot.capture(Function(function), (torch.randn(6, 3),), dynamic_shapes={"x": {0: Dim.AUTO(min=0)}})
    assert [dim.low for dim in program.dims] == [1]


class Selects(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.select(0, 3) * 2, x.select(0, -2) * 2


def test_an_exported_program_reads_nothing_outside() -> None:
    exported = torch.export.export(Selects(), (torch.randn(5, 3),), dynamic_shapes={"x": {0: Dim.AUTO(min=0)}})
    compiled = ingot.compile(ingot.from_exported(exported), threads=1)
    for size in range(7):
        x = inside_poison(size, 3)
        if size < 4:
            with pytest.raises(InputError):
                compiled(x)
        else:
            torch.testing.assert_close(compiled(x), Selects()(x))


def test_native_code_checks_what_only_an_operator_looks_at() -> None:
    """In eager trapezoid asks first whether there is anything; the operators that it becomes do not."""
    program = ingot.capture(
        Function(lambda x: torch.trapezoid(x, dim=0)), (torch.randn(5, 3),), dynamic_shapes={"x": {0: Dim.AUTO(min=0)}}
    )
    compiled = ingot.compile(program, threads=1)
    for size in (1, 2, 7):
        x = inside_poison(size, 3)
        torch.testing.assert_close(compiled(x), torch.trapezoid(x, dim=0))
    with pytest.raises(InputError, match="index -1 is out of range"):
        compiled(inside_poison(0, 3))


OUT_OF_RANGE: dict[str, Callable[..., Any]] = {
    "index": lambda x: x.select(0, 6),
    "index from the end": lambda x: x.select(0, -7),
    "select": lambda x: x.select(-4, 0),
    "softmax": lambda x: x.softmax(-4),
    "sort": lambda x: x.sort(-4)[0],
    "unique": lambda x: x.unique(dim=-4)[0],
    "select_scatter": lambda x: x.select_scatter(torch.ones(3), 0, 6),
}


@pytest.mark.parametrize("dynamic", (False, True))
@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_what_is_out_of_range_is_refused(name: str, dynamic: bool) -> None:
    function, x = OUT_OF_RANGE[name], torch.randn(6, 3)
    with pytest.raises(IndexError):
        function(x)
    with pytest.raises(CaptureError, match="out of range"):
        ingot.capture(Function(function), (x,), dynamic_shapes={"x": {0: "n"}} if dynamic else None)


@pytest.mark.parametrize("name", PARTIAL)
def test_declared_ranges_are_not_narrowed(name: str) -> None:
    function, low = PARTIAL[name]
    with pytest.raises(
        DynamicShapeError, match=rf"(?s)declared in \[1, .*test_dynamic_shapes_regressions.py.*min={low}"
    ):
        ingot.capture(Function(function), (torch.randn(6, 3),), dynamic_shapes={"x": {0: Dim("n", min=1)}})


# What has a size of 0 or 1, or lies at another side of a bound, at the example's size of 5 only.
OTHER_AT_THE_EXAMPLE: dict[str, Callable[..., torch.Tensor]] = {
    "one row": lambda x: x[2::3] * 2,
    "no row": lambda x: x[6:] * 2,
    "no row between sizes": lambda x: x[6 : x.shape[0] // 2] * 2,
    "rows between sizes": lambda x: x[x.shape[0] // 3 : (x.shape[0] + 1) // 2] * 2,
    "cat of one row": lambda x: torch.cat([x[4:], x[4:] * 2]),
    "sections": lambda x: torch.cat([part * (i + 1) for i, part in enumerate(x.tensor_split(3))]),
    "sections of a dim": lambda x: x.t().tensor_split(2, 1)[-1] * 2,
    "places": lambda x: torch.cat([part * (i + 1) for i, part in enumerate(x.tensor_split((1, 4)))]),
    "places out of order": lambda x: torch.cat([part * (i + 1) for i, part in enumerate(x.tensor_split((4, 1, -2)))]),
    "max_pool1d": lambda x: F.max_pool1d(x.t(), 3, 2, padding=1, ceil_mode=True),
}


@pytest.mark.parametrize("name", OTHER_AT_THE_EXAMPLE)
def test_sizes_unlike_the_example(name: str) -> None:
    function = OTHER_AT_THE_EXAMPLE[name]
    program = ingot.capture(Function(function), (torch.randn(5, 3),), dynamic_shapes={"x": {0: Dim("n", min=1)}})
    compiled = ingot.compile(program, threads=1)
    assert [(dim.low, dim.high) for dim in program.dims] == [(1, None)]
    for size in (1, 2, 3, 4, 5, 6, 7, 11, 30):
        x = inside_poison(size, 3)
        torch.testing.assert_close(program(x), function(x))
        torch.testing.assert_close(compiled(x), function(x))


def test_a_range_from_zero() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x[1:], x[:2] * 2]).sum(0) + x[-1:].sum(0)

    program = ingot.capture(Function(function), (torch.randn(5, 3),), dynamic_shapes={"x": {0: Dim("n", min=0, max=9)}})
    compiled = ingot.compile(program, threads=1)
    assert (program.dims[0].low, program.dims[0].high) == (0, 9)
    for size in (0, 1, 2, 9):
        x = inside_poison(size, 3)
        torch.testing.assert_close(compiled(x), function(x))
    with pytest.raises(InputError):
        compiled(torch.randn(10, 3))


def test_bounds_of_merged_dims_are_kept() -> None:
    shapes = {"x": (Dim.AUTO(min=4), Dim.AUTO), "y": (Dim.DYNAMIC(max=16), Dim.AUTO(max=32))}
    example = (torch.randn(6, 4), torch.randn(6, 4))
    program = ingot.capture(Function(lambda x, y: x + y), example, dynamic_shapes=shapes)
    assert sorted((dim.low, dim.high) for dim in program.dims) == [(1, 32), (4, 16)]
    for size in (3, 17):
        with pytest.raises(InputError):
            program(torch.randn(size, 5), torch.randn(size, 5))


def test_a_condition_on_a_merged_dim_is_about_the_other() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (y * 2 if y.shape[0] > 2 else y) + x

    shapes = {"x": {0: Dim.AUTO}, "y": {0: Dim.AUTO}}
    compiled = ingot.compile(Function(function), (torch.randn(3), torch.randn(3)), dynamic_shapes=shapes, threads=1)
    x, y = torch.randn(7), torch.randn(7)
    torch.testing.assert_close(compiled(x, y), function(x, y))
    with pytest.raises(InputError):
        compiled(x[:2], y[:2])


def test_declarations_that_contradict_each_other() -> None:
    example = (torch.ones(4), torch.ones(4))
    shapes: Any = {"x": {0: Dim("d", min=3)}, "y": {0: Dim("d", max=12)}}
    with pytest.raises(DynamicShapeError, match="two ranges"):
        ingot.capture(Function(lambda x, y: x + y), example, dynamic_shapes=shapes)
    with pytest.raises(DynamicShapeError, match=r"declared static in \[6, 8\]"):
        ingot.capture(Function(lambda x: x + 2), example[:1], dynamic_shapes={"x": [Dim.STATIC(min=6, max=8)]})


def test_an_example_that_the_trace_excludes() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(0) if x.shape[0] > 1 else x * 2

    with pytest.raises(DynamicShapeError, match=r"(?s)n = 1.*test_dynamic_shapes_regressions.py"):
        ingot.capture(Function(function), (torch.randn(1, 3),), dynamic_shapes={"x": {0: "n"}})
    program = ingot.capture(Function(function), (torch.randn(1, 3),), dynamic_shapes={"x": {0: Dim.AUTO}})
    x = torch.randn(1, 3)
    assert not program.dims
    torch.testing.assert_close(program(x), x * 2)


def test_positional_shapes_follow_the_signature() -> None:
    class Keywords(nn.Module):
        def forward(self, a: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
            return a.sum() + first.sum() - second.sum()

    given = {"second": torch.ones(4, 4), "first": torch.zeros(4, 4)}
    program = ingot.capture(Keywords(), (torch.randn(4, 4),), given, dynamic_shapes=(None, {0: "n"}, None))
    a = torch.randn(4, 4)
    program(a, first=torch.ones(7, 4), second=torch.ones(4, 4))
    with pytest.raises(InputError, match="second"):
        program(a, first=torch.ones(4, 4), second=torch.ones(7, 4))


def squeeze_remainder(x: torch.Tensor) -> torch.Tensor:
    return x[: x.shape[0] % 3 : 2].squeeze(0)


@pytest.mark.parametrize("size", [4, 5])
def test_an_equality_that_holds_periodically_is_refused(size: int) -> None:
    with pytest.raises(DynamicShapeError, match=r"(?s)not free.*test_dynamic_shapes_regressions.py"):
        ingot.capture(Function(squeeze_remainder), (torch.randn(size),), dynamic_shapes={"x": {0: "n"}})


def test_a_dim_that_a_constraint_makes_one_is_squeezed() -> None:
    model = Function(squeeze_remainder)
    compiled = ingot.compile(model, (torch.randn(4),), dynamic_shapes={"x": {0: Dim.AUTO}}, threads=1)
    for size in (4, 5, 7, 8):
        x = torch.randn(size)
        found = compiled(x)
        assert found.shape == ()
        torch.testing.assert_close(found, squeeze_remainder(x))
    with pytest.raises(InputError):
        compiled(torch.randn(6))
