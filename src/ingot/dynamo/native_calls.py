"""Calls of native code with torch's tensors: what all calls of the same sizes share is worked out once.

torch.compile and AOTAutograd have checked dtypes, sizes and devices, and that nothing that is written to overlaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ingot import torch_internals as internals
from ingot.artifacts.compiled_model import CompiledModel
from ingot.artifacts.tensor_exchange import native_of, run_model
from ingot.dynamo.arguments import size_carrier
from ingot_runtime.host_call import HostCall, allocate_large

# Results of more bytes take memory that the model has used before: fresh memory costs more than a kernel.
_LARGE = 1 << 20
_LIMIT = 256
# Where an argument lies of which only the size is read.
_NOWHERE = torch.zeros(1)


@dataclass(frozen=True)
class _CallPlan:
    call: HostCall
    results: tuple[tuple[tuple[int, ...], torch.dtype, bool], ...]


@dataclass
class NativeCalls:
    """The calls of one compiled graph: which arguments it takes as tensors, as sizes and as scalars, and which of them
    it writes to. Any number of threads may use it."""

    compiled: CompiledModel
    given: tuple[int, ...]
    sizes: tuple[int, ...]
    scalars: tuple[int, ...]
    mutated: tuple[int, ...]
    _plans: dict[Any, _CallPlan | None] = field(default_factory=dict)

    def run(self, args: Sequence[Any], key: Any) -> list[Any]:
        """What the code computes. Calls of the same key have the same sizes. Raises CallError before anything is
        written."""
        if self.compiled.draws:  # torch.manual_seed decides about our draws too
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
        shapes = [tuple(args[place].shape) for place in self.given] + [(int(args[place]),) for place in self.sizes]
        model = self.compiled.model
        plan = None
        call = None if self.scalars else HostCall.bind(model, shapes)
        if call is not None:
            dtypes = [getattr(torch, output.dtype.name) for output in model.spec.outputs]
            sizes = [torch.Size(shape) for shape in call.shapes]
            large = [size.numel() * dtype.itemsize >= _LARGE for size, dtype in zip(sizes, dtypes, strict=True)]
            plan = _CallPlan(call, tuple(zip(call.shapes, dtypes, large, strict=True)))
        if len(self._plans) >= _LIMIT:
            self._plans.clear()
        self._plans[key] = plan
        return plan

    def _run_planned(self, plan: _CallPlan, args: Sequence[Any]) -> list[Any]:
        addresses: list[int] = []
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        for place in self.given:
            tensor = args[place]
            if not tensor.is_contiguous():
                dense = tensor.contiguous()
                copies.append((tensor, dense))
                tensor = dense
            addresses.append(tensor.data_ptr())
        for _ in self.sizes:
            addresses.append(_NOWHERE.data_ptr())
        made = []
        for shape, dtype, is_large in plan.results:
            result = self._allocate(shape, dtype) if is_large else torch.empty(shape, dtype=dtype)
            made.append(result)
            addresses.append(result.data_ptr())
        plan.call(addresses)
        for tensor, dense in copies:
            if any(args[place] is tensor for place in self.mutated):
                tensor.detach().copy_(dense)
        return made

    def _allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        size = torch.Size(shape).numel() * dtype.itemsize
        return torch.from_numpy(allocate_large(self.compiled.model, size)).view(dtype).view(shape)

    def _run_checked(self, args: Sequence[Any]) -> list[Any]:
        leaves = [native_of(args[place]) for place in self.given]
        leaves += [size_carrier(int(args[place])) for place in self.sizes]
        leaves += [args[place] for place in self.scalars]
        return run_model(self.compiled.model, leaves)
