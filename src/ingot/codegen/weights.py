"""The weights blob: every constant that kernels read, in the order and layout they read it in."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ingot.codegen.exports import Placed
from ingot.codegen.file import Source
from ingot.codegen.pages import Pages
from ingot.lowering.expr import known
from ingot.lowering.ir import Module, Weight
from ingot.lowering.memory import ALIGN
from ingot.program.program import Program
from ingot_runtime import native
from ingot_runtime.dtypes import BY_NAME
from ingot_runtime.machine import cores

# Threads that pack weights, at most.
THREADS = 8


@dataclass(frozen=True)
class Blob:
    """The bytes in memory, and where each weight lies in them."""

    array: NDArray[np.uint8]
    memory: native.Blob
    placed: tuple[Placed, ...]
    module: Module

    def tensors(self) -> dict[str, Any]:
        """Each weight as safetensors has it: dtype, shape, bytes."""
        found: dict[str, Any] = {}
        for place in self.placed:
            buffer = self.module.buffers[place.weight.buffer]
            shape = tuple(map(known, buffer.shape))
            found[place.weight.buffer] = (BY_NAME[buffer.dtype].stored, shape, self.array[place.offset :][: place.size])
        return found


def fill(program: Program, module: Module, source: Source, pages: Pages | None = None) -> Blob:
    """Packs the program's state as the module's kernels read it."""
    raw = (pages or Pages(0)).take(source.weights_size + ALIGN)
    begin = -raw.ctypes.data % ALIGN
    array = raw[begin : begin + source.weights_size]

    def write(place: Placed) -> None:
        weight = place.weight
        state = program.state_dict.get(weight.source)
        if state is None:
            state = program.constants[weight.source]
        state = state.detach().resolve_neg().resolve_conj()  # memory is copied below, and a lazy sign is not in it
        dtype = getattr(torch, module.buffers[weight.buffer].dtype)
        target = torch.from_numpy(array[place.offset : place.offset + place.size])
        elements = winograd(state.to(dtype)) if weight.winograd else state
        if weight.times != 1 and not weight.sums:
            elements = elements * weight.times
        if weight.minus:
            elements = elements - weight.minus if not weight.bits else elements.to(torch.int16) - weight.minus
        if weight.bits:
            _words(target, elements.to(torch.int8), weight)
        elif weight.sums:
            _sum(target.view(dtype), elements, weight.packing, int(weight.times))
        elif weight.run:
            _interleave(target.view(dtype), elements, weight.packing, weight.run, weight.together)
        else:
            _copy(target.view(dtype), elements, weight.packing)

    with ThreadPoolExecutor(min(cores(), THREADS)) as threads:
        for _ in threads.map(write, (place for place in source.weights if place.size)):
            pass
    return Blob(array, native.Blob(raw.data, begin), source.weights, module)


def winograd(taps: torch.Tensor) -> torch.Tensor:
    """[out, in, 3, 3] as [16, in, out]: G · taps · G', computed in float64 and rounded once."""
    g = torch.tensor([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], dtype=torch.float64)
    spread = torch.einsum("ya,oiab,xb->yxio", g, taps.double(), g)
    return spread.reshape(16, taps.shape[1], taps.shape[0]).to(taps.dtype)


def _copy(target: torch.Tensor, state: torch.Tensor, packing: tuple[Any, ...]) -> None:
    if not packing:
        _assign(target.view(state.shape), state)
        return
    offset, shape, strides, columns = packing
    flat = state.contiguous().reshape(-1)
    if columns is None:
        _assign(target.view(shape), torch.as_strided(flat, shape, strides, offset))
        return
    groups, panels, *depth, width = shape
    group_step, panel_step, *steps, column_step = strides
    whole = columns // width
    made = target.view(shape)
    if whole and steps == [1] and groups == 1 and column_step == depth[0]:
        for panel in range(whole):  # rows of a matrix become columns; torch has good code for just this, on one thread
            made[0, panel].copy_(flat[offset + panel * panel_step :][: width * depth[0]].view(width, depth[0]).T)
    elif whole:
        view = (groups, whole, *depth, width)
        _assign(made[:, :whole], torch.as_strided(flat, view, (group_step, panel_step, *steps, column_step), offset))
    if whole < panels:
        rest = columns - whole * width
        view = (groups, *depth, rest)
        made[:, whole].zero_()
        source = torch.as_strided(flat, view, (group_step, *steps, column_step), offset + whole * panel_step)
        _assign(made[:, whole, ..., :rest], source)


def _interleave(target: torch.Tensor, state: torch.Tensor, packing: tuple[Any, ...], run: int, together: int) -> None:
    """The same with so many terms side by side, zeros behind the last; the last `run` dims of the depth are terms."""
    *depth, width = packing[1]
    outer, terms = depth[:-run], math.prod(depth[-run:])
    whole = torch.empty(*outer, terms, width, dtype=state.dtype)
    _copy(whole.view(-1), state, packing)
    if terms % together:
        whole = torch.cat([whole, torch.zeros(*outer, -terms % together, width, dtype=state.dtype)], -2)
    target.view(*outer, -1, width, together).copy_(whole.view(*outer, -1, together, width).transpose(-1, -2))


def _sum(target: torch.Tensor, state: torch.Tensor, packing: tuple[Any, ...], times: int) -> None:
    """What all dims but the first add up to, in integers."""
    offset, shape, strides, _ = packing
    parts = torch.as_strided(state.contiguous().reshape(-1), shape, strides, offset)
    target.copy_(parts.reshape(shape[0], -1).sum(1, dtype=torch.int64) * times)


def _words(target: torch.Tensor, codes: torch.Tensor, weight: Weight) -> None:
    """Whole numbers of a few bits in words; `target` is bytes. A word's bytes are terms, or pairs of them, in order."""
    *outer, terms, width = weight.packing[1]
    whole = torch.empty(*outer, terms, width, dtype=torch.int8)
    _copy(whole.view(-1), codes, weight.packing)
    each = 32 // weight.bits
    whole = whole.view(*outer, terms // weight.group, weight.group, width)
    if weight.group % each:
        whole = torch.nn.functional.pad(whole, (0, 0, 0, -weight.group % each))
    words: NDArray[np.uint8] = whole.numpy().view(np.uint8).reshape(-1, each, width)
    if weight.bits == 4:
        words = (words[:, 0::2] & 15 | words[:, 1::2] << 4).astype(np.uint8)
    np.copyto(target.numpy().reshape(-1, width, 4), words.transpose(0, 2, 1))


def _assign(target: torch.Tensor, source: torch.Tensor) -> None:
    """A copy on this thread alone: torch's own would share it out over cores on which the C compiler is at work."""
    if target.dtype is source.dtype and target.dtype is not torch.bfloat16:
        np.copyto(target.numpy(), source.numpy())
    else:
        target.copy_(source)
