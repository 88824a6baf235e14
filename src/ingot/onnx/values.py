"""What rules speak: tensors of the ONNX graph, and sizes.

A Size is an int, or a sympy expression of the program's dims and of data-dependent sizes. Rules compute with
sizes in Python; `Sizes` in symbolic_sizes.py converts them to nodes where a node needs one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import onnx_ir as ir
import sympy
import torch

from ingot import torch_internals as internals
from ingot.analysis.type_promotion import dtype_of_number, promote_operands

Size: TypeAlias = "int | sympy.Expr"
Number: TypeAlias = "int | float | bool"


@dataclass(frozen=True, slots=True)
class OnnxValue:
    """A value of the ONNX graph with its type in torch's words. `shape` is None where it is not needed."""

    value: ir.Value
    dtype: torch.dtype
    shape: tuple[Size, ...] | None = None

    @property
    def sizes(self) -> tuple[Size, ...]:
        assert self.shape is not None, f"the shape of {self.value.name} is not known"
        return self.shape

    @property
    def rank(self) -> int:
        return len(self.sizes)

    @property
    def is_float(self) -> bool:
        return self.dtype.is_floating_point


def size_of(value: int | torch.SymInt) -> Size:
    """A size of the FX graph."""
    if isinstance(value, int):
        return value
    expr = internals.expr_of(value)
    return int(expr) if expr.is_number else expr


def sizes_of(values: Iterable[Any]) -> tuple[Size, ...]:
    return tuple(size_of(value) for value in values)


def is_known(sizes: Sequence[Size]) -> bool:
    """Whether all of these are numbers."""
    return all(isinstance(size, int) for size in sizes)


def axis(dim: int, rank: int) -> int:
    """A dim counted from the front; a scalar has one dim here, as torch says."""
    return dim + max(rank, 1) if dim < 0 else dim


def axes(dims: Any, rank: int) -> list[int]:
    """Dims counted from the front; None or nothing is all of them."""
    if dims is None or (isinstance(dims, list | tuple) and not dims):
        return list(range(rank))
    given = dims if isinstance(dims, list | tuple) else [dims]
    return sorted(axis(int(d), rank) for d in given)


def promote(operands: Iterable[Any]) -> torch.dtype:
    """The type that torch computes these operands in."""
    kinds: list[tuple[torch.dtype, int | None]] = []
    for operand in operands:
        if isinstance(operand, OnnxValue):
            kinds.append((operand.dtype, operand.rank))
        elif isinstance(operand, int | float | sympy.Basic):
            kinds.append((dtype_of_number(operand), None))
    return promote_operands(kinds)
