"""The gradient of a gradient: a compiled backward has none, and says so where it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ingot import torch_internals as internals
from ingot.errors import DoubleBackwardError, format_error

Half = Callable[[list[Any]], Sequence[Any]]


class OnceDifferentiable:
    """A compiled backward, called with a list, which it empties. What it returns has no gradient of its own: a double
    backward raises DoubleBackwardError."""

    def __init__(self, half: Half) -> None:
        self._boxed_call = True  # of this object: torch copies its attributes to a wrapper
        self.half = half

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        internals.on_second_derivative(_refuse)
        return self.half(arguments)


def _refuse() -> None:
    raise DoubleBackwardError(
        format_error(
            "A double backward goes through a compiled model, which has no second derivative.",
            why="its backward is native code, whose gradient autograd does not know (the gradient was made with "
            "create_graph=True)",
            fix="compute the part that is differentiated twice with the model as it was before it was compiled, or "
            "write the first gradient into the model that is compiled: torch.autograd.grad(..., create_graph=True) in "
            "forward",
        )
    )
