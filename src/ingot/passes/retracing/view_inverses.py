"""What a tensor holds after a write through a view of it, one rule per view operator.

    slice   slice_scatter(parent, new, …)       view, squeeze, unsqueeze   new, reshaped
    select  select_scatter(parent, new, …)      permute, transpose         new, permuted back

A view without a rule, or one that shows an element more than once (expand, unfold), has no inverse of its own: the
caller scatters by position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from ingot import torch_internals as internals
from ingot.registry import Registry

aten = torch.ops.aten

# Records an operator: emit(op, *args).
Emit = Callable[..., torch.Tensor]


class View(NamedTuple):
    """How a tensor was made from another one whose memory it shares. `func` None: it is the same view of it.

    `outputs` are all tensors that the call returned; `position` is this one's place, or None if there is one alone.
    `condition`: it is a view only where this number is 0, and a copy elsewhere.
    """

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    parent: torch.Tensor
    outputs: Any
    position: int | None
    condition: torch.SymInt | None = None

    def argument(self, name: str) -> Any:
        """An argument of the call by its name in the schema."""
        return internals.fill_arguments(self.func, self.args, self.kwargs)[name]


Inverse = Callable[[Emit, View, torch.Tensor], torch.Tensor]
# The inverses of view operators.
_INVERSES: Registry[Any, Inverse] = Registry("inverse")
inverts = _INVERSES.register


def find_inverse(view: View, tensor: torch.Tensor) -> Inverse | None:
    """The rule for a view that shows each element of its parent at most once, or None."""
    if view.func is None or internals.same_memory(view.parent, tensor):
        return _same
    if view.func is aten.expand.default and not _expands(view.parent, tensor):
        return _reshape
    return _INVERSES.get(view.func)


def _expands(parent: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Whether an expand repeats elements, rather than only adding dims of size 1."""
    added = tensor.dim() - parent.dim()
    kept = zip(parent.shape, tensor.shape[added:], strict=True)
    same = all(internals.expr_of(a) == internals.expr_of(b) for a, b in kept)
    return not same or any(not isinstance(size, int) or size != 1 for size in tensor.shape[:added])


def _same(emit: Emit, view: View, new: torch.Tensor) -> torch.Tensor:
    return new


@inverts(
    *(aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten._reshape_alias.default),
    *(aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims),
)
def _reshape(emit: Emit, view: View, new: torch.Tensor) -> torch.Tensor:
    return emit(aten.reshape.default, new, list(view.parent.shape))


@inverts(aten.slice.Tensor)
def _slice(emit: Emit, view: View, new: torch.Tensor) -> torch.Tensor:
    place = [view.argument(name) for name in ("dim", "start", "end", "step")]
    return emit(aten.slice_scatter.default, view.parent, new, *place)


@inverts(aten.select.int)
def _select(emit: Emit, view: View, new: torch.Tensor) -> torch.Tensor:
    place = [view.argument(name) for name in ("dim", "index")]
    return emit(aten.select_scatter.default, view.parent, new, *place)


@inverts(aten.diagonal.default)
def _diagonal(emit: Emit, view: View, new: torch.Tensor) -> torch.Tensor:
    place = [view.argument(name) for name in ("offset", "dim1", "dim2")]
    return emit(aten.diagonal_scatter.default, view.parent, new, *place)


@inverts(aten.permute.default)
def _permute(emit: Emit, view: View, new: torch.Tensor) -> torch.Tensor:
    rank = max(new.dim(), 1)
    order = [dim % rank for dim in view.argument("dims")]
    return emit(aten.permute.default, new, [order.index(dim) for dim in range(new.dim())])


@inverts(aten.transpose.int, aten.t.default)
def _transpose(emit: Emit, view: View, new: torch.Tensor) -> torch.Tensor:
    return emit(view.func, new, *view.args[1:])


@inverts(aten.alias.default, aten.detach.default)
def _alias(emit: Emit, view: View, new: torch.Tensor) -> torch.Tensor:
    return new


@inverts(aten._conj.default, aten._neg_view.default)
def _lazy_bit(emit: Emit, view: View, new: torch.Tensor) -> torch.Tensor:
    op = aten.conj_physical.default if view.func is aten._conj.default else aten.neg.default
    return emit(op, new)


@inverts(aten.view.dtype)
def _bits(emit: Emit, view: View, new: torch.Tensor) -> torch.Tensor:
    return emit(aten.view.dtype, new, view.parent.dtype)


@inverts(aten.view_as_real.default)
def _real_parts(emit: Emit, view: View, new: torch.Tensor) -> torch.Tensor:
    return emit(aten.view_as_complex.default, new)


@inverts(aten.view_as_complex.default)
def _complex_parts(emit: Emit, view: View, new: torch.Tensor) -> torch.Tensor:
    return emit(aten.view_as_real.default, new)


@inverts(aten.unbind.int)
def _unbind(emit: Emit, view: View, new: torch.Tensor) -> torch.Tensor:
    return emit(aten.select_scatter.default, view.parent, new, view.argument("dim"), view.position)


@inverts(
    *(aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default),
    *(aten.unsafe_split.Tensor, aten.unsafe_split_with_sizes.default, aten.unsafe_chunk.default),
)
def _split(emit: Emit, view: View, new: torch.Tensor) -> torch.Tensor:
    assert view.position is not None
    dim = view.argument("dim")
    begin = _total([part.shape[dim] for part in view.outputs[: view.position]])
    end = begin + new.shape[dim]
    return emit(aten.slice_scatter.default, view.parent, new, dim, begin, end, 1)


def _total(sizes: Sequence[Any]) -> Any:
    found: Any = 0
    for size in sizes:
        found = found + size
    return found
