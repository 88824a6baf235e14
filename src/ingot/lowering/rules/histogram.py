"""Histograms and other counts: a scatter of ones, or of weights."""

from __future__ import annotations

from typing import Any

import torch

from ingot.lowering import tensor_views
from ingot.lowering.dtypes import wide
from ingot.lowering.index_expr import Size, divide, product, remainder
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.rules.reductions import reduce
from ingot.lowering.rules.scatter import narrow, writable
from ingot.lowering.tensor_views import Deferred, Index, TensorValue

aten = torch.ops.aten


def _range(low: Lowering, x: TensorValue, start: Any, end: Any, kind: str, margin: float) -> TensorValue:
    """The two ends of the bins, as a tensor of two: those given, or the data's; `margin` away where they are equal."""
    if start == end:
        if x.numel == 0:
            ends = (
                [low.full((), v, kind) for v in (0, 1)] if start == 0 else [low.full((), v, kind) for v in (start, end)]
            )
        elif start == 0:
            ends = [reduce(low, x, None, False, name, kind) for name in ("min", "max")]
        else:
            ends = [low.full((), v, kind) for v in (start, end)]
    else:
        ends = [low.full((), v, kind) for v in (start, end)]

    def load(ops: BodyBuilder, index: Index) -> int:
        a, b = (ops.cast(t.load(ops, ()), kind) for t in ends)
        same = ops.call("eq", a, b)
        one = ops.const(margin, kind)
        lower = ops.where(same, ops.call("sub", a, one), a)
        upper = ops.where(same, ops.call("add", b, one), b)
        return ops.where(ops.call("eq", ops.index(index[0]), ops.index(0)), lower, upper)

    return low.realize(TensorValue((2,), kind, Deferred(load, 6)))


def _edges(low: Lowering, ends: TensorValue, bins: Size, kind: str) -> TensorValue:
    """bins + 1 edges, each from the end that it is nearer to, as linspace has it."""

    def load(ops: BodyBuilder, index: Index) -> int:
        a, b = ends.load(ops, (0,)), ends.load(ops, (1,))
        n = ops.index(bins, kind)
        step = ops.call("div", ops.call("sub", b, a), n)
        i = ops.index(index[0], kind)
        front = ops.call("add", a, ops.call("mul", step, i))
        back = ops.call("sub", b, ops.call("mul", step, ops.call("sub", n, i)))
        return ops.where(ops.call("lt", ops.index(index[0] * 2), ops.index(bins + 1)), front, back)

    return low.realize(TensorValue((bins + 1,), kind, Deferred(load, 8)))


def _counts(low: Lowering, x: TensorValue, edges: TensorValue, weight: TensorValue | None, kind: str) -> TensorValue:
    """How many elements, or how much weight, lies in [edge, next edge); the last bin has its upper edge too."""
    bins = edges.shape[0] - 1
    shape = (x.numel,)
    flat = tensor_views.reshape(low.materialize_if_expensive(x), shape, low.hint)
    heavy = tensor_views.reshape(weight, shape, low.hint) if weight is not None else None
    total = writable(low, low.full((bins,), 0, kind))
    if x.numel == 0:
        return total
    given = TensorValue(shape, kind, Deferred(lambda ops, index: ops.cast(flat.load(ops, index), kind), flat.cost))
    (found,) = low.routine("search", [edges, given], [(shape, "int64")], (x.numel, edges.shape[0], x.numel), right=True)

    def write(ops: BodyBuilder, index: Index) -> tuple[Index, int]:
        v = ops.cast(flat.load(ops, index), kind)
        first, last = edges.load(ops, (0,)), edges.load(ops, (bins,))
        inside = ops.call("and", ops.call("ge", v, first), ops.call("le", v, last))
        at = ops.call("sub", found.load(ops, index), ops.const(1, "int64"))
        at = ops.call("max", ops.call("min", at, ops.index(bins - 1)), ops.const(0, "int64"))
        amount = ops.cast(heavy.load(ops, index), kind) if heavy is not None else ops.const(1, kind)
        return (ops.as_index(at, bins),), ops.where(inside, amount, ops.const(0, kind))

    low.scatter(total, shape, write, "add")
    return total


@lowers(aten.histc.default)
def histc(low: Lowering, x: TensorValue, bins: Size = 100, start: Any = 0, end: Any = 0) -> TensorValue:
    kind = wide(low.out_dtype)
    made = _counts(low, x, _edges(low, _range(low, x, start, end, kind, 1), bins, kind), None, kind)
    return narrow(made, low.out_dtype)


@lowers(whole=[aten.histogram.bin_ct, aten.histogram.bins_tensor])
def histogram(
    low: Lowering,
    x: TensorValue,
    bins: Any = 100,
    *,
    range: Any = None,
    weight: TensorValue | None = None,
    density: bool = False,
) -> tuple[TensorValue, TensorValue]:
    kind = wide(x.dtype)
    if isinstance(bins, TensorValue):
        edges = low.make_contiguous(
            TensorValue(bins.shape, kind, Deferred(lambda ops, i: ops.cast(bins.load(ops, i), kind), bins.cost))
        )
    else:
        start, end = range if range is not None else (0, 0)
        edges = _edges(low, _range(low, x, start, end, kind, 0.5), bins, kind)
    counts = _counts(low, x, edges, weight, kind)
    made = _density(low, counts, edges, kind) if density else counts
    return narrow(made, x.dtype), narrow(edges, x.dtype)


def _density(low: Lowering, counts: TensorValue, edges: TensorValue, kind: str) -> TensorValue:
    """Each bin's share of the whole, by its width."""
    whole = reduce(low, counts, None, False, "sum", kind)

    def load(ops: BodyBuilder, index: Index) -> int:
        width = ops.call("sub", edges.load(ops, (index[0] + 1,)), edges.load(ops, index))
        return ops.call("div", counts.load(ops, index), ops.call("mul", whole.load(ops, ()), width))

    return TensorValue(counts.shape, kind, Deferred(load, 6))


@lowers(aten.nonzero_static.default)
def nonzero_static(low: Lowering, x: TensorValue, *, size: Size, fill_value: int = -1) -> TensorValue:
    """The first `size` places that are not zero. What comes after them, or is zero, goes to a row that is cut off."""
    result = writable(low, low.full((size + 1, x.rank), fill_value, "int64"))
    kept = tensor_views.slice_dim(result, 0, 0, 1, size)
    if x.numel == 0 or not x.rank:
        return kept
    x = low.materialize_if_expensive(x)
    hits = TensorValue(
        x.shape, "int64", Deferred(lambda ops, i: ops.cast(ops.cast(x.load(ops, i), "bool"), "int64"), x.cost + 1)
    )
    (order,) = low.routine("scan", [hits], [(x.shape, "int64")], (1, x.numel, 1), kind="sum")
    flat = product(x.shape)

    def write(ops: BodyBuilder, index: Index) -> tuple[Index, int]:
        place: list[Size] = []
        rest = index[0]
        for length in reversed(x.shape):
            place.append(remainder(rest, length))
            rest = divide(rest, length)
        at = tuple(reversed(place))
        number = ops.call("sub", order.load(ops, at), ops.const(1, "int64"))
        hit = ops.call("and", ops.cast(x.load(ops, at), "bool"), ops.call("lt", number, ops.index(size)))
        row = ops.as_index(ops.where(hit, number, ops.index(size)), size + 1)
        coordinate = ops.const(0, "int64")
        for d, part in enumerate(at):
            coordinate = ops.where(ops.call("eq", ops.index(index[1]), ops.index(d)), ops.index(part), coordinate)
        return (row, index[1]), coordinate

    low.scatter(result, (flat, x.rank), write)
    return kept
