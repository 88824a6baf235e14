"""Draws networks: Python text of an nn.Module, line by line, each tried in eager at every size before it is kept.

A value has a kind, which says what its dims are: image [n, channels, h, w], sequence [n, length, width], vector
[n, width], signal [n, channels, length], volume [n, channels, d, h, w]. Operands are drawn from all values so far, so
that values are used several times and across distance; layers are drawn from those that exist too, so that some are
shared.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

CHANNELS = (1, 3, 8, 16, 17, 24, 32, 48, 64)
WIDE_CHANNELS = (16, 32, 32, 48, 64)
ACTIVATIONS = (
    *("F.relu({})", "F.relu({})", "F.silu({})", "F.gelu({})", "torch.tanh({})", "torch.sigmoid({})", "F.relu6({})"),
    *("F.hardswish({})", "F.leaky_relu({}, 0.1)", "F.elu({})", "F.softplus({})", "F.mish({})", "{}.abs()"),
    *("{} + 1", "1 - {}", "{} * 0.5", "F.hardsigmoid({})", "{}.clamp(-0.5, 0.75)", "torch.cos({})"),
)


class Rejected(Exception):
    """A draw that is not kept: an operator refuses its operands, or its values are out of range."""


@dataclass
class Value:
    """`at` holds the tensor at every size that the network is tried at; the first is the example's."""

    name: str
    kind: str
    at: list[torch.Tensor]

    @property
    def shape(self) -> torch.Size:
        return self.at[0].shape


@dataclass
class Draft:
    """A network so far. `scope` is what the text of a line may name besides values."""

    random: random.Random
    wide: bool  # channels that fill vectors, so that every kernel is chosen somewhere
    values: list[Value] = field(default_factory=list)
    layers: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    applied: list[tuple[str, str, torch.Size]] = field(default_factory=list)  # layer, kind and shape of its operand
    root: nn.Module = field(default_factory=nn.Module)

    def layer(self, text: str) -> str:
        """A new layer, as the text that names it."""
        name = f"l{len(self.layers)}"
        made = eval(text, {"nn": nn, "torch": torch})
        setattr(self.root, name, made.eval())
        self.layers.append(f"self.{name} = {text}")
        return f"self.{name}"

    def line(self, text: str, kind: str = "") -> Value:
        """A new value. Raises Rejected where eager refuses the line at any size, or it leaves the usual range."""
        name = f"v{len(self.lines)}"
        at = []
        for place in range(len(self.values[0].at)):
            scope = {"torch": torch, "F": F, "math": math, "self": self.root}
            scope |= {value.name: value.at[place] for value in self.values}
            try:
                made = eval(text, scope)
            except (RuntimeError, ValueError, IndexError) as error:
                raise Rejected(str(error)) from None
            at.append(made)
        large = max((float(t.abs().max()) for t in at if t.numel()), default=0.0)
        if not large < 300 or any(t.numel() > 400_000 for t in at):
            raise Rejected("out of range")
        value = Value(name, kind, at)
        self.values.append(value)
        self.lines.append(f"{name} = {text}")
        return value

    def pick(self, kind: str) -> Value:
        """A value of this kind, more often a recent one."""
        known = [value for value in self.values if value.kind == kind]
        if not known:
            raise Rejected(f"there is no {kind}")
        return known[-1] if self.random.random() < 0.6 else self.random.choice(known)

    def like(self, value: Value) -> list[Value]:
        """Other values that have this one's shape at every size."""
        shapes = [t.shape for t in value.at]
        return [v for v in self.values if v is not value and v.kind == value.kind and [t.shape for t in v.at] == shapes]

    def channels(self) -> int:
        return self.random.choice(WIDE_CHANNELS if self.wide else CHANNELS)

    def choose(self, *options: Any) -> Any:
        return self.random.choice(options)

    def activation(self, text: str) -> str:
        return str(self.random.choice(ACTIVATIONS)).format(text)

    def call(self, text: str, on: Value, kind: str = "") -> Value:
        """A layer of its own, on a value; or one that exists, where it takes the same."""
        shared = [layer for layer, of, shape in self.applied if of == on.kind and shape[1:] == on.shape[1:]]
        if shared and self.random.random() < 0.15:
            return self.line(f"{self.random.choice(shared)}({on.name})", kind or on.kind)
        layer = self.layer(text)
        made = self.line(f"{layer}({on.name})", kind or on.kind)
        self.applied.append((layer, on.kind, on.shape))
        return made
