"""Which operators can be quantized, as tables: where their activations and weights stand, and what keeps values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Rule:
    """An operator of some `kind`: which arguments are activations, which one is a weight, and the weight's channels.

    `transposed`: the weight is that of a linear layer with its axes exchanged; it is stored as the linear layer has it.
    """

    kind: str
    activations: tuple[int, ...] = ()
    weight: int | None = None
    axis: Callable[[fx.Node], int] | int = 0
    transposed: bool = False

    def channels(self, node: fx.Node) -> int:
        """The axis of the weight along which its channels lie."""
        return self.axis if isinstance(self.axis, int) else self.axis(node)


def _convolution_axis(node: fx.Node) -> int:
    return 1 if node.args[6] else 0


_CONV = Rule("conv", (0,), 1)
_TRANSPOSED = Rule("conv", (0,), 1, 1)
_PAIR = Rule("matmul", (0, 1))

# Operators that are quantized for their own sake.
PRODUCTS: dict[Any, Rule] = {
    **{getattr(aten, f"conv{n}d").default: _CONV for n in (1, 2, 3)},
    **{getattr(aten, f"conv{n}d").padding: _CONV for n in (1, 2, 3)},
    aten.conv_transpose1d.default: _TRANSPOSED,
    aten.conv_transpose2d.input: _TRANSPOSED,
    aten.conv_transpose3d.input: _TRANSPOSED,
    aten.convolution.default: Rule("conv", (0,), 1, _convolution_axis),
    aten.linear.default: Rule("linear", (0,), 1),
    aten.matmul.default: _PAIR,
    aten.bmm.default: _PAIR,
    aten.mm.default: _PAIR,
    aten.embedding.default: Rule("embedding", (), 0),
    aten.scaled_dot_product_attention.default: Rule("attention", (0, 1, 2)),
}

# Products with a matrix that are linear layers if the matrix is a weight: where they keep it, and what they read.
LINEAR_FORMS: dict[Any, Rule] = {
    aten.addmm.default: Rule("linear", (1,), 2, transposed=True),
    aten.mm.default: Rule("linear", (0,), 1, transposed=True),
    aten.matmul.default: Rule("linear", (0,), 1, transposed=True),
}

# Operators that are quantized where everything that reads their result is.
JOINING: dict[Any, Rule] = {aten.add.Tensor: Rule("add", (0, 1))}

# What may stand between one of the above and the place where its result is quantized.
ACTIVATIONS = frozenset(
    {
        *(aten.relu.default, aten.relu6.default, aten.hardtanh.default, aten.clamp.default, aten.clamp_min.default),
        *(aten.gelu.default, aten.silu.default, aten.hardswish.default, aten.hardsigmoid.default),
        *(aten.leaky_relu.default, aten.elu.default, aten.sigmoid.default, aten.tanh.default),
    }
)

# Operators that return values of their inputs: on both sides the numbers mean the same.
KEEPING = frozenset(
    {
        *(aten.max_pool1d.default, aten.max_pool2d.default, aten.max_pool3d.default),
        *(aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.flatten.using_ints),
        *(aten.unflatten.int, aten.transpose.int, aten.permute.default, aten.t.default, aten.squeeze.dim),
        *(aten.squeeze.dims, aten.squeeze.default, aten.unsqueeze.default, aten.slice.Tensor, aten.select.int),
        *(aten.expand.default, aten.repeat.default, aten.cat.default, aten.stack.default, aten.dropout.default),
        *(aten.contiguous.default, aten.clone.default, aten.alias.default, aten.detach.default),
        *(aten.pixel_shuffle.default, aten.pixel_unshuffle.default, aten.channel_shuffle.default),
        *(aten.upsample_nearest2d.vec, aten.upsample_nearest1d.vec, aten.upsample_nearest3d.vec),
        *(aten.flip.default, aten.roll.default, aten.narrow.default, aten.movedim.int),
    }
)


def keeps_values(node: fx.Node) -> bool:
    """Whether a node returns values of its inputs, or zeros."""
    if node.target in (aten.pad.default, aten.constant_pad_nd.default):
        mode = node.args[2] if node.target is aten.pad.default and len(node.args) > 2 else "constant"
        value = node.args[-1] if len(node.args) > (3 if node.target is aten.pad.default else 2) else None
        return mode != "constant" or not value  # every range holds a zero
    return node.target in KEEPING


def read_by(node: fx.Node, rule: Rule) -> list[fx.Node]:
    """The activations of a node that a rule is for."""
    found = [node.args[i] for i in rule.activations if i < len(node.args)]
    return [n for n in found if isinstance(n, fx.Node)]
