"""Products with weight-only quantized weights: which ones, and how they are packed.

A weight that is dequantized from constants is never written out: a product of numbers with it reads the integers, in 4
or 8 bits, and widens them where it multiplies. (What multiplies integers with integers is in `int8_gemm.py`.)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ingot.lowering import tensor_views
from ingot.lowering.index_expr import Size, divide, remainder
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.lower import Lowering
from ingot.lowering.tensor_views import (
    Deferred,
    Index,
    Quantized,
    Strided,
    TensorValue,
    dequantize_view,
    find_quantized,
)
from ingot.targets.cpu.kernel_selection.choices import may_use
from ingot.targets.cpu.kernel_selection.packed_weights import pack_codes, pack_rows, pack_scales
from ingot.targets.cpu.schedule.statements import PackedMatrix, QuantizedLayout
from ingot.targets.cpu.schedule.tiles import panel_width

# Zeros up to here, and integers less such a zero, are float32 numbers.
_EXACT = 1 << 23


def packed_codes(low: Lowering, b: TensorValue, m: Size) -> tuple[PackedMatrix, QuantizedLayout] | None:
    """A weight b[k, n] as panels of codes; None where it has none that a product of `m` rows could read."""
    found = find_quantized(b) if may_use(low, "packed_codes") else None
    if found is None or low.out_dtype != "float32" or found.axis not in (None, 1):
        return None
    codes = low.constant(found.integers)
    depth, columns = found.integers.shape
    if codes is None or codes.dtype not in (torch.int8, torch.uint8):
        return None
    if not isinstance(depth, int) or not isinstance(columns, int):
        return None
    bits, minus = _bits(found, codes)
    scales, zeros = _column_values(low, found, found.scale), _column_values(low, found, found.zero, minus)
    if scales is None or zeros is None:
        return None
    width = panel_width(columns, m)
    group = found.group or depth
    packed = pack_codes(low, tensor_views.permute(found.integers, (1, 0)), width, bits, group, minus)
    given = [
        pack_scales(low, one, width, less) if isinstance(one, TensorValue) else one
        for one, less in ((scales, 0), (zeros, minus))
    ]
    return PackedMatrix(packed, 0, width), QuantizedLayout(bits, group, *given)


def pack_table(low: Lowering, table: TensorValue) -> TensorValue:
    """A table whose integers take 4 bits, stored in so many, for who reads rows of it; any other as it is."""
    found = find_quantized(table) if may_use(low, "packed_codes") else None
    codes = low.constant(found.integers) if found is not None else None
    if found is None or codes is None or codes.dtype not in (torch.int8, torch.uint8) or table.rank != 2:
        return table
    bits, minus = _bits(found, codes)
    rows, columns = table.shape
    if bits != 4 or not isinstance(rows, int) or not isinstance(columns, int):
        return table
    buffer, words = pack_rows(low, found.integers, bits, minus), -(-columns // 8)

    def load(ops: BodyBuilder, index: Index) -> int:
        row, column = index
        word = ops.load(buffer, row * words + divide(column, 8), "uint32")
        places = ops.cast(ops.index(remainder(column, 8) * 4), "uint32")
        four = ops.call("bitand", ops.call("shr", word, places), ops.const(15, "uint32"))
        half = ops.const(8, "int32")  # two's complement: the highest of four bits counts -8
        signed = ops.call("sub", ops.call("bitxor", ops.cast(four, "int32"), half), half)
        return ops.call("add", signed, ops.const(minus, "int32")) if minus else signed

    return dequantize_view(replace(found, integers=TensorValue(table.shape, "int32", Deferred(load, 3))))


def _column_values(low: Lowering, found: Quantized, value: Any, minus: int = 0) -> TensorValue | float | None:
    """Scales, or zeros of which `minus` is to be taken off, as constants [columns, groups] or one number for all, less
    `minus` already; None where they are neither."""
    if not isinstance(value, TensorValue):
        return float(value) - minus
    known = low.constant(value)
    if known is None or bool((known.abs() > _EXACT).any()) or not isinstance(value.data, Strided):
        return None
    if found.axis is None:
        return float(known.double()) - minus if known.numel() == 1 else None
    if minus and known.dtype.is_floating_point and bool((known != known.round()).any()):
        return None
    return value if found.group is not None else tensor_views.insert(value, 1)


def _bits(found: Quantized, codes: torch.Tensor) -> tuple[int, int]:
    """How many bits the integers need, and what is to be taken off them so that they are signed. What is said of their
    range is believed only where it is so."""
    least, most = (int(x) for x in torch.aminmax(codes))
    low, high = found.ends or (least, most)
    for bits in (4, 8):
        half = 1 << (bits - 1)
        for minus in (0, half):
            first, last = minus - half, minus + half - 1
            if first <= min(low, least) and max(high, most) <= last:
                return bits, minus
    return 8, 128 if codes.dtype is torch.uint8 else 0
