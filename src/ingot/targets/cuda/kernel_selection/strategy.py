"""The CUDA target's strategy of lowering: what lowering asks a GPU for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ingot.lowering.index_expr import Size
from ingot.lowering.lower import Lowering
from ingot.lowering.rules.nn.convolution import ConvWindows
from ingot.lowering.strategy import LoweringStrategy
from ingot.lowering.tensor_views import TensorValue
from ingot.targets.cuda.kernel_selection.coded_products import lower_coded_product, pack_table
from ingot.targets.cuda.kernel_selection.convolution import lower_convolution

# Kernels that are chosen where another one computes the same; each can be switched off.
SELECTED_KERNELS = ("packed_codes",)


class CudaStrategy(LoweringStrategy):
    """Products and attention stay whole, over memory as it is; convolutions do with channels last. Weights that are
    dequantized from integers stay integers."""

    attention_block = (64, 64)
    devices = frozenset({"cpu", "cuda"})

    def __init__(self, disabled: Collection[str] = ()) -> None:
        self.packs_codes = "packed_codes" not in disabled

    def prepare_table(self, low: Lowering, table: TensorValue) -> TensorValue:
        return pack_table(low, table) if self.packs_codes else table

    def lower_matmul(
        self, low: Lowering, a: TensorValue, b: TensorValue, bias: TensorValue | None, alpha: Any, beta: Any,
        order: Sequence[int] | None
    ) -> TensorValue | None:  # fmt: skip
        return lower_coded_product(low, a, b, bias, alpha, beta, order) if self.packs_codes else None

    def lower_convolution(
        self, low: Lowering, x: TensorValue, weight: TensorValue, bias: TensorValue | None, shape: tuple[Size, ...],
        windows: ConvWindows,
        transposed: bool
    ) -> TensorValue | None:  # fmt: skip
        return lower_convolution(low, x, weight, bias, shape, windows, transposed)
