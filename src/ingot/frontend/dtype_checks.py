"""Checks that the real kernels support the dtypes that a captured operator is called with.

Fake kernels compute shapes and dtypes, and check less than the kernels they stand for: `mm` of float32 and int64 or a
pooling of int64 has a fake result and raises in eager. So every ATen operator runs on small real tensors, once in a
process for each combination of dtypes. If it raises there, but runs with other dtypes on the same shapes, the dtypes
are the reason and the capture fails. If it runs with no dtypes at all (a matrix of ones has no inverse, or a size that
was made smaller no longer fits another argument), nothing is known and the fake's word stands.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ingot import torch_internals as internals

# Sizes above this become this in the small tensors: even, so that what is cut in two still can be.
_SMALL = 8
# Tensors with no more elements than this are taken as large as they are.
_FEW_ELEMENTS = 4096
# How many other dtypes are tried before a failure is blamed on nothing.
_ATTEMPTS = 300

_PLAIN = (int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
# Libraries of torch itself, whose operators change nothing but their arguments.
_OURS = ("aten", "torch_nn")
_accepted: set[Any] = set()


class DtypesRefused(RuntimeError):
    """An operator that runs on fakes and, by its dtypes alone, not on real tensors."""

    def __init__(self, call: Any, message: str) -> None:
        super().__init__(message)
        self._call = call

    def accept(self) -> None:
        """Takes the call from now on: eager does."""
        _accepted.add(self._call)


class _UnknownDtypes(Exception):
    """The call cannot be made on small tensors."""


def check_dtypes(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raises DtypesRefused if the real kernel does not take these dtypes."""
    if not isinstance(func, internals.OpOverload) or func.namespace not in _OURS or func.is_view:
        return
    try:
        given = _kind((*args, *kwargs.values()))
    except _UnknownDtypes:
        return
    call = (func, given, tuple(kwargs), _autocast())
    if call in _accepted:
        return
    tensors = list(_tensors((*args, *kwargs.values())))
    if not tensors or any(t.device.type != "cpu" or t.layout is not torch.strided for t in tensors):
        return
    try:
        trials = list(_trials(func, args, kwargs, tensors))
    except _UnknownDtypes:
        return
    draws = torch.Tag.nondeterministic_seeded in func.tags
    with (
        internals.ignore_warnings(),
        internals.below_autograd(),
        internals.own_draws() if draws else internals.without_dispatch(),
        internals.without_python_kernels(),
    ):
        refusal = _ask(trials, list(_dtypes((*args, *kwargs.values()))))
    if refusal is not None:
        raise DtypesRefused(call, f"{func} is not for {_spell(tensors)}: {refusal}")
    _accepted.add(call)


Trial = Callable[[Sequence[torch.dtype]], Any]


def _ask(trials: Sequence[Trial], dtypes: list[torch.dtype]) -> str | None:
    """Why the operator rejects these dtypes; None if it does not, or would reject any."""
    failures: list[Exception] = []
    for trial in trials:
        try:
            trial(dtypes)
        except Exception as failure:  # whatever a kernel raises
            if "ZeroDivisionError" in str(failure):
                return None  # it is about a number in the call, with which tensors of no elements are fine
            failures.append(failure)
        else:
            return None
    for others in itertools.islice(_other_dtypes(dtypes), _ATTEMPTS):
        for trial, refusal in zip(trials, failures, strict=True):
            try:
                trial(others)
            except Exception:
                continue
            return next((line for line in str(refusal).splitlines() if line.strip()), type(refusal).__name__)
    return None


def _other_dtypes(dtypes: list[torch.dtype]) -> Iterator[list[torch.dtype]]:
    """Combinations of other dtypes, those that change the fewest first. Of many tensors, all of one dtype change."""
    groups = [[place] for place in range(len(dtypes))]
    if len(dtypes) > 4:
        groups = [[p for p, d in enumerate(dtypes) if d is dtype] for dtype in dict.fromkeys(dtypes)]
    for count in range(1, len(groups) + 1):
        for changed in itertools.combinations(groups, count):
            for new in itertools.product((torch.float32, torch.int64, torch.bool), repeat=count):
                made = list(dtypes)
                for group, dtype in zip(changed, new, strict=True):
                    for place in group:
                        made[place] = dtype
                yield made


def _trials(func: Any, args: Sequence[Any], kwargs: dict[str, Any], tensors: Sequence[torch.Tensor]) -> Iterator[Trial]:
    """Ways to run the operator with given dtypes: on tensors of ones, of zeros, and with ones on the diagonal.

    A size of 0 becomes 1. Kernels of nothing return before they look at a dtype, or do not return: torch 2.11's
    attention divides by the number of heads, which ends the process.
    """
    shapes = [[_number(size) or 1 for size in t.shape] for t in tensors]
    large = {size for shape in shapes for size in shape if size > _SMALL}
    if sum(torch.Size(shape).numel() for shape in shapes) <= _FEW_ELEMENTS:
        large = set()

    def small(value: Any, dtypes: Iterator[torch.dtype], fill: str) -> Any:
        if isinstance(value, torch.Tensor):
            shape = [_SMALL if _number(size) in large else _number(size) or 1 for size in value.shape]
            made = torch.full(shape, int(fill == "ones"), dtype=next(dtypes))
            if fill == "diagonal" and len(shape) > 1:
                made.diagonal(dim1=-2, dim2=-1).fill_(1)
            return made
        if isinstance(value, list | tuple):
            return [small(item, dtypes, fill) for item in value]
        if isinstance(value, torch.dtype):
            return next(dtypes)
        if internals.is_symbolic(value):
            value = _number(value)
        return _SMALL if type(value) is int and value in large else value

    def trial(fill: str) -> Trial:
        def run(dtypes: Sequence[torch.dtype]) -> Any:
            left = iter(dtypes)
            made = [small(value, left, fill) for value in args]
            return func(*made, **{name: small(value, left, fill) for name, value in kwargs.items()})

        return run

    yield from map(trial, ("ones", "zeros", "diagonal"))


# ---------------------------------------------------------------------- arguments


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _dtypes(value: Any) -> Iterator[torch.dtype]:
    """Of all tensors and dtypes among arguments, in order."""
    if isinstance(value, torch.Tensor):
        yield value.dtype
    elif isinstance(value, torch.dtype):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _dtypes(item)


def _kind(value: Any) -> Any:
    """What of an argument decides which kernel takes it, and how."""
    if isinstance(value, torch.Tensor):
        empty = any(isinstance(size, int) and size == 0 for size in value.shape)  # eager may take any dtype of nothing
        return value.dtype, value.dim() == 0, empty
    if isinstance(value, list | tuple):
        return tuple(map(_kind, value))
    if internals.is_symbolic(value):
        return type(value)
    if not isinstance(value, _PLAIN):
        raise _UnknownDtypes
    return type(value) if isinstance(value, int | float | complex) else value


def _number(value: Any) -> Any:
    """A size, or what it is in the example."""
    if not internals.is_symbolic(value):
        return value
    if value.node.hint is None:
        raise _UnknownDtypes
    return value.node.hint


def _autocast() -> Any:
    return torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")


def _spell(tensors: Sequence[torch.Tensor]) -> str:
    return ", ".join(f"{str(t.dtype).removeprefix('torch.')}[{', '.join(map(str, t.shape))}]" for t in tensors)
