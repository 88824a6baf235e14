"""Values between torch and native code: inputs are used in place, results are not copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ingot.errors import InputError, format_error
from ingot.ir.pytree import flatten
from ingot_runtime import BFloat16Array, Model
from ingot_runtime.device_model import DeviceModel
from ingot_runtime.dtypes import BY_NAME
from ingot_runtime.native.device_array import DeviceTensor

_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in BY_NAME}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def wants_arrays(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call is one of numpy's: its arguments hold arrays and no tensor."""
    if any(isinstance(value, torch.Tensor) for value in (*args, *kwargs.values())):
        return False
    leaves, _ = flatten((tuple(args), dict(kwargs)))
    if any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return False
    return any(isinstance(leaf, np.ndarray | BFloat16Array) for leaf in leaves)


def native_of(leaf: Any) -> Any:
    """An argument as the runtime takes it. Native code has no gradients, so a tensor is passed without its history.

    Raises InputError for a tensor of a class whose memory is not its values: a fake, a distributed one.
    """
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if type(leaf) not in _PLAIN:
        raise InputError(
            format_error(
                f"An argument is a {type(leaf).__name__}, which native code cannot read.", fix="pass a plain tensor"
            )
        )
    return leaf.detach() if leaf.requires_grad else leaf


def torch_of(value: Any) -> Any:
    """A result as torch has it, over the same memory; numbers stay numbers."""
    if isinstance(value, BFloat16Array):
        return torch.from_numpy(value.bits).view(torch.bfloat16)
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def run_model(model: Model, leaves: Sequence[Any]) -> list[Any]:
    """Runs a model with what `native_of` gave, one value per input; returns torch's tensors and numbers.

    A model on a GPU takes tensors of that GPU where they lie, and is queued on torch's current stream: its results then
    lie there too. Tensors of the host are copied, and so are results for a call without any on the GPU.
    """
    if isinstance(model, DeviceModel) and any(isinstance(leaf, torch.Tensor) and leaf.is_cuda for leaf in leaves):
        return _run_on_device(model, leaves)
    return [torch_of(value) for value in model.run(leaves)]


def _run_on_device(model: DeviceModel, leaves: Sequence[Any]) -> list[Any]:
    device = torch.device("cuda", model.device)
    dense = [_make_dense(leaf) if isinstance(leaf, torch.Tensor) and leaf.is_cuda else leaf for leaf in leaves]
    views = [_view(leaf) if isinstance(leaf, torch.Tensor) and leaf.is_cuda else leaf for leaf in dense]

    def allocate(shape: tuple[int, ...], dtype: str, _: int) -> tuple[torch.Tensor, int]:
        made = torch.empty(shape, dtype=_DTYPES[dtype], device=device)
        return made, made.data_ptr()

    results = model.run(views, stream=torch.cuda.current_stream(device).cuda_stream, allocate=allocate)
    for given, used, asked in zip(leaves, dense, model.spec.inputs, strict=True):
        if asked.mutated and used is not given:
            given.copy_(used)
    return [torch_of(value) for value in results]


def _make_dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, where its memory is its values in order; else a copy."""
    return tensor if tensor.is_contiguous() and not tensor.is_neg() else tensor.resolve_neg().contiguous()


def _view(tensor: torch.Tensor) -> DeviceTensor:
    name = _NAMES.get(tensor.dtype) or str(tensor.dtype).removeprefix("torch.")
    return DeviceTensor(tensor.data_ptr(), name, tuple(tensor.shape), tensor.get_device(), owner=tensor)
