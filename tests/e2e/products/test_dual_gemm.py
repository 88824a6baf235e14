"""Pairs: two products or convolutions whose sums meet in one epilogue."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ingot.codegen.build.isa import ISAS, Isa, missing_features
from ingot.lowering.loop_module import Module
from ingot.targets.cpu.schedule.cost_model import flops, weighted_flops
from ingot.targets.cpu.schedule.statements import DualGemm, PackedGemm, TiledConvolution
from tests.support.emulated_amx import EMULATED_AMX
from tests.support.int8_layers import Residual, inputs, layer
from tests.support.pipeline_fixtures import assemble, lowered

RUNNABLE = [*(isa for isa in ISAS.values() if isa.architecture and not missing_features(isa)), EMULATED_AMX]
HALF: dict[str, Any] = {"stride": 2}
WINDOWS: dict[str, Any] = {"stride": 2, "padding": 1}


def pairs_of(module: Module) -> list[DualGemm]:
    return [step for step in module.steps if isinstance(step, DualGemm)]


BLOCKS = {
    "two products": (lambda: Residual(layer(24, 80, 1), layer(40, 80, 1), (1.0, 100)), (9, 9), (9, 9)),
    "a product, then windows": (lambda: Residual(layer(24, 64, 1), layer(40, 64, 1, HALF, 5)), (7, 7), (13, 13)),
    "windows, then a product": (
        lambda: Residual(layer(40, 64, 3, WINDOWS, 5), layer(24, 64, 1), (1.0, 9)),
        (13, 13),
        (7, 7),
    ),
    "windows twice": (lambda: Residual(layer(8, 20, 3, WINDOWS), layer(24, 20, 1, HALF, 3)), (13, 13), (13, 13)),
}


@pytest.mark.parametrize("isa", RUNNABLE, ids=str)
def test_pairs_of_integers_are_what_torch_says_to_the_last_bit(isa: Isa) -> None:
    class All(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(block() for block, _, _ in BLOCKS.values())

        def forward(self, *xs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(block(*xs[2 * i : 2 * i + 2]) for i, block in enumerate(self.blocks))

    model = All().eval()
    sizes = [
        (2, branch.ins, *size)
        for block, *two in BLOCKS.values()
        for branch, size in zip((block().deep, block().short), two, strict=True)
    ]
    xs = inputs(*sizes)
    program, module = lowered(model, xs)
    assert len(pairs_of(module)) == len(BLOCKS), [type(step).__name__ for step in module.steps]
    native = assemble(program, module, isa=isa, threads=2)
    for name, ours, theirs in zip(BLOCKS, native(*xs), model(*xs), strict=True):
        assert theirs.unique().numel() > 50, name
        assert torch.equal(ours, theirs), name


def test_nothing_lies_between_the_two() -> None:
    block, *sizes = BLOCKS["a product, then windows"]
    model = block().eval()
    xs = inputs((1, 24, *sizes[0]), (1, 40, *sizes[1]))
    _, module = lowered(model, xs)
    (pair,) = pairs_of(module)
    first, second = pair.steps
    assert isinstance(first, TiledConvolution) and isinstance(second, PackedGemm)
    assert not second.epilogue.stores
    assert [module.buffers[store.buffer].dtype for store in first.epilogue.stores] == ["uint8"]
    assert flops(pair) == flops(first) + flops(second) == 2 * 49 * 64 * (24 + 40)
    assert weighted_flops(pair) * 4 == flops(pair)


def test_what_another_step_reads_is_written() -> None:
    """The deep branch is a result of its own: it cannot stay in registers."""
    model = Residual(layer(24, 64, 1), layer(40, 64, 1), keep=True).eval()
    xs = inputs((1, 24, 9, 9), (1, 40, 9, 9))
    program, module = lowered(model, xs)
    assert not pairs_of(module)
    for ours, theirs in zip(assemble(program, module)(*xs), model(*xs), strict=True):
        assert torch.equal(ours, theirs)


def test_panels_that_fill_the_cache_are_read_apart() -> None:
    model = Residual(layer(4096, 64, 1), layer(40, 64, 1)).eval()
    _, module = lowered(model, inputs((1, 4096, 4, 4), (1, 40, 4, 4)))
    assert not pairs_of(module)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_pairs_of_floats(precision: Any) -> None:
    class Floats(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.deep, self.short, self.last = (
                nn.Conv2d(24, 64, 1),
                nn.Conv2d(40, 64, 1, stride=2),
                nn.Conv2d(64, 16, 1),
            )

        def forward(self, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
            return self.last(F.relu(self.deep(x) + self.short(z)))

    torch.manual_seed(0)
    model, xs = Floats().eval(), (torch.randn(2, 24, 7, 7), torch.randn(2, 40, 13, 13))
    program, module = lowered(model, xs, precision=precision)
    assert len(pairs_of(module)) == 1
    tolerance = 1e-5 if precision == "float32" else 2e-2
    with torch.no_grad():
        torch.testing.assert_close(assemble(program, module)(*xs), model(*xs), rtol=tolerance, atol=tolerance)


def test_the_number_of_images_may_be_dynamic() -> None:
    block, *sizes = BLOCKS["windows, then a product"]
    model = block().eval()
    batch = torch.export.Dim("batch", min=1, max=8)
    xs = inputs((2, 40, *sizes[0]), (2, 24, *sizes[1]))
    program, module = lowered(model, xs, dynamic_shapes=({0: batch}, {0: batch}))
    assert len(pairs_of(module)) == 1
    native = assemble(program, module)
    for images in (1, 3):
        more = inputs((images, 40, *sizes[0]), (images, 24, *sizes[1]))
        assert torch.equal(native(*more), model(*more))
