"""The weights blob: every constant that kernels read, in the order and layout they read it in."""

from __future__ import annotations

from typing import Any

import torch


def packed(tensor: torch.Tensor, packing: tuple[Any, ...], dtype: torch.dtype) -> torch.Tensor:
    """A state tensor in the layout that `ir.Weight.packing` asks for."""
    offset, shape, strides, columns = packing
    flat = tensor.detach().contiguous().reshape(-1)
    if columns is None:
        return torch.as_strided(flat, shape, strides, offset).to(dtype).contiguous()
    groups, panels, *depth, width = shape
    group_step, _, *steps, column_step = strides
    whole = torch.as_strided(flat, (groups, *depth, columns), (group_step, *steps, column_step), offset)
    made = torch.zeros((groups, *depth, panels * width), dtype=dtype)
    made[..., :columns] = whole
    places = list(range(made.dim()))
    return made.view(groups, *depth, panels, width).permute(0, places[-1], *places[1:-1], places[-1] + 1).contiguous()
