"""Values between torch and native code: inputs are used in place, results are not copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ingot.errors import InputError, format_error
from ingot.ir.pytree import flatten
from ingot_runtime import BFloat16Array

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
