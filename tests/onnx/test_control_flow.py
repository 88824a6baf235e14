"""Branches, loops and scans in ONNX: each exported, checked, and run against torch by the exporter itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan

import ingot

X = torch.Tensor


class Model(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function, self.fc = function, nn.Linear(4, 4)

    def forward(self, x: X) -> Any:
        return self.function(self, x)


def branch(self: Model, x: X) -> Any:
    return torch.cond(x.sum() > 0, lambda x: self.fc(x).relu(), lambda x: x - 1, (x,))


def nested_branch(self: Model, x: X) -> Any:
    def inner(x: X) -> X:
        return torch.cond(x.max() > 1, lambda x: x * 2, lambda x: x * x.shape[0], (x,))

    return torch.cond(x.sum() > 0, inner, lambda x: x.clone(), (x,))


def branch_on_size(self: Model, x: X) -> Any:
    return torch.cond(x.shape[0] > 4, lambda x: x.sin(), lambda x: x.cos(), (x,))


def loop(self: Model, x: X) -> Any:
    def body(i: X, x: X) -> tuple[X, X]:
        return i + 1, self.fc(x).tanh()

    return torch.while_loop(lambda i, x: i < 3, body, (torch.zeros((), dtype=torch.int64), x))


def loop_until(self: Model, x: X) -> Any:
    return torch.while_loop(lambda x, n: x.abs().sum() > 1, lambda x, n: (x / 2, n + 1), (x, torch.tensor(0)))


def loop_in_branch(self: Model, x: X) -> Any:
    def walk(x: X) -> X:
        return torch.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, x + i), (torch.tensor(0), x))[1]

    return torch.cond(x.sum() > 0, walk, lambda x: x.neg(), (x,))


def scanned(self: Model, x: X) -> Any:
    def combine(carry: X, row: X) -> tuple[X, X]:
        new = (carry + self.fc(row)).tanh()
        return new, new * 2

    return scan(combine, torch.zeros(4), x, dim=0)


def mapped(self: Model, x: X) -> Any:
    return map_rows(lambda row, y: row.sin() * y.shape[0], x, x)


def associated(self: Model, x: X) -> Any:
    def combine(a: tuple[X, X], b: tuple[X, X]) -> tuple[X, X]:
        return a[0] * b[0], a[1] * b[0] + b[1]

    return associative_scan(combine, (x.sigmoid(), self.fc(x)), dim=0, combine_mode="generic")


def associated_backwards(self: Model, x: X) -> Any:
    return associative_scan(lambda a, b: torch.maximum(a, b), x, dim=1, reverse=True, combine_mode="generic")


CASES = {
    branch: {"If"},
    nested_branch: {"If"},
    branch_on_size: {"If"},
    loop: {"Loop"},
    loop_until: {"Loop"},
    loop_in_branch: {"If"},
    scanned: {"Scan"},
    mapped: {"Scan"},
    associated: {"Scan"},
    associated_backwards: {"Scan"},
}


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("sign", [1, -1])
def test_control_flow(function: Callable[..., Any], sign: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = sign * (torch.rand(5, 4) + 0.1)
    program = ingot.capture(Model(function).eval(), (x,), dynamic_shapes={"x": {0: "n"}})
    report = ingot.export_onnx(program, tmp_path / "m.onnx")
    assert {node.op_type for node in onnx.load(tmp_path / "m.onnx").graph.node} >= CASES[function]
    assert report.runner == "ONNX Runtime" and len(report.differences) == 3


def test_dropped_assertions_are_reported(tmp_path: Path) -> None:
    def asserting(self: Model, x: X) -> Any:
        torch._assert_async((x > 0).all(), "all of x is positive")
        return self.fc(x)

    program = ingot.capture(Model(asserting).eval(), (torch.rand(5, 4) + 0.1,))
    report = ingot.export_onnx(program, tmp_path / "m.onnx")
    (said,) = report.dropped_assertions
    assert said.startswith("all of x is positive (") and "test_control_flow.py:" in said
    assert "warning: ONNX has no assertions" in str(report) and said in str(report)
