"""Windows over the last one to three dims: the largest, and where it was; the average; with sizes given or adapted.

A window that extends over the border is not masked for a maximum: taps outside stand for the nearest tap inside, which
changes no maximum and no first place of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from ingot.lowering.dtypes import INTEGERS, wide
from ingot.lowering.index_expr import Size, divide, largest, product, remainder, smallest
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.rules.scatter import narrow
from ingot.lowering.tensor_views import Deferred, Index, TensorValue, dequantize_view, find_quantized

aten = torch.ops.aten

# For each pooled dim, from a place of the result and a tap: the place in the input.
Reach = Callable[[int, Size, Size], Size]


def each(given: Any, count: int) -> list[Any]:
    """One number for each dim; one alone stands for all."""
    found = [given] if isinstance(given, int) else list(given)
    return found * count if len(found) == 1 else found


def _index_for(x: TensorValue, count: int, index: Index, reach: Reach) -> Index:
    """An index over (result…, taps…) as one into x."""
    lead = x.rank - count
    places, taps = index[lead : x.rank], index[x.rank :]
    return (*index[:lead], *(reach(d, places[d], taps[d]) for d in range(count)))


def _order(low: Lowering, x: TensorValue, count: int) -> tuple[int, ...]:
    """Results lie in memory as x does; taps come last."""
    return (*low.order_of(x), *range(x.rank, x.rank + count))


def _largest(
    low: Lowering, x: TensorValue, shape: Sequence[Size], taps: Sequence[Size], reach: Reach, indexed: bool = True
) -> tuple[TensorValue, TensorValue]:
    """The largest element of each window, and its place in the pooled dims, flattened. Integers that stand for numbers
    are compared as they are where they stand in the same order."""
    found = find_quantized(x)
    if found is not None and found.in_order:
        best, places = _largest(low, found.integers, shape, taps, reach, indexed)
        return dequantize_view(replace(found, integers=best)), places
    count = len(taps)
    lead = x.rank - count
    kind = wide(x.dtype)
    x = low.realize(x)  # a window reads each element more than once
    windows = TensorValue(
        (*shape, *taps),
        kind,
        Deferred(lambda ops, i: x.load(ops, _index_for(x, count, i, reach)), x.cost + 2, _order(low, x, count)),
    )
    over = tuple(range(x.rank, x.rank + count))
    (best,) = low.reduce(windows, over, ("max",), lambda ops, v, index: (v,), (kind,))
    if not indexed:
        return narrow(best, x.dtype), best
    (at,) = low.reduce(windows, over, ("argmax",), lambda ops, v, index: (v,), ("int64",))

    def place(ops: BodyBuilder, index: Index) -> int:
        tap = ops.as_index(at.load(ops, index), product(list(taps)))
        parts: list[Size] = []
        for size in reversed(taps):
            parts.append(remainder(tap, size))
            tap = divide(tap, size)
        flat: Size = 0
        for d, part in enumerate(reversed(parts)):
            flat = flat * x.shape[lead + d] + reach(d, index[lead + d], part)
        return ops.index(flat)

    return narrow(best, x.dtype), TensorValue(tuple(shape), "int64", Deferred(place, 4))


def _dims(low: Lowering) -> int:
    """How many dims the operator pools: its name says so."""
    return int(str(low.node.target).partition("pool")[2][0])


@lowers(aten.max_pool1d_with_indices.default, aten.max_pool2d_with_indices.default,
        aten.max_pool3d_with_indices.default, aten.max_pool1d.default, aten.max_pool2d.default,
        aten.max_pool3d.default)  # fmt: skip
def max_pool(
    low: Lowering,
    x: TensorValue,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:
    count = _dims(low)
    taps = each(kernel, count)
    steps = each(stride, count) if stride not in ((), []) else taps
    before, apart = each(padding, count), each(dilation, count)
    lead = x.rank - count

    def reach(d: int, place: Size, tap: Size) -> Size:
        start: Size = place * steps[d] - before[d]
        if before[d] == 0 and not ceil_mode:
            return start + tap * int(apart[d])
        first = largest(divide(apart[d] - 1 - start, apart[d]), 0)
        last = divide(x.shape[lead + d] - 1 - start, apart[d])
        return start + smallest(largest(tap, first), last) * int(apart[d])

    indexed = "with_indices" in str(low.node.target)
    best, places = _largest(low, x, low.shape_of(low.out), taps, reach, indexed)
    return (best, places) if indexed else best


@lowers(aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default, aten.adaptive_max_pool1d.default)
def adaptive_max_pool(low: Lowering, x: TensorValue, size: Any) -> tuple[TensorValue, TensorValue]:
    count = _dims(low)
    shape = low.shape_of(low.out)
    lead = x.rank - count
    taps = [_widest(x.shape[lead + d], shape[lead + d]) for d in range(count)]

    def reach(d: int, place: Size, tap: Size) -> Size:
        start, end = _window(place, x.shape[lead + d], shape[lead + d])
        return smallest(start + tap, end - 1)

    if any(isinstance(s, int) and s == 0 for s in shape):
        return low.full(shape, 0, x.dtype), low.full(shape, 0, "int64")
    return _largest(low, x, shape, taps, reach)


def _window(place: Size, size: Size, out: Size) -> tuple[Size, Size]:
    """Where the window of an adaptive pool begins, and where it ends."""
    return divide(place * size, out), divide((place + 1) * size + out - 1, out)


def _widest(size: Size, out: Size) -> Size:
    if isinstance(size, int) and isinstance(out, int):
        windows = [_window(place, size, out) for place in range(out)]
        return max(
            (end - start for start, end in windows if isinstance(end, int) and isinstance(start, int)), default=1
        )
    return divide(size + out - 1, out) + 1


def _averages(
    low: Lowering, x: TensorValue, shape: Sequence[Size], taps: Sequence[Size],
    inside: Callable[[BodyBuilder, int, Size, Size], tuple[Size, int | None]],
    divisor: Callable[[BodyBuilder, Index], int],
) -> TensorValue:  # fmt: skip
    """Σ of each window's taps that lie inside, over `divisor`."""
    count = len(taps)
    lead = x.rank - count
    kind = wide(x.dtype)
    x = low.realize(x)  # a window reads each element more than once

    def load(ops: BodyBuilder, index: Index) -> int:
        within: int | None = None
        place: list[Size] = []
        for d in range(count):
            at, test = inside(ops, d, index[lead + d], index[x.rank + d])
            place.append(at)
            if test is not None:
                within = test if within is None else ops.call("and", within, test)
        full = (*index[:lead], *place)
        if within is None:
            return x.load(ops, full)
        return ops.zero_outside(within, lambda: x.load(ops, full))

    windows = TensorValue((*shape, *taps), kind, Deferred(load, x.cost + 3, _order(low, x, count)))
    over = tuple(range(x.rank, x.rank + count))
    (total,) = low.reduce(windows, over, ("sum",), lambda ops, v, index: (v,), (kind,))
    division = "truncdiv" if x.dtype in INTEGERS else "div"

    def average(ops: BodyBuilder, index: Index) -> int:
        return ops.call(division, total.load(ops, index), divisor(ops, index))

    return TensorValue(tuple(shape), x.dtype, Deferred(average, 4))


def _is_within(ops: BodyBuilder, place: Size, size: Size) -> int:
    low = ops.call("ge", ops.index(place), ops.index(0))
    return ops.call("and", low, ops.call("lt", ops.index(place), ops.index(size)))


@lowers(aten.avg_pool1d.default, aten.avg_pool2d.default, aten.avg_pool3d.default)
def avg_pool(
    low: Lowering, x: TensorValue, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: Any = None
) -> TensorValue:  # fmt: skip
    count = _dims(low)
    taps = each(kernel, count)
    steps = each(stride, count) if stride not in ((), []) else taps
    before = each(padding, count)
    lead = x.rank - count
    kind = wide(x.dtype)

    def find_tap(ops: BodyBuilder, d: int, place: Size, tap: Size) -> tuple[Size, int | None]:
        at = place * steps[d] - before[d] + tap
        return at, None if before[d] == 0 and not ceil_mode else _is_within(ops, at, x.shape[lead + d])

    def divisor(ops: BodyBuilder, index: Index) -> int:
        if divisor_override is not None:
            return ops.const(divisor_override, kind)
        total: Size = 1
        for d in range(count):
            size = x.shape[lead + d]
            start = index[lead + d] * steps[d] - before[d]
            end = smallest(start + taps[d], size + before[d])
            if not count_include_pad:
                start, end = largest(start, 0), smallest(end, size)
            total = total * (end - start)
        return ops.index(total, kind)

    # A window may be far larger than the image: taps behind its end are not even counted.
    reached = [smallest(tap, x.shape[lead + d] + 2 * before[d]) for d, tap in enumerate(taps)]
    return _averages(low, x, low.shape_of(low.out), reached, find_tap, divisor)


@lowers(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default, aten.adaptive_avg_pool1d.default)
def adaptive_avg_pool(low: Lowering, x: TensorValue, size: Any) -> TensorValue:
    count = _dims(low)
    shape = low.shape_of(low.out)
    lead = x.rank - count
    if any(isinstance(s, int) and s == 0 for s in shape):
        return low.full(shape, 0, x.dtype)
    taps = [_widest(x.shape[lead + d], shape[lead + d]) for d in range(count)]
    kind = wide(x.dtype)

    def find_tap(ops: BodyBuilder, d: int, place: Size, tap: Size) -> tuple[Size, int | None]:
        size, out = x.shape[lead + d], shape[lead + d]
        start, end = _window(place, size, out)
        if isinstance(size, int) and isinstance(out, int) and size % out == 0:
            return start + tap, None
        return start + tap, ops.call("lt", ops.index(start + tap), ops.index(end))

    def divisor(ops: BodyBuilder, index: Index) -> int:
        total: Size = 1
        for d in range(count):
            start, end = _window(index[lead + d], x.shape[lead + d], shape[lead + d])
            total = total * (end - start)
        return ops.index(total, kind)

    return _averages(low, x, shape, taps, find_tap, divisor)
