"""Operators that torch has no gradient of, found before a gradient is asked to go through them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ingot import torch_internals as internals
from ingot.errors import UnsupportedOperator, format_error


class MissingGradients:
    """Told of every result, it raises for those results of a model that a gradient would have to go through."""

    def __init__(self) -> None:
        self._without: dict[Any, tuple[str, str]] = {}  # by autograd's node: the operator and the user's line

    def clear(self) -> None:
        self._without.clear()

    def note(self, tensors: Iterable[torch.Tensor], operator: str, where: str) -> None:
        for tensor in tensors:
            if internals.lacks_gradient(tensor):
                self._without.setdefault(tensor.grad_fn, (operator, where))

    def check(self, results: Iterable[torch.Tensor]) -> None:
        """Raises UnsupportedOperator where a gradient of a result goes through an operator without one."""
        found = self._find_needed(results)
        if found is not None:
            operator, where = found
            raise UnsupportedOperator(
                format_error(
                    f"torch has no gradient of {operator}, and the gradient of this model needs one.",
                    where=where,
                    why="a result depends on it, and its argument requires a gradient",
                    fix="use another operator there, or give it x.detach() if no gradient is to go through it",
                )
            )

    def _find_needed(self, results: Iterable[torch.Tensor]) -> tuple[str, str] | None:
        if not self._without:
            return None
        seen: set[Any] = set()
        waiting: list[Any] = [tensor.grad_fn for tensor in results]
        while waiting:
            step = waiting.pop()
            if step is None or step in seen:
                continue
            if step in self._without:
                return self._without[step]
            seen.add(step)
            waiting.extend(following for following, _ in step.next_functions)
        return None
