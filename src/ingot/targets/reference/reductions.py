"""What a reduction combines values to."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot.targets.reference.memory import Array, computed_type


def combine(kind: str, values: Array, axes: tuple[int, ...]) -> Array:
    """The values over the last axes. Sums and products of floats are carried in float64; a nan is the result where
    there is one."""
    with np.errstate(all="ignore"):
        return np.asarray(_combine(kind, values, axes))


def _combine(kind: str, values: Array, axes: tuple[int, ...]) -> Any:
    floating = values.dtype.kind == "f"
    match kind:
        case "sum" | "prod":
            carried = np.float64 if floating else np.int32 if values.dtype.kind == "b" else values.dtype
            total = (np.sum if kind == "sum" else np.prod)(values, axis=axes, dtype=carried)
            return total.astype(values.dtype if floating else carried)
        case "max" | "min":
            return (np.max if kind == "max" else np.min)(values, axis=axes)
        case "any" | "all":
            return (np.any if kind == "any" else np.all)(values != 0, axis=axes)
        case "argmax" | "argmin":
            flat = values.reshape(*values.shape[: values.ndim - len(axes)], -1)
            return (np.argmax if kind == "argmax" else np.argmin)(flat, axis=-1).astype(np.int64)
    raise AssertionError(kind)


def start_value(kind: str, dtype: str) -> Array:
    """What a reduction of nothing gives."""
    type_ = computed_type(dtype)
    if kind in ("max", "min"):
        if type_.kind == "f":
            return np.asarray(-np.inf if kind == "max" else np.inf, type_)
        if type_.kind == "b":
            return np.asarray(kind == "min")
        limits = np.iinfo(type_)
        return np.asarray(limits.min if kind == "max" else limits.max, type_)
    number = 1 if kind in ("prod", "all") else 0
    return np.asarray(number, np.int64 if kind.startswith("arg") else np.bool_ if kind in ("any", "all") else type_)
