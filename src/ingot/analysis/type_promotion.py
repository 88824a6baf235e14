"""The dtype that torch computes operands of several dtypes in.

Tensors come first, then tensors of rank 0, then Python numbers: a later group counts only where its category (bool,
integer, float) is above that of the groups before it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch


def promote_operands(operands: Iterable[tuple[torch.dtype, int | None]]) -> torch.dtype:
    """What torch.result_type gives for any number of operands, each a dtype and a rank: None for a Python number."""
    groups: tuple[list[torch.dtype], ...] = ([], [], [])
    for dtype, rank in operands:
        groups[2 if rank is None else 0 if rank else 1].append(dtype)
    best: torch.dtype | None = None
    for group in groups:
        if group:
            dtype = functools.reduce(torch.promote_types, group)
            if best is None or _category(dtype) > _category(best):
                best = dtype
    return torch.float32 if best is None else best


def dtype_of_number(value: Any) -> torch.dtype:
    """The dtype that a Python number takes part with; anything that is neither a bool nor a float is an integer."""
    if isinstance(value, bool):
        return torch.bool
    return torch.get_default_dtype() if isinstance(value, float) else torch.int64


def _category(dtype: torch.dtype) -> int:
    if dtype is torch.bool:
        return 0
    return 2 if dtype.is_floating_point else 1
