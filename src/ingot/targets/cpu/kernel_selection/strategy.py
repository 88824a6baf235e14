"""The CPU's strategy of lowering: packed weights, tiles, and few rows by loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ingot.lowering.index_expr import Size
from ingot.lowering.loop_ir import Gemm, Stmt
from ingot.lowering.lower import Lowering
from ingot.lowering.rules.nn.convolution import ConvWindows
from ingot.lowering.tensor_views import TensorValue
from ingot.targets.cpu.kernel_selection.choices import CpuChoices
from ingot.targets.cpu.kernel_selection.convolution import lower_convolution
from ingot.targets.cpu.kernel_selection.matmul import lower_grouped_matmul, lower_matmul
from ingot.targets.cpu.kernel_selection.operand_conversion import is_narrow, narrow
from ingot.targets.cpu.kernel_selection.weight_only_gemm import pack_table
from ingot.targets.cpu.schedule.tiles import ATTENTION_TILE

# Decoding has one query, or a few: keys and values are read once, by loops along their rows.
FEW_QUERIES = 2


class CpuStrategy(CpuChoices):
    """One lowering's: it remembers what it has packed and copied."""

    attention_block = ATTENTION_TILE
    accumulator_copies = 16

    def computes_by_loops(self, rows: Size) -> bool:
        return isinstance(rows, int) and rows <= FEW_QUERIES

    def prepare_rows(self, low: Lowering, x: TensorValue, weight: TensorValue) -> TensorValue:
        return narrow(low, x) if is_narrow(low, weight) else x

    def prepare_table(self, low: Lowering, table: TensorValue) -> TensorValue:
        return pack_table(low, table)

    def lower_matmul(
        self, low: Lowering, a: TensorValue, b: TensorValue, bias: TensorValue | None, alpha: Any, beta: Any,
        order: Sequence[int] | None
    ) -> TensorValue | None:  # fmt: skip
        return lower_matmul(low, a, b, bias, alpha, beta, order)

    def lower_grouped_matmul(self, low: Lowering, step: Gemm, weight: TensorValue, group: Size) -> Stmt | None:
        return lower_grouped_matmul(low, step, weight, group)

    def lower_convolution(
        self, low: Lowering, x: TensorValue, weight: TensorValue, bias: TensorValue | None, shape: tuple[Size, ...],
        windows: ConvWindows,
        transposed: bool
    ) -> TensorValue | None:  # fmt: skip
        return lower_convolution(low, x, weight, bias, shape, windows, transposed)
