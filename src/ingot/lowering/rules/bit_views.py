"""Tensors as other dtypes, bit by bit. The last dim is longer or shorter where one dtype is wider than the other."""

from __future__ import annotations

import torch

from ingot.lowering.dtypes import BYTES
from ingot.lowering.index_expr import divide, remainder
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.tensor_views import Deferred, Index, TensorValue
from ingot.lowering.unsupported import dtype_name

aten = torch.ops.aten


@lowers(aten.view.dtype, aten.view_copy.dtype)
def view_dtype(low: Lowering, x: TensorValue, dtype: torch.dtype) -> TensorValue:
    before, after = x.dtype, dtype_name(dtype)
    if before == after:
        return x
    have, want = BYTES[before], BYTES[after]

    def load(ops: BodyBuilder, index: Index) -> int:
        if have == want:
            return ops.bitcast(x.load(ops, index), before, after)
        *outer, last = index
        if have > want:  # a part of one element: little-endian, so the first part has the lowest bits
            parts, word = have // want, _bits(have)
            bits = ops.bitcast(x.load(ops, (*outer, divide(last, parts))), before, word)
            distance = ops.cast(ops.index(remainder(last, parts) * (8 * want)), word)
            return ops.bitcast(ops.cast(ops.call("shr", bits, distance), _bits(want)), _bits(want), after)
        parts, word = want // have, _bits(want)
        made = None
        for part in range(parts):
            bits = ops.cast(ops.bitcast(x.load(ops, (*outer, last * parts + part)), before, _bits(have)), word)
            if part:
                bits = ops.call("shl", bits, ops.const(8 * have * part, word))
            made = bits if made is None else ops.call("bitor", made, bits)
        assert made is not None
        return ops.bitcast(made, word, after)

    order = low.order_of(x) if have == want else None
    return TensorValue(low.shape_of(low.out), after, Deferred(load, x.cost + 1, order))


def _bits(size: int) -> str:
    return f"uint{8 * size}"
