"""Weights as this target's kernels read them."""

from __future__ import annotations

from threading import BoundedSemaphore

import torch

from ingot.codegen.weight_blob import assign
from ingot.lowering.loop_ir import Buffer
from ingot.lowering.loop_module import PackedWeight
from ingot.targets.cuda.schedule.weight_layouts import lay_out

# Weights that are laid out on a device at a time, each in memory of two or three times its size.
_ON_DEVICE = BoundedSemaphore(2)


def pack_weight(target: torch.Tensor, weight: PackedWeight, buffer: Buffer, state: torch.Tensor) -> None:
    """Fills the bytes `target` with one weight, which may lie on a device."""
    state = state.detach().resolve_neg().resolve_conj()  # memory is copied, and a lazy sign is not in it
    stored = target.view(getattr(torch, buffer.dtype))
    # Where elements are only moved, a device moves them sooner; how it rounds need not be how the host does.
    if lies_on_device(state) and state.dtype is stored.dtype:
        try:
            with _ON_DEVICE:
                made = lay_out(weight, buffer, state)
                stored.view(made.shape).copy_(made)
                return
        except torch.OutOfMemoryError:
            pass
    made = lay_out(weight, buffer, state.cpu())
    assign(stored.view(made.shape), made)


def lies_on_device(tensor: torch.Tensor) -> bool:
    return tensor.device.type != "cpu"
