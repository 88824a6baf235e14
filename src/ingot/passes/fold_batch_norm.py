"""Batch norm in evaluation goes into the convolution or linear layer before it; a part of the pass `constant_fold`."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.ir import metadata
from ingot.ir.signature import Input, InputKind
from ingot.passes.remove_noops import order_of

if TYPE_CHECKING:
    from ingot.passes.constant_fold import Folding, Level

aten = torch.ops.aten
_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
_AT_ONCE = 1 << 19  # elements


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
            assert isinstance(turned, fx.Node)
            turned.args = (weight, *turned.args[1:])
            node.target, node.args = aten.addmm.default, (bias, x, turned)
        else:
            node.args = (node.args[0], weight, bias, *node.args[3:])


def layer_of(node: Any) -> Layer | None:
    """The layer that a node computes, or None if it is none that a batch norm goes into."""
    if not isinstance(node, fx.Node) or not isinstance(node.target, internals.OpOverload) or node.kwargs:
        return None
    args: Any = node.args
    name = operator_of(node.target)
    if name in ("addmm", "mm"):
        turned = args[-1]
        names = ("permute", "t", "transpose")
        if turned.op != "call_function" or operator_of(turned.target) not in names or len(turned.users) != 1:
            return None
        return Layer(node, turned.args[0], args[0] if name == "addmm" else None) if order_of(turned) == [1, 0] else None
    if name not in (*_CONVOLUTIONS, "convolution", "linear"):
        return None
    bias = args[2] if len(args) > 2 else None
    if name == "convolution":
        return Layer(node, args[1], bias, int(args[8]) if args[6] else None)
    transposed = name.startswith("conv_transpose")
    return Layer(node, args[1], bias, int(args[6] if len(args) > 6 else 1) if transposed else None)


def operator_of(target: Any) -> str:
    """The name of an operator of ATen, without its overload."""
    return str(target._schema.name).removeprefix("aten::")


@dataclass(frozen=True, slots=True)
class Scaled:
    """A weight times factors that broadcast against it; `tensor` computes in float64 and rounds once."""

    weight: torch.Tensor
    factors: torch.Tensor

    def tensor(self) -> torch.Tensor:
        made = torch.empty_like(self.weight, memory_format=torch.contiguous_format)
        rows = rows_at_once(made)
        exact = torch.empty_like(made[:rows], dtype=torch.float64)
        for piece, source, factors in zip(
            made.split(rows), self.weight.split(rows), self.factors.split(rows), strict=True
        ):
            piece.copy_(exact[: len(piece)].copy_(source).mul_(factors))
        return made


def rows_at_once(tensor: torch.Tensor) -> int:
    """How many rows of a tensor a cache holds."""
    return max(1, _AT_ONCE // max(1, tensor[:1].numel()))


@dataclass(frozen=True, slots=True)
class Folded:
    """A layer with the batch norm behind in it: the tensors are known, the graph is as it was."""

    layer: Layer
    norm: fx.Node
    result: fx.Node
    spec: Input  # of the weight
    weight: Scaled
    bias: torch.Tensor

    def put(self, folding: Folding, level: Level) -> None:
        """Writes the tensors into the program's state, and takes the norm out of the graph."""
        bias = self._place(folding, level, self.bias, "bias")  # each goes right behind the old weight
        weight = self._place(folding, level, self.weight.tensor(), str(self.spec.target).rpartition(".")[2])
        self._settle(folding, level, weight, bias)

    def put_bias(self, folding: Folding, level: Level) -> None:
        """The same for who stores the weight in a way of his own: the layer keeps the old one till then."""
        self._settle(folding, level, self.layer.weight, self._place(folding, level, self.bias, "bias"))

    def _settle(self, folding: Folding, level: Level, weight: fx.Node, bias: fx.Node) -> None:
        self.layer.set(weight, bias)
        self.result.replace_all_uses_with(self.layer.node)
        for node in dict.fromkeys((self.result, self.norm)):
            level.module.graph.erase_node(node)
        if level.parent is None:
            folding.names[self.result.name] = self.layer.node.name

    def _place(self, folding: Folding, level: Level, tensor: torch.Tensor, name: str) -> fx.Node:
        prefix, dot, _ = str(self.spec.target).rpartition(".")
        if self.spec.kind is InputKind.PARAMETER:
            tensor = torch.nn.Parameter(tensor, folding.program.state_of(self.spec).requires_grad)
        return folding.place(level, tensor, f"{prefix}{dot}folded_{name}", self.spec.kind, self.spec)


def fold_batch_norms(folding: Folding, level: Level) -> int:
    """Folds every batch norm of a graph that may be folded; returns how many."""
    count = 0
    for node in list(level.module.graph.nodes):
        found = fold_norm_into_layer(folding, level, node)
        if found is not None:
            found.put(folding, level)
            count += 1
    if count:
        level.module.recompile()
    return count


def fold_norm_into_layer(folding: Folding, level: Level, norm: fx.Node) -> Folded | None:
    """The layer before a node, with that node folded into it; None if it is not a batch norm, or cannot be folded."""
    args: Any = norm.args
    if norm.target is aten.batch_norm.default and not norm.kwargs and not args[5]:
        return _folded_into(folding, level, norm, norm, float(args[7]))
    if norm.target is aten._native_batch_norm_legit_no_training.default and len(norm.users) == 1:
        (user,) = norm.users
        if user.target is operator.getitem and user.args[1] == 0:
            return _folded_into(folding, level, norm, user, float(args[6]))
    return None


def _folded_into(folding: Folding, level: Level, norm: fx.Node, result: fx.Node, eps: float) -> Folded | None:
    """A batch norm, computed by `norm` and handed on by `result`."""
    layer = layer_of(norm.args[0])
    if layer is None or len(layer.node.users) != 1 or layer.node.name in folding.apart:
        return None
    if {layer.node.name, result.name} & folding.named:
        return None
    weight, bias = folding.state(level, layer.weight), folding.state(level, layer.bias)
    own = [n for n in (layer.weight, layer.bias) if n is not None]
    statistics = [folding.tensor(level, n) for n in norm.args[1:5]]
    if weight is None or (bias is None) != (layer.bias is None) or not all(folding.used_once(level, n) for n in own):
        return None
    if (
        any((n is None) != (t is None) for n, t in zip(norm.args[1:5], statistics, strict=True))
        or statistics[2] is None
    ):
        return None
    old = folding.program.state_of(weight)
    before, after = metadata.value_of(layer.node), metadata.value_of(result)
    if before.dtype != after.dtype or before.dim() != old.dim():
        return None
    offset = folding.tensor(level, layer.bias)
    doubles = [s if s is None else s.double() for s in statistics]
    return Folded(layer, norm, result, weight, *_compute(old.detach(), offset, doubles, eps, layer.groups))


def _compute(
    weight: torch.Tensor, bias: torch.Tensor | None, statistics: Any, eps: float, groups: int | None
) -> tuple[Scaled, torch.Tensor]:
    """Weight and bias after folding, computed in float64 and rounded once."""
    gamma, beta, mean, var = statistics
    scale = (var + eps).rsqrt() * (1.0 if gamma is None else gamma)
    shift = ((0.0 if bias is None else bias.double()) - mean) * scale + (0.0 if beta is None else beta)
    tail = (1,) * (weight.dim() - 2)
    if groups is None:
        return Scaled(weight, scale.view(-1, 1, *tail)), shift.to(weight.dtype)
    inputs, outputs = weight.shape[:2]
    factors = scale.view(groups, 1, outputs).expand(-1, inputs // groups, -1).reshape(inputs, outputs, *tail)
    return Scaled(weight, factors), shift.to(weight.dtype)
