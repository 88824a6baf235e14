"""Symbolic indices: fakes of a trace take them, where torch would read their values."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    FakeTensor,
)
from torch.utils import _pytree

from ingot.torch_internals.isolation import Patches
from ingot.torch_internals.symbols import is_symbolic


def dispatch_python_calls() -> Patches:
    """Inside, calls that torch would answer without its dispatcher reach it all the same.

    torch.tensor takes symbolic numbers and tensors, which torch's own parser would read as numbers; so would
    torch._assert of a tensor. x.contiguous() is a call even where the fake x is contiguous already: the real one need
    not be, since kernels choose strides of their own.
    """

    def making(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def tensor(data: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
            if not _holds_symbol(data):
                return original(data, *args, **kwargs)
            dtype = kwargs.get("dtype") or _dtype_of(data)
            made = _stack(data, dtype, kwargs.get("device"))
            return made.detach().requires_grad_() if kwargs.get("requires_grad") else made

        return tensor

    def contiguous(self: torch.Tensor, memory_format: torch.memory_format = torch.contiguous_format) -> torch.Tensor:
        return torch.ops.aten.contiguous.default(self, memory_format=memory_format)

    def asserting(original: Callable[..., None]) -> Callable[..., None]:
        def assert_(condition: Any, message: str) -> None:
            if isinstance(condition, torch.Tensor):
                torch.ops.aten._assert_async.msg(condition, message)
            else:
                original(condition, message)

        return assert_

    return Patches(
        (torch, "tensor", making),
        (torch, "_assert", asserting),
        (torch.Tensor, "contiguous", lambda _: contiguous),
    )


class TracedTensor(FakeTensor):
    """A fake whose indices may be symbolic numbers and 0-d tensors, which torch's own indexing reads as numbers.

    Only a class of its own can have an indexing of its own: put into torch.Tensor for a while, a __getitem__ leaves a
    slot behind that makes every 0-d tensor pass for a sequence from then on.
    """

    def __getitem__(self, index: Any) -> Any:
        tensor: torch.Tensor = self
        if _index_is_mapped(index):
            return torch.ops.aten.index.Tensor(self, list(index) if isinstance(index, tuple) else [index])
        if _index_is_symbolic(index):
            tensor, index = _index_symbols(self, index)
        return torch.Tensor.__getitem__(tensor, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        tensor: torch.Tensor = self
        if _index_is_symbolic(index):
            tensor, index = _index_symbols(self, index)
        torch.Tensor.__setitem__(tensor, index, value)


def read_by(read: Callable[[torch.Tensor, Any], Any]) -> Patches:
    """Inside, `read` answers for the indexing of traced tensors."""
    return Patches((TracedTensor, "__getitem__", lambda _: read))


def trace_indices(tensor: torch.Tensor) -> None:
    """From now on a fake takes symbolic indices."""
    if type(tensor) is FakeTensor:
        tensor.__class__ = TracedTensor


def untrace_indices(tensor: torch.Tensor) -> None:
    """From now on a fake is like any other again."""
    if type(tensor) is TracedTensor:
        object.__setattr__(tensor, "__class__", FakeTensor)


def _index_is_symbolic(index: Any) -> bool:
    """Whether an index holds a number that torch's own indexing would turn into a constant."""
    for item in index if isinstance(index, tuple) else (index,):
        if isinstance(item, list | tuple) and _holds_symbol(item):
            return True
        parts = (item.start, item.stop, item.step) if isinstance(item, slice) else (item,)
        for part in parts:
            if is_symbolic(part):
                return True
            if isinstance(part, FakeTensor) and part.dim() == 0 and _is_integer(part):
                return True
    return False


def _index_is_mapped(index: Any) -> bool:
    """Whether an index is made of tensors, one of which vmap runs over: its value cannot be read."""
    items = index if isinstance(index, tuple) else (index,)
    return all(isinstance(item, torch.Tensor) for item in items) and any(
        map(torch._C._functorch.is_batchedtensor, items)
    )


def _is_integer(tensor: torch.Tensor) -> bool:
    return tensor.dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def _index_symbols(tensor: torch.Tensor, index: Any) -> tuple[torch.Tensor, tuple[Any, ...]]:
    """A view of `tensor` in which the symbolic parts of `index` are done, and the index that is left to do."""
    items = list(index) if isinstance(index, tuple) else [index]
    taken = sum(0 if item is None or item is Ellipsis else item.dim() if _is_mask(item) else 1 for item in items)
    rest: list[Any] = []
    dim = 0
    for item in items:
        if item is Ellipsis:
            rest.extend([slice(None)] * (tensor.dim() - taken))
            dim += tensor.dim() - taken
            continue
        if item is None:
            rest.append(None)
            continue
        if isinstance(item, slice) and _index_is_symbolic(item):
            start, stop, step = (_number(part) for part in (item.start, item.stop, item.step))
            tensor = torch.ops.aten.slice.Tensor(tensor, dim, start, stop, 1 if step is None else step)
            item = slice(None)
        elif isinstance(item, list | tuple):
            item = torch.tensor(item)
        elif not isinstance(item, slice) and _index_is_symbolic(item):
            tensor = torch.ops.aten.select.int(tensor, dim, _number(item)).unsqueeze(dim)
            item = 0
        rest.append(item)
        dim += item.dim() if _is_mask(item) else 1
    return tensor, tuple(rest)


def _is_mask(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and item.dtype is torch.bool


def _number(part: Any) -> Any:
    return part.item() if isinstance(part, torch.Tensor) else part


def _holds_symbol(data: Any) -> bool:
    if isinstance(data, list | tuple):
        return any(map(_holds_symbol, data)) or any(isinstance(item, FakeTensor) for item in data)
    return is_symbolic(data)


def _dtype_of(data: Any) -> torch.dtype:
    def kind(leaf: Any) -> torch.dtype:
        if isinstance(leaf, torch.Tensor):
            return leaf.dtype
        if isinstance(leaf, bool | torch.SymBool):
            return torch.bool
        return torch.get_default_dtype() if isinstance(leaf, float | torch.SymFloat) else torch.int64

    return functools.reduce(torch.promote_types, map(kind, _pytree.tree_leaves(data)))


def _stack(data: Any, dtype: torch.dtype, device: Any) -> torch.Tensor:
    if isinstance(data, list | tuple):
        return torch.stack([_stack(item, dtype, device) for item in data])
    if isinstance(data, torch.Tensor):
        return data.detach().to(device, dtype)
    return torch.scalar_tensor(data, dtype=dtype, device=device)
