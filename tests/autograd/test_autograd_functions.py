"""An autograd.Function keeps its own backward, which is compiled; what cannot be traced has a named error."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import ingot
from tests.autograd.test_training import compare

X = torch.Tensor


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: X) -> X:
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx: Any, grad: X) -> X:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return grad * (x.abs() < 1)


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: X, scale: float) -> X:
        ctx.scale = scale
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: X) -> tuple[X, None]:  # type: ignore[override]
        return grad * -ctx.scale, None


class Several(torch.autograd.Function):
    """Several results, one without a gradient, and gradients that are computed only where they are needed."""

    needed: ClassVar[list[tuple[bool, ...]]] = []

    @staticmethod
    def forward(ctx: Any, x: X, mode: str, y: X) -> tuple[X, X, X]:
        ctx.save_for_backward(x, y)
        ctx.mode = mode
        places = x.argmax(-1)
        ctx.mark_non_differentiable(places)
        return x * y, x + y, places

    @staticmethod
    def backward(ctx: Any, first: X, second: X, _: X) -> tuple[X | None, None, X | None]:  # type: ignore[override]
        x, y = ctx.saved_tensors
        Several.needed.append(ctx.needs_input_grad)
        assert ctx.mode == "times"
        of_x = first * y * 7 + second if ctx.needs_input_grad[0] else None
        of_y = first * x * 5 + second if ctx.needs_input_grad[2] else None
        return of_x, None, of_y


class Apart(torch.autograd.Function):
    """The newer form: the context is set up after the call, and an argument is written to."""

    @staticmethod
    def forward(x: X) -> X:
        return x.exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[X], output: X) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: X) -> X:  # type: ignore[override]
        return grad * ctx.saved_tensors[0] * 3


class WithFunction(nn.Module):
    def __init__(self, apply: Any) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 2), nn.Linear(4, 2)
        self.apply_function = apply

    def forward(self, x: X) -> X:
        made: X = self.apply_function(self.a(x), self.b(x))
        return made


FUNCTIONS = {
    "saved": lambda a, b: a + Sign.apply(b),
    "other arguments": lambda a, b: a + Reverse.apply(b, 0.5),
    "several": lambda a, b: sum(Several.apply(a, "times", b)[:2]) * a,
    "needs": lambda a, b: sum(Several.apply(a.detach(), "times", b)[:2]),
    "not differentiable": lambda a, b: a * Several.apply(a, "times", b)[2][:, None] + b,
    "set up apart": lambda a, b: a * Apart.apply(b),
    "twice": lambda a, b: Reverse.apply(Sign.apply(a) + b, 2.0),
    "without gradients": lambda a, b: a + Sign.apply(b).detach(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_backward_of_an_autograd_function_is_its_own(name: str) -> None:
    torch.manual_seed(1)
    Several.needed.clear()
    x = torch.randn(3, 4)
    trained = compare(WithFunction(FUNCTIONS[name]), (x,), (x * 2,))
    (graph,) = trained.graphs
    assert graph.backward is not None and graph.program is None
    if name == "needs":
        assert set(Several.needed) == {(False, False, True)}


def test_an_autograd_function_beside_an_operator_that_takes_functions_is_refused_by_name() -> None:
    def model(x: X) -> X:
        made: X = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
        return Sign.apply(made) * x  # type: ignore[no-any-return,no-untyped-call]

    with pytest.raises(ingot.IngotError, match=r"autograd\.Function Sign"):
        ingot.compile(model, (torch.rand(3, requires_grad=True),), training=True)


def test_an_autograd_function_that_reads_numbers_has_an_error_that_says_so() -> None:
    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: X) -> X:
            return x * x.sum().item()

        @staticmethod
        def backward(ctx: Any, grad: X) -> X:  # type: ignore[override]
            return grad

    with pytest.raises(ingot.IngotError, match="cannot write the gradient"):
        ingot.compile(lambda x: Reads.apply(x), (torch.rand(3, requires_grad=True),), training=True)
