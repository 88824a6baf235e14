"""Sizes of torch.compile's graphs as numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import sympy
import torch
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis


class _NumberAnalysis(PythonReferenceAnalysis):
    # torch's own give sympy numbers here.

    @staticmethod
    def int_truediv(x: Any, y: Any) -> Any:
        return x / y

    @staticmethod
    def trunc_to_int(x: Any, dtype: torch.dtype) -> Any:
        return math.trunc(x)


def evaluate_expr(expr: sympy.Basic, values: Mapping[sympy.Basic, Any]) -> Any:
    """An expression of symbols with these values: ints, or SymInts of another environment."""
    return sympy_interp(_NumberAnalysis, dict(values), expr)


def hint_of(size: Any) -> int | None:
    """What a size was when a graph was traced; None where it is known only while the graph runs."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    return int(size.node.hint) if size.node.has_hint() else None


def float_hint_of(number: torch.SymFloat) -> float:
    """What a number was when a graph was traced, or any."""
    return float(number.node.hint) if number.node.has_hint() else 1.5
