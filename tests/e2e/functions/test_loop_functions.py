"""Functions that torch's loops hold: lowered to bodies where they are of elements, to steps where they are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as over_rows
from torch._higher_order_ops.scan import scan

import ingot
from ingot import compiler
from ingot.errors import AssertionFailed
from ingot.scheduling.buffer_planning import plan
from ingot.targets.cpu.codegen.module_emitter import emit
from ingot.targets.cpu.target import CPU
from tests.support.pipeline_fixtures import build

TABLE = torch.linspace(-1, 1, 5)


def two_results(x: Any, y: Any) -> Any:
    a, b = over_rows(lambda p: (torch.tanh(p[0] * TABLE) + p[1], p[1].exp()), (x, y))
    return a * 2, b


ELEMENTS: list[tuple[Any, int]] = [
    (two_results, 2),
    (lambda x, y: over_rows(lambda row: row.t()[1:] * 2, x), 1),
    (lambda x, y: over_rows(lambda row: row > 0, x * 2 - 1), 1),
    (lambda x, y: over_rows(lambda row: row[torch.tensor([2, 0])], x), 1),
    (lambda x, y: over_rows(lambda row: over_rows(lambda cell: cell.exp() + y[0], row), x), 1),
]
MIXED: list[Any] = [
    lambda x, y: over_rows(lambda row: row.sum(0) + 1, x),
    lambda x, y: over_rows(lambda row: row @ row.t(), x),
    lambda x, y: over_rows(lambda p: torch.softmax(p[0], -1) * p[1], (x, y)),
]


def _operands(rows: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(rows)
    return torch.randn(rows, 3, 5), torch.randn(rows, 5)


def _check(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def _loops(source: str) -> bool:
    """Whether the run has a loop of its own, and with it a launch for each row."""
    return "for (n[" in source


@pytest.mark.parametrize(("model", "kernels"), ELEMENTS)
def test_elementwise_map_is_not_a_loop(model: Any, kernels: int) -> None:
    given = _operands()
    compiled = build(model, given)
    assert not _loops(compiled.source) and compiled.kernels <= kernels
    _check(compiled(*given), model(*given))


@pytest.mark.parametrize("model", MIXED)
def test_a_map_of_rows_is_a_loop_over_them(model: Any) -> None:
    given = _operands()
    compiled = build(model, given)
    assert _loops(compiled.source)
    _check(compiled(*given), model(*given))


def test_a_map_over_any_number_of_rows() -> None:
    compiled = ingot.compile(two_results, _operands(), dynamic_shapes={"x": {0: "n"}, "y": {0: "n"}})
    for rows in (2, 7, 33):
        _check(compiled(*_operands(rows)), two_results(*_operands(rows)))


def test_an_assertion_inside_of_a_scan_holds_at_each_turn() -> None:
    """Once it was checked before the scan, at a place that nothing named."""

    def model(start: Any, flags: Any) -> Any:
        def step(state: Any, flag: Any) -> Any:
            torch.ops.aten._assert_async.msg(flag[0], "every flag is up")
            return state * 2, state + 1

        return scan(step, start, flags)

    start, flags = torch.ones(3), torch.ones(5, 1, dtype=torch.bool)
    compiled = build(model, (start, flags))
    _check(compiled(start, flags), model(start, flags))
    flags[3] = False
    with pytest.raises(AssertionFailed, match="every flag is up"):
        compiled(start, flags)


def test_a_scan_of_matrices_takes_no_longer_to_compile_for_being_long() -> None:
    """What the C compiler gets grows with the logarithm of the length at most."""
    sizes = {}
    for length in (64, 4096):
        program = ingot.capture(
            lambda x: associative_scan(lambda a, b: b @ a, x, 0, combine_mode="generic"), (torch.randn(length, 3, 3),)
        )
        module = CPU.lower(compiler.run_cpu_pipeline(program))
        sizes[length] = len(emit(module, plan(module)).text)
    assert sizes[4096] < 1.2 * sizes[64]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("shape", "lanes"), [((9, 5, 300), 256), ((3, 5, 300), 64), ((4, 5, 300), 128), ((2, 7, 3), 64)]
)
def test_a_scan_along_an_inner_dim_writes_its_results_where_they_belong(
    shape: tuple[int, ...], lanes: int, reverse: bool
) -> None:
    """Blocks as wide as leaves work for several threads, and no copy in another order of the dims."""

    def model(a: Any, b: Any) -> Any:
        def combine(x: Any, y: Any) -> Any:
            return x[0] * y[0], y[0] * x[1] + y[1]

        return associative_scan(combine, (a, b), 1, reverse=reverse, combine_mode="generic")

    torch.manual_seed(0)
    given = torch.rand(shape), torch.randn(shape)
    compiled = build(model, given)
    assert f"carried0[{lanes}]" in compiled.source
    if not reverse:
        assert compiled.source.count("    LAUNCH(") == 3  # the first place of each, then the scan
    _check(compiled(*given), model(*given))


def test_each_turn_of_a_loop_draws_numbers_of_its_own() -> None:
    """Once every row of a map, and every turn of a scan, had the same ones."""

    def model(x: Any) -> Any:
        rows = over_rows(lambda row: torch.rand_like(row) + 0 * row, x)
        return rows, scan(lambda state, row: (state + 0, torch.rand_like(row) + 0 * row), x[0], x)[1]

    for drawn in build(model, (torch.zeros(6, 50),))(torch.zeros(6, 50)):
        assert drawn.unique().numel() == 300


def test_each_turn_of_a_while_loop_draws_numbers_of_its_own() -> None:
    def model(x: Any) -> Any:
        def turn(i: Any, rows: Any) -> Any:
            return i + 1, torch.cat([rows[1:], torch.rand_like(rows[:1])])

        return torch.while_loop(lambda i, rows: i < 6, turn, (torch.tensor(0), x))[1]

    compiled = build(model, (torch.zeros(6, 50),))
    assert compiled(torch.zeros(6, 50)).unique().numel() == 300
    assert not torch.equal(compiled(torch.zeros(6, 50)), compiled(torch.zeros(6, 50)))
