"""Pooling: reductions over windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ingot.lowering.body import Recorder
from ingot.lowering.expr import Size
from ingot.lowering.ir import FLOATS, INTEGERS, wide
from ingot.lowering.lower import Lowering, Unsupported, lowers
from ingot.lowering.values import Index, Lazy, Tensor

aten = torch.ops.aten


def _each(value: Any, rank: int) -> list[Any]:
    """One number a spatial dim: pooling's arguments may leave out repetitions."""
    numbers = list(value) if isinstance(value, (list, tuple)) else [value]
    return numbers * rank if len(numbers) == 1 else numbers


def _windows(
    low: Lowering,
    x: Tensor,
    out: Sequence[Size],
    kernel: Sequence[int],
    stride: Sequence[Size],
    padding: Sequence[Size],
    dilation: Sequence[int],
    outside: float,
) -> Tensor:
    """x[…, out · stride + tap · dilation - padding] as a tensor of shape […, *out, *kernel]."""
    rank = len(kernel)
    lead = x.rank - rank
    x = low.realize(x)  # a window reads each element more than once
    kind = wide(x.dtype)

    def load(ops: Recorder, index: Index) -> int:
        at: list[Size] = []
        inside: int | None = None
        for d in range(rank):
            place = index[lead + d] * stride[d] + index[lead + rank + d] * dilation[d] - padding[d]
            at.append(place)
            last = (out[d] - 1) * stride[d] + (kernel[d] - 1) * dilation[d] - padding[d]
            tests = [] if padding[d] == 0 else [("ge", 0)]
            if not (isinstance(last, int) and isinstance(x.shape[lead + d], int) and last < x.shape[lead + d]):  # type: ignore[operator]
                tests.append(("lt", x.shape[lead + d]))  # type: ignore[arg-type]
            for name, limit in tests:
                test = ops.call(name, ops.index(place), ops.index(limit))
                inside = test if inside is None else ops.call("and", inside, test)
        if inside is None:
            return x.load(ops, (*index[:lead], *at))
        with ops.masked(inside):
            value = x.load(ops, (*index[:lead], *at))
        return ops.where(inside, value, ops.const(outside, kind))

    order = low.order_of(x)
    shape = (*x.shape[:lead], *out, *kernel)
    return Tensor(shape, kind, Lazy(load, 4, (*order, *range(x.rank, x.rank + rank))))


def _lowest(dtype: str) -> float:
    if dtype in FLOATS:
        return -math.inf
    return 0 if dtype[0] in "ub" else -(2 ** (int(dtype.removeprefix("int")) - 1))


@lowers(
    aten.max_pool2d_with_indices.default,
    aten.max_pool3d_with_indices.default,
    aten.max_pool1d_with_indices.default,
    aten.max_pool2d.default,
    aten.max_pool1d.default,
    aten.max_pool3d.default,
)
def max_pool(
    low: Lowering,
    x: Tensor,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:
    both = "with_indices" in str(low.node.target)
    rank = int(str(low.node.target).split("pool")[1][0])
    kernel, padding, dilation = (_each(v, rank) for v in (kernel, padding, dilation))
    stride = _each(stride, rank) if stride not in ((), []) else kernel
    out = low.shape_of(low.out)[-rank:]
    dtype = x.dtype
    windows = _windows(low, x, out, kernel, stride, padding, dilation, _lowest(dtype))
    over = tuple(range(x.rank, x.rank + rank))
    (best,) = low.reduce(windows, over, ("max",), lambda ops, v, index: (v,), (dtype,))
    if not both:
        return best
    (taps,) = low.reduce(windows, over, ("argmax",), lambda ops, v, index: (v,), ("int64",))

    def place(ops: Recorder, index: Index) -> int:
        """The place in the flattened image that the best tap stands for."""
        tap = ops.as_index(taps.load(ops, index), below=math.prod(kernel))
        flat: Size = 0
        steps: list[Size] = []
        for size in reversed(kernel):
            steps.insert(0, tap % size)
            tap = tap // size
        for d in range(rank):
            at = index[x.rank - rank + d] * stride[d] + steps[d] * dilation[d] - padding[d]
            flat = flat * x.shape[x.rank - rank + d] + at
        return ops.index(flat)

    return best, Tensor(taps.shape, "int64", Lazy(place, 6))


@lowers(aten.avg_pool2d.default, aten.avg_pool3d.default, aten.avg_pool1d.default)
def avg_pool(
    low: Lowering, x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor: int | None = None
) -> Tensor:  # fmt: skip
    rank = int(str(low.node.target).split("pool")[1][0])
    kernel, padding = _each(kernel, rank), _each(padding, rank)
    stride = _each(stride, rank) if stride not in ((), []) else kernel
    out = low.shape_of(low.out)[-rank:]
    dtype, kind = low.out_dtype, wide(low.out_dtype)
    if dtype in INTEGERS:
        raise Unsupported("average pooling of integers")
    windows = _windows(low, x, out, kernel, stride, padding, [1] * rank, 0)
    (total,) = low.reduce(
        windows, tuple(range(x.rank, x.rank + rank)), ("sum",), lambda ops, v, index: (ops.cast(v, kind),), (kind,)
    )
    lead = x.rank - rank

    def load(ops: Recorder, index: Index) -> int:
        return ops.call("div", total.load(ops, index), _count(ops, index))

    def _count(ops: Recorder, index: Index) -> int:
        """How many places of the window count."""
        if divisor:
            return ops.const(divisor, kind)
        if all(p == 0 for p in padding) and not ceil_mode:
            return ops.const(math.prod(kernel), kind)
        count: int | None = None
        for d in range(rank):
            margin = padding[d] if count_include_pad else 0
            first = ops.index(index[lead + d] * stride[d] - padding[d])
            last = ops.call(
                "min", ops.call("add", first, ops.const(kernel[d], "int64")), ops.index(x.shape[lead + d] + margin)
            )
            if not count_include_pad:
                first = ops.call("max", first, ops.const(0, "int64"))
            size = ops.call("sub", last, first)
            count = size if count is None else ops.call("mul", count, size)
        assert count is not None
        return ops.cast(count, kind)

    return Tensor(total.shape, dtype, Lazy(load, 3, low.order_of(total)))


@lowers(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default, aten.adaptive_avg_pool1d.default)
def adaptive_avg_pool(low: Lowering, x: Tensor, size: Any) -> Tensor:
    """Windows of one size where the sizes divide; to 1 is a mean."""
    out = low.shape_of(low.out)
    rank = len(size) if isinstance(size, (list, tuple)) else 1
    lead = x.rank - rank
    dtype, kind = low.out_dtype, wide(low.out_dtype)
    kernel: list[int] = []
    for d in range(rank):
        whole, target = x.shape[lead + d], out[lead + d]
        if target == 1:
            continue
        if not (isinstance(whole, int) and isinstance(target, int)) or whole % target:
            raise Unsupported(f"adaptive pooling from {whole} to {target}, which does not divide it")
    if all(out[lead + d] == 1 for d in range(rank)):
        over = tuple(range(lead, x.rank))
        (total,) = low.reduce(x, over, ("sum",), lambda ops, v, index: (ops.cast(v, kind),), (kind,))
        from ingot.lowering.rules.reductions import divided, restore

        count: Size = 1
        for d in over:
            count = count * x.shape[d]
        return divided(low, restore(total, over, True), count, dtype)
    kernel = [x.shape[lead + d] // out[lead + d] for d in range(rank)]  # type: ignore[misc]
    windows = _windows(low, x, out[lead:], kernel, kernel, [0] * rank, [1] * rank, 0)
    (total,) = low.reduce(
        windows, tuple(range(x.rank, x.rank + rank)), ("sum",), lambda ops, v, index: (ops.cast(v, kind),), (kind,)
    )
    from ingot.lowering.rules.reductions import divided

    return divided(low, total, math.prod(kernel), dtype)
