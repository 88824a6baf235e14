"""Products with weight-only quantized weights: which ones read integers, and how these are packed.

A weight that is dequantized from constants stays integers in the file and in memory. A product of few rows reads them
once and widens them in registers (quantized/products.py). A product of more rows, or of a number of rows that is not
known, dequantizes its weight to memory before it, once per call: integers of 8 bits from where they lie, those of 4
bits from words of eight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ingot.lowering import tensor_views
from ingot.lowering.index_expr import divide, remainder
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.loop_ir import MatrixView
from ingot.lowering.lower import Lowering
from ingot.lowering.rules.linalg.matmul import ProductResult, matmul
from ingot.lowering.tensor_views import (
    Deferred,
    Index,
    Quantized,
    Strided,
    TensorValue,
    dequantize_view,
    find_quantized,
)
from ingot.targets.cuda.schedule.quantized.layouts import ROW_CODES, CodeForm, CodeFragments, CodeRows, FragmentScales
from ingot.targets.cuda.schedule.quantized.products import MOST_COLUMNS, PIECES, CodedGemm, count_columns

# What codes less their zeros may be: integers that bfloat16 has.
_EXACT = 256
# Zeros of codes of 4 bits that can be subtracted in bfloat16.
_NIBBLE_ZEROS = (-64, 127)


def lower_coded_product(
    low: Lowering, a: TensorValue, b: TensorValue, bias: TensorValue | None, alpha: Any, beta: Any,
    order: Sequence[int] | None
) -> TensorValue | None:  # fmt: skip
    """A product with a weight of integers; None of any other."""
    found = _find_codes(low, b)
    if found is None or len(a.shape) != 2 or a.dtype != low.out_dtype or b.dtype != a.dtype:
        return None
    m, bits = a.shape[0], _find_range(low, found)[0]
    if isinstance(m, int) and m > 0 and count_columns(a.dtype, m) <= MOST_COLUMNS:
        made = _lower_few_rows(low, a, found, m, bias, alpha, beta, order)
        if made is not None:
            return made
    if bits == 8:
        return None
    lines = replace(found, integers=tensor_views.permute(found.integers, (1, 0)), axis=_turn(found.axis))
    weight = low.realize(dequantize_view(_read_rows(low, lines)))
    return matmul(low, a, tensor_views.permute(weight, (1, 0)), bias, alpha, beta, order)


def pack_table(low: Lowering, table: TensorValue) -> TensorValue:
    """A table whose integers take 4 bits, stored in so many, for who reads rows of it; any other as it is."""
    found = _find_codes(low, table)
    if found is None or _find_range(low, found)[0] != 4:
        return table
    return dequantize_view(_read_rows(low, found))


def _find_codes(low: Lowering, tensor: TensorValue) -> Quantized | None:
    """What a matrix is dequantized from, where that is a constant of known sizes."""
    found = find_quantized(tensor, halves=True)
    if found is None or tensor.rank != 2 or not all(isinstance(size, int) for size in tensor.shape):
        return None
    codes = low.constant(found.integers)
    return found if codes is not None and codes.dtype in (torch.int8, torch.uint8) and codes.numel() else None


def _lower_few_rows(
    low: Lowering, a: TensorValue, found: Quantized, m: int, bias: TensorValue | None, alpha: Any, beta: Any,
    order: Sequence[int] | None
) -> TensorValue | None:  # fmt: skip
    k, n = found.integers.shape
    assert isinstance(k, int) and isinstance(n, int) and isinstance(found.integers.data, Strided)
    if found.axis not in (None, 1) or a.dtype not in PIECES or found.tokens:
        return None
    bits, base, least, most = _find_range(low, found)
    form = CodeForm(bits, found.group or k)
    scales = _pack_numbers(low, found, found.scale, n, k // form.group, 0)
    zeros = _pack_zeros(low, found, n, k // form.group, bits, base, (least, most))
    data = found.integers.data
    if scales is None or zeros is None or k % form.group or not _are_numbers(data.offset, *data.strides):
        return None
    assert isinstance(data.offset, int) and isinstance(data.strides[0], int) and isinstance(data.strides[1], int)
    layout = CodeFragments(form, data.offset, n, k, data.strides[1], data.strides[0], base)
    codes = low.derive_weight(data.buffer, "uint32", layout.stored_shape(), layout)
    rows = low.realize(a)
    assert isinstance(rows.data, Strided)
    left = MatrixView(rows.data.buffer, rows.data.offset_at((0, 0)), *rows.data.strides)
    result = ProductResult.make(low, (m, n), low.out_dtype, order)
    ops = BodyBuilder()
    epilogue = result.epilogue(low, ops, ops.emit("accumulator", (), "float32"), bias, alpha, beta)
    low.steps.append(CodedGemm(m, n, k, left, codes, scales, zeros, form, "float32", epilogue, low.origin))
    return result.tensor


def _find_range(low: Lowering, found: Quantized) -> tuple[int, int, int, int]:
    """How many bits the integers need, what is taken off them so that none is negative, the least and the most of them.
    What is said of their range is believed only where it is so."""
    codes = low.constant(found.integers)
    assert codes is not None
    least, most = (int(end) for end in torch.aminmax(codes))
    first, last = found.ends or (least, most)
    if first <= least and most <= last and last - first < 16:
        return 4, first, least, most
    if most - least < 16:
        return 4, least, least, most
    return 8, 0 if codes.dtype is torch.uint8 else -128, least, most


def _pack_numbers(low: Lowering, found: Quantized, value: Any, n: int, groups: int, minus: int) -> str | float | None:
    """Scales or zeros beside the fragments, or one number for all, less `minus`; None where they are neither."""
    if not isinstance(value, TensorValue):
        return float(value) - minus
    known = low.constant(value)
    if known is None:
        return None
    if found.axis is None:
        return float(known.double()) - minus if known.numel() == 1 else None
    data = value.data
    assert isinstance(data, Strided)
    if not _are_numbers(data.offset, *data.strides):
        return None
    line_step, group_step = data.strides if found.group is not None else (data.strides[0], 0)
    assert isinstance(data.offset, int) and isinstance(line_step, int) and isinstance(group_step, int)
    layout = FragmentScales(data.offset, n, groups, line_step, group_step, minus)
    return low.derive_weight(data.buffer, "float32", layout.stored_shape(), layout)


def _pack_zeros(
    low: Lowering, found: Quantized, n: int, groups: int, bits: int, base: int, ends: tuple[int, int]
) -> str | float | None:
    """Zeros less what the codes are less; None where a code less its zero would not be exact."""
    value = found.zero
    known = torch.tensor(value) if not isinstance(value, TensorValue) else low.constant(value)
    if known is None or not known.numel():
        return None
    wide = known.double()
    lowest, highest = float(wide.min()), float(wide.max())
    if not bool((wide == wide.round()).all()) or ends[1] - lowest > _EXACT or highest - ends[0] > _EXACT:
        return None
    if bits == 4 and not (_NIBBLE_ZEROS[0] <= lowest - base and highest - base <= _NIBBLE_ZEROS[1]):
        return None
    return _pack_numbers(low, found, value, n, groups, base)


def _read_rows(low: Lowering, found: Quantized) -> Quantized:
    """The same of integers that are read from words of eight."""
    lines, terms = found.integers.shape
    data = found.integers.data
    _, base, *_ = _find_range(low, found)
    assert isinstance(data, Strided) and isinstance(lines, int) and isinstance(terms, int)
    assert isinstance(data.offset, int) and isinstance(data.strides[0], int) and isinstance(data.strides[1], int)
    layout = CodeRows(data.offset, lines, terms, data.strides[0], data.strides[1], base)
    words = layout.stored_shape()[1]
    buffer = low.derive_weight(data.buffer, "uint32", layout.stored_shape(), layout)

    def load(ops: BodyBuilder, index: Index) -> int:
        line, term = index
        word = ops.load(buffer, line * words + divide(term, ROW_CODES), "uint32")
        places = ops.cast(ops.index(remainder(term, ROW_CODES) * 4), "uint32")
        code = ops.cast(ops.call("bitand", ops.call("shr", word, places), ops.const(15, "uint32")), "int32")
        return ops.call("add", code, ops.const(base, "int32")) if base else code

    return replace(found, integers=TensorValue((lines, terms), "int32", Deferred(load, 3)))


def _turn(axis: int | None) -> int | None:
    return None if axis is None else 1 - axis


def _are_numbers(*sizes: Any) -> bool:
    return all(isinstance(size, int) for size in sizes)
