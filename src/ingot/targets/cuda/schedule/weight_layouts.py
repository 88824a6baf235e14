"""Layouts of weights that this target's kernels read, and what fills them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ingot.codegen.weight_blob import view_elements
from ingot.lowering.index_expr import Size
from ingot.lowering.loop_ir import Buffer
from ingot.lowering.loop_module import PackedWeight, WeightLayout
from ingot.targets.cuda.schedule.quantized.layouts import CodeFragments, CodeRows, FragmentScales


@dataclass(frozen=True, slots=True)
class ReorderedLayout(WeightLayout):
    """A strided view of the tensor's row-major elements, one after another, in a tensor of the shape `padded`: what is
    behind the view's own elements are zeros. `folded` lines of a tensor [outer, line, tap, channel] lie side by side:
    [outer, line / folded, tap, line % folded · channels + channel]."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    padded: tuple[int, ...]
    folded: int = 1

    def stored_shape(self) -> tuple[Size, ...]:
        if self.folded == 1:
            return self.padded
        outer, lines, taps, channels = self.padded
        return outer, lines // self.folded, taps, self.folded * channels

    def arrange(self, flat: torch.Tensor) -> torch.Tensor:
        """The tensor's elements in this order."""
        made = flat.new_zeros(self.padded)
        made[tuple(slice(size) for size in self.shape)] = view_elements(flat, self.shape, self.strides, self.offset)
        if self.folded == 1:
            return made
        outer, lines, taps, channels = self.padded
        parts = made.view(outer, lines // self.folded, self.folded, taps, channels).permute(0, 1, 3, 2, 4)
        return parts.reshape(outer, lines // self.folded, taps, self.folded * channels)


@dataclass(frozen=True, slots=True)
class SwizzledTiles(WeightLayout):
    """A matrix in tiles as shared memory has them: [n / columns][k / 64][columns][8 pieces][8 terms], the piece of 8
    terms at place p being number p ^ column % 8. The matrix is `n` columns of `k` terms; column c's term t is element
    offset + c · column_step + t · term_step of the tensor or, with `source`, of the tensor in that layout. Columns that
    are missing in the last tile are zeros. With `pairs`, runs of 8 columns of the halves of each group of 2 · pairs
    columns lie in turn."""

    offset: int
    n: int
    k: int
    column_step: int
    term_step: int
    columns: int
    source: ReorderedLayout | None = None
    pairs: int = 0

    def stored_shape(self) -> tuple[int, ...]:
        return -(-self.n // self.columns), self.k // 64, self.columns, 64

    def spread(self, flat: torch.Tensor) -> torch.Tensor:
        """The tensor's elements in tiles."""
        if self.source is not None:
            flat = self.source.arrange(flat).reshape(-1)
        matrix = view_elements(flat, (self.n, self.k), (self.column_step, self.term_step), self.offset)
        if self.pairs:
            runs = matrix.reshape(-1, 2, self.pairs // 8, 8, self.k)
            matrix = runs.transpose(1, 2).reshape(self.n, self.k)
        across, down = -(-self.n // self.columns), self.k // 64
        if across * self.columns > self.n:
            padded = matrix.new_zeros(across * self.columns, self.k)
            padded[: self.n] = matrix
            matrix = padded
        # A piece is moved as a whole: its 16 bytes are one number, or two of them for wider terms.
        matrix = matrix.contiguous()
        if matrix.data_ptr() % 16 or matrix.storage_offset() * matrix.element_size() % 16:
            matrix = matrix.clone()
        pieces = matrix.view(torch.complex128).view(across, self.columns, down, 8, -1)
        places = torch.arange(self.columns)[:, None].to(flat.device), find_pieces(self.columns).to(flat.device)
        return pieces.permute(0, 2, 1, 3, 4)[:, :, *places].view(flat.dtype).reshape(self.stored_shape())


def find_pieces(columns: int) -> torch.Tensor:
    """Which piece of a column's 64 terms lies at each of its 8 places."""
    return torch.arange(8)[None, :] ^ torch.arange(columns)[:, None] % 8


def lay_out(weight: PackedWeight, buffer: Buffer, state: torch.Tensor) -> torch.Tensor:
    """A tensor of the program's state as the module's steps read it."""
    layout = weight.layout
    if layout is None:
        return state
    if isinstance(layout, (CodeFragments, FragmentScales, CodeRows)):
        return layout.spread(state.contiguous().reshape(-1))
    flat = state.contiguous().reshape(-1).to(getattr(torch, buffer.dtype))
    if isinstance(layout, SwizzledTiles):
        return layout.spread(flat)
    assert isinstance(layout, ReorderedLayout), f"{type(layout).__name__} is not a layout of this target"
    return layout.arrange(flat)
