"""Matrix products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ingot.lowering import tensor_views
from ingot.lowering.dtypes import wide
from ingot.lowering.index_expr import product, symbol
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.loop_ir import Gemm, Loop, Map, MatrixView, Store
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.tensor_views import (
    Deferred,
    Index,
    Shape,
    Strided,
    TensorValue,
    contiguous_strides,
    dequantize_view,
    find_quantized,
    loop_variables,
)

aten = torch.ops.aten


def matmul(
    low: Lowering, a: TensorValue, b: TensorValue, bias: TensorValue | None = None, alpha: Any = 1, beta: Any = 1,
    order: Sequence[int] | None = None
) -> TensorValue:  # fmt: skip
    """alpha · a[…, m, k] · b[…, k, n] + beta · bias; leading dims are equal; bias broadcasts to the result.

    `order` is the physical order of the result's dims, columns last.
    """
    dtype = low.out_dtype
    *lead, m, k = a.shape
    n = b.shape[-1]
    shape = (*lead, m, n)
    if dtype not in ("float16", "bfloat16", "float32", "float64") or k == 0 or any(size == 0 for size in shape):
        return _scale(low, sum_of_products(low, a, b, dtype), bias, alpha, beta, dtype)
    chosen = low.strategy.lower_matmul(low, a, b, bias, alpha, beta, order)
    if chosen is not None:
        return chosen
    a, b = low.realize(a), low.realize(b)
    result = ProductResult.make(low, shape, dtype, order)
    ops = BodyBuilder()
    value = ops.emit("accumulator", (), wide(dtype))
    epilogue = result.epilogue(low, ops, value, bias, alpha, beta)
    left, right = (_matrix(operand, result.batch) for operand in (a, b))
    low.steps.append(Gemm(result.batch_loops, m, n, k, left, right, wide(dtype), epilogue, low.origin))
    return result.tensor


@dataclass(frozen=True, slots=True)
class ProductResult:
    """The memory of a product's result, and the loops over it: (batch…, row, column)."""

    tensor: TensorValue
    home: Strided
    loops: tuple[Loop, ...]
    index: Index

    @staticmethod
    def make(low: Lowering, shape: Shape, dtype: str, order: Sequence[int] | None = None) -> ProductResult:
        lead = shape[:-2]
        batch, named = loop_variables(lead, range(len(lead)))
        loops = [Loop(*pair) for pair in named]
        row, column = (Loop(f"i{len(loops) + place}", size) for place, size in enumerate(shape[-2:]))
        places = tuple(order or range(len(shape)))
        physical = [shape[d] for d in places]
        steps = contiguous_strides(physical)
        buffer = low.buffer("temporary", dtype, physical)
        home = Strided(buffer.name, 0, tuple(steps[places.index(d)] for d in range(len(shape))))
        index = (*batch, *(symbol(loop.variable, below=loop.extent) for loop in (row, column)))
        return ProductResult(TensorValue(shape, dtype, home), home, (*loops, row, column), index)

    @property
    def batch(self) -> Index:
        return self.index[:-2]

    @property
    def batch_loops(self) -> tuple[Loop, ...]:
        return self.loops[:-2]

    def epilogue(
        self, low: Lowering, ops: BodyBuilder, value: int, bias: TensorValue | None, alpha: Any = 1, beta: Any = 1
    ) -> Map:
        """From a sum, `value`, to the result: alpha · sum + beta · bias."""
        shape, dtype = self.tensor.shape, self.tensor.dtype
        bias = low.align(bias, shape) if bias is not None else None
        value = _add_bias(ops, value, bias, self.index, alpha, beta, dtype)
        store = Store(self.home.buffer, self.home.offset_at(self.index), 0)
        return Map(self.loops, ops.finish([ops.cast(value, dtype)]), (store,), low.origin)


def _matrix(tensor: TensorValue, batch: Index) -> MatrixView:
    data = tensor.data
    assert isinstance(data, Strided)
    return MatrixView(data.buffer, data.offset_at((*batch, 0, 0)), data.strides[-2], data.strides[-1])


def _add_bias(
    ops: BodyBuilder, value: int, bias: TensorValue | None, index: Index, alpha: Any, beta: Any, dtype: str
) -> int:
    kind = wide(dtype)
    if alpha != 1:
        value = ops.call("mul", value, ops.const(alpha, kind))
    if bias is not None and beta != 0:
        more = ops.cast(bias.load(ops, tensor_views.broadcast(index, bias.shape)), kind)
        if beta != 1:
            more = ops.call("mul", more, ops.const(beta, kind))
        value = ops.call("add", value, more)
    return value


def sum_of_products(low: Lowering, a: TensorValue, b: TensorValue, dtype: str) -> TensorValue:
    """The product as loops: of integers, of anything empty, and where a tile would be nearly empty."""
    kind = wide(dtype)
    *lead, m, k = a.shape
    shape = (*lead, m, b.shape[-1], k)
    a, b = low.materialize_if_expensive(a), low.materialize_if_expensive(b)

    def load(ops: BodyBuilder, index: Index) -> int:
        *batch, i, j, r = index
        left, right = a.load(ops, (*batch, i, r)), b.load(ops, (*batch, r, j))
        return ops.call("mul", ops.cast(left, kind), ops.cast(right, kind))

    terms = TensorValue(shape, kind, Deferred(load, 3))
    (made,) = low.reduce(terms, (len(shape) - 1,), ("sum",), lambda ops, v, index: (v,), (dtype,))
    return made


def _scale(
    low: Lowering, made: TensorValue, bias: TensorValue | None, alpha: Any, beta: Any, dtype: str
) -> TensorValue:
    if alpha == 1 and (bias is None or beta == 0):
        return made
    return TensorValue(
        made.shape,
        dtype,
        Deferred(lambda ops, index: _add_bias(ops, made.load(ops, index), bias, index, alpha, beta, dtype), 3),
    )


@lowers(aten.mm.default)
def mm(low: Lowering, a: TensorValue, b: TensorValue) -> TensorValue:
    return matmul(low, a, b)


@lowers(aten.bmm.default)
def bmm(low: Lowering, a: TensorValue, b: TensorValue) -> TensorValue:
    return matmul(low, a, b)


@lowers(aten.addmm.default)
def addmm(
    low: Lowering, bias: TensorValue, a: TensorValue, b: TensorValue, *, beta: Any = 1, alpha: Any = 1
) -> TensorValue:
    return matmul(low, a, b, bias, alpha, beta)


@lowers(aten.baddbmm.default)
def baddbmm(
    low: Lowering, bias: TensorValue, a: TensorValue, b: TensorValue, *, beta: Any = 1, alpha: Any = 1
) -> TensorValue:
    return matmul(low, a, b, bias, alpha, beta)


@lowers(aten.mv.default)
def mv(low: Lowering, a: TensorValue, b: TensorValue) -> TensorValue:
    return tensor_views.drop(matmul(low, a, tensor_views.insert(b, 1)), (1,))


@lowers(aten.dot.default)
def dot(low: Lowering, a: TensorValue, b: TensorValue) -> TensorValue:
    return tensor_views.drop(matmul(low, tensor_views.insert(a, 0), tensor_views.insert(b, 1)), (0, 1))


@lowers(whole=[aten.linear.default])
def linear(low: Lowering, x: TensorValue, weight: TensorValue, bias: TensorValue | None = None) -> TensorValue:
    if weight.rank == 1:
        made = tensor_views.drop(linear(low, x, tensor_views.insert(weight, 0)), (x.rank - 1,))
        return made if bias is None else _scale(low, made, bias, 1, 1, low.out_dtype)
    made = matmul(low, _multiply(low, x, weight), tensor_views.permute(weight, (1, 0)), bias)
    return tensor_views.reshape(made, (*x.shape[:-1], weight.shape[0]), low.hint)


@lowers(whole=[aten.matmul.default])
def general_matmul(low: Lowering, a: TensorValue, b: TensorValue) -> TensorValue:
    if a.rank == 1:
        return tensor_views.drop(
            _matmul(low, tensor_views.insert(a, 0), b if b.rank > 1 else tensor_views.insert(b, 1)),
            (-2 % max(b.rank, 2),) if b.rank > 1 else (0, 1),
        )
    if b.rank == 1:
        return tensor_views.drop(_matmul(low, a, tensor_views.insert(b, 1)), (a.rank - 1,))
    return _matmul(low, a, b)


def _matmul(low: Lowering, a: TensorValue, b: TensorValue) -> TensorValue:
    if b.rank == 2:
        return tensor_views.reshape(matmul(low, _multiply(low, a, b), b), (*a.shape[:-1], b.shape[-1]), low.hint)
    lead = tensor_views.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return matmul(low, low.expand(a, (*lead, *a.shape[-2:])), low.expand(b, (*lead, *b.shape[-2:])))


def _multiply(low: Lowering, x: TensorValue, weight: TensorValue) -> TensorValue:
    """The rows that are multiplied with a weight. The target stores them as it reads them while they still have the
    loops that made them."""
    return as_rows(low, low.strategy.prepare_rows(low, x, weight))


def as_rows(low: Lowering, x: TensorValue) -> TensorValue:
    """All leading dims as one, without a copy where strides allow it."""
    found = find_quantized(x)
    if found is not None and found.axis is None:
        rows = as_rows(low, found.integers)
        if found.tokens:
            assert isinstance(found.scale, TensorValue) and isinstance(found.zero, TensorValue)
            each = (rows.shape[0], 1)
            scale, zero = (tensor_views.reshape(low.realize(one), each, low.hint) for one in (found.scale, found.zero))
            return dequantize_view(replace(found, integers=rows, scale=scale, zero=zero))
        return dequantize_view(replace(found, integers=rows))
    shape = (product(x.shape[:-1]), x.shape[-1])
    flat = tensor_views.reshape(low.realize(x), shape, low.hint)
    return flat if isinstance(flat.data, Strided) else tensor_views.reshape(low.make_contiguous(x), shape, low.hint)


@lowers(aten.addbmm.default)
def addbmm(
    low: Lowering, bias: TensorValue, a: TensorValue, b: TensorValue, *, beta: Any = 1, alpha: Any = 1
) -> TensorValue:
    """Σ_batch a · b is one product whose depth is batch and depth together."""
    count, m, k = a.shape
    left = tensor_views.reshape(
        low.materialize_if_expensive(tensor_views.permute(a, (1, 0, 2))), (m, count * k), low.hint
    )
    return matmul(
        low,
        left,
        tensor_views.reshape(low.materialize_if_expensive(b), (count * k, b.shape[2]), low.hint),
        bias,
        alpha,
        beta,
    )


@lowers(aten._trilinear.default)
def trilinear(
    low: Lowering, x: TensorValue, y: TensorValue, z: TensorValue, expand_x: Sequence[int], expand_y: Sequence[int],
    expand_z: Sequence[int], over: Sequence[int], unroll: int = 1
) -> TensorValue:  # fmt: skip
    """Σ x · y · z, each with the dims that it lacks put in."""
    factors = []
    for tensor, dims in ((x, expand_x), (y, expand_y), (z, expand_z)):
        for d in sorted(dims):
            tensor = tensor_views.insert(low.materialize_if_expensive(tensor), d)
        factors.append(tensor)
    pair = tensor_views.broadcast_shapes(factors[0].shape, factors[1].shape)
    shape = tensor_views.broadcast_shapes(pair, factors[2].shape)
    factors = [low.align(factor, shape) for factor in factors]
    kind = wide(low.out_dtype)

    def load(ops: BodyBuilder, index: Index) -> int:
        a, b, c = (ops.cast(f.load(ops, tensor_views.broadcast(index, f.shape)), kind) for f in factors)
        return ops.call("mul", ops.call("mul", a, b), c)

    (made,) = low.reduce(
        TensorValue(shape, kind, Deferred(load, 6)), tuple(over), ("sum",), lambda ops, v, i: (v,), (low.out_dtype,)
    )
    return made


@lowers(aten._cdist_forward.default)
def cdist(low: Lowering, x: TensorValue, y: TensorValue, p: float, mode: int | None = None) -> TensorValue:
    """The p-norm of every difference of a row of x and a row of y."""
    kind = wide(low.out_dtype)
    shape = low.shape_of(low.out)
    x, y = (low.align(low.materialize_if_expensive(t), (*shape[:-2], *t.shape[-2:])) for t in (x, y))
    depth = x.shape[-1]

    def load(ops: BodyBuilder, index: Index) -> int:
        *lead, i, j, r = index
        left = x.load(ops, tensor_views.broadcast((*lead, i, r), x.shape))
        right = y.load(ops, tensor_views.broadcast((*lead, j, r), y.shape))
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
        TensorValue((*shape, depth), kind, Deferred(load, 6)),
        (len(shape),),
        (kind_of,),
        lambda ops, v, i: (v,),
        (kind,),
    )

    def root(ops: BodyBuilder, index: Index) -> int:
        value = total.load(ops, index)
        if p in (0, 1, math.inf):
            return value
        return ops.call("sqrt", value) if p == 2 else ops.call("pow", value, ops.const(1 / p, kind))

    return TensorValue(shape, low.out_dtype, Deferred(root, 10))
