"""Bytes written, inner graphs, dynamic dims and the table by module."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from ingot import api
from ingot.cli.inspection import model_summary
from ingot.cli.inspection.symbol_values import SizeError
from ingot.ir.program import Program
from ingot.ir.signature import InputKind
from tests.cli import factories


def capture(model: Any, *args: Any, **options: Any) -> Program:
    with torch.no_grad():
        return api.capture(model, args, **options)


def written(model: Any, *args: Any) -> int:
    return model_summary.take(capture(model, *args)).total.bytes


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: x + 1, 48),
        (lambda x: x.view(4, 3), 0),
        (lambda x: x.T.unsqueeze(0).expand(5, 4, 3), 0),
        (lambda x: x.reshape(12), 0),
        (lambda x: x.T.reshape(12), 48),
        (lambda x: x.contiguous(), 0),
        (lambda x: x.T.contiguous(), 48),
        (lambda x: x.to(torch.float16), 24),
        (lambda x: x.split(2, dim=1)[0], 0),
        (lambda x: nn.functional.dropout(x, 0.1, training=False), 0),
        (lambda x: nn.functional.dropout(x, 0.1, training=True), 48),
        (lambda x: x.clone().add_(1), 96),
        (lambda x: x.max(dim=0).values, 4 * 4 + 4 * 8),
    ],
)
def test_bytes_written(function: Any, expected: int) -> None:
    assert written(function, torch.ones(3, 4)) == expected


def test_rows_by_module() -> None:
    model, args, _ = factories.net()
    counted = model_summary.take(capture(model, *args))
    assert [(row.path, row.type, row.depth) for row in counted.rows] == [
        ("", "Net", 0),
        ("body", "Sequential", 1),
        ("body.0", "Linear", 2),
        ("body.1", "ReLU", 2),
        ("body.2", "Linear", 2),
        ("tied", "Linear", 1),
        ("conv", "Conv2d", 1),
    ]
    rows = {row.path: row for row in counted.rows}
    conv = 2 * (2 * 8 * 4 * 4) * 2 * 9
    assert rows["body"].flops == rows["body.0"].flops + rows["body.2"].flops == 2 * 5 * 4 * 8 + 2 * 5 * 8 * 8
    assert rows["conv"].flops == conv
    assert rows["conv"].bytes == 2 * 8 * 4 * 4 * 4
    assert rows["tied"].parameters == 0, "a tied weight is counted once, under its first name"
    assert counted.total.parameters == sum(p.numel() for p in model.parameters())
    assert counted.total.nodes == sum(counted.operators.values()) == 5
    assert counted.state_bytes[InputKind.PARAMETER] == 4 * counted.total.parameters
    assert not counted.opaque and not counted.unknown and not counted.loops


def test_a_cond_costs_its_costlier_branch() -> None:
    counted = model_summary.take(capture(factories.Branch(), torch.ones(3, 3)))
    assert counted.operators["aten.matmul.default"] == 4
    assert counted.total.flops == 3 * (2 * 3 * 3 * 3)


def test_a_scan_costs_a_step_for_each_row() -> None:
    from torch._higher_order_ops.scan import scan

    def model(carry: torch.Tensor, xs: torch.Tensor, weight: torch.Tensor) -> Any:
        return scan(lambda c, x: ((c + x) @ weight, c.clone()), carry, xs)

    counted = model_summary.take(capture(model, torch.ones(2, 4), torch.ones(7, 2, 4), torch.ones(4, 4)))
    assert counted.total.flops == 7 * (2 * 2 * 4 * 4)


def test_a_while_loop_is_counted_once_and_said_so() -> None:
    from torch._higher_order_ops.while_loop import while_loop

    def model(count: torch.Tensor, x: torch.Tensor) -> Any:
        return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x @ x), (count, x))

    counted = model_summary.take(capture(model, torch.zeros((), dtype=torch.int64), torch.ones(3, 3)))
    assert counted.total.flops == 2 * 3 * 3 * 3
    assert counted.loops == 1


def test_a_custom_operator_is_named_as_not_counted() -> None:
    @torch.library.custom_op("ingot_cli_test::double", mutates_args=())
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    double.register_fake(torch.empty_like)
    counted = model_summary.take(capture(lambda x: double(double(x)), torch.ones(3)))
    assert counted.opaque == {"ingot_cli_test.double.default": 2}


def test_sizes_known_only_at_run_time_are_left_out_and_said_so() -> None:
    counted = model_summary.take(
        capture(lambda x, w: x.nonzero().to(torch.float32) @ w, torch.ones(3, 2), torch.ones(2, 5))
    )
    assert counted.unknown > 0
    assert counted.total.flops == 0


@pytest.mark.parametrize("batch", [1, 5])
def test_dynamic_dims_are_counted_at_the_example(batch: int) -> None:
    program = capture(nn.Linear(4, 8), torch.ones(batch, 4), dynamic_shapes={"input": {0: "batch"}})
    counted = model_summary.take(program)
    assert counted.sizes == {"batch": batch}
    assert counted.total.flops == 2 * batch * 4 * 8
    assert model_summary.take(program, {"batch": 64}).total.flops == 2 * 64 * 4 * 8


def test_a_bad_size_is_an_error() -> None:
    dim = torch.export.Dim("batch", min=2, max=8)
    program = capture(nn.Linear(4, 8), torch.ones(5, 4), dynamic_shapes={"input": {0: dim}})
    with pytest.raises(SizeError, match="no dynamic dim 'seq'"):
        model_summary.take(program, {"seq": 3})
    with pytest.raises(SizeError, match="batch=9 is outside the range"):
        model_summary.take(program, {"batch": 9})
