"""Matrix products, convolutions and attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ingot.lowering import values
from ingot.lowering.body import Recorder
from ingot.lowering.expr import Size, product, symbol
from ingot.lowering.ir import Attention, Convolution, Loop, Map, Matrix, Product, Store, wide
from ingot.lowering.lower import PANEL, Lowering, Unsupported, lowers
from ingot.lowering.rules.norms import _softmax
from ingot.lowering.values import Index, Lazy, Strided, Tensor, contiguous_strides

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
        return _scaled(low, _plain(low, a, b, dtype), bias, alpha, beta, dtype)
    a, b = low.realize(a), low.realize(b)
    assert isinstance(a.data, Strided) and isinstance(b.data, Strided)
    loops = [Loop(f"i{d}", size) for d, size in enumerate(lead)]
    batch = tuple(symbol(loop.variable, below=loop.extent) for loop in loops)
    i, j = symbol(f"i{len(lead)}", below=m), symbol(f"i{len(lead) + 1}", below=n)
    left = Matrix(a.data.buffer, a.data.at((*batch, 0, 0)), a.data.strides[-2], a.data.strides[-1])
    right = _packed(low, b, k, n) if not lead else None
    if right is None:
        right = Matrix(b.data.buffer, b.data.at((*batch, 0, 0)), b.data.strides[-2], b.data.strides[-1])
    places = tuple(order or range(len(shape)))
    physical = [shape[d] for d in places]
    steps = contiguous_strides(physical)
    buffer = low.buffer("temporary", dtype, physical)
    home = Strided(buffer.name, 0, tuple(steps[places.index(d)] for d in range(len(shape))))
    index = (*batch, i, j)
    ops = Recorder()
    value = ops.emit("accumulator", (), wide(dtype))
    value = _with_bias(ops, value, bias, index, alpha, beta, dtype)
    epilogue = Map(
        (*loops, Loop(f"i{len(lead)}", m), Loop(f"i{len(lead) + 1}", n)),
        ops.finish([value]),
        (Store(buffer.name, home.at(index), 0),),
        low.origin,
    )
    low.steps.append(Product(tuple(loops), m, n, k, left, right, wide(dtype), epilogue, low.origin))
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


def _packed(low: Lowering, b: Tensor, k: Size, n: Size) -> Matrix | None:
    """A weight as panels of columns, in the order in which a product reads it."""
    assert isinstance(b.data, Strided)
    source = low.buffers[b.data.buffer]
    if source.kind != "weight" or not isinstance(k, int) or not isinstance(n, int):
        return None
    rows, columns = b.data.strides
    packed = low.pack(source.name, wide(b.dtype), b.data.offset, (k,), (rows,), n, columns)
    return Matrix(packed, 0, PANEL, 1, packed=PANEL)


def _plain(low: Lowering, a: Tensor, b: Tensor, dtype: str) -> Tensor:
    """The sum of products as loops: integers, and anything empty."""
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
    made = matmul(low, _as_rows(low, x), values.permute(weight, (1, 0)), bias)
    return values.reshape(made, (*x.shape[:-1], weight.shape[0]), low.hint)


@lowers(aten.matmul.default)
def general_matmul(low: Lowering, a: Tensor, b: Tensor) -> Tensor:
    if a.rank == 1:
        return values.drop(_matmul(low, values.insert(a, 0), b if b.rank > 1 else values.insert(b, 1)), (-2 % max(b.rank, 2),) if b.rank > 1 else (0, 1))
    if b.rank == 1:
        return values.drop(_matmul(low, a, values.insert(b, 1)), (a.rank - 1,))
    return _matmul(low, a, b)


def _matmul(low: Lowering, a: Tensor, b: Tensor) -> Tensor:
    if b.rank == 2:
        return values.reshape(matmul(low, _as_rows(low, a), b), (*a.shape[:-1], b.shape[-1]), low.hint)
    lead = _broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return matmul(low, values.expand(a, (*lead, *a.shape[-2:])), values.expand(b, (*lead, *b.shape[-2:])))


def _as_rows(low: Lowering, x: Tensor) -> Tensor:
    """All leading dims as one, without a copy where strides allow it."""
    shape = (product(x.shape[:-1]), x.shape[-1])
    flat = values.reshape(low.realize(x), shape, low.hint)
    return flat if isinstance(flat.data, Strided) else values.reshape(low.dense(x), shape, low.hint)


def _broadcast_shapes(first: Sequence[Size], second: Sequence[Size]) -> tuple[Size, ...]:
    width = max(len(first), len(second))
    a, b = ((1,) * (width - len(s)) + tuple(s) for s in (first, second))
    return tuple(y if x == 1 else x for x, y in zip(a, b, strict=True))


# ---------------------------------------------------------------------- convolution


@lowers(aten.convolution.default)
def convolution(
    low: Lowering, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[Size],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[Size], groups: int
) -> Tensor:  # fmt: skip
    spatial = weight.rank - 2
    stride, padding, dilation = ([*s] * spatial if len(s) == 1 else list(s) for s in (stride, padding, dilation))
    unbatched = x.rank == spatial + 1
    if unbatched:
        x = values.insert(x, 0)
    shape = low.shape_of(low.out)
    shape = (1, *shape) if unbatched else shape
    if _windowed(low, x, weight, shape, transposed):
        made = _channels_last(low, x, weight, bias, shape, stride, padding, dilation, groups)
    else:
        made = _convolved(low, low.keep(x), weight, bias, shape, stride, padding, dilation, transposed, groups)
    return values.drop(made, (0,)) if unbatched else made


def _windowed(low: Lowering, x: Tensor, weight: Tensor, shape: tuple[Size, ...], transposed: bool) -> bool:
    """Whether this is a convolution in one or two dims with a weight that can be packed ahead of time."""
    constant = isinstance(weight.data, Strided) and low.buffers[weight.data.buffer].kind == "weight"
    floating = low.out_dtype in ("float16", "bfloat16", "float32", "float64") and x.dtype == weight.dtype
    known = all(isinstance(size, int) for size in (*weight.shape, x.shape[1]))
    empty = any(size == 0 for size in (*shape, *weight.shape, *x.shape))
    return weight.rank in (3, 4) and constant and floating and known and not transposed and not empty


NHWC = (0, 2, 3, 1)


def _channels_last(
    low: Lowering, x: Tensor, weight: Tensor, bias: Tensor | None, shape: tuple[Size, ...], stride: Sequence[int],
    padding: Sequence[Size], dilation: Sequence[int], groups: int
) -> Tensor:  # fmt: skip
    if weight.rank == 3:
        x, weight = values.insert(x, 2), values.insert(weight, 2)
        flat = _channels_last(
            low, x, weight, bias, (*shape[:2], 1, shape[2]), [1, *stride], [0, *padding], [1, *dilation], groups
        )
        return values.drop(flat, (2,))
    channels, outs = x.shape[1], weight.shape[0]
    assert isinstance(channels, int) and isinstance(outs, int)
    kernel = weight.shape[2:]
    if groups == channels and groups > 1:
        return _depthwise(low, x, weight, bias, shape, stride, padding, dilation)
    if kernel == (1, 1) and groups == 1 and list(stride) == [1, 1] and list(padding) == [0, 0]:
        rows = _as_rows(low, values.permute(_nhwc(low, x), NHWC))
        made = matmul(low, rows, values.permute(values.drop(weight, (2, 3)), (1, 0)), bias)
        return values.permute(values.reshape(made, (shape[0], *shape[2:], outs), low.hint), (0, 3, 1, 2))
    return _by_windows(low, x, weight, bias, shape, stride, padding, dilation, groups)


def _nhwc(low: Lowering, x: Tensor) -> Tensor:
    """The tensor in memory with channels last, dense."""
    swapped = values.permute(x, NHWC)
    if isinstance(x.data, Lazy):
        low.realize(x, order=NHWC)
        return x
    return values.permute(low.dense(swapped), (0, 3, 1, 2))


def _by_windows(
    low: Lowering, x: Tensor, weight: Tensor, bias: Tensor | None, shape: tuple[Size, ...], stride: Sequence[int],
    padding: Sequence[Size], dilation: Sequence[int], groups: int
) -> Tensor:  # fmt: skip
    dtype, kind = low.out_dtype, wide(low.out_dtype)
    channels, outs, (high, wide_) = x.shape[1], weight.shape[0], weight.shape[2:]
    assert isinstance(weight.data, Strided)
    inner = weight.shape[1]
    outer_step, inner_step, tap_y, tap_x = weight.data.strides
    depth, steps = (high, wide_, inner), (tap_y, tap_x, inner_step)
    kernel, taps, margin = (high, wide_), inner, list(padding)
    if groups == 1 and channels < 16 and dilation[1] == 1 and wide_ > 1:
        # Few channels: a whole line of taps lies side by side in memory once the image has its margin.
        x = padded(low, x, padding)
        kernel, taps, margin = (high, 1), wide_ * inner, [0, 0]
    x = _nhwc(low, widened(low, x, kind))
    assert isinstance(x.data, Strided)
    packed = low.pack(
        weight.data.buffer, kind, weight.data.offset, depth, steps, outs // groups, outer_step, groups=groups
    )
    physical = (shape[0], *shape[2:], outs)
    buffer = low.buffer("temporary", dtype, physical)
    home = Strided(buffer.name, 0, contiguous_strides(physical))
    loops = tuple(Loop(f"i{d}", size) for d, size in enumerate(physical))
    index = tuple(symbol(loop.variable, below=loop.extent) for loop in loops)
    ops = Recorder()
    value = ops.emit("accumulator", (), kind)
    if bias is not None:
        value = ops.call("add", value, ops.cast(bias.load(ops, (index[3],)), kind))
    epilogue = Map(loops, ops.finish([value]), (Store(buffer.name, home.at(index), 0),), low.origin)
    low.steps.append(
        Convolution(
            images=shape[0],
            size=(x.shape[2], x.shape[3]),
            pixel=channels,
            channels=taps,
            out_size=(shape[2], shape[3]),
            out_channels=outs,
            kernel=kernel,
            stride=(stride[0], stride[1]),
            padding=(margin[0], margin[1]),
            dilation=(dilation[0], dilation[1]),
            groups=groups,
            x=x.data.buffer,
            weight=packed,
            dtype=kind,
            epilogue=epilogue,
            origin=low.origin,
        )
    )
    return values.permute(Tensor(physical, dtype, home), (0, 3, 1, 2))


def widened(low: Lowering, x: Tensor, kind: str) -> Tensor:
    if x.dtype == kind:
        return x
    return Tensor(x.shape, kind, Lazy(lambda ops, index: x.load(ops, index), x.cost, low.order_of(x)))


def padded(low: Lowering, x: Tensor, padding: Sequence[Size]) -> Tensor:
    """An image with zeros around it."""
    if all(p == 0 for p in padding):
        return x
    shape = (*x.shape[:2], *(size + 2 * p for size, p in zip(x.shape[2:], padding, strict=True)))

    def load(ops: Recorder, index: Index) -> int:
        inside: int | None = None
        places = [i - p for i, p in zip(index[2:], padding, strict=True)]
        for place, size in zip(places, x.shape[2:], strict=True):
            for name, limit in (("ge", 0), ("lt", size)):
                test = ops.call(name, ops.index(place), ops.index(limit))
                inside = test if inside is None else ops.call("and", inside, test)
        assert inside is not None
        with ops.masked(inside):
            value = x.load(ops, (*index[:2], *places))
        return ops.where(inside, value, ops.const(0, x.dtype))

    return Tensor(shape, x.dtype, Lazy(load, x.cost + 3))


def _depthwise(
    low: Lowering, x: Tensor, weight: Tensor, bias: Tensor | None, shape: tuple[Size, ...], stride: Sequence[int],
    padding: Sequence[Size], dilation: Sequence[int]
) -> Tensor:  # fmt: skip
    """One or a few outputs a channel: a sum over taps, along the channels."""
    dtype, kind = low.out_dtype, wide(low.out_dtype)
    assert isinstance(weight.data, Strided)
    outs, taps = shape[1], weight.shape[2:]
    times = outs // x.shape[1]
    outer_step, _, tap_y, tap_x = weight.data.strides
    packed = low.repacked(
        weight.data.buffer, kind, weight.data.offset, (*taps, outs), (tap_y, tap_x, outer_step)
    )
    x = _nhwc(low, x)

    def load(ops: Recorder, index: Index) -> int:
        image, channel, y, x_, a, b = index
        places: list[Size] = []
        inside: int | None = None
        for d, (place, tap, size) in enumerate(((y, a, x.shape[2]), (x_, b, x.shape[3]))):
            at = place * stride[d] + tap * dilation[d] - padding[d]
            places.append(at)
            if padding[d] == 0:
                continue
            for name, limit in (("ge", 0), ("lt", size)):
                test = ops.call(name, ops.index(at), ops.index(limit))
                inside = test if inside is None else ops.call("and", inside, test)
        factor = packed.load(ops, (a, b, channel))
        source = (image, channel // times if times != 1 else channel, *places)
        if inside is None:
            value = x.load(ops, source)
        else:
            with ops.masked(inside):
                value = x.load(ops, source)
        return ops.call("mul", ops.cast(value, kind), factor)

    terms = Tensor((*shape, *taps), kind, Lazy(load, 6, (0, 2, 3, 1, 4, 5)))
    (made,) = low.reduce(terms, (4, 5), ("sum",), lambda ops, v, index: (v,), (kind,))

    def finish(ops: Recorder, index: Index) -> int:
        value = made.load(ops, index)
        return value if bias is None else ops.call("add", value, ops.cast(bias.load(ops, (index[1],)), kind))

    return Tensor(shape, dtype, Lazy(finish, 2, NHWC))


def _convolved(
    low: Lowering, x: Tensor, weight: Tensor, bias: Tensor | None, shape: tuple[Size, ...], stride: Sequence[int],
    padding: Sequence[Size], dilation: Sequence[int], transposed: bool, groups: int
) -> Tensor:  # fmt: skip
    """Every convolution as a sum over channels and taps, with what lies outside masked away."""
    dtype, kind = low.out_dtype, wide(low.out_dtype)
    channels = x.shape[1]
    inner = channels // groups
    outer = shape[1] // groups
    taps = weight.shape[2:]
    weight = low.keep(weight)

    def load(ops: Recorder, index: Index) -> int:
        image, out_channel = index[0], index[1]
        place, channel, tap = index[2 : 2 + len(taps)], index[2 + len(taps)], index[3 + len(taps) :]
        group = out_channel // outer if groups != 1 else 0
        within: int | None = None
        source: list[Size] = []
        for d, size in enumerate(x.shape[2:]):
            if transposed:
                at = place[d] + padding[d] - tap[d] * dilation[d]
                if stride[d] != 1:
                    whole = ops.call("eq", ops.index(at % stride[d]), ops.index(0))
                    within = whole if within is None else ops.call("and", within, whole)
                    at = at // stride[d]
            else:
                at = place[d] * stride[d] + tap[d] * dilation[d] - padding[d]
            if transposed or not (padding[d] == 0):
                for name, limit in (("ge", 0), ("lt", size)):
                    test = ops.call(name, ops.index(at), ops.index(limit))
                    within = test if within is None else ops.call("and", within, test)
            source.append(at)
        real = group * inner + channel
        if transposed:
            factor = weight.load(ops, (real, out_channel - group * outer, *tap))
        else:
            factor = weight.load(ops, (out_channel, channel, *tap))
        if within is None:
            value = x.load(ops, (image, real, *source))
        else:
            with ops.masked(within):
                value = x.load(ops, (image, real, *source))
        return ops.call("mul", ops.cast(value, kind), ops.cast(factor, kind))

    terms = Tensor((*shape, inner, *taps), kind, Lazy(load, 6))
    over = tuple(range(len(shape), len(shape) + 1 + len(taps)))
    (made,) = low.reduce(terms, over, ("sum",), lambda ops, v, index: (v,), (kind,))
    if bias is None:
        return made if kind == dtype else Tensor(shape, dtype, Lazy(lambda ops, index: made.load(ops, index), 1))

    def with_bias(ops: Recorder, index: Index) -> int:
        return ops.call("add", made.load(ops, index), ops.cast(bias.load(ops, (index[1],)), kind))

    return Tensor(shape, dtype, Lazy(with_bias, 2))


# ---------------------------------------------------------------------- attention


@lowers(aten.scaled_dot_product_attention.default)
def attention(
    low: Lowering, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, dropout: float = 0.0, causal: bool = False,
    *, scale: float | None = None, enable_gqa: bool = False
) -> Tensor:  # fmt: skip
    if dropout:
        raise Unsupported("attention with dropout draws random numbers")
    lead = _broadcast_shapes(_broadcast_shapes(q.shape[:-2], k.shape[:-2]), v.shape[:-2]) if not enable_gqa else q.shape[:-2]
    if scale is None:
        if not isinstance(q.shape[-1], int):
            raise Unsupported("attention whose depth is dynamic")
        scale = 1 / math.sqrt(q.shape[-1]) if q.shape[-1] else 1.0
    if mask is not None and mask.cost > 3:
        low.realize(mask)
    if all(isinstance(size, int) for size in (q.shape[-1], v.shape[-1])) and not any(
        size == 0 for t in (q, k, v) for size in t.shape
    ):
        return _by_blocks(low, q, k, v, mask, lead, scale, causal)
    return _by_products(low, q, k, v, mask, lead, scale, causal)


def _by_blocks(
    low: Lowering, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, lead: tuple[Size, ...], scale: float, causal: bool
) -> Tensor:
    """One kernel that never holds more than a block of scores."""
    dtype, kind = low.out_dtype, wide(low.out_dtype)
    loops = tuple(Loop(f"i{d}", size) for d, size in enumerate(lead))
    batch = tuple(symbol(loop.variable, below=loop.extent) for loop in loops)
    matrices = []
    for tensor in (q, k, v):
        strided = low.realize(tensor)
        assert isinstance(strided.data, Strided)
        offset = strided.data.at((*_heads(batch, strided.shape[:-2], lead), 0, 0))
        matrices.append(Matrix(strided.data.buffer, offset, strided.data.strides[-2], strided.data.strides[-1]))
    queries, keys, depth, columns = q.shape[-2], k.shape[-2], q.shape[-1], v.shape[-1]
    body = None
    if mask is not None:
        ops = Recorder()
        at = (*batch, symbol("i", below=queries), symbol("j", below=keys))
        more = mask.load(ops, values.broadcast(at, mask.shape))
        score = ops.emit("accumulator", (), kind)
        if mask.dtype == "bool":
            masked = ops.where(more, score, ops.const(-math.inf, kind))
        else:
            masked = ops.call("add", score, ops.cast(more, kind))
        body = ops.finish([masked])
    shape = (*lead, queries, columns)
    # Heads beside each other, as the layer that follows reads them.
    rank = len(shape)
    order = (*range(rank - 3), rank - 2, rank - 3, rank - 1) if rank > 2 else (0, 1)
    physical = [shape[d] for d in order]
    steps = contiguous_strides(physical)
    buffer = low.buffer("temporary", dtype, physical)
    home = Strided(buffer.name, 0, tuple(steps[order.index(d)] for d in range(rank)))
    names = (*loops, Loop(f"i{len(lead)}", queries), Loop(f"i{len(lead) + 1}", columns))
    index = tuple(symbol(loop.variable, below=loop.extent) for loop in names)
    ops = Recorder()
    value = ops.emit("accumulator", (), kind)
    epilogue = Map(names, ops.finish([value]), (Store(buffer.name, home.at(index), 0),), low.origin)
    assert isinstance(depth, int) and isinstance(columns, int)
    low.steps.append(
        Attention(
            batch=loops,
            queries=queries,
            keys=keys,
            depth=depth,
            values=columns,
            scale=scale,
            causal=causal,
            q=matrices[0],
            k=matrices[1],
            v=matrices[2],
            mask=body,
            dtype=kind,
            epilogue=epilogue,
            origin=low.origin,
        )
    )
    return Tensor(shape, dtype, home)


def _heads(batch: Index, shape: tuple[Size, ...], lead: tuple[Size, ...]) -> Index:
    """The batch index into a tensor whose leading dims broadcast, or whose heads are shared by groups of heads."""
    index: list[Size] = []
    tail = batch[len(batch) - len(shape) :]
    for place, size, full in zip(tail, shape, lead[len(lead) - len(shape) :], strict=True):
        if size == full:
            index.append(place)
        elif size == 1:
            index.append(0)
        else:
            index.append(place // (full // size))
    return tuple(index)


def _by_products(
    low: Lowering, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, lead: tuple[Size, ...], scale: float, causal: bool
) -> Tensor:
    """Two products and a softmax: for what the kernel cannot take."""
    dtype, kind = low.out_dtype, wide(low.out_dtype)
    if q.shape[-3:-2] != k.shape[-3:-2] and q.rank > 2:
        k, v = (_repeat_heads(t, q.shape[-3]) for t in (k, v))
    q, k, v = (values.expand(t, (*lead, *t.shape[-2:])) for t in (q, k, v))
    swapped = values.permute(k, (*range(k.rank - 2), k.rank - 1, k.rank - 2))
    scores = matmul(low, q, swapped)
    last = scores.rank - 1
    factor = scale

    def load(ops: Recorder, index: Index) -> int:
        value = ops.call("mul", scores.load(ops, index), ops.const(factor, kind))
        minus = ops.const(-math.inf, kind)
        if mask is not None:
            more = mask.load(ops, values.broadcast(index, mask.shape))
            value = ops.where(more, value, minus) if mask.dtype == "bool" else ops.call("add", value, ops.cast(more, kind))
        if causal:
            value = ops.where(ops.call("le", ops.index(index[-1]), ops.index(index[-2])), value, minus)
        return value

    weighed = low.realize(Tensor(scores.shape, kind, Lazy(load, 6)))
    soft = _softmax(low, weighed, last, False, kind, kind)
    if mask is not None:
        soft = _without_empty_rows(low, weighed, soft, kind)
    made = matmul(low, soft, v)
    return Tensor(made.shape, dtype, made.data)


def _without_empty_rows(low: Lowering, weighed: Tensor, soft: Tensor, kind: str) -> Tensor:
    """A row that is masked away whole gives zeros, as torch has it, not nan."""
    last = weighed.rank - 1
    (top,) = low.reduce(weighed, (last,), ("max",), lambda ops, v, index: (v,), (kind,))

    def load(ops: Recorder, index: Index) -> int:
        empty = ops.call("eq", top.load(ops, index[:-1]), ops.const(-math.inf, kind))
        return ops.where(empty, ops.const(0, kind), soft.load(ops, index))

    return Tensor(soft.shape, kind, Lazy(load, soft.cost + 2))


def _repeat_heads(x: Tensor, heads: Size) -> Tensor:
    groups = heads // x.shape[-3]
    shape = (*x.shape[:-3], heads, *x.shape[-2:])

    def load(ops: Recorder, index: Index) -> int:
        return x.load(ops, (*index[:-3], index[-3] // groups, *index[-2:]))

    return Tensor(shape, x.dtype, Lazy(load, 1)) if groups != 1 else x
