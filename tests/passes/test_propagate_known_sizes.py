"""Sizes behind loops and branches that shape analysis knows: native code and ONNX files get them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import torch

import ingot
from ingot.ir.metadata import value_of
from ingot.passes import propagate_known_sizes


def looping(x: torch.Tensor) -> Any:
    """Two numbers go through the loop as they are: 4, and twice a dim."""

    def step(i: int, k: int, m: int, a: torch.Tensor) -> tuple[Any, ...]:
        return i + 1, k, m, a * k + torch.ones(k)

    _, k, m, a = torch.while_loop(lambda i, k, m, a: i < 3, step, (0, x.shape[1], x.shape[0] * 2, x))
    return torch.zeros(k) + a.sum(), torch.ones(m)


def counting(x: torch.Tensor) -> Any:
    """What a loop counts is known to nobody."""
    i, _ = torch.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * 2), (0, x))
    return torch.zeros(i)


def captured(model: Any) -> ingot.Program:
    return ingot.capture(model, (torch.randn(6, 4),), dynamic_shapes={"x": {0: "n"}})


def result_shapes(program: ingot.Program) -> list[str]:
    (output,) = (n for n in program.graph.nodes if n.op == "output")
    return [str(list(value_of(n).shape)) for n in output.args[0]]


def test_numbers_that_a_loop_leaves_as_they_were() -> None:
    program = captured(looping)
    assert any("u" in shape for shape in result_shapes(program))
    settled = ingot.transform(program, [propagate_known_sizes], check="numerics")
    assert result_shapes(settled)[0] == "[4]" and "u" not in result_shapes(settled)[1]
    assert "zeros: f32[4] = aten.zeros([4]" in str(settled) and "f32[2*n]" in str(settled)
    assert ingot.transform(settled, [propagate_known_sizes]).history[-1].changes == 0
    x = torch.randn(9, 4)
    assert all(map(torch.equal, settled(x), looping(x)))


def test_a_number_that_changes_is_left_alone() -> None:
    program = captured(counting)
    assert ingot.transform(program, [propagate_known_sizes]).history[-1].changes == 0


def test_native_code_of_what_lies_behind_a_loop() -> None:
    """Without the analysis it is refused: a result whose size is known only when it runs."""
    compiled = ingot.compile(captured(looping), (torch.randn(6, 4),))
    x = torch.randn(9, 4)
    for mine, theirs in zip(compiled(x), looping(x), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_the_file_has_the_sizes(tmp_path: Path) -> None:
    ingot.export_onnx(captured(looping), tmp_path / "m.onnx")
    first, second = onnx.load(tmp_path / "m.onnx").graph.output
    assert [d.dim_value for d in first.type.tensor_type.shape.dim] == [4]
    assert [d.dim_param for d in second.type.tensor_type.shape.dim] == ["2*n"]
