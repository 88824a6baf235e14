"""Batch norm in evaluation goes into the convolution or linear layer before it; a part of the pass `fold`."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.passes.remove_noops import order_of
from ingot.program import metadata
from ingot.program.signature import InputKind

if TYPE_CHECKING:
    from ingot.passes.fold import Folding, Level

aten = torch.ops.aten
_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
_AT_ONCE = 1 << 17  # elements


@dataclass(frozen=True, slots=True)
class Layer:
    """A convolution or linear layer: the placeholders of its weight and bias, and if it is transposed, its groups."""

    node: fx.Node
    weight: Any
    bias: Any
    groups: int | None = None

    def set(self, weight: fx.Node, bias: fx.Node) -> None:
        node = self.node
        if node.target in (aten.addmm.default, aten.mm.default):
            x, turned = node.args[-2:]
            turned.args = (weight, *turned.args[1:])  # type: ignore[union-attr]
            node.target, node.args = aten.addmm.default, (bias, x, turned)
        else:
            node.args = (node.args[0], weight, bias, *node.args[3:])


def layer_of(node: Any) -> Layer | None:
    """The layer that a node computes, or None if it is none that a batch norm goes into."""
    if not isinstance(node, fx.Node) or not isinstance(node.target, internals.OpOverload) or node.kwargs:
        return None
    name, args = operator_of(node.target), node.args
    if name in ("addmm", "mm"):
        turned: Any = args[-1]
        names = ("permute", "t", "transpose")
        if turned.op != "call_function" or operator_of(turned.target) not in names or len(turned.users) != 1:
            return None
        return Layer(node, turned.args[0], args[0] if name == "addmm" else None) if order_of(turned) == [1, 0] else None
    if name not in (*_CONVOLUTIONS, "convolution", "linear"):
        return None
    bias = args[2] if len(args) > 2 else None
    if name == "convolution":
        return Layer(node, args[1], bias, int(args[8]) if args[6] else None)  # type: ignore[arg-type]
    transposed = name.startswith("conv_transpose")
    return Layer(node, args[1], bias, int(args[6] if len(args) > 6 else 1) if transposed else None)  # type: ignore[arg-type]


def operator_of(target: Any) -> str:
    """The name of an operator of ATen, without its overload."""
    return str(target._schema.name).removeprefix("aten::")


def fold_batch_norms(folding: Folding, level: Level) -> int:
    """Folds every batch norm of a graph that may be folded; returns how many."""
    count = 0
    for node in list(level.module.graph.nodes):
        if node.target is aten.batch_norm.default and not node.kwargs and not node.args[5]:
            count += _fold_batch_norm(folding, level, node, node, float(node.args[7]))
        elif node.target is aten._native_batch_norm_legit_no_training.default and len(node.users) == 1:
            (user,) = node.users
            if user.target is operator.getitem and user.args[1] == 0:
                count += _fold_batch_norm(folding, level, node, user, float(node.args[6]))
    if count:
        level.module.recompile()
    return count


def _fold_batch_norm(folding: Folding, level: Level, norm: fx.Node, result: fx.Node, eps: float) -> bool:
    """Folds one batch norm, computed by `norm` and handed on by `result`, if it may be."""
    layer = layer_of(norm.args[0])
    if layer is None or len(layer.node.users) != 1 or layer.node.name in folding.apart:
        return False
    if {layer.node.name, result.name} & folding.named:
        return False
    weight, bias = folding.state(level, layer.weight), folding.state(level, layer.bias)
    own = [n for n in (layer.weight, layer.bias) if n is not None]
    statistics = [folding.tensor(level, n) for n in norm.args[1:5]]
    if weight is None or (bias is None) != (layer.bias is None) or not all(folding.used_once(level, n) for n in own):
        return False
    if (
        any((n is None) != (t is None) for n, t in zip(norm.args[1:5], statistics, strict=True))
        or statistics[2] is None
    ):
        return False
    old = folding.program.state_of(weight)
    before, after = metadata.value_of(layer.node), metadata.value_of(result)
    if before.dtype != after.dtype or before.dim() != old.dim():
        return False
    offset = folding.tensor(level, layer.bias)
    made = _folded(old.detach(), offset, [s if s is None else s.double() for s in statistics], eps, layer.groups)
    prefix, dot, last = str(weight.target).rpartition(".")
    placed = []
    for tensor, name in zip(reversed(made), ("bias", last), strict=True):  # each goes right behind the old weight
        held = torch.nn.Parameter(tensor, old.requires_grad) if weight.kind is InputKind.PARAMETER else tensor
        placed.append(folding.place(level, held, f"{prefix}{dot}folded_{name}", weight.kind, weight))
    layer.set(placed[1], placed[0])
    result.replace_all_uses_with(layer.node)
    for node in dict.fromkeys((result, norm)):
        level.module.graph.erase_node(node)
    if level.parent is None:
        folding.names[result.name] = layer.node.name
    return True


def _folded(
    weight: torch.Tensor, bias: torch.Tensor | None, statistics: Any, eps: float, groups: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias after folding, computed in float64 and rounded once."""
    gamma, beta, mean, var = statistics
    scale = (var + eps).rsqrt() * (1.0 if gamma is None else gamma)
    shift = ((0.0 if bias is None else bias.double()) - mean) * scale + (0.0 if beta is None else beta)
    tail = (1,) * (weight.dim() - 2)
    if groups is None:
        return _scaled(weight, scale.view(-1, 1, *tail)), shift.to(weight.dtype)
    parts = weight.reshape(groups, -1, *weight.shape[1:])
    return _scaled(parts, scale.view(groups, 1, -1, *tail)).view(weight.shape), shift.to(weight.dtype)


def _scaled(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Each row times its factors, in float64: so many rows at a time that the cache holds them."""
    made = torch.empty_like(weight, memory_format=torch.contiguous_format)
    rows = max(1, _AT_ONCE // max(1, weight[:1].numel()))
    for piece, source, factors in zip(made.split(rows), weight.split(rows), scale.split(rows), strict=True):
        piece.copy_(source.to(torch.float64, copy=True).mul_(factors))
    return made
