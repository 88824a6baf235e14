"""Shapes: reshapes, permutations, parts, joins, repetitions, paddings."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import sympy
import torch

from ingot.ir.metadata import value_of
from ingot.onnx.exporter import Exporter
from ingot.onnx.registry import OnnxUnsupported, exports
from ingot.onnx.values import OnnxValue, Size, axis, is_known, sizes_of

aten = torch.ops.aten


@exports(operator.getitem, moves_data=True, pairs=True)
def getitem(ex: Exporter, x: Any, index: int) -> Any:
    return x[index]


# ---------------------------------------------------------------------- the same elements in another shape


@exports(
    *(aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.unsqueeze.default),
    *(aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default, aten.flatten.using_ints, aten.unflatten.int),
    *(aten.view_as.default, aten.ravel.default, aten.reshape_as.default, aten.atleast_1d.default),
    *(aten._reshape_alias.default, aten.view_copy.default, aten.squeeze_copy.dim, aten.unsqueeze_copy.default),
    moves_data=True,
)
def reshape(ex: Exporter, x: OnnxValue, *_: Any) -> OnnxValue:
    """The result's shape is all there is to say."""
    return ex.reshape(x, ex.shape)


@exports(aten.view.dtype, moves_data=True)
def view_dtype(ex: Exporter, x: OnnxValue, dtype: torch.dtype) -> OnnxValue:
    if dtype is x.dtype:
        return x
    raise OnnxUnsupported("a view as another dtype")


@exports(
    aten.expand.default, aten.expand_copy.default, aten.expand_as.default, aten.broadcast_to.default, moves_data=True
)
def expand(ex: Exporter, x: OnnxValue, *_: Any, **__: Any) -> OnnxValue:
    return ex.expand(x, ex.shape)


@exports(aten.permute.default, aten.permute_copy.default, moves_data=True)
def permute(ex: Exporter, x: OnnxValue, order: Sequence[int]) -> OnnxValue:
    return ex.transpose(x, [axis(d, x.rank) for d in order])


@exports(aten.transpose.int, aten.swapaxes.default, aten.swapdims.default, aten.transpose_copy.int, moves_data=True)
def transpose(ex: Exporter, x: OnnxValue, first: int, second: int) -> OnnxValue:
    if not x.rank:
        return x
    order = list(range(x.rank))
    a, b = axis(first, x.rank), axis(second, x.rank)
    order[a], order[b] = order[b], order[a]
    return ex.transpose(x, order)


@exports(
    aten.t.default, aten.numpy_T.default, aten.mT.default, aten.adjoint.default, aten.t_copy.default, moves_data=True
)
def turn(ex: Exporter, x: OnnxValue) -> OnnxValue:
    if x.rank < 2:
        return x
    if ex.node.target is aten.numpy_T.default:
        return ex.transpose(x, list(reversed(range(x.rank))))
    return ex.transpose(x, [*range(x.rank - 2), x.rank - 1, x.rank - 2])


@exports(aten.movedim.int, aten.movedim.intlist, moves_data=True)
def movedim(ex: Exporter, x: OnnxValue, source: Any, target: Any) -> OnnxValue:
    sources = [axis(d, x.rank) for d in (source if isinstance(source, list) else [source])]
    targets = [axis(d, x.rank) for d in (target if isinstance(target, list) else [target])]
    rest = iter(d for d in range(x.rank) if d not in sources)
    placed = dict(zip(targets, sources, strict=True))
    return ex.transpose(x, [placed[d] if d in placed else next(rest) for d in range(x.rank)])


# ---------------------------------------------------------------------- parts


@exports(aten.slice.Tensor, aten.slice_copy.Tensor, moves_data=True)
def slice_(
    ex: Exporter, x: OnnxValue, dim: int = 0, start: Size | None = None, end: Size | None = None, step: int = 1
) -> OnnxValue:
    start = 0 if start is None else start
    end = None if end is None or (isinstance(end, int) and end >= 2**62) else end
    if start == 0 and end is None and step == 1:
        return x
    return ex.slice(x, axis(dim, x.rank), start, end, step)


@exports(aten.narrow.default, aten.narrow_copy.default, moves_data=True)
def narrow(ex: Exporter, x: OnnxValue, dim: int, start: Size, length: Size) -> OnnxValue:
    at = axis(dim, x.rank)
    if isinstance(start, int) and start < 0:
        start = x.sizes[at] + start
    return ex.slice(x, at, start, start + length)


@exports(aten.select.int, aten.select_copy.int, moves_data=True)
def select(ex: Exporter, x: OnnxValue, dim: int, index: Size) -> OnnxValue:
    return ex.op("Gather", x, ex.sizes.scalar(index), axis=axis(dim, x.rank))


@exports(aten.split_with_sizes.default, aten.split_with_sizes_copy.default, aten.split.sizes, moves_data=True)
def split_with_sizes(ex: Exporter, x: OnnxValue, sizes: Sequence[Size], dim: int = 0) -> list[OnnxValue]:
    if len(sizes) == 1:
        return [x]
    return ex.several("Split", len(sizes), x, ex.sizes.vector(sizes), axis=axis(dim, x.rank))


@exports(aten.split.Tensor, aten.chunk.default, aten.tensor_split.sections, aten.unsafe_split.Tensor, moves_data=True)
def split(ex: Exporter, x: OnnxValue, _: Any, dim: int = 0) -> list[OnnxValue]:
    """As many parts as torch made of it, each as long as that one."""
    at = axis(dim, x.rank)
    return split_with_sizes(ex, x, [sizes_of(part.shape)[at] for part in value_of(ex.node)], at)


@exports(aten.unbind.int, aten.unbind_copy.int, moves_data=True)
def unbind(ex: Exporter, x: OnnxValue, dim: int = 0) -> list[OnnxValue]:
    at = axis(dim, x.rank)
    count = x.sizes[at]
    if not isinstance(count, int):
        raise OnnxUnsupported("unbind along a dynamic dim")
    return [ex.op("Gather", x, ex.number(place, torch.int64), axis=at) for place in range(count)]


@exports(aten.diagonal.default, aten.diagonal_copy.default, moves_data=True)
def diagonal(ex: Exporter, x: OnnxValue, offset: int = 0, dim1: int = 0, dim2: int = 1) -> OnnxValue:
    first, second = axis(dim1, x.rank), axis(dim2, x.rank)
    order = [d for d in range(x.rank) if d not in (first, second)]
    x = ex.transpose(x, [*order, first, second])
    *batch, rows, columns = x.sizes
    flat = ex.reshape(x, [*batch, rows * columns])
    count = ex.shape[-1]
    start = offset if offset >= 0 else -offset * columns
    steps = ex.op("Mul", ex.range(count), ex.sizes.scalar(columns + 1))
    places = ex.op("Add", steps, ex.sizes.scalar(start))
    return ex.op("Gather", flat, places, axis=len(batch))


@exports(aten.unfold.default, aten.unfold_copy.default, moves_data=True)
def unfold(ex: Exporter, x: OnnxValue, dim: int, size: int, step: int) -> OnnxValue:
    """Windows along a dim; what is inside a window is the last dim."""
    if not x.rank:
        return ex.reshape(x, [size])
    at = axis(dim, x.rank)
    count = ex.shape[at]
    starts = ex.op("Mul", ex.range(count), ex.number(step, torch.int64))
    places = ex.op("Add", ex.unsqueeze(starts, 1), ex.unsqueeze(ex.range(size), 0))
    windows = ex.op("Gather", x, places, axis=at)
    order = [*range(at + 1), *range(at + 2, x.rank + 1), at + 1]
    return ex.op("Transpose", windows, perm=order)


@exports(aten.as_strided.default, aten.as_strided_copy.default, moves_data=True)
def as_strided(
    ex: Exporter, x: OnnxValue, sizes: Sequence[Size], strides: Sequence[Size], offset: Size | None = None
) -> OnnxValue:
    """Elements by their position in row-major order, which is their offset in contiguous memory."""
    source: Any = value_of(ex.node.args[0])  # type: ignore[arg-type]
    if not source.is_contiguous():
        raise OnnxUnsupported("strides of a tensor that is not contiguous")
    flat = ex.reshape(x, [-1])
    # An offset counts from the start of the memory that a view shows.
    begin = 0 if offset is None else offset - source.storage_offset()
    if isinstance(begin, int) and begin < 0:
        raise OnnxUnsupported("a strided view that begins before its tensor")
    places: OnnxValue = ex.sizes.scalar(begin)
    for place, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        steps = ex.op("Mul", ex.range(size), ex.sizes.scalar(stride))
        places = ex.op(
            "Add", places, ex.reshape(OnnxValue(steps.value, torch.int64), [-1, *([1] * (len(sizes) - place - 1))])
        )
    return ex.op("Gather", flat, places, axis=0)


# ---------------------------------------------------------------------- joins


def _join(ex: Exporter, parts: Sequence[OnnxValue], at: int) -> OnnxValue:
    cast = [ex.cast(part, ex.dtype) for part in parts]
    return cast[0] if len(cast) == 1 else ex.op("Concat", *cast, axis=at)


@exports(aten.cat.default, aten.concat.default, aten.concatenate.default, moves_data=True)
def cat(ex: Exporter, parts: Sequence[OnnxValue], dim: int = 0) -> OnnxValue:
    """A part of shape [0] counts as nothing, whatever the others are."""
    rank = len(ex.shape)
    kept = [part for part in parts if part.rank == rank and not (rank > 1 and part.shape == (0,))]
    return _join(ex, kept, axis(dim, rank)) if kept else ex.cast(parts[0], ex.dtype)


@exports(aten.stack.default, moves_data=True)
def stack(ex: Exporter, parts: Sequence[OnnxValue], dim: int = 0) -> OnnxValue:
    at = axis(dim, len(ex.shape))
    return _join(ex, [ex.unsqueeze(part, at) for part in parts], at)


# ---------------------------------------------------------------------- repetitions


@exports(aten.repeat.default, aten.tile.default, moves_data=True)
def repeat(ex: Exporter, x: OnnxValue, repeats: Sequence[Size]) -> OnnxValue:
    rank = max(x.rank, len(repeats))
    x = ex.reshape(x, [*([1] * (rank - x.rank)), *x.sizes])
    times = [*([1] * (rank - len(repeats))), *repeats]
    if all(time == 1 for time in times):
        return x
    return ex.op("Tile", x, ex.sizes.vector(times))


@exports(aten.repeat_interleave.self_int, moves_data=True)
def repeat_interleave(
    ex: Exporter, x: OnnxValue, repeats: Size, dim: int | None = None, *, output_size: Any = None
) -> OnnxValue:
    if dim is None:
        x, dim = ex.reshape(x, [-1]), 0
        x = OnnxValue(x.value, x.dtype, (sympy.Symbol("unused"),)) if not is_known(x.sizes) else x
    at = axis(dim, max(x.rank, 1))
    wide = ex.unsqueeze(x, at + 1)
    ones: list[Size] = [1] * (x.rank + 1)
    ones[at + 1] = repeats
    return ex.reshape(ex.op("Expand", wide, ex.sizes.vector(ones)), ex.shape)


@exports(aten.flip.default, moves_data=True)
def flip(ex: Exporter, x: OnnxValue, dims: Sequence[int]) -> OnnxValue:
    if not dims or not x.rank:
        return x
    at = [axis(d, x.rank) for d in dims]
    count = len(at)
    ends = [-(2**63)] * count
    return ex.op("Slice", x, ex.ints([-1] * count), ex.ints(ends), ex.ints(at), ex.ints([-1] * count))


@exports(aten.roll.default, moves_data=True)
def roll(ex: Exporter, x: OnnxValue, shifts: Any, dims: Any = ()) -> OnnxValue:
    if not x.rank:
        return x
    shape = x.sizes
    shifts = shifts if isinstance(shifts, list) else [shifts]
    dims = dims if isinstance(dims, list | tuple) else [dims]
    if not dims:
        x, dims = ex.reshape(x, [math.prod(shape)]), [0]
    for shift, dim in zip(shifts, dims, strict=True):
        at = axis(dim, x.rank)
        size = x.sizes[at]
        if isinstance(size, int) and isinstance(shift, int):
            if not size or shift % size == 0:
                continue
            first = ex.ints([-shift % size])
        else:  # at least 1, so that what has no elements divides by something
            first = ex.op("Mod", ex.sizes.one(-shift), ex.op("Max", ex.sizes.one(size), ex.ints([1])))
        zero, end, along = ex.ints([0]), ex.ints([2**63 - 1]), ex.ints([at])
        parts = ex.op("Slice", x, first, end, along), ex.op("Slice", x, zero, first, along)
        x = OnnxValue(ex.op("Concat", *parts, axis=at).value, x.dtype, x.shape)
    return ex.reshape(x, shape)


# ---------------------------------------------------------------------- paddings


def _pad(ex: Exporter, x: OnnxValue, pad: Sequence[Size], mode: str, value: Any = None) -> OnnxValue:
    """torch counts pads from the last dim; ONNX gives all befores, then all afters."""
    count = len(pad) // 2
    befores: list[Size] = [0] * x.rank
    afters: list[Size] = [0] * x.rank
    for place in range(count):
        befores[x.rank - 1 - place], afters[x.rank - 1 - place] = pad[2 * place], pad[2 * place + 1]
    if all(size == 0 for size in (*befores, *afters)):
        return x
    filling = ex.operand(value, x.dtype) if mode == "constant" and value is not None else None
    return ex.op("Pad", x, ex.sizes.vector([*befores, *afters]), filling, mode=mode)


@exports(aten.constant_pad_nd.default, moves_data=True)
def constant_pad(ex: Exporter, x: OnnxValue, pad: Sequence[Size], value: Any = 0) -> OnnxValue:
    """Negative pads cut, before the others are added: kernels disagree on both at once."""
    for place in range(len(pad) // 2):
        at = x.rank - 1 - place
        before, after = pad[2 * place], pad[2 * place + 1]
        cut = [isinstance(side, int) and side < 0 for side in (before, after)]
        if any(cut):
            start = -before if cut[0] else 0
            x_cut = ex.slice(x, at, start, after if cut[1] else None)
            x = OnnxValue(x_cut.value, x.dtype, x.shape)
    kept = [0 if isinstance(side, int) and side < 0 else side for side in pad]
    return _pad(ex, x, kept, "constant", value)


@exports(
    *(aten.reflection_pad1d.default, aten.reflection_pad2d.default, aten.reflection_pad3d.default), moves_data=True
)
def reflection_pad(ex: Exporter, x: OnnxValue, pad: Sequence[Size]) -> OnnxValue:
    return _pad_by_index(ex, x, pad, "reflect")


@exports(
    *(aten.replication_pad1d.default, aten.replication_pad2d.default, aten.replication_pad3d.default), moves_data=True
)
def replication_pad(ex: Exporter, x: OnnxValue, pad: Sequence[Size]) -> OnnxValue:
    return _pad_by_index(ex, x, pad, "edge")


def _pad_by_index(ex: Exporter, x: OnnxValue, pad: Sequence[Size], mode: str) -> OnnxValue:
    """Sides that are negative cut, after the others were added: what they cut may have been added."""
    if any(not isinstance(side, int) for side in pad):
        raise OnnxUnsupported("such a padding with dynamic sizes")
    numbers = [int(side) for side in pad]
    made = _pad(ex, x, [max(side, 0) for side in numbers], mode)
    for place in range(len(numbers) // 2):
        before, after = numbers[2 * place : 2 * place + 2]
        if before < 0 or after < 0:
            made = ex.slice(made, x.rank - 1 - place, max(-before, 0), min(after, 0) or None)
    return made


def _pad_modes(node: Any) -> bool:
    return str(node.args[2] if len(node.args) > 2 else node.kwargs.get("mode", "constant")) == "constant"


@exports(aten.pad.default, takes=_pad_modes, moves_data=True)
def pad(ex: Exporter, x: OnnxValue, pad: Sequence[Size], mode: str = "constant", value: Any = None) -> OnnxValue:
    return constant_pad(ex, x, pad, 0 if value is None else value)


# ---------------------------------------------------------------------- triangles


def _triangle(upper: int) -> Any:
    def rule(ex: Exporter, x: OnnxValue, diagonal: int = 0) -> OnnxValue:
        if x.dtype is torch.bool or x.dtype in (torch.float32, torch.float64, torch.int64):
            return ex.op("Trilu", x, ex.number(diagonal, torch.int64), upper=upper)
        rows, columns = (ex.range(size) for size in x.sizes[-2:])
        kind = "LessOrEqual" if upper else "GreaterOrEqual"
        moved = ex.op("Add", ex.unsqueeze(rows, 1), ex.number(diagonal, torch.int64))
        return ex.op("Where", ex.op(kind, moved, ex.unsqueeze(columns, 0)), x, ex.number(0, x.dtype))

    return rule


exports(aten.triu.default, moves_data=True)(_triangle(1))
exports(aten.tril.default, moves_data=True)(_triangle(0))
