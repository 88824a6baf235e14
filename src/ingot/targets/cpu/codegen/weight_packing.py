"""Weights in the layouts that this target's kernels read."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ingot.codegen.weight_blob import assign, view_elements
from ingot.lowering.index_expr import require_static
from ingot.lowering.loop_ir import Buffer
from ingot.lowering.loop_module import PackedWeight
from ingot.targets.cpu.schedule.weight_layouts import (
    CodeWordLayout,
    ColumnSumsLayout,
    InterleavedPanelLayout,
    PanelLayout,
    PanelView,
    ScaledLayout,
    StridedLayout,
    WeightView,
    WinogradPanelLayout,
)


def pack_weight(target: torch.Tensor, weight: PackedWeight, buffer: Buffer, state: torch.Tensor) -> None:
    """Fills the bytes `target` with one weight, as kernels read it."""
    state = state.detach().resolve_neg().resolve_conj()  # memory is copied below, and a lazy sign is not in it
    dtype = getattr(torch, buffer.dtype)
    layout: Any = weight.layout
    match layout:
        case None:
            assign(target.view(dtype).view(state.shape), state)
        case StridedLayout():
            _copy(target.view(dtype), state, layout.view)
        case ScaledLayout():
            _copy(target.view(dtype), state * layout.times if layout.times != 1 else state, layout.view)
        case ColumnSumsLayout():
            _sum(target.view(dtype), state, layout.view, layout.times)
        case PanelLayout():
            _copy(target.view(dtype), state - layout.minus if layout.minus else state, layout.view)
        case WinogradPanelLayout():
            _copy(target.view(dtype), winograd(state.to(dtype)), layout.view)
        case InterleavedPanelLayout():
            _interleave(target.view(dtype), state, layout)
        case CodeWordLayout():
            codes = state.to(torch.int16) - layout.minus if layout.minus else state
            _words(target, codes.to(torch.int8), layout)
        case _:
            raise AssertionError(f"{type(layout).__name__} is not a layout of this target")


def winograd(taps: torch.Tensor) -> torch.Tensor:
    """[out, in, 3, 3] as [16, in, out]: G · taps · G', computed in float64 and rounded once."""
    g = torch.tensor([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], dtype=torch.float64)
    spread = torch.einsum("ya,oiab,xb->yxio", g, taps.double(), g)
    return spread.reshape(16, taps.shape[1], taps.shape[0]).to(taps.dtype)


def _copy(target: torch.Tensor, state: torch.Tensor, view: WeightView | PanelView) -> None:
    offset = require_static(view.offset)
    shape, strides = tuple(map(require_static, view.shape)), tuple(map(require_static, view.strides))
    flat = state.contiguous().reshape(-1)
    if not isinstance(view, PanelView):
        assign(target.view(shape), view_elements(flat, shape, strides, offset))
        return
    columns = view.columns
    groups, panels, *depth, width = shape
    group_step, panel_step, *steps, column_step = strides
    whole = columns // width
    made = target.view(shape)
    if whole and steps == [1] and groups == 1 and column_step == depth[0]:
        for panel in range(whole):  # rows of a matrix become columns; torch has good code for just this, on one thread
            made[0, panel].copy_(flat[offset + panel * panel_step :][: width * depth[0]].view(width, depth[0]).T)
    elif whole:
        full = (groups, whole, *depth, width)
        assign(made[:, :whole], view_elements(flat, full, (group_step, panel_step, *steps, column_step), offset))
    if whole < panels:
        rest = columns - whole * width
        part = (groups, *depth, rest)
        made[:, whole].zero_()
        source = view_elements(flat, part, (group_step, *steps, column_step), offset + whole * panel_step)
        assign(made[:, whole, ..., :rest], source)


def _interleave(target: torch.Tensor, state: torch.Tensor, layout: InterleavedPanelLayout) -> None:
    """The same with so many terms side by side, zeros behind the last; the last `run` dims of the depth are terms."""
    *depth, width = map(require_static, layout.view.shape)
    run, together = layout.run, layout.together
    outer, terms = depth[:-run], math.prod(depth[-run:])
    whole = torch.empty(*outer, terms, width, dtype=state.dtype)
    _copy(whole.view(-1), state, layout.view)
    if terms % together:
        whole = torch.cat([whole, torch.zeros(*outer, -terms % together, width, dtype=state.dtype)], -2)
    target.view(*outer, -1, width, together).copy_(whole.view(*outer, -1, together, width).transpose(-1, -2))


def _sum(target: torch.Tensor, state: torch.Tensor, view: WeightView, times: int) -> None:
    """What all dims but the first add up to, in integers."""
    shape = tuple(map(require_static, view.shape))
    parts = view_elements(
        state.contiguous().reshape(-1), shape, tuple(map(require_static, view.strides)), require_static(view.offset)
    )
    target.copy_(parts.reshape(shape[0], -1).sum(1, dtype=torch.int64) * times)


def _words(target: torch.Tensor, codes: torch.Tensor, layout: CodeWordLayout) -> None:
    """Integers of a few bits in words; `target` is bytes. A word's bytes are terms, or pairs of them, in order."""
    *outer, terms, width = map(require_static, layout.view.shape)
    whole = torch.empty(*outer, terms, width, dtype=torch.int8)
    _copy(whole.view(-1), codes, layout.view)
    each = 32 // layout.bits
    whole = whole.view(*outer, terms // layout.group, layout.group, width)
    if layout.group % each:
        whole = torch.nn.functional.pad(whole, (0, 0, 0, -layout.group % each))
    words: NDArray[np.uint8] = whole.numpy().view(np.uint8).reshape(-1, each, width)
    if layout.bits == 4:
        words = (words[:, 0::2] & 15 | words[:, 1::2] << 4).astype(np.uint8)
    np.copyto(target.numpy().reshape(-1, width, 4), words.transpose(0, 2, 1))
