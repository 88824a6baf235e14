"""Running sums, products and extremes along a dim.

Where the dim's size is a number they take log₂ of it steps, each of the whole tensor; where it is not, one Scan.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ingot.onnx.exporter import Exporter
from ingot.onnx.graph_builder import may_be_zero
from ingot.onnx.registry import exports
from ingot.onnx.rules.control_flow import close_graph
from ingot.onnx.values import OnnxValue, axis

aten = torch.ops.aten
# Of what was before and what is here, both as several tensors, what is from here on.
Step = Callable[[Sequence[OnnxValue], Sequence[OnnxValue]], Sequence[OnnxValue]]


def scan(ex: Exporter, xs: Sequence[OnnxValue], at: int, before: Sequence[Any], step: Step) -> list[OnnxValue]:
    """The running result of `step` along a dim of tensors that are all as large, from a number for each of them.

    ONNX Runtime has no empty Scan: where there may be nothing to go over, the number itself is put before it.
    """
    length = xs[0].sizes[at]
    if may_be_zero(ex.program, length):
        one = [*xs[0].sizes[:at], 1, *xs[0].sizes[at + 1 :]]
        longer = [
            OnnxValue(
                ex.op("Concat", ex.full(one, number, x.dtype), x, axis=at).value,
                x.dtype,
                (*x.sizes[:at], length + 1, *x.sizes[at + 1 :]),
            )
            for number, x in zip(before, xs, strict=True)
        ]
        found = _scan(ex, longer, at, before, step)
        return [
            OnnxValue(ex.slice(part, at, 1, None).value, x.dtype, x.shape) for part, x in zip(found, xs, strict=True)
        ]
    return _scan(ex, xs, at, before, step)


def _scan(ex: Exporter, xs: Sequence[OnnxValue], at: int, before: Sequence[Any], step: Step) -> list[OnnxValue]:
    sizes = (*xs[0].sizes[:at], *xs[0].sizes[at + 1 :])
    start = [ex.full(sizes, number, x.dtype) for number, x in zip(before, xs, strict=True)]
    with ex.inner_scope():
        state, slices = (
            [ex.named_input(f"{ex.node.name}.{name}", x.dtype, sizes) for x in xs] for name in ("before", "here")
        )
        made = step(state, slices)
        graph = close_graph(ex, [*made, *made], [*state, *slices], "body")
    axes = {"scan_input_axes": [at] * len(xs), "scan_output_axes": [at] * len(xs)}
    results = ex.plain(
        "Scan", [*start, *xs], [x.dtype for x in (*xs, *xs)], body=graph, num_scan_inputs=len(xs), **axes
    )
    return [OnnxValue(part.value, x.dtype, x.shape) for part, x in zip(results[len(xs) :], xs, strict=True)]


def double(ex: Exporter, xs: Sequence[OnnxValue], at: int, length: int, step: Step) -> list[OnnxValue]:
    """The same where the size is a number: every element with the one 1, 2, 4 … places before it.

    The first elements meet themselves, so `step` of an element with itself must be that element.
    """
    reach = 1
    while reach < length:
        before = [ex.op("Concat", ex.slice(x, at, 0, reach), ex.slice(x, at, 0, -reach), axis=at) for x in xs]
        made = step(before, xs)
        xs = [OnnxValue(part.value, x.dtype, x.shape) for part, x in zip(made, xs, strict=True)]
        reach *= 2
    return list(xs)


@exports(aten.cumsum.default)
def cumsum(ex: Exporter, x: OnnxValue, dim: int, *, dtype: Any = None) -> OnnxValue:
    x = ex.cast(x, ex.dtype)
    if not x.rank:
        return x
    return ex.op("CumSum", x, ex.number(axis(dim, x.rank), torch.int64))


@exports(aten.cumprod.default)
def cumprod(ex: Exporter, x: OnnxValue, dim: int, *, dtype: Any = None) -> OnnxValue:
    x = ex.cast(x, ex.dtype)
    if not x.rank:
        return x
    at = axis(dim, x.rank)
    if ex.opset >= 26:
        return ex.op("CumProd", x, ex.number(at, torch.int64))
    return _accumulate(ex, x, at, 1, lambda before, here: ex.op("Mul", before, here))


@exports(aten.logcumsumexp.default)
def logcumsumexp(ex: Exporter, x: OnnxValue, dim: int) -> OnnxValue:
    if not x.rank:
        return x
    return _accumulate(ex, x, axis(dim, x.rank), -math.inf, functools.partial(_log_of_sum, ex))


def _log_of_sum(ex: Exporter, x: OnnxValue, y: OnnxValue) -> OnnxValue:
    """log(exp(x) + exp(y)), from the larger of them on; two that are the same infinity are that infinity."""
    large, small = ex.op("Max", x, y), ex.op("Min", x, y)
    more = ex.op("Add", ex.number(1.0, x.dtype), ex.op("Exp", ex.op("Sub", small, large)))
    twice = ex.op("Add", x, ex.number(math.log(2.0), x.dtype))
    return ex.op("Where", ex.op("Equal", x, y), twice, ex.op("Add", large, ex.op("Log", more)))


def _accumulate(
    ex: Exporter, x: OnnxValue, at: int, neutral: float, join: Callable[[OnnxValue, OnnxValue], OnnxValue]
) -> OnnxValue:
    """What all elements up to each are together: with the one 1, 2, 4 … places before, where the size is a number."""
    length = x.sizes[at]
    if not isinstance(length, int):
        return scan(ex, [x], at, [neutral], lambda before, here: [join(before[0], here[0])])[0]
    reach = 1
    while reach < length:
        first = ex.full([*x.sizes[:at], reach, *x.sizes[at + 1 :]], neutral, x.dtype)
        before = ex.op("Concat", first, ex.slice(x, at, 0, -reach), axis=at)
        x = OnnxValue(join(OnnxValue(before.value, x.dtype, x.shape), x).value, x.dtype, x.shape)
        reach *= 2
    return x


def _running(compare: str) -> Callable[..., list[OnnxValue]]:
    """A running extreme and its place: of equal ones the last, and a nan stays."""

    def rule(ex: Exporter, x: OnnxValue, dim: int) -> list[OnnxValue]:
        if not x.rank:
            return [x, ex.number(0, torch.int64)]
        at = axis(dim, x.rank)
        length = x.sizes[at]
        numbers = ex.cast(x, torch.int32) if x.dtype is torch.bool else x
        value = OnnxValue(numbers.value, numbers.dtype, x.shape)
        place = ex.expand(ex.reshape(ex.range(length), [length if d == at else 1 for d in range(x.rank)]), x.sizes)

        def step(before: Sequence[OnnxValue], here: Sequence[OnnxValue]) -> list[OnnxValue]:
            ahead = ex.op(compare, before[0], here[0])
            if value.is_float:
                stays = ex.op("Or", ahead, ex.op("IsNaN", before[0]))
                ahead = ex.op("And", stays, ex.op("Not", ex.op("IsNaN", here[0])))
            return [ex.op("Where", ahead, old, new) for old, new in zip(before, here, strict=True)]

        if isinstance(length, int):
            return double(ex, [value, place], at, length, step)
        return scan(ex, [value, place], at, [_least(value.dtype, compare), 0], step)

    return rule


def _least(dtype: torch.dtype, compare: str) -> float | int:
    """A number that no other is behind."""
    if dtype.is_floating_point:
        return -math.inf if compare == "Greater" else math.inf
    return torch.iinfo(dtype).min if compare == "Greater" else torch.iinfo(dtype).max


exports(aten.cummax.default)(_running("Greater"))
exports(aten.cummin.default)(_running("Less"))
