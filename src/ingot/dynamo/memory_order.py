"""The order in which tensors lie in memory, and operators that speak of it.

AOTAutograd's graphs know the strides of every tensor. A functional graph of ours has none, so `resize`, which keeps
elements by their place in memory, and `as_strided`, which finds them there, become indexing of a flat tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import fx
from torch.utils import deterministic
from torch.utils._sympy.functions import Max

from ingot import torch_internals as internals
from ingot.autograd.gradient_rules import Rule
from ingot.ir.memory_places import names_place_in_memory
from ingot.ir.metadata import value_of

aten = torch.ops.aten

# The example of a size that is known only while the graph runs.
UNBACKED_EXAMPLE = 5


@dataclass(frozen=True, slots=True)
class Order:
    """How a native result lies in memory: which dims have one element for all places, and the dims, outermost first."""

    expanded: tuple[int, ...]
    dims: tuple[int, ...]

    @property
    def is_plain(self) -> bool:
        return not self.expanded and self.dims == tuple(range(len(self.dims)))

    @property
    def inverse(self) -> tuple[int, ...]:
        found = [0] * len(self.dims)
        for place, dim in enumerate(self.dims):
            found[dim] = place
        return tuple(found)

    def strides(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The strides of a tensor of this shape in this order without holes."""
        found, step = [0] * len(shape), 1
        for dim in reversed(self.dims):
            if dim not in self.expanded:
                found[dim] = step
                step *= max(shape[dim], 1)
        return tuple(found)

    def holds_for(self, fake: torch.Tensor) -> bool:
        """Whether a tensor is in this order, without holes, for all sizes that it may have."""
        sizes, strides = ([_positive(internals.expr_of(size)) for size in of] for of in (fake.shape, fake.stride()))
        step = sympy.Integer(1)
        for dim in reversed(self.dims):
            if dim in self.expanded or sizes[dim] == 1:
                continue
            if sympy.expand(strides[dim] - step) != 0 and 0 not in sizes:
                return False
            step *= sizes[dim]
        return all(strides[dim] == 0 for dim in self.expanded)


def _positive(size: sympy.Expr) -> sympy.Expr:
    """A size or stride where it is not 0: strides of tensors without elements say nothing."""
    return size.replace(lambda part: isinstance(part, Max | sympy.Max) and sympy.Integer(1) in part.args, _drop_one)


def _drop_one(part: sympy.Expr) -> sympy.Expr:
    return part.func(*(given for given in part.args if given != 1))


def anchor_strided_views(graph: fx.GraphModule) -> None:
    """Lets `as_strided` of a view be one of the tensor that the view shows: native code has its memory, and what of it
    lies before or behind the view too. In eager the graph computes what it did."""
    for node in graph.graph.nodes:
        if node.target not in (aten.as_strided.default, aten.as_strided_copy.default):
            continue
        origin: Any = node.args[0]
        owner, start = find_owner(origin), value_of(origin).storage_offset()
        if origin.op != "call_function" or owner is origin:
            continue
        if names_place_in_memory(node):
            node.args = (owner, *node.args[1:])
        elif owner.op == "call_function" and isinstance(start, int):
            node.args, node.kwargs = (owner, *node.args[1:3], start), {}
    graph.recompile()


def find_anchored(graph: fx.GraphModule) -> tuple[int, ...]:
    """The arguments, by number, at whose memory `as_strided` counts from the start: native code knows where an argument
    begins, not where its memory does."""
    places = {node: place for place, node in enumerate(graph.graph.find_nodes(op="placeholder"))}
    owners = (find_owner(node.args[0]) for node in graph.graph.nodes if names_place_in_memory(node))
    return tuple(sorted({places[owner] for owner in owners if owner in places}))


def form_by_memory(node: fx.Node) -> Rule | None:
    """A function that computes such an operator without strides; None where there is none, and for other operators."""
    if node.target in (aten.resize.default, aten.resize_as.default):
        return _resize_form(node)
    if node.target is aten.as_strided.default:
        return _strided_form(node)
    return None


def _resize_form(node: fx.Node) -> Rule | None:
    given, made = value_of(node.all_input_nodes[0]), value_of(node)
    copied = given if _is_dense(given) else torch.empty_like(given)  # resize works on a clone, which is dense
    before, after = order_of(copied), order_of(made)
    if before is None or after is None or after.expanded:
        return None
    if not before.holds_for(copied) or not after.holds_for(made):
        return None

    def resize(x: torch.Tensor, size: torch.Tensor | Sequence[int], *, memory_format: Any = None) -> torch.Tensor:
        sizes = size.shape if isinstance(size, torch.Tensor) else size
        shape = [sizes[dim] for dim in after.dims]
        flat = x.permute(before.dims).reshape(-1)
        return _take_first(flat, math.prod(shape)).reshape(shape).permute(after.inverse)

    return resize


def _take_first(flat: torch.Tensor, count: int) -> torch.Tensor:
    """The first elements of a flat tensor, and after them those of memory that nothing was written to."""
    have, fill = flat.shape[0], _fill_value(flat.dtype)
    if isinstance(have, int) and isinstance(count, int):
        if count <= have:
            return flat[:count]
        return torch.cat([flat, torch.full((count - have,), fill, dtype=flat.dtype, device=flat.device)])
    # Which of them is larger may change from call to call.
    extended = torch.cat([flat, torch.full((1,), fill, dtype=flat.dtype, device=flat.device)])
    places = torch.arange(count, device=flat.device)
    return extended[torch.where(places < have, places, have)]


def _strided_form(node: fx.Node) -> Rule | None:
    origin = node.args[0]
    assert isinstance(origin, fx.Node)
    owner = find_owner(origin)
    if origin.op != "call_function":
        return None
    given, made = value_of(owner), value_of(node)
    if owner is origin and given.is_contiguous():  # has a rule in native code
        return None
    if not _is_dense(given) or not _is_static(given, made):
        return None
    order = order_of(given)
    assert order is not None
    first = made.storage_offset() - given.storage_offset()
    last = first + sum((size - 1) * stride for size, stride in zip(made.shape, made.stride(), strict=True))
    if made.numel() and not 0 <= first <= last < given.numel():
        return None
    shape, strides = list(made.shape), list(made.stride())
    node.args = (owner, *node.args[1:])

    def as_strided(x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        flat = x.permute(order.dims).reshape(-1).clone()  # not a view: it has no strides of its own
        return flat.as_strided(shape, strides, first)

    return as_strided


def find_owner(node: fx.Node) -> fx.Node:
    """The node whose memory a view shows."""
    memory = internals.storage_id(value_of(node))
    values = ((other, value_of(other)) for other in node.graph.nodes)
    return next((o for o, v in values if isinstance(v, torch.Tensor) and internals.storage_id(v) == memory), node)


def _is_dense(fake: torch.Tensor) -> bool:
    order = order_of(fake)
    return order is not None and not order.expanded


def _is_static(*fakes: torch.Tensor) -> bool:
    return all(isinstance(size, int) for fake in fakes for size in (*fake.shape, *fake.stride(), fake.storage_offset()))


def _fill_value(dtype: torch.dtype) -> int | float | bool:
    """What memory holds that nothing was written to: 0, or what torch fills it with where that is asked for."""
    fills = torch.are_deterministic_algorithms_enabled() and deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    if not fills:
        return 0
    if dtype is torch.bool:
        return True
    return math.nan if dtype.is_floating_point or dtype.is_complex else torch.iinfo(dtype).max


def order_of(fake: torch.Tensor) -> Order | None:
    """The order of a tensor's memory; None where it has holes, or overlaps other than by expanded dims."""
    sizes = [example_of(size) for size in fake.shape]
    strides = [example_of(stride) for stride in fake.stride()]
    expanded = tuple(dim for dim, size in enumerate(sizes) if size > 1 and strides[dim] == 0)
    dims = tuple(range(len(sizes)))
    step = 1
    for dim in reversed(dims):  # row-major memory first: sizes of 1 have any strides
        if sizes[dim] > 1 and strides[dim] != step:
            break
        step *= max(sizes[dim], 1)
    else:
        return Order((), dims)
    if 0 not in sizes:
        places = {dim: place for place, dim in enumerate(dims)}
        dims = tuple(sorted(dims, key=lambda dim: (-strides[dim] if sizes[dim] > 1 else 1, places[dim])))
    order = Order(expanded, dims)
    dense = order.strides([1 if dim in expanded else size for dim, size in enumerate(sizes)])
    fits = all(
        a == b or size <= 1 or dim in expanded
        for dim, (a, b, size) in enumerate(zip(dense, strides, sizes, strict=True))
    )
    return order if fits or 0 in sizes else None


def example_of(size: Any) -> int:
    """What a size was when the graph was made, or any where it was not known."""
    hint = internals.hint_of(size)
    if hint is not None:
        return hint
    expr = internals.expr_of(size)
    return int(internals.evaluate_expr(expr, dict.fromkeys(expr.free_symbols, UNBACKED_EXAMPLE)))
