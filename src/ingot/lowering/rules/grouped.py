"""Products of groups of rows, each with a matrix of its own: what mixtures of experts are made of."""

from __future__ import annotations

import torch

from ingot.lowering.body import Recorder
from ingot.lowering.expr import Size, symbol
from ingot.lowering.ir import Bind, Loop, Map, Matrix, Product, Repeat, Store, wide
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.making import panel_width
from ingot.lowering.refusing import Unsupported
from ingot.lowering.values import Strided, Tensor, contiguous_strides

aten = torch.ops.aten


@lowers("transformers.grouped_mm_fallback.default")
def grouped(low: Lowering, x: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    """Rows of x up to offs[g], and from offs[g - 1] on, times weight[g]. Rows behind the last offset are zeros."""
    dtype = low.out_dtype
    rows, depth, columns, groups = x.shape[0], x.shape[1], weight.shape[2], weight.shape[0]
    if dtype not in ("float16", "bfloat16", "float32", "float64") or weight.dtype != dtype:
        raise Unsupported(f"a grouped product of {x.dtype} and {weight.dtype}")
    buffer = low.buffer("temporary", dtype, (rows, columns))
    made = Tensor((rows, columns), dtype, Strided(buffer.name, 0, contiguous_strides((rows, columns))))
    low.realize(low.full(made.shape, 0, dtype), into=buffer.name)
    x, weight, offs = low.realize(x), low.realize(weight), low.realize(offs)
    assert isinstance(x.data, Strided) and isinstance(weight.data, Strided)
    group, begin, end = (low.new_symbol() for _ in range(3))
    at = symbol(group, below=groups)
    count = symbol(end) - symbol(begin)
    row, column = symbol("i0", below=count), symbol("i1", below=columns)
    ops = Recorder()
    epilogue = Map(
        (Loop("i0", count), Loop("i1", columns)),
        ops.finish([ops.cast(ops.emit("accumulator", (), wide(dtype)), dtype)]),
        (Store(buffer.name, (row + symbol(begin)) * columns + column, 0),),
        low.origin,
    )
    left = Matrix(x.data.buffer, x.data.at((symbol(begin), 0)), x.data.strides[0], x.data.strides[1])
    product = Product((), count, columns, depth, left, _right(low, weight, at), wide(dtype), epilogue, low.origin)
    low.steps.append(
        Repeat(
            Loop(group, groups),
            (_bind(low, begin, offs, at - 1, rows), _bind(low, end, offs, at, rows, begin), product),
            low.origin,
        )
    )
    return made


@lowers(aten._grouped_mm.default)
def grouped_mm(
    low: Lowering, x: Tensor, weight: Tensor, offs: Tensor | None = None, bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None
) -> Tensor:  # fmt: skip
    if x.rank != 2 or weight.rank != 3 or offs is None or bias is not None:
        raise Unsupported("a grouped product of other than rows and a matrix for each group of them")
    return grouped(low, x, weight, offs)


def _bind(low: Lowering, name: str, offs: Tensor, at: Size, rows: Size, least: str | None = None) -> Bind:
    """The offset as a size that is in range whatever the tensor holds; 0 before the first one."""
    ops = Recorder()
    known = ops.call("ge", ops.index(at), ops.const(0, "int64"))
    value = ops.zero_outside(known, lambda: ops.cast(offs.load(ops, (at,)), "int64"))
    low_limit = ops.const(0, "int64") if least is None else ops.index(symbol(least))
    value = ops.call("min", ops.call("max", value, low_limit), ops.index(rows))
    return Bind(name, ops.finish([value]), low.origin)


def _right(low: Lowering, weight: Tensor, at: Size) -> Matrix:
    """The group's matrix: panels packed ahead of time where the weight is known then."""
    data = weight.data
    assert isinstance(data, Strided)
    groups, depth, columns = weight.shape
    if low.buffers[data.buffer].kind == "weight" and all(isinstance(size, int) for size in weight.shape):
        assert isinstance(groups, int) and isinstance(depth, int) and isinstance(columns, int)
        packed = low.pack(
            data.buffer, wide(weight.dtype), data.offset, (depth,), data.strides[1:2], columns, data.strides[2],
            groups=groups, group_step=data.strides[0],
        )  # fmt: skip
        width = panel_width(columns)
        return Matrix(packed, at * (-(-columns // width) * depth * width), width, 1, packed=width)
    return Matrix(data.buffer, data.at((at, 0, 0)), data.strides[1], data.strides[2])
