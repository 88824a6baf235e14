"""Matrix products with weights: panels of packed columns against rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ingot.lowering.dtypes import wide
from ingot.lowering.index_expr import Size
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.loop_ir import Gemm, MatrixView
from ingot.lowering.lower import Lowering
from ingot.lowering.rules.linalg.matmul import ProductResult
from ingot.lowering.tensor_views import Strided, TensorValue
from ingot.targets.cpu.kernel_selection.int8_gemm import Factored, match_int8_product
from ingot.targets.cpu.kernel_selection.operand_conversion import convert_to_uint8, is_narrow, narrow
from ingot.targets.cpu.kernel_selection.packed_weights import pack_panels
from ingot.targets.cpu.kernel_selection.weight_only_gemm import packed_codes
from ingot.targets.cpu.schedule.statements import OperandFormat, PackedGemm, PackedMatrix
from ingot.targets.cpu.schedule.tiles import panel_width


def lower_matmul(
    low: Lowering,
    a: TensorValue,
    b: TensorValue,
    bias: TensorValue | None,
    alpha: Any,
    beta: Any,
    order: Sequence[int] | None,
) -> TensorValue | None:
    """A product with a weight that can be packed ahead of time, as one of integers, of codes or of floats; None of any
    other."""
    *lead, m, k = a.shape
    n = b.shape[-1]
    if lead:
        return None
    whole = match_int8_product(low, a, b, 1)
    factors: OperandFormat = "same"
    if whole is not None:
        a, b, factors = convert_to_uint8(low, whole.rows), whole.weight, "int8"
    elif is_narrow(low, b):
        factors = "bfloat16"
    right, codes = (packed_codes(low, b, m) if whole is None else None) or (None, None)
    a, b = low.realize(a), b if codes else low.realize(b)
    right = right or _pack(low, b, k, n, m, factors)
    if right is None:
        return None
    if factors == "bfloat16":
        a = narrow(low, a)
    assert isinstance(a.data, Strided)
    if factors != "same" and a.data.strides[-1] != 1:
        a = low.make_contiguous(a)
    assert isinstance(a.data, Strided)
    left = MatrixView(a.data.buffer, a.data.offset_at((0, 0)), a.data.strides[-2], a.data.strides[-1])
    result = ProductResult.make(low, (m, n), low.out_dtype, order)
    ops = BodyBuilder()
    sums = "int32" if whole is not None else wide(low.out_dtype)
    value = ops.emit("accumulator", (), sums)
    if whole is not None:
        i, j = result.index
        value = whole.finish_sums(ops, value, _column_sums(low, whole), j, i)
    epilogue = result.epilogue(low, ops, value, bias, alpha, beta)
    low.steps.append(PackedGemm((), m, n, k, left, right, sums, epilogue, low.origin, factors, codes))
    return result.tensor


def lower_grouped_matmul(low: Lowering, step: Gemm, weight: TensorValue, group: Size) -> PackedGemm | None:
    """The product of a group with its matrix: panels packed ahead of time where the weight is known then."""
    data = weight.data
    assert isinstance(data, Strided)
    groups, depth, columns = weight.shape
    if low.buffers[data.buffer].kind != "weight" or not all(isinstance(size, int) for size in weight.shape):
        return None
    assert isinstance(groups, int) and isinstance(depth, int) and isinstance(columns, int)
    packed = pack_panels(
        low, data.buffer, wide(weight.dtype), data.offset, (depth,), data.strides[1:2], columns, data.strides[2],
        groups=groups, group_step=data.strides[0],
    )  # fmt: skip
    width = panel_width(columns)
    right = PackedMatrix(packed, group * (-(-columns // width) * depth * width), width)
    return PackedGemm(
        step.batch, step.m, step.n, step.k, step.a, right, step.dtype, step.epilogue, step.origin
    )  # fmt: skip


def _column_sums(low: Lowering, whole: Factored) -> TensorValue | None:
    assert isinstance(whole.weight.data, Strided)
    data, (rows, columns) = whole.weight.data, whole.weight.data.strides
    return whole.sums(low, data.offset, whole.weight.shape[::-1], (columns, rows))


def _pack(low: Lowering, b: TensorValue, k: Size, n: Size, m: Size, factors: OperandFormat) -> PackedMatrix | None:
    """A weight as panels of columns, in the order in which a product reads it. Halves are widened here."""
    assert isinstance(b.data, Strided)
    source = low.buffers[b.data.buffer]
    if source.kind != "weight" or not isinstance(k, int) or not isinstance(n, int):
        return None
    rows, columns = b.data.strides
    width = panel_width(n, m)
    packed = pack_panels(
        low, source.name, wide(b.dtype), b.data.offset, (k,), (rows,), n, columns, width=width, factors=factors
    )
    return PackedMatrix(packed, 0, width)
