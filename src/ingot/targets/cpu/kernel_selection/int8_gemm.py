"""Integer products of a dequantized tensor and a dequantized weight.

    Σ_k (x - zero)·s · w·t[j]  =  s·t[j] · (Σ_k x·w[j] - zero · Σ_k w[j])

The sums over x·w are exact in int32. What the weights add up to is computed when they are packed, so that all which is
left for the product's epilogue is to add one number a column and to multiply with another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ingot.lowering import tensor_views
from ingot.lowering.builder import LoopBuilder
from ingot.lowering.index_expr import Size, product
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.tensor_views import Deferred, Quantized, Strided, TensorValue, find_quantized
from ingot.targets.cpu.kernel_selection.choices import may_use
from ingot.targets.cpu.kernel_selection.packed_weights import scale_vector, sum_columns

# Terms of a sum of products of uint8 and int8 that int32 holds whatever they are, and float32 as well.
TERMS = (2**31 - 1) // (255 * 128)
EXACT_TERMS = 2**24 // (255 * 128)


@dataclass(frozen=True, slots=True)
class Factored:
    """A product of integers. `rows` are uint8 or int8; as uint8 (`convert_to_uint8`) they dequantize with
    `zero` and `scale`, of which there may be one per row. `weight` is int8 and constant, its zero point 0; `scales` go
    with its columns, times `scale` where that is a number."""

    rows: TensorValue
    zero: int | TensorValue
    scale: float | TensorValue
    weight: TensorValue
    scales: float | TensorValue

    def sums(
        self, low: LoopBuilder, offset: Size, shape: Sequence[Size], strides: Sequence[Size]
    ) -> TensorValue | None:
        """What the weights of each column add up to, times -zero where that is a number and -1 where not; None where it
        does not matter. The view has columns first."""
        if self.zero == 0:
            return None
        assert isinstance(self.weight.data, Strided)
        times = -1 if isinstance(self.zero, TensorValue) else -self.zero
        return sum_columns(low, self.weight.data.buffer, offset, shape, strides, times)

    def finish_sums(self, ops: BodyBuilder, total: int, sums: TensorValue | None, column: Size, row: Size = 0) -> int:
        """The float32 that a sum of products of integers stands for."""
        if sums is not None:
            more = sums.load(ops, (column,))
            if isinstance(self.zero, TensorValue):
                zero = ops.cast(_load_row_value(ops, self.zero, row), "int32")
                more = ops.call("mul", more, zero)
            total = ops.call("add", total, more)
        return self.apply_scales(ops, ops.cast(total, "float32"), column, row)

    def apply_scales(self, ops: BodyBuilder, value: int, column: Size, row: Size = 0) -> int:
        scale = self.scales
        times = ops.cast(scale.load(ops, (column,)), "float32") if isinstance(scale, TensorValue) else None
        if isinstance(self.scale, TensorValue):
            own = ops.cast(_load_row_value(ops, self.scale, row), "float32")
            if times is None:
                assert not isinstance(scale, TensorValue)
                times = ops.const(scale, "float32")
            times = ops.call("mul", times, own)
        if times is None:
            assert not isinstance(scale, TensorValue)
            times = ops.const(scale, "float32")
        return ops.call("mul", value, times)


def _load_row_value(ops: BodyBuilder, tensor: TensorValue, row: Size) -> int:
    """What belongs to a row, of a tensor that has one element, or one a row."""
    return tensor.load(ops, tensor_views.broadcast((*(0,) * (tensor.rank - 2), row, 0)[-tensor.rank :], tensor.shape))


def match_int8_product(low: LoopBuilder, x: TensorValue, weight: TensorValue, columns: int) -> Factored | None:
    """The product of x with a weight whose dim `columns` has the results', where it is one of integers."""
    left, right = find_quantized(x), find_quantized(weight)
    if not may_use(low, "int8"):
        return None
    if left is None or right is None or left.axis is not None or not is_weight(low, right, columns):
        return None
    if left.group is not None:
        return None
    if left.integers.dtype not in ("uint8", "int8") or (isinstance(left.zero, int) and not _is_byte(left)):
        return None
    zero = _higher(left.zero, 128) if left.integers.dtype == "int8" else left.zero
    scales = right.scale
    if not isinstance(left.scale, TensorValue):
        scales = scale_vector(low, scales, left.scale) if isinstance(scales, TensorValue) else scales * left.scale
    return Factored(left.integers, zero, left.scale, right.integers, scales)


def is_weight(low: LoopBuilder, right: Quantized, columns: int) -> bool:
    """Whether a weight can be multiplied as it is: int8 around 0, packed ahead, one scale a column or one for all."""
    data, shape = right.integers.data, right.integers.shape
    constant = isinstance(data, Strided) and low.buffers[data.buffer].kind == "weight"
    numbers = all(isinstance(size, int) and size > 0 for size in shape)
    terms = product([size for d, size in enumerate(shape) if d != columns])
    fits = isinstance(terms, int) and terms <= TERMS
    around_zero = right.zero == 0 and right.integers.dtype == "int8"
    return constant and numbers and fits and around_zero and right.group is None and right.axis in (None, columns)


def _is_byte(left: Quantized) -> bool:
    assert isinstance(left.zero, int)
    return 0 <= left.zero + (128 if left.integers.dtype == "int8" else 0) <= 255


def _higher(zero: int | TensorValue, by: int) -> int | TensorValue:
    if isinstance(zero, int):
        return zero + by
    whole = zero
    return TensorValue(
        whole.shape,
        whole.dtype,
        Deferred(lambda ops, index: ops.call("add", whole.load(ops, index), ops.const(by, whole.dtype)), 1),
    )
