"""Views: other indices into the same elements. Nothing is copied here."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ingot.lowering import tensor_views
from ingot.lowering.index_expr import (
    Expr,
    Size,
    bounds,
    divide,
    is_in_range,
    largest,
    product,
    remainder,
    require_static,
    size_symbol,
    smallest,
)
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.loop_ir import BindSymbol
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.tensor_views import Deferred, Index, TensorValue, find_quantized
from ingot.lowering.unsupported import LoweringUnsupported

aten = torch.ops.aten


def dim_of(tensor: TensorValue, dim: int) -> int:
    return dim % tensor.rank if tensor.rank else 0


def dims_of(tensor: TensorValue, dims: Sequence[int] | int | None) -> tuple[int, ...]:
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        return tuple(range(tensor.rank))
    return tuple(dim_of(tensor, d) for d in ([dims] if isinstance(dims, int) else dims)) if tensor.rank else ()


@lowers(operator.getitem)
def getitem(low: Lowering, values_: Any, place: int) -> Any:
    return values_[place]


@lowers(
    aten.view.default,
    aten.reshape.default,
    aten._unsafe_view.default,
    aten.flatten.using_ints,
    aten.unflatten.int,
    aten.view_copy.default,
    aten.ravel.default,
    aten._reshape_alias.default,
    aten.view_as.default,
    aten.reshape_as.default,
)
def reshape(low: Lowering, x: TensorValue, *_: Any, **__: Any) -> TensorValue:
    return tensor_views.reshape(x, low.shape_of(low.out), low.hint)


@lowers(aten.permute.default, aten.permute_copy.default)
def permute(low: Lowering, x: TensorValue, dims: Sequence[int]) -> TensorValue:
    return tensor_views.permute(x, dims_of(x, dims)) if x.rank else x


@lowers(aten.transpose.int, aten.transpose_copy.int, aten.swapaxes.default)
def transpose(low: Lowering, x: TensorValue, first: int, second: int) -> TensorValue:
    if not x.rank:
        return x
    order = list(range(x.rank))
    a, b = dim_of(x, first), dim_of(x, second)
    order[a], order[b] = b, a
    return tensor_views.permute(x, order)


@lowers(aten.t.default, aten.t_copy.default, aten.numpy_T.default, aten.mT.default)
def t(low: Lowering, x: TensorValue) -> TensorValue:
    if x.rank < 2:
        return x
    order = list(range(x.rank))
    if low.node.target is aten.numpy_T.default:
        order.reverse()
    else:
        order[-2:] = [x.rank - 1, x.rank - 2]
    return tensor_views.permute(x, order)


@lowers(aten.movedim.int, aten.movedim.intlist)
def movedim(low: Lowering, x: TensorValue, source: Any, destination: Any) -> TensorValue:
    froms, tos = dims_of(x, source), dims_of(x, destination)
    order: list[int | None] = [None] * x.rank
    for a, b in zip(froms, tos, strict=True):
        order[b] = a
    rest = iter(d for d in range(x.rank) if d not in froms)
    return tensor_views.permute(x, [next(rest) if d is None else d for d in order])


@lowers(aten.expand.default, aten.expand_copy.default, aten.broadcast_to.default, aten.expand_as.default)
def expand(low: Lowering, x: TensorValue, *_: Any, **__: Any) -> TensorValue:
    return low.expand(x, low.shape_of(low.out))


@lowers(aten.unsqueeze.default, aten.unsqueeze_copy.default)
def unsqueeze(low: Lowering, x: TensorValue, dim: int) -> TensorValue:
    return tensor_views.insert(x, dim % (x.rank + 1))


@lowers(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.squeeze_copy.dim, aten.squeeze_copy.dims)
def squeeze(low: Lowering, x: TensorValue, dims: Any = None) -> TensorValue:
    asked = tuple(range(x.rank)) if dims is None else dims_of(x, dims) if dims != [] else ()
    gone = [d for d in asked if x.shape[d] == 1]
    if len(gone) != x.rank - low.out.dim():  # a constraint of the program may say of a dynamic size that it is 1
        gone = [d for d in asked if x.shape[d] == 1 or not isinstance(x.shape[d], int)]
    return tensor_views.drop(x, gone) if gone else x


@lowers(aten.slice.Tensor, aten.slice_copy.Tensor, aten.narrow.default)
def slice_(
    low: Lowering, x: TensorValue, dim: int = 0, start: Any = None, end: Any = None, step: Size = 1
) -> TensorValue:
    dim = dim_of(x, dim)
    begin, length = first_place(low, start, x.shape[dim]), low.shape_of(low.out)[dim]
    if not low.is_bound(length):
        if low.node.target is aten.narrow.default:
            low.bind_size(length, end)
        else:
            stop = x.shape[dim] if end is None else first_place(low, end, x.shape[dim])
            low.bind_size(length, largest(divide(stop - begin + step - 1, step), 0))
    return tensor_views.slice_dim(x, dim, begin, step, length)


def first_place(low: Lowering, start: Size | None, size: Size) -> Size:
    """Where a slice begins, or ends: counted from the end if negative, and never outside."""
    if start is None or (isinstance(start, int) and start == 0):
        return 0
    if isinstance(start, int):
        return largest(size + start, 0) if start < 0 else smallest(start, size)
    least, _ = bounds(start)
    if least is not None and least >= 0:
        return smallest(start, size)
    ops = BodyBuilder()
    zero, given, limit = ops.const(0, "int64"), ops.index(start), ops.index(size)
    from_end = ops.call("max", ops.call("add", given, limit), zero)
    value = ops.where(ops.call("lt", given, zero), from_end, ops.call("min", given, limit))
    name = low.new_symbol()
    low.steps.append(BindSymbol(name, ops.finish([value]), low.origin))
    return size_symbol(name)


@lowers(aten.select.int, aten.select_copy.int)
def select(low: Lowering, x: TensorValue, dim: int, place: Size) -> TensorValue:
    dim = dim_of(x, dim)
    if isinstance(place, int):
        low.check_place(place, dim)
        place = x.shape[dim] + place if place < 0 else place
    elif not is_in_range(place, x.shape[dim]):
        ops = BodyBuilder()
        checked = ops.emit("bounds_check", (ops.index(place),), "int64", x.shape[dim])
        name = low.new_symbol()
        low.steps.append(BindSymbol(name, ops.finish([checked]), low.origin))
        place = size_symbol(name, below=x.shape[dim])
    return tensor_views.select(x, dim, place)


@lowers(
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.split_with_sizes_copy.default,
    aten.split_copy.Tensor,
    aten.chunk.default,
    aten.unbind.int,
    aten.unbind_copy.int,
    aten.tensor_split.sections,
    aten.tensor_split.indices,
)
def split(low: Lowering, x: TensorValue, *args: Any, **kwargs: Any) -> list[TensorValue]:
    """The pieces have the sizes that their types say, one after another along the dim."""
    from ingot.ir.metadata import value_of

    unbind = low.node.target in (aten.unbind.int, aten.unbind_copy.int)
    dim = kwargs.get("dim", args[-1] if len(args) == (1 if unbind else 2) else 0)
    dim = dim_of(x, dim)
    pieces, place = [], as_size(0)
    for part in value_of(low.node):
        if unbind:
            pieces.append(tensor_views.select(x, dim, place))
            place = place + 1
            continue
        length = low.shape_of(part)[dim]
        pieces.append(tensor_views.slice_dim(x, dim, place, 1, length))
        place = place + length
    return pieces


def as_size(value: int) -> Size:
    return value


@lowers(aten.diagonal.default, aten.diagonal_copy.default)
def diagonal(low: Lowering, x: TensorValue, offset: int = 0, dim1: int = 0, dim2: int = 1) -> TensorValue:
    a, b = dim_of(x, dim1), dim_of(x, dim2)
    kept = [d for d in range(x.rank) if d not in (a, b)]
    shape = low.shape_of(low.out)

    def load(ops: BodyBuilder, index: Index) -> int:
        full: list[Size] = [0] * x.rank
        for d, i in zip(kept, index, strict=False):
            full[d] = i
        full[a], full[b] = index[-1] + max(-offset, 0), index[-1] + max(offset, 0)
        return x.load(ops, tuple(full))

    return TensorValue(shape, x.dtype, Deferred(load, x.cost))


@lowers(aten.flip.default)
def flip(low: Lowering, x: TensorValue, dims: Sequence[int]) -> TensorValue:
    for d in dims_of(x, dims) if dims else ():
        x = tensor_views.slice_dim(x, d, x.shape[d] - 1, -1, x.shape[d])
    return x


@lowers(aten.cat.default)
def cat(low: Lowering, tensors: Sequence[TensorValue], dim: int = 0) -> TensorValue:
    shape, dtype = low.shape_of(low.out), low.out_dtype
    tensors = [t for t in tensors if not (t.rank == 1 and t.shape[0] == 0 and len(shape) != 1)]
    return join(low, tensors, dim % len(shape), shape, dtype)


def join(low: Lowering, tensors: Sequence[TensorValue], dim: int, shape: tuple[Size, ...], dtype: str) -> TensorValue:
    """Tensors one after another along a dim. Each place reads the one that covers it."""
    neighbours = tensor_views.join_neighbours(tensors, dim) if {t.dtype for t in tensors} == {dtype} else None
    if neighbours is not None:
        return neighbours
    starts: list[Size] = [0]
    for tensor in tensors[:-1]:
        starts.append(starts[-1] + tensor.shape[dim])
    is_stack = dim == len(shape) - 1 > 0 and 1 < len(tensors) <= 6 and all(t.shape[dim] == 1 for t in tensors)
    if not is_stack and (len(tensors) > 6 or any(t.cost > 8 for t in tensors)):
        return _write_pieces(low, tensors, starts, dim, shape, dtype)

    def load(ops: BodyBuilder, index: Index) -> int:
        result: int | None = None
        place = ops.index(index[dim])
        for number, (tensor, start) in reversed(list(enumerate(zip(tensors, starts, strict=True)))):
            inside = (*index[:dim], index[dim] - start, *index[dim + 1 :])
            if isinstance(tensor.shape[dim], int) and tensor.shape[dim] == 0:
                continue
            within = ops.call("ge", place, ops.index(start))
            if number < len(tensors) - 1:  # by number: the last tensor may be among the others too
                within = ops.call("and", within, ops.call("lt", place, ops.index(start + tensor.shape[dim])))
            with ops.mask(within):
                value = ops.cast(tensor.load(ops, inside), _wide(dtype))
            result = value if result is None else ops.where(within, value, result)
        return result if result is not None else ops.const(0, dtype)

    pieces = tuple(tensors) if is_stack else ()
    return TensorValue(shape, dtype, Deferred(load, 2 + sum(t.cost + 2 for t in tensors), pieces=pieces))


def _write_pieces(
    low: Lowering, tensors: Sequence[TensorValue], starts: Sequence[Size], dim: int, shape: tuple[Size, ...], dtype: str
) -> TensorValue:
    """Written piece by piece: many pieces, or pieces that cost something, would each be tested at every place."""
    buffer = low.buffer("temporary", dtype, shape)
    whole = TensorValue(shape, dtype, tensor_views.Strided(buffer.name, 0, tensor_views.contiguous_strides(shape)))
    for tensor, start in zip(tensors, starts, strict=True):
        target = tensor_views.slice_dim(whole, dim, start, 1, tensor.shape[dim])
        low.write(target, tensor)
    return whole


def _wide(dtype: str) -> str:
    return "float32" if dtype in ("float16", "bfloat16") else dtype


@lowers(aten.stack.default)
def stack(low: Lowering, tensors: Sequence[TensorValue], dim: int = 0) -> TensorValue:
    dim = dim % (tensors[0].rank + 1)
    return cat(low, [tensor_views.insert(t, dim) for t in tensors], dim)


@lowers(aten.repeat.default)
def repeat(low: Lowering, x: TensorValue, repeats: Sequence[Size]) -> TensorValue:
    shape = low.shape_of(low.out)
    lead = len(shape) - x.rank
    if any(size == 0 for size in shape):
        return low.full(shape, 0, x.dtype)

    def load(ops: BodyBuilder, index: Index) -> int:
        inner = [
            i % size if repeats[lead + d] != 1 else i
            for d, (i, size) in enumerate(zip(index[lead:], x.shape, strict=True))
        ]
        return x.load(ops, tuple(0 if size == 1 else i for i, size in zip(inner, x.shape, strict=True)))

    return TensorValue(shape, x.dtype, Deferred(load, x.cost + 1))


@lowers(aten.as_strided.default, aten.as_strided_copy.default)
def as_strided(
    low: Lowering, x: TensorValue, size: Sequence[Size], stride: Sequence[Size], offset: Size | None = None
) -> TensorValue:
    """Strides count elements of the tensor as torch lays it out; only a dense row-major one says which those are."""
    from ingot.ir.metadata import value_of

    source = value_of(low.node.args[0])  # type: ignore[arg-type]
    if not source.is_contiguous():
        raise LoweringUnsupported("as_strided of a tensor that is not contiguous")
    _realize_if_repeated(low, x, size)
    flat = tensor_views.reshape(x, (x.numel,), low.hint)
    place = strided_place(x.numel, size, stride, offset_inside(source, offset))
    return TensorValue(tuple(size), x.dtype, Deferred(lambda ops, index: flat.load(ops, (place(ops, index),)), x.cost))


def offset_inside(source: torch.Tensor, offset: Size | None) -> Size:
    """An offset into the memory of a tensor as one into the tensor, which may be a view that begins later."""
    if offset is None:
        return 0
    start = source.storage_offset()
    if not isinstance(start, int):
        raise LoweringUnsupported("a strided view of a view whose place in memory is not known")
    return offset - start if start else offset


def strided_place(
    count: Size, size: Sequence[Size], stride: Sequence[Size], offset: Size
) -> Callable[[BodyBuilder, Index], Size]:
    """Where among `count` elements those of a strided view lie. Nothing that torch asks of fakes keeps a view inside
    its tensor: it is checked here, or at run time where sizes are not known."""
    numbers = [count, *size, *stride, offset]
    is_known = all(isinstance(number, int) for number in numbers)
    if is_known and 0 not in size:
        begin = require_static(offset)
        steps = [(require_static(n) - 1) * require_static(step) for n, step in zip(size, stride, strict=True)]
        reach = begin + sum(steps)
        if min(begin, *steps, 0) < 0 or reach >= require_static(count):
            raise LoweringUnsupported(f"a view that reaches element {reach} of a tensor of {count}")

    def place(ops: BodyBuilder, index: Index) -> Size:
        at = offset
        for i, step in zip(index, stride, strict=True):
            at = at + i * step
        return at if is_known else ops.check_index(ops.index(at), count, wraps=False)

    return place


@lowers(aten.unfold.default, aten.unfold_copy.default)
def unfold(low: Lowering, x: TensorValue, dim: int, size: Size, step: Size) -> TensorValue:
    if not x.rank:
        return tensor_views.insert(x, 0)
    dim = dim_of(x, dim)
    shape = low.shape_of(low.out)
    _realize_if_repeated(low, x, shape)

    def load(ops: BodyBuilder, index: Index) -> int:
        return x.load(ops, (*index[:dim], index[dim] * step + index[-1], *index[dim + 1 : -1]))

    return TensorValue(shape, x.dtype, Deferred(load, x.cost))


def _realize_if_repeated(low: Lowering, x: TensorValue, shape: Sequence[Size]) -> None:
    """Puts a tensor into memory of which a view has so many elements that it reads each more than once."""
    if x.cost > 2 and low.hint(product(tuple(shape))) > low.hint(x.numel):
        low.realize(x)


@lowers(aten.constant_pad_nd.default, whole=[aten.pad.default])
def pad(low: Lowering, x: TensorValue, padding: Sequence[Size], *more: Any, **kwargs: Any) -> TensorValue:
    mode, value = "constant", kwargs.get("value")
    if low.node.target is aten.pad.default:
        mode = more[0] if more else kwargs.get("mode", "constant")
        value = more[1] if len(more) > 1 else value
    elif more:
        value = more[0]
    if mode != "constant":
        return _pad_from_inside(low, x, padding, mode)
    shape, dtype = low.shape_of(low.out), low.out_dtype
    if all(p == 0 for p in padding):
        return x
    found = find_quantized(x)
    if found is not None:
        low.materialize_if_expensive(found.integers)
    elif x.cost > 1:
        low.realize(x)  # where it is computed it may still join what computes it; behind a margin it may not
    before: list[Size] = [0] * x.rank
    for k in range(len(padding) // 2):
        before[x.rank - 1 - k] = padding[2 * k]

    def load(ops: BodyBuilder, index: Index) -> int:
        within: int | None = None
        for d in range(x.rank):
            if before[d] == 0 and shape[d] == x.shape[d]:
                continue
            place = ops.index(index[d] - before[d])
            for name, limit in (("ge", 0), ("lt", x.shape[d])):
                test = ops.call(name, place, ops.index(limit))
                within = test if within is None else ops.call("and", within, test)
        inner = tuple(i - b for i, b in zip(index, before, strict=True))
        if within is None:
            return x.load(ops, inner)
        with ops.mask(within):
            inside = x.load(ops, inner)
        return ops.where(within, inside, ops.const(value or 0, dtype))

    zeros = not value and all(isinstance(p, int) and p >= 0 for p in padding)
    margin = (x, tuple(map(require_static, before))) if zeros else None
    return TensorValue(shape, dtype, Deferred(load, x.cost + 3, low.order_of(x), margin))


def _pad_from_inside(low: Lowering, x: TensorValue, padding: Sequence[Size], mode: str) -> TensorValue:
    """Places outside take an element from inside: mirrored at the border, the border itself, or from the other side."""
    x = low.materialize_if_expensive(x)
    before: list[Size] = [0] * x.rank
    after: list[Size] = [0] * x.rank
    padded = set()
    for k in range(len(padding) // 2):
        before[x.rank - 1 - k], after[x.rank - 1 - k] = padding[2 * k], padding[2 * k + 1]
        padded.add(x.rank - 1 - k)

    def place(d: int, i: Size) -> Size:
        at, last = i - before[d], x.shape[d] - 1
        if d not in padded:
            return i
        if mode == "circular":  # a negative pad crops first: what goes around is what it leaves
            crop = largest(-1 * before[d], 0)
            left = x.shape[d] - crop - largest(-1 * after[d], 0)
            return crop + remainder(i - largest(before[d], 0), left)
        if mode == "reflect":
            at = last - largest(last - largest(at, -1 * at), largest(at, -1 * at) - last)
        return smallest(largest(at, 0), last)

    def load(ops: BodyBuilder, index: Index) -> int:
        return x.load(ops, tuple(place(d, i) for d, i in enumerate(index)))

    return TensorValue(low.shape_of(low.out), x.dtype, Deferred(load, x.cost + 2))


@lowers(aten.reflection_pad1d.default, aten.reflection_pad2d.default, aten.reflection_pad3d.default)
def reflection_pad(low: Lowering, x: TensorValue, padding: Sequence[Size]) -> TensorValue:
    return _pad_from_inside(low, x, padding, "reflect")


@lowers(aten.replication_pad1d.default, aten.replication_pad2d.default, aten.replication_pad3d.default)
def replication_pad(low: Lowering, x: TensorValue, padding: Sequence[Size]) -> TensorValue:
    return _pad_from_inside(low, x, padding, "replicate")


@lowers(aten._pad_circular.default)
def circular_pad(low: Lowering, x: TensorValue, padding: Sequence[Size]) -> TensorValue:
    return _pad_from_inside(low, x, padding, "circular")


@lowers(aten.roll.default)
def roll(low: Lowering, x: TensorValue, shifts: Any, dims: Any = ()) -> TensorValue:
    by = [shifts] if isinstance(shifts, (int, Expr)) else list(shifts)
    over = [dims] if isinstance(dims, int) else list(dims)
    if not over:
        flat = _roll(tensor_views.reshape(x, (x.numel,), low.hint), [(0, by[0])])
        return tensor_views.reshape(flat, x.shape, low.hint)
    return _roll(x, [(dim_of(x, d), shift) for d, shift in zip(over, by, strict=True)]) if x.rank else x


def _roll(x: TensorValue, shifts: Sequence[tuple[int, Size]]) -> TensorValue:
    if any(size == 0 for size in x.shape):
        return x

    def load(ops: BodyBuilder, index: Index) -> int:
        place = list(index)
        for d, shift in shifts:
            place[d] = remainder(place[d] - shift, x.shape[d])
        return x.load(ops, tuple(place))

    return TensorValue(x.shape, x.dtype, Deferred(load, x.cost + 2))
