"""torch's operators that quantize and dequantize plain tensors: a library that is registered when it is imported."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload

from ingot.torch_internals.isolation import ignore_warnings

NAMESPACE = "quantized_decomposed"


@cache
def quantized_operators() -> Any:
    """The namespace of these operators, with every one of them registered."""
    with ignore_warnings(".*deprecated"):
        from torch.ao.quantization.fx import _decomposed as library  # noqa: F401
    return torch.ops.quantized_decomposed


def quantized_operator(name: str, overload: str = "default") -> OpOverload:
    """One of these operators by name."""
    found = getattr(getattr(quantized_operators(), name), overload)
    assert isinstance(found, OpOverload)
    return found
