"""Grouped matrix products, one matrix per group of rows, as mixtures of experts use them."""

from __future__ import annotations

import torch

from ingot.lowering.dtypes import wide
from ingot.lowering.index_expr import Size, size_symbol, symbol
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.loop_ir import BindSymbol, For, Gemm, Loop, Map, MatrixView, Store
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.tensor_views import Strided, TensorValue, contiguous_strides
from ingot.lowering.unsupported import LoweringUnsupported

aten = torch.ops.aten


@lowers("transformers.grouped_mm_fallback.default")
def multiply_groups(low: Lowering, x: TensorValue, weight: TensorValue, offs: TensorValue) -> TensorValue:
    """Rows of x up to offs[g], and from offs[g - 1] on, times weight[g]. Rows behind the last offset are zeros."""
    dtype = low.out_dtype
    rows, depth, columns, groups = x.shape[0], x.shape[1], weight.shape[2], weight.shape[0]
    if dtype not in ("float16", "bfloat16", "float32", "float64") or weight.dtype != dtype:
        raise LoweringUnsupported(f"a grouped product of {x.dtype} and {weight.dtype}")
    buffer = low.buffer("temporary", dtype, (rows, columns))
    made = TensorValue((rows, columns), dtype, Strided(buffer.name, 0, contiguous_strides((rows, columns))))
    low.realize(low.full(made.shape, 0, dtype), into=buffer.name)
    x, weight, offs = low.realize(x), low.realize(weight), low.realize(offs)
    assert isinstance(x.data, Strided) and isinstance(weight.data, Strided)
    group, begin, end = (low.new_symbol() for _ in range(3))
    at = size_symbol(group, below=groups)
    count = size_symbol(end) - size_symbol(begin)
    row, column = symbol("i0", below=count), symbol("i1", below=columns)
    ops = BodyBuilder()
    epilogue = Map(
        (Loop("i0", count), Loop("i1", columns)),
        ops.finish([ops.cast(ops.emit("accumulator", (), wide(dtype)), dtype)]),
        (Store(buffer.name, (row + size_symbol(begin)) * columns + column, 0),),
        low.origin,
    )
    left = MatrixView(x.data.buffer, x.data.offset_at((size_symbol(begin), 0)), x.data.strides[0], x.data.strides[1])
    data = weight.data
    right = MatrixView(data.buffer, data.offset_at((at, 0, 0)), data.strides[1], data.strides[2])
    product = Gemm((), count, columns, depth, left, right, wide(dtype), epilogue, low.origin)
    chosen = low.strategy.lower_grouped_matmul(low, product, weight, at)
    low.steps.append(
        For(
            Loop(group, groups),
            (_bind(low, begin, offs, at - 1, rows), _bind(low, end, offs, at, rows, begin), chosen or product),
            low.origin,
        )
    )
    return made


@lowers(aten._grouped_mm.default)
def grouped_mm(
    low: Lowering, x: TensorValue, weight: TensorValue, offs: TensorValue | None = None,
    bias: TensorValue | None = None,
    out_dtype: torch.dtype | None = None
) -> TensorValue:  # fmt: skip
    if x.rank != 2 or weight.rank != 3 or offs is None or bias is not None:
        raise LoweringUnsupported("a grouped product of other operands than rows and one matrix per group")
    return multiply_groups(low, x, weight, offs)


def _bind(low: Lowering, name: str, offs: TensorValue, at: Size, rows: Size, least: str | None = None) -> BindSymbol:
    """The offset as a size that is in range whatever the tensor holds; 0 before the first one."""
    ops = BodyBuilder()
    known = ops.call("ge", ops.index(at), ops.const(0, "int64"))
    value = ops.zero_outside(known, lambda: ops.cast(offs.load(ops, (at,)), "int64"))
    low_limit = ops.const(0, "int64") if least is None else ops.index(size_symbol(least))
    value = ops.call("min", ops.call("max", value, low_limit), ops.index(rows))
    return BindSymbol(name, ops.finish([value]), low.origin)
