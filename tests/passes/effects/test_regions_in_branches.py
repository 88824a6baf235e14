"""A branch that ends with a grad-mode region: the mode changes back inside the branch, not behind it."""

from __future__ import annotations

import torch

import ingot
from ingot import passes
from ingot.ir.outlining import graph_modules


class Checked(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        def check(w: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                torch._assert_async((w < 1000).all(), "too large")
            return w * 1

        torch.cond(x.sum() > 0, check, lambda w: w * 3, (x,))
        return y * 2


class Detached(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        def branch(w: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                return w.sin()

        return torch.cond(x.sum() > 0, branch, lambda w: w.cos().detach(), (x,)) + y * 2


def test_every_pass_takes_a_branch_with_nothing_but_a_region() -> None:
    x, y = torch.rand(3), torch.randn(3, requires_grad=True)
    program = ingot.capture(Checked(), (x, y))
    for name in ("insert_effect_tokens", "dce", "functionalize", "decompose"):
        program = ingot.transform(program, [passes.REGISTRY[name]])
        for module in graph_modules(program.graph_module):
            assert [node.op for node in module.graph.nodes].index("output") == len(module.graph.nodes) - 1
    assert program(x, y).requires_grad


def test_gradients_behind_a_branch_that_ends_with_a_region() -> None:
    x, y = torch.rand(3), torch.randn(3, requires_grad=True)
    for program in (captured := ingot.capture(Detached(), (x, y)), ingot.transform(captured, passes.DEFAULT_PIPELINE)):
        (gradient,) = torch.autograd.grad(program(x, y).sum(), y)
        torch.testing.assert_close(gradient, torch.full((3,), 2.0))
