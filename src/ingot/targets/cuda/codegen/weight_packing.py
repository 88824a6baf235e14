"""Weights as this target's kernels read them."""

from __future__ import annotations

import torch

from ingot.codegen.weight_blob import assign
from ingot.lowering.loop_ir import Buffer
from ingot.lowering.loop_module import PackedWeight


def pack_weight(target: torch.Tensor, weight: PackedWeight, buffer: Buffer, state: torch.Tensor) -> None:
    """Fills the bytes `target` with one weight, which may lie on a device."""
    assert weight.layout is None, f"{type(weight.layout).__name__} is not a layout of this target"
    state = state.detach().resolve_neg().resolve_conj().cpu()  # memory is copied, and a lazy sign is not in it
    assign(target.view(getattr(torch, buffer.dtype)).view(state.shape), state)
