"""The weights blob: every constant that kernels read, in the order and layout they read it in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from ingot.codegen.build.page_prefault import Pages
from ingot.codegen.entry_points import PlacedWeight
from ingot.ir.program import Program
from ingot.lowering.index_expr import require_static
from ingot.lowering.loop_ir import Buffer
from ingot.lowering.loop_module import Module, PackedWeight
from ingot.scheduling.buffer_planning import ALIGN
from ingot_runtime.cpu_features import cores
from ingot_runtime.dtypes import BY_NAME
from ingot_runtime.native import native_library

# Threads that pack weights, at most.
THREADS = 8

# Fills the bytes of one weight, as kernels read it, from the program's tensor: a target's own, for its layouts.
WeightPacker: TypeAlias = Callable[[torch.Tensor, PackedWeight, Buffer, torch.Tensor], None]


@dataclass(frozen=True)
class WeightBlob:
    """The bytes in memory, and where each weight lies in them."""

    array: NDArray[np.uint8]
    memory: native_library.Blob
    placed: tuple[PlacedWeight, ...]
    module: Module

    def tensors(self) -> dict[str, Any]:
        """Each weight as safetensors has it: dtype, shape, bytes."""
        found: dict[str, Any] = {}
        for place in self.placed:
            buffer = self.module.buffers[place.weight.buffer]
            shape = tuple(map(require_static, buffer.shape))
            found[place.weight.buffer] = (BY_NAME[buffer.dtype].stored, shape, self.array[place.offset :][: place.size])
        return found


def fill(
    program: Program,
    module: Module,
    placed: Sequence[PlacedWeight],
    size: int,
    pack: WeightPacker,
    pages: Pages | None = None,
) -> WeightBlob:
    """The program's state in a blob of that size, each weight at its place as `pack` writes it."""
    raw = (pages or Pages(0)).take(size + ALIGN)
    begin = -raw.ctypes.data % ALIGN
    array = raw[begin : begin + size]

    def write(place: PlacedWeight) -> None:
        weight = place.weight
        target = torch.from_numpy(array[place.offset : place.offset + place.size])
        pack(target, weight, module.buffers[weight.buffer], find_state(program, weight))

    with ThreadPoolExecutor(min(cores(), THREADS)) as threads:
        for _ in threads.map(write, (place for place in placed if place.size)):
            pass
    return WeightBlob(array, native_library.Blob(raw.data, begin), tuple(placed), module)


def find_state(program: Program, weight: PackedWeight) -> torch.Tensor:
    """The tensor of the program that a weight is made of."""
    state = program.state_dict.get(weight.source)
    return program.constants[weight.source] if state is None else state


def view_elements(flat: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> torch.Tensor:
    """A strided view of a flat tensor from one of its elements on: its own, wherever it begins in its memory."""
    return torch.as_strided(flat, shape, strides, flat.storage_offset() + offset)


def assign(target: torch.Tensor, source: torch.Tensor) -> None:
    """A copy on this thread alone: torch's own would share it out over cores on which the C compiler is at work."""
    if target.dtype is not source.dtype:
        target.copy_(source)
    elif target.dtype is torch.bfloat16:  # which numpy does not have
        np.copyto(target.view(torch.int16).numpy(), source.view(torch.int16).numpy())
    else:
        np.copyto(target.numpy(), source.numpy())
