"""What a pass asks about sizes after capture does not change which sizes a program covers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim

import ingot
from ingot.ir import metadata


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(1, 1, bias=False), nn.Linear(1, 64)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.nn.functional.silu(self.first(x))
        scores = y.unsqueeze(1).transpose(1, 2) @ y.unsqueeze(2)
        return self.second(y[:, :2].sum(1)), scores


def quantized() -> tuple[ingot.Program, torch.Tensor]:
    x = torch.randn(2, 5, 1)
    program = ingot.capture(Head().eval(), (x,), dynamic_shapes=({1: "l"},))
    prepared = ingot.quantize.prepare(program, ingot.quantize.int8_static())
    return ingot.quantize.convert(ingot.quantize.calibrate(prepared, [(x,)], progress=False)), x


def ask_about_sizes(program: ingot.Program) -> None:
    """As fake kernels do that lay out a result: is this size more than one?"""
    sizes = [s for n in program.graph.nodes if isinstance(v := metadata.value_of(n), torch.Tensor) for s in v.shape]
    assert all(bool(size > 1) or True for size in sizes if isinstance(size, torch.SymInt))


@pytest.mark.parametrize("reloaded", [False, True])
def test_slices_keep_their_sizes(reloaded: bool, tmp_path: Path) -> None:
    program, _ = quantized()
    if reloaded:
        program.save(tmp_path / "p.ingot")
        program = ingot.load(tmp_path / "p.ingot")
    ask_about_sizes(program)
    compiled = ingot.compile(program)
    for length in (1, 2, 3):
        memory = torch.full((4, length, 1), 1e6)  # what lies behind the argument
        x = memory[:2]
        x.copy_(torch.randn(2, length, 1))
        for got, expected in zip(compiled(x), program(x), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_a_program_of_torch_export_learns_nothing() -> None:
    x = torch.randn(2, 5)
    exported = torch.export.export(nn.ReLU(), (x,), dynamic_shapes=({1: torch.export.Dim("l", max=9)},))
    program = ingot.from_exported(exported)
    (size,) = [s for s in metadata.value_of(program.graph.output_node())[0].shape if isinstance(s, torch.SymInt)]
    assert not bool(size < 7)  # as for sizes in general
    program.verify()
    assert "9" in str(size.node.shape_env.var_to_range)
    for length in (2, 6, 7, 9):
        x = torch.randn(2, length)
        torch.testing.assert_close(ingot.compile(program)(x), x.relu())


@pytest.mark.parametrize(
    "function",
    [
        lambda part: part.logsumexp(0),
        lambda part: part.softmax(0),
        lambda part: part.var(0, correction=0),
        lambda part: torch.nn.functional.normalize(part, dim=0),
        lambda part: part - part.amax(0, keepdim=True),
        lambda part: torch.logcumsumexp(part, 0),
    ],
)
@pytest.mark.parametrize("high", [None, 9])
def test_a_size_that_is_one_in_the_example_is_not_one_in_general(
    function: Callable[[torch.Tensor], torch.Tensor], high: int | None
) -> None:
    """Decompositions subtract a maximum of size 1 from a slice: its size is that of the slice, not of the example's."""

    class Slices(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(x[3:-2])

    shapes = {"x": {0: Dim("n", min=6, max=high)}}
    compiled = ingot.compile(Slices(), (torch.randn(6, 3),), dynamic_shapes=shapes)
    core = ingot.transform(
        ingot.capture(Slices(), (torch.randn(6, 3),), dynamic_shapes=shapes), ingot.passes.DEFAULT_PIPELINE
    )
    for rows in (6, 7, 9):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(compiled(x), Slices()(x), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(core(x), Slices()(x), rtol=1e-5, atol=1e-6)


def test_a_size_that_equals_a_constant_for_some_sizes_only() -> None:
    """n in [2, 3]: a dim of n is not one of 2, whichever of the two the example has."""

    class Reshapes(nn.Module):
        def forward(self, a: torch.Tensor) -> torch.Tensor:
            scores = a @ a.transpose(-1, -2)
            return scores.reshape(-1, scores.shape[0])

    for example in (2, 3):
        shapes = {"a": {1: Dim("n", min=2, max=3)}}
        compiled = ingot.compile(Reshapes(), (torch.randn(2, example, 2),), dynamic_shapes=shapes)
        for size in (2, 3):
            a = torch.randn(2, size, 2)
            torch.testing.assert_close(compiled(a), Reshapes()(a))
