"""Removes operators that hand on what they were given, and shortens views of views.

before                                          after
view = aten.view(x, [b, 4, 4])                  view_1 = aten.view(x, [b, 16])
view_1 = aten.view(view, [b, 16])               return (aten.relu(view_1),)
dropout = aten.dropout(view_1, 0.5, False)
to = aten.to(dropout, float32)
return (aten.relu(to),)
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.analysis.alias import escaping, may_alias, returned_nodes
from ingot.ir import metadata
from ingot.ir.dialects import CORE, FUNCTIONAL
from ingot.ir.memory_places import names_place_in_memory, same_place
from ingot.ir.outlining import graph_modules
from ingot.ir.program import Program
from ingot.passes.cse import follow, named_values
from ingot.passes.manager import register
from ingot.registry import Registry

aten = torch.ops.aten

# What a node hands on, if it does nothing else; or None.
Rule = Callable[[fx.Node], Any]
# Changes a node so that it reaches further back, and says whether it did.
Shortening = Callable[[fx.Node], bool]

# What an operator hands on, and how one skips the views before it.
_REMOVES: Registry[Any, Rule] = Registry("removal rule")
_SHORTENS: Registry[Any, Shortening] = Registry("shortening rule")
removes = _REMOVES.register
shortens = _SHORTENS.register


@register(takes=FUNCTIONAL)
def remove_noops(program: Program) -> int:
    """Removes no-ops in every graph, where it is not observable: a copy that the user gets stays a copy.

    Detach goes only from a CORE program, which is not differentiated.
    """
    names: dict[str, str] = {}
    named = named_values(program)
    core = CORE.accepts(program.dialect)
    count = 0
    for module in graph_modules(program.graph_module):
        root = module is program.graph_module
        count += _clean(module, core, names if root else None, named)
    follow(program, names)
    return count


def _clean(module: fx.GraphModule, core: bool, names: dict[str, str] | None, named: frozenset[str]) -> int:
    """Cleans one graph. `names` takes down what became what; without it, nodes that are named elsewhere stay."""
    graph = module.graph
    fixed = named if names is None else frozenset()
    returned, escapes = returned_nodes(graph), escaping(graph)
    addresses_memory = any(map(names_place_in_memory, graph.nodes))
    count = 0
    for node in list(graph.nodes):
        rule, shorten = _REMOVES.get(node.target), _SHORTENS.get(node.target)
        source = rule(node) if rule is not None else None
        kept = node.name in fixed or (node.target in _DETACHES and not core)
        kept = kept or (addresses_memory and isinstance(source, fx.Node) and not same_place(node, source))
        if isinstance(source, fx.Node) and not kept and _nobody_can_tell(node, source, returned, escapes):
            node.replace_all_uses_with(source)
            _update(returned, node, source)
            _update(escapes, node, source)
            if names is not None:
                names[node.name] = source.name
            graph.erase_node(node)
            count += 1
        elif shorten is not None:
            before = node.args[0]
            count += shorten(node)
            _erase_chain(before, named if names is None else named | set(names.values()))
    if count:
        module.recompile()
    return count


def _update(group: set[fx.Node], node: fx.Node, source: fx.Node) -> None:
    if node in group:
        group.add(source)


def _erase_chain(node: Any, fixed: frozenset[str]) -> None:
    """Erases the views that a shortened one no longer needs."""
    while isinstance(node, fx.Node) and not node.users and node.target in _SHORTENS and node.name not in fixed:
        source = node.args[0]
        node.graph.erase_node(node)
        node = source


def _nobody_can_tell(node: fx.Node, source: fx.Node, returned: set[fx.Node], escapes: set[fx.Node]) -> bool:
    """Whether results stay tensors of their own, and as separate from each other and the inputs as they were."""
    made = source.op == "call_function"
    if node not in escapes:
        return True
    if may_alias(node) and not _copies(node):
        return node not in returned or (made and source not in returned)
    return made and not may_alias(source) and len(source.users) == 1


def _copies(node: fx.Node) -> bool:
    """Whether a cast was asked for a copy. The result of an idle native_dropout is one."""
    if not isinstance(node.target, internals.OpOverload):
        return True
    return bool(internals.bind_arguments(node.target, node.args, node.kwargs).get("copy"))


# ---------------------------------------------------------------------- values


def same_value(a: Any, b: Any) -> bool:
    """Whether two nodes have the same shape, dtype, device and layout in memory, whatever the dims are."""
    x, y = metadata.value_of(a), metadata.value_of(b)
    if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor):
        return False
    if (x.dtype, x.device, x.layout, x.dim()) != (y.dtype, y.device, y.layout, y.dim()):
        return False
    if not same_sizes(x, x.shape, y.shape) or x.layout is not torch.strided:
        return False
    long = [i for i, size in enumerate(x.shape) if not isinstance(size, int) or size != 1]
    return same_sizes(x, [x.stride(i) for i in long], [y.stride(i) for i in long])


def same_sizes(tensor: torch.Tensor, a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether sizes are equal by all that the tensor's shape environment knows."""
    mode = internals.fake_mode_of(tensor)
    env = mode.shape_env if mode is not None else None
    return len(a) == len(b) and all(
        internals.surely_equal(env, internals.expr_of(i), internals.expr_of(j)) for i, j in zip(a, b, strict=True)
    )


def _is_dense(node: Any) -> bool:
    """Whether a node's value lies in memory in the order of its elements."""
    value = metadata.value_of(node)
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    expected: Any = 1
    for size, stride in zip(reversed(value.shape), reversed(value.stride()), strict=True):
        if isinstance(size, int) and size == 1:
            continue
        if not same_sizes(value, [stride], [expected]):
            return False
        expected = expected * size
    return True


def _literal(value: Any, *expected: Any) -> bool:
    return isinstance(value, int | float) and any(repr(value) == repr(e) for e in expected)


# ---------------------------------------------------------------------- rules: what changes the shape alone

_RESHAPES = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)
_KEEP_ORDER = (
    *(*_RESHAPES, aten.view_as.default, aten.flatten.using_ints, aten.unflatten.int, aten.unsqueeze.default),
    *(aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default),
)


def _trace_reshapes(node: fx.Node) -> list[fx.Node]:
    """The tensors further up whose elements are the node's, in its order; the nearest first."""
    chain: list[fx.Node] = []
    while node.target in _KEEP_ORDER and isinstance(node.args[0], fx.Node):
        node = node.args[0]
        chain.append(node)
    return chain


@removes(*_KEEP_ORDER)
def _same_shape(node: fx.Node) -> Any:
    return next((n for n in reversed(_trace_reshapes(node)) if same_value(node, n)), None)


@shortens(*_RESHAPES)
def _reshape(node: fx.Node) -> bool:
    """Only the last shape counts. A view can skip what it surely is a view of as well."""
    free = node.target is not aten.view.default
    found = next((n for n in reversed(_trace_reshapes(node)[1:]) if free or _is_dense(n)), None)
    if found is None:
        return False
    node.args = (found, *node.args[1:])
    return True


# ---------------------------------------------------------------------- rules: what may be removed

_DETACHES = (aten.detach.default,)


@removes(
    *(aten.expand.default, aten.expand_as.default, aten.slice.Tensor, aten.narrow.default),
    *(aten.contiguous.default, aten.clone.default, aten.alias.default, aten.detach.default),
    *(aten.lift_fresh.default, aten.lift_fresh_copy.default),
)
def _same_as_its_input(node: fx.Node) -> Any:
    """An operator that changes size or place, and did not. A slice as long as its tensor is all of it."""
    source = node.args[0]
    return source if isinstance(source, fx.Node) and same_value(node, source) else None


@removes(
    *(aten.to.dtype, aten.to.device, aten.to.dtype_layout, aten.to.other, aten._to_copy.default, aten.type_as.default),
)
def _same_dtype(node: fx.Node) -> Any:
    """A cast to what it is already, or back to what it was before it was widened."""
    source = node.args[0]
    if not isinstance(source, fx.Node) or same_value(node, source):
        return source
    if _REMOVES.get(source.target) is not _same_dtype:
        return None
    wide, narrow = metadata.value_of(source), metadata.value_of(source.args[0])  # type: ignore[arg-type]
    kept = (
        wide.dtype.is_floating_point == narrow.dtype.is_floating_point
        and wide.dtype.is_complex == narrow.dtype.is_complex
    )
    try:
        widened = kept and torch.promote_types(wide.dtype, narrow.dtype) == wide.dtype
    except RuntimeError:  # torch promotes no float8
        return None
    return source.args[0] if widened and same_value(node, source.args[0]) else None


@removes(
    aten.dropout.default, aten.feature_dropout.default, aten.alpha_dropout.default, aten.feature_alpha_dropout.default
)
def _dropout(node: fx.Node) -> Any:
    source, p, train = node.args
    return source if not train or p == 0 else None


@removes(aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar)
def _times_one(node: fx.Node) -> Any:
    neutral = _literal(node.args[1], 1, 1.0) and not node.kwargs
    return node.args[0] if neutral and same_value(node, node.args[0]) else None


@removes(aten.sub.Tensor, aten.sub.Scalar)
def _minus_zero(node: fx.Node) -> Any:
    """Not so `x + 0`, which makes 0.0 of -0.0."""
    neutral = _literal(node.args[1], 0, 0.0) and not node.kwargs and len(node.args) == 2
    return node.args[0] if neutral and same_value(node, node.args[0]) else None


@removes(aten.copy.default)
def _find_copy_source(node: fx.Node) -> Any:
    source = node.args[1]
    return source if isinstance(source, fx.Node) and same_value(node, source) else None


@removes(operator.getitem)
def _known_item(node: fx.Node) -> Any:
    group, index = node.args
    if isinstance(group, list | tuple):
        return group[index]  # type: ignore[index]
    idle = isinstance(group, fx.Node) and group.target is aten.native_dropout.default and not group.args[2]
    return group.args[0] if idle and index == 0 else None  # type: ignore[union-attr]


# ---------------------------------------------------------------------- rules: what changes the order, or repeats

_PERMUTES = (aten.permute.default, aten.transpose.int, aten.t.default)


@shortens(*_PERMUTES)
def _permute(node: fx.Node) -> bool:
    source = node.args[0]
    if not isinstance(source, fx.Node) or source.target not in _PERMUTES:
        return False
    inner, outer = order_of(source), order_of(node)
    node.target = aten.permute.default
    node.args = (source.args[0], [inner[i] for i in outer])
    return True


@removes(*_PERMUTES)
def _same_order(node: fx.Node) -> Any:
    order = order_of(node)
    if order == sorted(order):
        return node.args[0]
    source = node.args[0]
    if not isinstance(source, fx.Node) or source.target not in _PERMUTES:
        return None
    inner = order_of(source)
    return source.args[0] if [inner[i] for i in order] == sorted(order) else None


def order_of(node: fx.Node) -> list[int]:
    """Which dim of its input each dim of a permuted tensor is."""
    rank = metadata.value_of(node).dim()
    if not rank:  # a scalar may be transposed, and is what it was
        return []
    if node.target is aten.permute.default:
        return [int(d) % rank for d in node.args[1]]  # type: ignore[union-attr, arg-type]
    order = list(range(rank))
    a, b = (0, 1) if node.target is aten.t.default else (int(node.args[1]) % rank, int(node.args[2]) % rank)  # type: ignore[arg-type]
    if rank > 1 or node.target is not aten.t.default:
        order[a], order[b] = order[b], order[a]
    return order


@shortens(aten.expand.default)
def _expand(node: fx.Node) -> bool:
    source = node.args[0]
    sizes: Any = node.args[1]
    if not isinstance(source, fx.Node) or source.target is not aten.expand.default or -1 in sizes:
        return False
    node.args = (source.args[0], *node.args[1:])
    return True
