"""Calls of a model on a GPU with torch's tensors of that GPU: what all calls share is worked out once.

A call takes a few microseconds of the host's time beside what the driver takes. Whatever is not plain (numbers, tensors
of the host, arguments that the model writes to, nested arguments) goes the longer way, which checks everything.
"""

from __future__ import annotations

from typing import Any

import torch

from ingot import torch_internals as internals
from ingot_runtime.device_model import DeviceModel
from ingot_runtime.native.bound_call import BoundCall
from ingot_runtime.pytree import Branch, Leaf

# What a result is made with: its sizes, steps and dtype.
_Made = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]

_PLAIN = (torch.Tensor, torch.nn.Parameter)
# Sizes that are kept apart.
_LIMIT = 256


class DeviceCalls:
    """The calls of one model; any number of threads may use it."""

    def __init__(self, model: DeviceModel) -> None:
        self._model = model
        self._number = model.device
        self._device = torch.device("cuda", model.device)
        self._allocate = internals.short_empty_strided("cuda")
        self._dtypes = tuple(getattr(torch, asked.dtype.name) for asked in model.spec.inputs)
        self._bound: dict[Any, tuple[BoundCall, list[_Made]] | None] = {}

    @staticmethod
    def create(model: Any) -> DeviceCalls | None:
        """Of a model on a GPU whose arguments are its inputs, one after another; None for any other."""
        if not isinstance(model, DeviceModel):
            return None
        positional, keyed = model.spec.arguments.children
        if not isinstance(positional, Branch) or not isinstance(keyed, Branch) or keyed.children:
            return None
        is_flat = all(
            isinstance(child, Leaf) and child.number == number for number, child in enumerate(positional.children)
        )
        return DeviceCalls(model) if is_flat and len(positional.children) == len(model.spec.inputs) else None

    def run(self, args: tuple[Any, ...]) -> list[torch.Tensor] | None:
        """The results, queued on torch's current stream; None where the call is not a plain one."""
        if len(args) != len(self._dtypes):
            return None
        number = self._number
        shapes, addresses = [], []
        for arg, dtype in zip(args, self._dtypes, strict=True):
            if type(arg) not in _PLAIN or arg.dtype is not dtype or arg.get_device() != number:
                return None
            if not arg.is_contiguous() or arg.is_neg():  # none is conjugated: no dtype is complex
                return None
            shapes.append(arg.shape)
            addresses.append(arg.data_ptr())
        key = tuple(shapes)
        found = self._bound.get(key)
        if found is None:
            if key in self._bound:
                return None
            found = self._bind(key)
            if found is None:
                return None
        bound, made = found
        if self._allocate is not None and internals.current_cuda_device() == number:
            results = [self._allocate(*one) for one in made]
        else:
            device = self._device
            results = [torch.empty_strided(shape, steps, dtype=dtype, device=device) for shape, steps, dtype in made]
        for result in results:
            addresses.append(result.data_ptr())
        bound(addresses, internals.raw_cuda_stream(number))
        return results

    def _bind(self, key: Any) -> tuple[BoundCall, list[_Made]] | None:
        bound = self._model.bind(key)
        made = None
        if bound is not None:
            results = zip(bound.shapes, bound.dtypes, strict=True)
            made = (bound, [(shape, _dense_steps(shape), getattr(torch, dtype)) for shape, dtype in results])
        if len(self._bound) >= _LIMIT:
            self._bound.clear()
        self._bound[key] = made
        return made


def _dense_steps(shape: tuple[int, ...]) -> tuple[int, ...]:
    """As torch has them: a dim of no elements counts as one."""
    steps, step = [], 1
    for size in reversed(shape):
        steps.append(step)
        step *= max(size, 1)
    return tuple(reversed(steps))
