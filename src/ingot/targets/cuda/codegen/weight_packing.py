"""Weights as this target's kernels read them."""

from __future__ import annotations

import torch

from ingot.codegen.weight_blob import assign
from ingot.lowering.loop_ir import Buffer
from ingot.lowering.loop_module import PackedWeight
from ingot.targets.cuda.schedule.weight_layouts import lay_out


def pack_weight(target: torch.Tensor, weight: PackedWeight, buffer: Buffer, state: torch.Tensor) -> None:
    """Fills the bytes `target` with one weight, which may lie on a device."""
    state = state.detach().resolve_neg().resolve_conj().cpu()  # memory is copied, and a lazy sign is not in it
    made = lay_out(weight, buffer, state)
    assign(target.view(getattr(torch, buffer.dtype)).view(made.shape), made)
