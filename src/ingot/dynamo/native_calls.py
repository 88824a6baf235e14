"""Calls of native code with torch's tensors: what all calls of the same sizes share is worked out once.

torch.compile and AOTAutograd have checked dtypes, sizes and devices, and that nothing that is written to overlaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import starmap
from operator import itemgetter
from typing import Any

import torch

from ingot import torch_internals as internals
from ingot.artifacts.compiled_model import CompiledModel
from ingot.artifacts.tensor_exchange import native_of, run_model
from ingot.dynamo.arguments import as_pairs, size_carrier
from ingot.errors import CallError, format_error
from ingot_runtime.device_model import DeviceModel
from ingot_runtime.native.bound_call import BoundCall

# Results of more bytes take memory that the model has used before: fresh memory costs more than a kernel.
_LARGE = 1 << 20
_LIMIT = 256
# Where an argument lies of which only the size is read.
_NOWHERE = torch.zeros(1)

_is_contiguous, _data_ptr = torch.Tensor.is_contiguous, torch.Tensor.data_ptr


def _empty_strided(shape: tuple[int, ...], steps: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(shape, steps, dtype=dtype)


_allocate = internals.short_empty_strided("cpu") or _empty_strided


def _find_addresses(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Where tensors lie. Raises CallError where one lies nowhere: another tracer calls the compiled function."""
    why = "the call is being traced, or is given fake tensors"
    try:
        found = list(map(_data_ptr, tensors))
    except RuntimeError as error:
        raise CallError(format_error("An argument has no memory.", why=why)) from error
    if 0 in found and any(not at and x.numel() for at, x in zip(found, tensors, strict=True)):
        raise CallError(format_error("An argument has no memory.", why=why))
    return found


@dataclass(frozen=True)
class _CallPlan:
    call: BoundCall
    # Of each result: its sizes, steps and dtype; and those that are large, by number.
    results: tuple[tuple[tuple[int, ...], tuple[int, ...], torch.dtype], ...]
    large: tuple[int, ...]


@dataclass
class NativeCalls:
    """The calls of one compiled graph: which arguments it takes as tensors, as sizes and as scalars, and which of them
    it writes to. Any number of threads may use it.

    `complex_given` are arguments that native code takes as pairs, `complex_made` results that it makes as pairs, by
    number. Those of `lazy` are negated or conjugated when they are read.
    """

    compiled: CompiledModel
    given: tuple[int, ...]
    sizes: tuple[int, ...]
    scalars: tuple[int, ...]
    mutated: tuple[int, ...]
    complex_given: frozenset[int] = frozenset()
    complex_made: frozenset[int] = frozenset()
    lazy: tuple[int, ...] = ()
    _plans: dict[Any, _CallPlan | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._draws = self.compiled.draws
        self._is_plain = not (self.lazy or self._draws or self.sizes or self.mutated)
        # The tensors of a call's arguments, in one step however many there are.
        self._pick = itemgetter(*self.given) if len(self.given) > 1 else lambda args: [args[p] for p in self.given]

    def run(self, args: Sequence[Any], key: Any) -> list[Any]:
        """What the code computes. Calls of the same key have the same sizes. Raises CallError before anything is
        written."""
        if self._is_plain:
            plan = self._plans.get(key)
            if plan is not None:
                return self._run_planned(plan, args)
        if self.lazy:
            args = list(args)
            for place in self.lazy:
                args[place] = args[place].resolve_neg().resolve_conj()
        if self._draws:  # torch.manual_seed decides about our draws too
            self.compiled.seed(int(torch.randint(0, 2**62, ())))
        if self.sizes:
            key = (key, *(args[place] for place in self.sizes))
        plan = self._plans.get(key)
        if plan is None and key not in self._plans:
            plan = self._plan(args, key)
        made = self._run_checked(args) if plan is None else self._run_planned(plan, args)
        if self.mutated:
            internals.increment_version([args[place] for place in self.mutated if not args[place].is_inference()])
        return made

    def _plan(self, args: Sequence[Any], key: Any) -> _CallPlan | None:
        shapes = [(*args[place].shape, *((2,) if place in self.complex_given else ())) for place in self.given]
        shapes += [(int(args[place]),) for place in self.sizes]
        model = self.compiled.model
        plan = None
        call = None if self.scalars or isinstance(model, DeviceModel) else model.bind(shapes)
        if call is not None:
            dtypes = [getattr(torch, name) for name in call.dtypes]
            kinds = [
                (shape[:-1], dtype.to_complex()) if number in self.complex_made else (shape, dtype)
                for number, (shape, dtype) in enumerate(zip(call.shapes, dtypes, strict=True))
            ]
            dtypes = [dtype for _, dtype in kinds]
            empty = [torch.empty(shape, device="meta") for shape, _ in kinds]
            results = tuple((s, tuple(e.stride()), d) for (s, d), e in zip(kinds, empty, strict=True))
            sizes = [tensor.numel() * dtype.itemsize for tensor, dtype in zip(empty, dtypes, strict=True)]
            plan = _CallPlan(call, results, tuple(n for n, size in enumerate(sizes) if size >= _LARGE))
        if len(self._plans) >= _LIMIT:
            self._plans.clear()
        self._plans[key] = plan
        return plan

    def _run_planned(self, plan: _CallPlan, args: Sequence[Any]) -> list[Any]:
        dense = given = self._pick(args)
        if not all(map(_is_contiguous, given)):
            dense = [tensor.contiguous() for tensor in given]
        addresses = _find_addresses(dense)
        if self.sizes:
            addresses += [_NOWHERE.data_ptr()] * len(self.sizes)
        if plan.large:
            made = [
                self._allocate(shape, dtype) if number in plan.large else _allocate(shape, steps, dtype)
                for number, (shape, steps, dtype) in enumerate(plan.results)
            ]
        else:
            made = [*starmap(_allocate, plan.results)]
        addresses += map(_data_ptr, made)
        plan.call(addresses)
        if dense is not given:
            for place, tensor, copied in zip(self.given, given, dense, strict=True):
                if place in self.mutated and copied is not tensor:
                    tensor.detach().copy_(copied)
        return made

    def _allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        size = torch.Size(shape).numel() * dtype.itemsize
        return torch.from_numpy(self.compiled.model.allocate(size)).view(dtype).view(shape)

    def _run_checked(self, args: Sequence[Any]) -> list[Any]:
        _find_addresses([args[place] for place in self.given])
        leaves = [native_of(as_pairs(args[place])) for place in self.given]
        leaves += [size_carrier(int(args[place])) for place in self.sizes]
        leaves += [args[place] for place in self.scalars]
        made = run_model(self.compiled.model, leaves)
        if not self.complex_made:
            return made
        return [torch.view_as_complex(t) if n in self.complex_made else t for n, t in enumerate(made)]
