"""Matrix products: panels of packed columns against rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ingot.lowering import values
from ingot.lowering.body import Recorder
from ingot.lowering.coding import packed_codes
from ingot.lowering.expr import Size, product, symbol
from ingot.lowering.integers import Factored, factored
from ingot.lowering.ir import Factors, Loop, Map, Matrix, Product, Store, wide
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.making import panel_width
from ingot.lowering.narrowing import is_narrow, narrowed, unsigned
from ingot.lowering.values import (
    Index,
    Lazy,
    Strided,
    Tensor,
    contiguous_strides,
    dequantized,
    loop_variables,
    quantized_of,
)

aten = torch.ops.aten


def matmul(
    low: Lowering, a: Tensor, b: Tensor, bias: Tensor | None = None, alpha: Any = 1, beta: Any = 1,
    order: Sequence[int] | None = None
) -> Tensor:  # fmt: skip
    """alpha · a[…, m, k] · b[…, k, n] + beta · bias; leading dims are equal; bias broadcasts to the result.

    `order` is the physical order of the result's dims, columns last.
    """
    dtype = low.out_dtype
    *lead, m, k = a.shape
    n = b.shape[-1]
    shape = (*lead, m, n)
    if dtype not in ("float16", "bfloat16", "float32", "float64") or k == 0 or any(size == 0 for size in shape):
        return _scaled(low, sum_of_products(low, a, b, dtype), bias, alpha, beta, dtype)
    whole = factored(low, a, b, 1) if not lead else None
    factors: Factors = "same"
    if whole is not None:
        a, b, factors = unsigned(low, whole.rows), whole.weight, "int8"
    elif not lead and is_narrow(low, b):
        factors = "bfloat16"
    right, codes = (packed_codes(low, b, m) if not lead and whole is None else None) or (None, None)
    a, b = low.realize(a), b if codes else low.realize(b)
    right = _packed(low, b, k, n, m, factors) if not lead and right is None else right
    if right is None:
        factors = "same"
    elif factors == "bfloat16":
        a = narrowed(low, a)
    assert isinstance(a.data, Strided)
    if factors != "same" and a.data.strides[-1] != 1:
        a = low.dense(a)
    assert isinstance(a.data, Strided)
    batch, named = loop_variables(tuple(lead), range(len(lead)))
    loops = [Loop(*pair) for pair in named]
    row, column = Loop(f"i{len(loops)}", m), Loop(f"i{len(loops) + 1}", n)
    i, j = symbol(row.variable, below=m), symbol(column.variable, below=n)
    left = Matrix(a.data.buffer, a.data.at((*batch, 0, 0)), a.data.strides[-2], a.data.strides[-1])
    if right is None:
        assert isinstance(b.data, Strided)
        right = Matrix(b.data.buffer, b.data.at((*batch, 0, 0)), b.data.strides[-2], b.data.strides[-1])
    places = tuple(order or range(len(shape)))
    physical = [shape[d] for d in places]
    steps = contiguous_strides(physical)
    buffer = low.buffer("temporary", dtype, physical)
    home = Strided(buffer.name, 0, tuple(steps[places.index(d)] for d in range(len(shape))))
    index = (*batch, i, j)
    ops = Recorder()
    sums = "int32" if whole is not None else wide(dtype)
    value = ops.emit("accumulator", (), sums)
    if whole is not None:
        value = whole.finished(ops, value, _column_sums(low, whole), j, i)
    bias = low.align(bias, shape) if bias is not None else None
    value = _with_bias(ops, value, bias, index, alpha, beta, dtype)
    epilogue = Map(
        (*loops, row, column),
        ops.finish([ops.cast(value, dtype)]),
        (Store(buffer.name, home.at(index), 0),),
        low.origin,
    )
    low.steps.append(Product(tuple(loops), m, n, k, left, right, sums, epilogue, low.origin, factors, codes))
    return Tensor(shape, dtype, home)


def _with_bias(ops: Recorder, value: int, bias: Tensor | None, index: Index, alpha: Any, beta: Any, dtype: str) -> int:
    kind = wide(dtype)
    if alpha != 1:
        value = ops.call("mul", value, ops.const(alpha, kind))
    if bias is not None and beta != 0:
        more = ops.cast(bias.load(ops, values.broadcast(index, bias.shape)), kind)
        if beta != 1:
            more = ops.call("mul", more, ops.const(beta, kind))
        value = ops.call("add", value, more)
    return value


def _column_sums(low: Lowering, whole: Factored) -> Tensor | None:
    assert isinstance(whole.weight.data, Strided)
    data, (rows, columns) = whole.weight.data, whole.weight.data.strides
    return whole.sums(low, data.offset, whole.weight.shape[::-1], (columns, rows))


def _packed(low: Lowering, b: Tensor, k: Size, n: Size, m: Size, factors: Factors) -> Matrix | None:
    """A weight as panels of columns, in the order in which a product reads it."""
    assert isinstance(b.data, Strided)
    source = low.buffers[b.data.buffer]
    if source.kind != "weight" or not isinstance(k, int) or not isinstance(n, int):
        return None
    rows, columns = b.data.strides
    width = panel_width(n, m)
    packed = low.pack(
        source.name, wide(b.dtype), b.data.offset, (k,), (rows,), n, columns, width=width, factors=factors
    )
    return Matrix(packed, 0, width, 1, packed=width)


def sum_of_products(low: Lowering, a: Tensor, b: Tensor, dtype: str) -> Tensor:
    """The product as loops: of integers, of anything empty, and where a tile would be nearly empty."""
    kind = wide(dtype)
    *lead, m, k = a.shape
    shape = (*lead, m, b.shape[-1], k)
    a, b = low.keep(a), low.keep(b)

    def load(ops: Recorder, index: Index) -> int:
        *batch, i, j, r = index
        left, right = a.load(ops, (*batch, i, r)), b.load(ops, (*batch, r, j))
        return ops.call("mul", ops.cast(left, kind), ops.cast(right, kind))

    terms = Tensor(shape, kind, Lazy(load, 3))
    (made,) = low.reduce(terms, (len(shape) - 1,), ("sum",), lambda ops, v, index: (v,), (dtype,))
    return made


def _scaled(low: Lowering, made: Tensor, bias: Tensor | None, alpha: Any, beta: Any, dtype: str) -> Tensor:
    if alpha == 1 and (bias is None or beta == 0):
        return made
    return Tensor(
        made.shape,
        dtype,
        Lazy(lambda ops, index: _with_bias(ops, made.load(ops, index), bias, index, alpha, beta, dtype), 3),
    )


@lowers(aten.mm.default)
def mm(low: Lowering, a: Tensor, b: Tensor) -> Tensor:
    return matmul(low, a, b)


@lowers(aten.bmm.default)
def bmm(low: Lowering, a: Tensor, b: Tensor) -> Tensor:
    return matmul(low, a, b)


@lowers(aten.addmm.default)
def addmm(low: Lowering, bias: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    return matmul(low, a, b, bias, alpha, beta)


@lowers(aten.baddbmm.default)
def baddbmm(low: Lowering, bias: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    return matmul(low, a, b, bias, alpha, beta)


@lowers(aten.mv.default)
def mv(low: Lowering, a: Tensor, b: Tensor) -> Tensor:
    return values.drop(matmul(low, a, values.insert(b, 1)), (1,))


@lowers(aten.dot.default)
def dot(low: Lowering, a: Tensor, b: Tensor) -> Tensor:
    return values.drop(matmul(low, values.insert(a, 0), values.insert(b, 1)), (0, 1))


@lowers(aten.linear.default)
def linear(low: Lowering, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if weight.rank == 1:
        made = values.drop(linear(low, x, values.insert(weight, 0)), (x.rank - 1,))
        return made if bias is None else _scaled(low, made, bias, 1, 1, low.out_dtype)
    made = matmul(low, _multiplied(low, x, weight), values.permute(weight, (1, 0)), bias)
    return values.reshape(made, (*x.shape[:-1], weight.shape[0]), low.hint)


@lowers(aten.matmul.default)
def general_matmul(low: Lowering, a: Tensor, b: Tensor) -> Tensor:
    if a.rank == 1:
        return values.drop(
            _matmul(low, values.insert(a, 0), b if b.rank > 1 else values.insert(b, 1)),
            (-2 % max(b.rank, 2),) if b.rank > 1 else (0, 1),
        )
    if b.rank == 1:
        return values.drop(_matmul(low, a, values.insert(b, 1)), (a.rank - 1,))
    return _matmul(low, a, b)


def _matmul(low: Lowering, a: Tensor, b: Tensor) -> Tensor:
    if b.rank == 2:
        return values.reshape(matmul(low, _multiplied(low, a, b), b), (*a.shape[:-1], b.shape[-1]), low.hint)
    lead = values.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return matmul(low, low.expand(a, (*lead, *a.shape[-2:])), low.expand(b, (*lead, *b.shape[-2:])))


def _multiplied(low: Lowering, x: Tensor, weight: Tensor) -> Tensor:
    """The rows that are multiplied with a weight. They become narrow while they still have the loops that made them."""
    return as_rows(low, narrowed(low, x) if is_narrow(low, weight) else x)


def as_rows(low: Lowering, x: Tensor) -> Tensor:
    """All leading dims as one, without a copy where strides allow it."""
    found = quantized_of(x)
    if found is not None and found.axis is None:
        rows = as_rows(low, found.integers)
        if found.tokens:
            assert isinstance(found.scale, Tensor) and isinstance(found.zero, Tensor)
            each = (rows.shape[0], 1)
            scale, zero = (values.reshape(low.realize(one), each, low.hint) for one in (found.scale, found.zero))
            return dequantized(replace(found, integers=rows, scale=scale, zero=zero))
        return dequantized(replace(found, integers=rows))
    shape = (product(x.shape[:-1]), x.shape[-1])
    flat = values.reshape(low.realize(x), shape, low.hint)
    return flat if isinstance(flat.data, Strided) else values.reshape(low.dense(x), shape, low.hint)


@lowers(aten.addbmm.default)
def addbmm(low: Lowering, bias: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """Σ_batch a · b is one product whose depth is batch and depth together."""
    count, m, k = a.shape
    left = values.reshape(low.keep(values.permute(a, (1, 0, 2))), (m, count * k), low.hint)
    return matmul(low, left, values.reshape(low.keep(b), (count * k, b.shape[2]), low.hint), bias, alpha, beta)


@lowers(aten._trilinear.default)
def trilinear(
    low: Lowering, x: Tensor, y: Tensor, z: Tensor, expand_x: Sequence[int], expand_y: Sequence[int],
    expand_z: Sequence[int], over: Sequence[int], unroll: int = 1
) -> Tensor:  # fmt: skip
    """Σ x · y · z, each with the dims that it lacks put in."""
    factors = []
    for tensor, dims in ((x, expand_x), (y, expand_y), (z, expand_z)):
        for d in sorted(dims):
            tensor = values.insert(low.keep(tensor), d)
        factors.append(tensor)
    pair = values.broadcast_shapes(factors[0].shape, factors[1].shape)
    shape = values.broadcast_shapes(pair, factors[2].shape)
    factors = [low.align(factor, shape) for factor in factors]
    kind = wide(low.out_dtype)

    def load(ops: Recorder, index: Index) -> int:
        a, b, c = (ops.cast(f.load(ops, values.broadcast(index, f.shape)), kind) for f in factors)
        return ops.call("mul", ops.call("mul", a, b), c)

    (made,) = low.reduce(
        Tensor(shape, kind, Lazy(load, 6)), tuple(over), ("sum",), lambda ops, v, i: (v,), (low.out_dtype,)
    )
    return made


@lowers(aten._cdist_forward.default)
def cdist(low: Lowering, x: Tensor, y: Tensor, p: float, mode: int | None = None) -> Tensor:
    """The p-norm of every difference of a row of x and a row of y."""
    kind = wide(low.out_dtype)
    shape = low.shape_of(low.out)
    x, y = (low.align(low.keep(t), (*shape[:-2], *t.shape[-2:])) for t in (x, y))
    depth = x.shape[-1]

    def load(ops: Recorder, index: Index) -> int:
        *lead, i, j, r = index
        left = x.load(ops, values.broadcast((*lead, i, r), x.shape))
        right = y.load(ops, values.broadcast((*lead, j, r), y.shape))
        distance = ops.call("abs", ops.call("sub", left, right))
        if p == 0:
            return ops.cast(ops.call("ne", distance, ops.const(0, kind)), kind)
        if p in (1, math.inf):
            return distance
        return ops.call("mul", distance, distance) if p == 2 else ops.call("pow", distance, ops.const(p, kind))

    kind_of = "max" if p == math.inf else "sum"
    if depth == 0:
        return low.full(shape, 0, low.out_dtype)
    (total,) = low.reduce(
        Tensor((*shape, depth), kind, Lazy(load, 6)), (len(shape),), (kind_of,), lambda ops, v, i: (v,), (kind,)
    )

    def root(ops: Recorder, index: Index) -> int:
        value = total.load(ops, index)
        if p in (0, 1, math.inf):
            return value
        return ops.call("sqrt", value) if p == 2 else ops.call("pow", value, ops.const(1 / p, kind))

    return Tensor(shape, low.out_dtype, Lazy(root, 10))
