"""A pass returns the number of changes that it made: the exact number on a small program, and 0 the second time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ingot
from ingot import passes
from ingot.ir.program import Program
from tests.passes.effects.effectful_ops import say

aten = torch.ops.aten
X = torch.linspace(-1, 2, 12).view(3, 4)


class Model(nn.Module):
    """A function as a model, with a layer, a norm and tables at hand."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.table = torch.ones(4)
        self.register_buffer("count", torch.zeros(4))
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def write(model: Model, x: torch.Tensor) -> Any:
    model.count.add_(1)  # seen from outside
    y = x.exp()
    y[0] = 2  # through a view
    return x.sin().mul_(2) + y + model.count  # private


def switch(model: Model, x: torch.Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):  # one pair, and two switches of the grad mode
        y = model.fc(x)
    with torch.no_grad():
        z = x.exp()
    return y.float() + z


def compose(model: Model, x: torch.Tensor) -> Any:
    return model.fc(F.hardtanh(x)) + F.silu(x)  # linear and silu; hardtanh and the sum are of the core set


def upsample(model: Model, x: torch.Tensor) -> Any:
    return F.interpolate(x[None, None], scale_factor=2.0) + x.norm()  # upsample_nearest2d and linalg_vector_norm


def branch(model: Model, x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: F.silu(x) * 2, lambda x: F.silu(x), (x,))  # sum as well


def rotate(model: Model, x: torch.Tensor) -> Any:
    z = torch.view_as_complex(x.view(3, 2, 2))
    return torch.view_as_real(z * z)  # view_as_complex, mul, view_as_real


def speak(model: Model, x: torch.Tensor) -> Any:
    say(x, "one")
    say(x, "two")
    return x + 1


def repeat(model: Model, x: torch.Tensor) -> Any:
    return x.exp() * x.exp() + x.exp()


def fold(model: Model, x: torch.Tensor) -> Any:
    return x * model.table.exp().sin()  # two operators, and the table that they read


def pass_on(model: Model, x: torch.Tensor) -> Any:
    return F.dropout(x.view(12).view(3, 4) * 1, 0.5, False) + 1


def spell(model: Model, x: torch.Tensor) -> Any:
    return x.softmax(-1) + x.sum(dim=-1, keepdim=True)


def leave(model: Model, x: torch.Tensor) -> Any:
    return x + 1


functional, core = [passes.functionalize], [passes.functionalize, passes.decompose]
CASES: list[tuple[Any, list[Any], Callable[..., Any], int]] = [
    (passes.functionalize, [], write, 3),
    (passes.functionalize, [], switch, 3),
    (passes.functionalize, [], leave, 0),
    (passes.remove_private_writes, [], write, 1),
    (passes.autocast, [], switch, 1),
    (passes.grad_mode, [], switch, 2),
    (passes.decompose, functional, compose, 2),
    ((passes.decompose, {"keep": ["linear"]}), functional, compose, 1),
    (passes.decompose, functional, branch, 3),
    (passes.decompose, functional, switch, 3),
    (passes.decompose, functional, leave, 0),
    (passes.legalize, functional, upsample, 2),
    (passes.legalize, core, upsample, 2),
    (passes.legalize, functional, compose, 2),
    (passes.legalize, core, compose, 0),
    (passes.decompose_complex, core, rotate, 3),
    (passes.decompose_complex, core, leave, 0),
    (passes.insert_effect_tokens, [], speak, 2),
    (passes.insert_effect_tokens, [], leave, 0),
    (passes.erase_effect_tokens, [passes.insert_effect_tokens], speak, 2),
    (passes.erase_effect_tokens, [], speak, 0),
    (passes.cse, functional, repeat, 2),
    (passes.dce, [*functional, passes.remove_noops], pass_on, 1),
    (passes.constant_fold, functional, fold, 3),
    (passes.remove_noops, functional, pass_on, 3),
    (passes.canonicalize, functional, spell, 2),
    (passes.propagate_known_sizes, [], leave, 0),
    (passes.annotate_shapes, [], leave, 0),
    (passes.tracepoints, [], leave, 0),
]


def capture(function: Callable[..., Any]) -> Program:
    torch.manual_seed(0)
    return ingot.capture(Model(function).eval(), (X,))


@pytest.mark.parametrize(
    ("chosen", "first", "function", "count"),
    CASES,
    ids=[f"{(p[0] if isinstance(p, tuple) else p).__name__} {len(b)} {f.__name__}" for p, b, f, _ in CASES],
)
def test_the_number_of_changes(chosen: Any, first: list[Any], function: Callable[..., Any], count: int) -> None:
    program = ingot.transform(capture(function), first)
    text = str(program)
    once = ingot.transform(program, [chosen])
    assert once.history[-1].changes == count
    assert (str(once).partition("\n")[2] == text.partition("\n")[2]) is (count == 0), "no change means the same program"
    twice = ingot.transform(once, [chosen])
    assert twice.history[-1].changes == 0 and str(twice) == str(once)


def test_every_pass_is_counted() -> None:
    counted = {(chosen[0] if isinstance(chosen, tuple) else chosen).__name__ for chosen, *_ in CASES}
    assert counted == {name for name, function in passes.REGISTRY.items() if function.__module__.startswith("ingot.")}
