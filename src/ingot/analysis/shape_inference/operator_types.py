"""The type of what an operator returns, from its own fake kernel.

There is no table of shape rules here. Where sizes are unknown or symbols, the kernel is evaluated in two ways:

- on symbols, once for each way that sizes make it go: it says what it returns as expressions of them, and every
  condition on sizes that it asks about on its way;
- on many numbers: at and next to every size where one of those conditions changes (sample_sizes.py).

The inferred dim is an expression that is right in every run that succeeded. A run in which the kernel
rejects the sizes counts for nothing, since no real call gets past it. Where there are more ways than are followed, dims
are unknown; where a kernel cannot run on symbols, so is everything.

    add(f32[?], f32[3])     1 and 3 work, and return 3                      so f32[3]
    add(f32[?], f32[n])     1 and n work and return n; so does 5 if n is 1  so f32[?]
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch

from ingot import torch_internals as internals
from ingot.analysis.shape_inference.kernel_evaluation import (
    CannotInfer,
    InfeasibleTypes,
    InferredType,
    KernelEvaluation,
    UnknownReason,
    attach_reason,
    leaves_of,
    parts_of,
)
from ingot.analysis.shape_inference.lattice import UNKNOWN, TensorType, Type, join, sizeless
from ingot.analysis.shape_inference.sample_join import join_samples

# A tensor whose rank is unknown is tried with each of these; where two ranks are, with each pair.
RANKS = range(6)
_MOST_OPEN = 2
_CPU = torch.device("cpu")

Bounds = Mapping[sympy.Symbol, tuple[int, int | None]]


def result_type(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    bounds: Bounds | None = None,
    on_meta: bool = True,
) -> Type:
    """The type of what `function` returns; values are given by their types.

    `bounds` are the ranges of symbols; one without is 0 or more if it is a size. `on_meta` False: the function behaves
    differently on torch's meta device, which is the quick way to run on numbers. Raises InfeasibleTypes where no sizes
    at all are possible.
    """
    return answer(function, args, kwargs, bounds, on_meta).type


def answer(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    bounds: Bounds | None = None,
    on_meta: bool = True,
) -> InferredType:
    """What `result_type` returns, and why it is not more precise."""
    limits = {symbol.name: range_ for symbol, range_ in (bounds or {}).items()}
    values = [*args, *kwargs.values()]

    def call(given: list[Any]) -> Any:
        return function(*given[: len(args)], **dict(zip(kwargs, given[len(args) :], strict=True)))

    try:
        of_torch = isinstance(function, internals.OpOverload) and function.namespace == "aten"
        on_cpu = all(t.device in (None, _CPU) for t in leaves_of(values) if isinstance(t, TensorType))
        kernels = [
            KernelEvaluation(call, ranked, limits, on_meta, of_torch and on_cpu) for ranked in _enumerate_ranks(values)
        ]
        return kernels[0].answer() if len(kernels) == 1 else _join_ranks(kernels)
    except CannotInfer as cannot:
        return InferredType(UNKNOWN, cannot.unknown_reason)


def _join_ranks(kernels: list[KernelEvaluation]) -> InferredType:
    """What kernels of different ranks have in common; ranks that are shown to be impossible do not count."""
    working: list[KernelEvaluation] = []
    quick: Type | None = None
    # To show that a rank is impossible takes long. Those that plainly work go first: they may leave nothing to say.
    for kernel in sorted(kernels, key=lambda kernel: not kernel.is_feasible_at_common_sizes()):
        if not kernel.is_feasible():
            if kernel.never:
                continue
            return InferredType(UNKNOWN, UnknownReason.A_RANK)
        working.append(kernel)
        first = kernel.type_at_first()
        quick = first if quick is None else join(quick, first)
        if quick is UNKNOWN:
            return InferredType(UNKNOWN, UnknownReason.RUNS_DIFFER)
    if quick is None:
        return InferredType(UNKNOWN, UnknownReason.NO_SIZES)
    if sizeless(quick):
        return InferredType(quick, UnknownReason.RUNS_DIFFER)
    answers = [kernel.answer() for kernel in working]
    doubt = next((one.unknown_reason for one in answers if one.unknown_reason is not None), UnknownReason.RUNS_DIFFER)
    return attach_reason(join_samples(one.type for one in answers), doubt)


def _enumerate_ranks(values: list[Any]) -> list[list[Any]]:
    """The values with each unknown rank replaced by each possible one."""
    count = sum(_open_ranks(value) for value in values)
    if count > _MOST_OPEN:
        raise CannotInfer(UnknownReason.NOT_GIVEN)
    return [_set_ranks(values, iter(ranks)) for ranks in itertools.product(RANKS, repeat=count)]


def _open_ranks(value: Any) -> int:
    if isinstance(value, TensorType):
        return value.dims is None
    return sum(map(_open_ranks, parts_of(value) or ()))


def _set_ranks(value: Any, ranks: Iterator[int]) -> Any:
    if isinstance(value, TensorType):
        return value if value.dims is not None else TensorType(value.dtype, value.device, (None,) * next(ranks))
    parts = parts_of(value)
    return value if parts is None else [_set_ranks(part, ranks) for part in parts]


__all__ = ["Bounds", "InfeasibleTypes", "InferredType", "UnknownReason", "answer", "result_type"]
