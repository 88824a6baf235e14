"""What one lowering for the CPU has chosen so far, and which kernels it may choose."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ingot.lowering.builder import LoopBuilder
from ingot.lowering.loop_ir import Stmt
from ingot.lowering.strategy import LoweringStrategy
from ingot.lowering.tensor_views import Strided

# Kernels that are chosen where another one computes the same; each can be switched off.
KERNELS = ("int8", "packed_codes", "depthwise", "winograd")


class CpuChoices(LoweringStrategy):
    """State of one lowering. Lists of steps are known by their identity: what was made inside a branch or loop is known
    there alone."""

    calls_c = True

    def __init__(self, disabled: Collection[str] = ()) -> None:
        self.disabled = frozenset(disabled)
        self.narrow_copies: dict[int, tuple[list[Stmt], dict[Any, Strided]]] = {}  # see operand_conversion.py
        self.step_writers: dict[int, tuple[list[Stmt], dict[str, list[Stmt]], int]] = {}  # see operand_conversion.py


def choices_of(low: LoopBuilder) -> CpuChoices:
    assert isinstance(low.strategy, CpuChoices)
    return low.strategy


def may_use(low: LoopBuilder, kernel: str) -> bool:
    """Whether a kernel of KERNELS is not switched off."""
    assert kernel in KERNELS, kernel
    return kernel not in choices_of(low).disabled
