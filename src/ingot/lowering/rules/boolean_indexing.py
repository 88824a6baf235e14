"""Boolean indexing: the number of selected elements is data-dependent.

A running sum of the mask numbers the places that it names, and its last element counts them. Each place is then
written where its number says; those that the mask leaves out go to one slot behind the last.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ingot.lowering import tensor_views
from ingot.lowering.index_expr import Size, divide, remainder, size_symbol
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.loop_ir import Assert, BindSymbol
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.rules.cumulative import scan
from ingot.lowering.tensor_views import Deferred, Index, Strided, TensorValue, broadcast

aten = torch.ops.aten


def count_of(low: Lowering, running: TensorValue, expected: Size | None) -> Size:
    """The last of the running sums as a size: that of the graph where it has none yet, or else equal to it."""
    if running.shape[0] == 0:
        if expected is not None and not low.is_bound(expected):
            low.bind_size(expected, 0)
        return 0
    ops = BodyBuilder()
    value = running.load(ops, (running.shape[0] - 1,))
    if expected is not None and low.is_bound(expected):
        same = ops.call("eq", value, ops.index(expected))
        message = f"A mask names another number of places than {expected}, the size that it was captured with."
        low.steps.append(Assert(ops.finish([same]), message, origin=low.origin))
        return expected
    if expected is None:
        name = low.new_symbol()
        expected = size_symbol(name)
    else:
        name = low.bind_symbol(expected)
    low.steps.append(BindSymbol(name, ops.finish([value]), low.origin))
    return expected


def places_of(low: Lowering, mask: TensorValue, expected: Size | None) -> tuple[Size, list[TensorValue]]:
    """How many places are not 0, and for each dim of the mask where they are, in row-major order."""
    total = mask.numel
    if total == 0:  # coordinates could not be distinguished
        count = count_of(low, TensorValue((0,), "int64", Deferred(lambda ops, index: ops.const(0, "int64"))), expected)
        return count, [low.full((count,), 0, "int64")] * mask.rank
    truth = TensorValue(
        mask.shape, "int64", Deferred(lambda ops, index: ops.cast(ops.cast(mask.load(ops, index), "bool"), "int64"), 2)
    )
    flat = low.realize(tensor_views.reshape(low.make_contiguous(truth), (total,), low.hint))
    running = low.realize(scan(low, flat, 0, "sum", "int64"))
    count = count_of(low, running, expected)
    made = low.buffer("temporary", "int64", (total + 1,))

    def write(ops: BodyBuilder, index: Index) -> tuple[Index, int]:
        named = ops.call("ne", flat.load(ops, index), ops.const(0, "int64"))
        number = ops.call("sub", running.load(ops, index), ops.const(1, "int64"))
        place = ops.where(named, number, ops.index(total))
        return (ops.as_index(place, below=total + 1),), ops.index(index[0])

    low.scatter(TensorValue((total + 1,), "int64", Strided(made.name, 0, (1,))), (total,), write, "set")
    found = TensorValue((count,), "int64", Strided(made.name, 0, (1,)))
    return count, [_coordinate(found, mask.shape, d) for d in range(mask.rank)]


def _coordinate(found: TensorValue, shape: Sequence[Size], dim: int) -> TensorValue:
    inner: Size = 1
    for size in shape[dim + 1 :]:
        inner = inner * size
    total: Size = inner * shape[dim]
    for size in shape[:dim]:
        total = total * size

    def load(ops: BodyBuilder, index: Index) -> int:
        flat = ops.as_index(found.load(ops, index), below=total)
        place = divide(flat, inner)
        return ops.index(place if dim == 0 else remainder(place, shape[dim]))

    return TensorValue(found.shape, "int64", Deferred(load, 3))


def replace_masks_by_indices(
    low: Lowering, indices: Sequence[TensorValue | None], expected: Size | None
) -> list[TensorValue | None]:
    """Indices with each mask replaced by the places that it names."""
    made: list[TensorValue | None] = []
    for index in indices:
        if index is not None and index.dtype in ("bool", "uint8"):
            _, places = places_of(low, index, expected)
            made += places
        else:
            made.append(index)
    return made


@lowers(aten.nonzero.default)
def nonzero(low: Lowering, x: TensorValue) -> TensorValue:
    shape = low.shape_of(low.out)
    count, places = places_of(low, x if x.rank else tensor_views.insert(x, 0), shape[0])

    def load(ops: BodyBuilder, index: Index) -> int:
        value = places[-1].load(ops, index[:1])
        for d in reversed(range(len(places) - 1)):
            mine = ops.call("eq", ops.index(index[1]), ops.index(d))
            value = ops.where(mine, places[d].load(ops, index[:1]), value)
        return value

    return TensorValue((count, x.rank), "int64", Deferred(load, 4 * max(x.rank, 1)))


@lowers(aten.masked_select.default)
def masked_select(low: Lowering, x: TensorValue, mask: TensorValue) -> TensorValue:
    shape = tensor_views.broadcast_shapes(x.shape, mask.shape)
    rank, x, mask = len(shape), low.align(x, shape), low.align(mask, shape)
    whole = TensorValue(
        shape,
        "bool",
        Deferred(lambda ops, index: ops.cast(mask.load(ops, broadcast(index, mask.shape)), "bool"), mask.cost),
    )
    count, places = places_of(low, whole if rank else tensor_views.insert(whole, 0), low.shape_of(low.out)[0])
    low.materialize_if_expensive(x)

    def load(ops: BodyBuilder, index: Index) -> int:
        at = tuple(ops.as_index(p.load(ops, index), below=s) for p, s in zip(places, shape or [1], strict=True))
        return x.load(ops, broadcast(at, x.shape) if x.rank else ())

    return TensorValue((count,), x.dtype, Deferred(load, 3 * max(rank, 1)))
