"""Fusion: what becomes one kernel, as printed steps, and that the numbers stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ingot.lowering.index_expr import symbol
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.loop_ir import Buffer, Loop, Map, Store
from ingot.lowering.loop_ir_printer import print_steps
from ingot.lowering.loop_module import Module
from ingot.targets.cpu.schedule.statements import TiledConvolution
from tests.support.pass_texts import print_pass
from tests.support.pipeline_fixtures import assemble, lowered

X = torch.Tensor


def x(*shape: int) -> X:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def text_of(module: Module) -> str:
    return print_steps(module.steps, locations=False)


def layer_norm(a: X, w: X, b: X) -> X:
    return F.layer_norm(a, (64,), w, b)


def softmax(a: X) -> X:
    return torch.softmax(a, -1)


def mlp(a: X, w: X, b: X) -> X:
    return F.gelu(F.linear(a, w, b))


def residual(a: X, w: X, b: X) -> X:
    return F.layer_norm(a + F.linear(a, w, b), (64,))


def two_users(a: X, w: X, b: X) -> tuple[X, X]:
    made = F.linear(a, w, b)
    return made, torch.relu(made)


def chain(a: X) -> X:
    return torch.exp(-a) * 2 + a.sum()


def reversed_reader(a: X) -> X:
    b = torch.exp(a)
    return b + b.flip(0)


CASES: dict[str, tuple[Callable[..., Any], tuple[X, ...]]] = {
    "layer norm": (layer_norm, (x(20, 64), x(64), x(64))),
    "softmax": (softmax, (x(20, 64),)),
    "linear and gelu": (mlp, (x(20, 64), x(96, 64), x(96))),
    "residual": (residual, (x(20, 64), x(64, 64), x(64))),
    "two users": (two_users, (x(20, 64), x(96, 64), x(96))),
    "chain": (chain, (x(20, 64),)),
    "reversed reader": (reversed_reader, (x(20, 64),)),
    "across": (lambda a, b: (a + b).t().contiguous(), (x(49, 64), x(49, 64))),
    "three channels last": (lambda a: (a * 2).permute(0, 2, 3, 1).contiguous(), (x(1, 3, 20, 20),)),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_fused(name: str, golden: Callable[[str, str], None]) -> None:
    """Softmax, layer norm and a residual with its norm are one nest each, a linear layer and its activation are one
    product, which stores twice where two read it. A reader in reverse order stays apart; memory that is written across
    is written in blocks; a loop that fills no vector is not the innermost."""
    f, args = CASES[name]
    golden(f"fusion {name}", text_of(lowered(f, args)[1]))


def test_contiguous_loops_are_collapsed() -> None:
    assert (
        text_of(lowered(lambda a: torch.sin(a) + 1, (x(3, 5, 7),))[1])
        == """\
map (i0 < 105) {
  %0 = load i0[i0]: float32
  %1 = sin %0: float32
  %2 = const 1.0: float32
  %3 = add %1, %2: float32
  store o1[i0] = %3
}
"""
    )


def test_dead_steps_are_left_out() -> None:
    def f(a: X) -> X:
        b = a.clone()
        b[:2] = 0
        return a * 2

    assert (
        text_of(lowered(f, (x(5, 7),))[1])
        == """\
map (i0 < 35) {
  %0 = load i0[i0]: float32
  %1 = const 2.0: float32
  %2 = mul %0, %1: float32
  store o1[i0] = %2
}
"""
    )


def test_a_convolution_takes_its_batch_norm_and_activation(golden: Callable[[str, str], None]) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.next = nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.Conv2d(16, 8, 3)

        def forward(self, a: X) -> X:
            return self.next(torch.relu(self.norm(self.conv(a))))

    steps = lowered(Model().eval(), (x(1, 8, 9, 9),))[1].steps
    convolutions = [step for step in steps if isinstance(step, TiledConvolution)]
    golden("fusion convolutions", print_steps(convolutions, locations=False))


# A small module for each pass of fusion, on which it has something to do.
PASSES: dict[str, tuple[Callable[..., Any], tuple[X, ...]]] = {
    "epilogue_fusion": (lambda a, b: torch.relu(a @ b) + 1, (x(4, 6), x(6, 5))),
    "map_fusion": (lambda a: (torch.exp(a), torch.exp(a).sum(0), torch.exp(a) * a), (x(4, 6),)),
    "row_fusion": (softmax, (x(20, 6),)),
    "loop_collapse": (lambda a: a.flip(0) + 1, (x(3, 4, 5),)),
}


def test_dead_steps_and_stores_as_text(golden: Callable[[str, str], None]) -> None:
    """A step whose results are not read is removed; one of which a part is read keeps that part."""

    def write(*names: str) -> Map:
        ops, place = BodyBuilder(), symbol("i0", below=6)
        value = ops.load("x", place, "float32")
        results = [ops.call(name, value) for name in ("sin", "cos")[: len(names)]]
        return Map((Loop("i0", 6),), ops.finish(results), tuple(Store(n, place, i) for i, n in enumerate(names)))

    kinds = {"x": "input", "t": "temporary", "u": "temporary", "y": "output"}
    buffers = {name: Buffer(name, "float32", (6,), kind) for name, kind in kinds.items()}
    module = Module(buffers, (write("t"), write("u", "y")), (), (), (), {})
    golden("pass dead_steps", print_pass(module, "dead_steps"))


@pytest.mark.parametrize("name", PASSES)
def test_each_pass_of_fusion(name: str, golden: Callable[[str, str], None]) -> None:
    f, args = PASSES[name]
    golden(f"pass {name}", print_pass(lowered(f, args, fused=False)[1], name))


@pytest.mark.parametrize("name", CASES)
def test_fused_and_unfused_give_the_same_numbers(name: str) -> None:
    f, args = CASES[name]
    expected = f(*args)
    for fused in (True, False):
        compiled = assemble(*lowered(f, args, fused=fused))
        torch.testing.assert_close(compiled(*args), expected, rtol=1e-5, atol=1e-5)
        compiled.close()


def test_fusing_again_changes_nothing() -> None:
    from ingot.scheduling.fusion import fuse
    from ingot.targets.cpu.schedule.limits import FUSION_LIMITS

    for f, args in CASES.values():
        module = lowered(f, args)[1]
        assert text_of(fuse(module, FUSION_LIMITS)) == text_of(module)
