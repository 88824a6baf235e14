"""What an operator of random programs is: a function of tensors, and how its arguments are chosen.

`exact` says of floats: "keep" the result is exact if the operands are, "never" it rounds, "needs" only exact, finite
operands are taken, because a rounding error would become another integer, "needs, rounds" both, "rounds" each element
is rounded correctly, so that halves keep exact. Constants are asked for by shape, dtype and,
for integers, a bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Wanted = tuple[Sequence[int], torch.dtype, int]
Arguments = Callable[[Any, list[torch.Tensor]], tuple[Sequence[Any], Sequence[Wanted]]]


def nothing(c: Any, x: list[torch.Tensor]) -> tuple[Sequence[Any], Sequence[Wanted]]:
    return (), ()


@dataclass(frozen=True)
class Op:
    function: Callable[..., torch.Tensor]
    operands: tuple[str, ...]
    arguments: Arguments = nothing
    exact: str = "keep"
    mutates: bool = False
    eager: Callable[..., torch.Tensor] | None = None  # to compare with, where the operator itself will not do
    meaning: Callable[..., torch.Tensor] | None = None  # what float64 computes, where eager is not clear about it


OPS: dict[str, Op] = {}
X = torch.Tensor


def op(
    *operands: str,
    exact: str = "keep",
    arguments: Arguments = nothing,
    mutates: bool = False,
    eager: Any = None,
    meaning: Any = None,
) -> Callable[[Callable[..., X]], Callable[..., X]]:
    def register(function: Callable[..., X]) -> Callable[..., X]:
        assert function.__name__ not in OPS
        OPS[function.__name__] = Op(function, operands, arguments, exact, mutates, eager, meaning)
        return function

    return register


def table(operands: tuple[str, ...], exact: str, functions: dict[str, Callable[..., X]], **more: Any) -> None:
    for name, function in functions.items():
        assert name not in OPS
        OPS[name] = Op(function, operands, exact=exact, **more)


def without_sign_of_zero(function: Callable[..., X]) -> Callable[..., X]:
    """Of 0.0 and -0.0 eager takes the one in vectors and the other in the elements that are left over."""

    def select(*arguments: Any) -> X:
        found = function(*arguments)
        return found + 0.0 if found.is_floating_point() else found

    return select
