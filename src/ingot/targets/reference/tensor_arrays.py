"""Between torch's tensors and the interpreter's arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ingot.ir.program import Program
from ingot.lowering.dependence import all_steps, reads_and_writes
from ingot.lowering.loop_module import Argument, Module, PackedWeight
from ingot.targets.base import Target
from ingot.targets.reference.memory import Array, stored_type


def store_tensor(value: Any, dtype: str) -> Array:
    """A tensor, or a number, as the interpreter stores it: dense, and a copy."""
    if not isinstance(value, torch.Tensor):
        return np.asarray(value, "bool" if dtype == "bool" else dtype).astype(stored_type(dtype))
    tensor = value.detach().resolve_neg().resolve_conj().contiguous().clone()
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.uint16).numpy()
    return tensor.view(torch.uint8).numpy() if tensor.dtype is torch.bool else tensor.numpy()


def read_tensor(array: Array, argument: Argument) -> Any:
    """An output as torch has it: a tensor, or a number."""
    dtype = getattr(torch, argument.dtype)
    tensor = torch.from_numpy(array.copy())
    if tensor.dtype is not dtype:
        tensor = tensor.view(dtype)
    return tensor.item() if argument.scalar else tensor


def pack_state(
    target: Target[Any], program: Program, module: Module, packed: dict[PackedWeight, Array] | None = None
) -> dict[str, Array]:
    """Every weight and state that a step uses, as the module's steps read it. Weights are taken from `packed`, and
    put there."""
    known = {} if packed is None else packed
    used: set[str] = set().union(*(name for step in all_steps(module.steps) for name in reads_and_writes(step)))
    used |= {output.buffer for output in module.outputs}
    found: dict[str, Array] = {}
    for weight in module.weights:
        if weight in known:
            found[weight.buffer] = known[weight]
        elif weight.buffer in used:
            state = program.state_dict.get(weight.source)
            state = program.constants[weight.source] if state is None else state
            buffer = module.buffers[weight.buffer]
            found[weight.buffer] = store_tensor(target.pack_weight(weight, buffer, state), buffer.dtype).reshape(-1)
            if buffer.kind == "weight":
                known[weight] = found[weight.buffer]
    return found


def store_inputs(module: Module, leaves: Sequence[Any]) -> list[Array]:
    return [store_tensor(leaf, argument.dtype) for leaf, argument in zip(leaves, module.inputs, strict=True)]
