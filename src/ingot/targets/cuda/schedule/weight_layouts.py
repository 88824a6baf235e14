"""Layouts of weights that this target's kernels read, and what fills them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ingot.lowering.index_expr import Size
from ingot.lowering.loop_ir import Buffer
from ingot.lowering.loop_module import PackedWeight, WeightLayout


@dataclass(frozen=True, slots=True)
class ReorderedLayout(WeightLayout):
    """A strided view of the tensor's row-major elements, one after another, in a tensor of the shape `padded`: what is
    behind the view's own elements are zeros."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    padded: tuple[int, ...]

    def stored_shape(self) -> tuple[Size, ...]:
        return self.padded


def lay_out(weight: PackedWeight, buffer: Buffer, state: torch.Tensor) -> torch.Tensor:
    """A tensor of the program's state as the module's steps read it."""
    layout = weight.layout
    if layout is None:
        return state
    assert isinstance(layout, ReorderedLayout), f"{type(layout).__name__} is not a layout of this target"
    found = torch.as_strided(state.contiguous().reshape(-1), layout.shape, layout.strides, layout.offset)
    made = torch.zeros(layout.padded, dtype=getattr(torch, buffer.dtype))
    made[tuple(slice(size) for size in layout.shape)].copy_(found)
    return made
