"""Fusion: what becomes one kernel, as printed steps, and that the numbers stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ingot.lowering.loop_ir import Attention, Gemm, LoopNest, Map, Reduce, Stmt
from ingot.lowering.loop_module import Module
from ingot.targets.cpu.schedule.statements import PackedGemm, TiledConvolution
from tests.support.pipeline_fixtures import assemble, lowered

X = torch.Tensor


def x(*shape: int) -> X:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def spelled(module: Module) -> list[str]:
    return [_spelled(step) for step in module.steps]


def _spelled(step: Stmt) -> str:
    def loops(of: Sequence[Any]) -> str:
        return " × ".join(str(loop.extent) for loop in of) or "1"

    match step:
        case Map():
            return f"Map {loops(step.loops)}: {_ops(step)}"
        case Reduce():
            return f"Reduce {loops(step.loops)} over {loops(step.over)}: {_ops(step)} → {' '.join(step.kinds)}"
        case LoopNest():
            inner = "; ".join(_spelled(s) for s in step.steps)
            return f"Nest {loops(step.outer)}, {len(step.local)} local [{inner}]"
        case Gemm() | PackedGemm():
            return f"{type(step).__name__} {step.m}×{step.n}×{step.k}: {_ops(step.epilogue)}"
        case TiledConvolution() | Attention():
            return f"{type(step).__name__}: {_ops(step.epilogue)}"
    return type(step).__name__


def _ops(step: Map | Reduce) -> str:
    return " ".join(op.name for op in step.body.ops if op.name not in ("load", "const", "index"))


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


def steps_of(name: str) -> list[str]:
    f, args = CASES[name]
    return spelled(lowered(f, args)[1])


def test_softmax_is_one_nest() -> None:
    (step,) = steps_of("softmax")
    assert step.startswith("Nest 20, ")
    assert step.count("Reduce") == 2 and "→ max" in step and "→ sum" in step


def test_layer_norm_is_one_nest() -> None:
    (step,) = steps_of("layer norm")
    assert step.startswith("Nest 20, ")
    assert "Map 20 × 64" in step


def test_a_linear_layer_and_its_activation_are_one_product() -> None:
    assert steps_of("linear and gelu") == ["Gemm 20×96×64: accumulator add mul mul erf add mul"]


def test_a_residual_and_the_norm_behind_it_are_one_nest() -> None:
    product, norm = steps_of("residual")
    assert product == "Gemm 20×64×64: accumulator add"
    assert norm.startswith("Nest 20, ")


def test_a_product_with_two_users_stores_both_from_its_tile() -> None:
    f, args = CASES["two users"]
    (step,) = lowered(f, args)[1].steps
    assert isinstance(step, Gemm)
    assert len(step.epilogue.stores) == 2


def test_no_fusion_when_consumer_order_differs() -> None:
    assert len(steps_of("reversed reader")) == 2


def test_contiguous_loops_are_collapsed() -> None:
    (step,) = spelled(lowered(lambda a: torch.sin(a) + 1, (x(3, 5, 7),))[1])
    assert step == "Map 105: sin add"


def test_memory_that_is_written_across_is_written_in_blocks() -> None:
    assert steps_of("across") == ["Map 4 × 49 × 16: add"]


def test_a_loop_that_fills_no_vector_is_not_the_innermost() -> None:
    assert steps_of("three channels last") == ["Map 3 × 400: mul"]


def test_dead_steps_are_left_out() -> None:
    def f(a: X) -> X:
        b = a.clone()
        b[:2] = 0
        return a * 2

    assert spelled(lowered(f, (x(5, 7),))[1]) == ["Map 35: mul"]


def test_a_convolution_takes_its_batch_norm_and_activation() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.next = nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.Conv2d(16, 8, 3)

        def forward(self, a: X) -> X:
            return self.next(torch.relu(self.norm(self.conv(a))))

    steps = [s for s in spelled(lowered(Model().eval(), (x(1, 8, 9, 9),))[1]) if "TiledConvolution" in s]
    assert steps == ["TiledConvolution: accumulator add relu", "TiledConvolution: accumulator add"]


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
        assert spelled(fuse(module, FUSION_LIMITS)) == spelled(module)
