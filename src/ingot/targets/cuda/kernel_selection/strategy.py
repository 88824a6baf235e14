"""The CUDA target's strategy of lowering: what lowering asks a GPU for."""

from __future__ import annotations

from ingot.lowering.index_expr import Size
from ingot.lowering.lower import Lowering
from ingot.lowering.rules.nn.convolution import ConvWindows
from ingot.lowering.strategy import LoweringStrategy
from ingot.lowering.tensor_views import TensorValue
from ingot.targets.cuda.kernel_selection.convolution import lower_convolution


class CudaStrategy(LoweringStrategy):
    """Products and attention stay whole, over memory as it is; convolutions do with channels last."""

    attention_block = (64, 64)
    devices = frozenset({"cpu", "cuda"})

    def lower_convolution(
        self, low: Lowering, x: TensorValue, weight: TensorValue, bias: TensorValue | None, shape: tuple[Size, ...],
        windows: ConvWindows,
        transposed: bool
    ) -> TensorValue | None:  # fmt: skip
        return lower_convolution(low, x, weight, bias, shape, windows, transposed)
