"""Reads at computed places: embedding, gather, index, index_select. Every computed index is checked at run time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ingot.lowering.index_expr import Size
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.rules.views import dim_of
from ingot.lowering.tensor_views import Deferred, Index, TensorValue, broadcast
from ingot.lowering.unsupported import LoweringUnsupported

aten = torch.ops.aten


@lowers(aten.embedding.default)
def embedding(low: Lowering, weight: TensorValue, places: TensorValue, *_: Any) -> TensorValue:
    weight = low.strategy.prepare_table(low, weight)

    def load(ops: BodyBuilder, index: Index) -> int:
        row = ops.check_index(places.load(ops, index[: places.rank]), weight.shape[0], wraps=False)
        return weight.load(ops, (row, *index[places.rank :]))

    return TensorValue(low.shape_of(low.out), low.out_dtype, Deferred(load, 3 + places.cost))


@lowers(aten.index_select.default)
def index_select(low: Lowering, x: TensorValue, dim: int, places: TensorValue) -> TensorValue:
    dim = dim_of(x, dim)
    if not x.rank:
        return x
    low.materialize_if_expensive(x)

    def load(ops: BodyBuilder, index: Index) -> int:
        at = (index[dim],) if places.rank else ()
        place = ops.check_index(places.load(ops, at), x.shape[dim], wraps=False)
        return x.load(ops, (*index[:dim], place, *index[dim + 1 :]))

    return TensorValue(low.shape_of(low.out), x.dtype, Deferred(load, 3 + places.cost))


@lowers(aten.gather.default)
def gather(low: Lowering, x: TensorValue, dim: int, places: TensorValue, **_: Any) -> TensorValue:
    if not x.rank:
        return TensorValue(places.shape, x.dtype, Deferred(lambda ops, index: x.load(ops, ()), 1))
    if any(size == 0 for size in places.shape):  # the one case in which torch takes places of another rank
        return low.full(places.shape, 0, x.dtype)
    dim = dim_of(x, dim)
    low.materialize_if_expensive(x)

    def load(ops: BodyBuilder, index: Index) -> int:
        if not places.rank:
            return x.load(ops, (ops.check_index(places.load(ops, ()), x.shape[0], wraps=False),))
        place = ops.check_index(places.load(ops, index), x.shape[dim], wraps=False)
        return x.load(ops, (*index[:dim], place, *index[dim + 1 :]))

    return TensorValue(places.shape, x.dtype, Deferred(load, 3 + places.cost))


def find_index_dims(indices: Sequence[TensorValue | None], rank: int, out_rank: int) -> tuple[int, int]:
    """Where the dims of the broadcast index tensors stand in the result, and how many there are."""
    given = [d for d, i in enumerate(indices) if i is not None]
    width = max((i.rank for i in indices if i is not None), default=0)
    together = given == list(range(given[0], given[-1] + 1)) if given else True
    return (given[0] if together and given else 0), width


def element(
    ops: BodyBuilder, shape: Sequence[Size], indices: Sequence[TensorValue | None], index: Index, first: int, width: int
) -> tuple[Size, ...]:
    """The place in the indexed tensor for a place of the result."""
    inner = index[first : first + width]
    rest = iter((*index[:first], *index[first + width :]))
    places: list[Size] = []
    for d, size in enumerate(shape):
        tensor = indices[d] if d < len(indices) else None
        if tensor is None:
            places.append(next(rest))
        else:
            places.append(ops.check_index(tensor.load(ops, broadcast(inner, tensor.shape)), size))
    return tuple(places)


@lowers(aten.index.Tensor, aten._unsafe_index.Tensor)
def index_(low: Lowering, x: TensorValue, indices: Sequence[TensorValue | None]) -> TensorValue:
    low.materialize_if_expensive(x)
    shape = low.shape_of(low.out)
    masks = [i for i in indices if i is not None and i.dtype in ("bool", "uint8")]
    if masks:
        from ingot.lowering.rules.boolean_indexing import replace_masks_by_indices  # which is built on this file

        if len(masks) > 1:
            raise LoweringUnsupported("indexing by more than one mask")
        given = [d for d, i in enumerate(indices) if i is not None]
        together = given == list(range(given[0], given[-1] + 1))
        others = [i.rank for i in indices if i is not None and i is not masks[0]]
        place = (given[0] if together else 0) + max([1, *others]) - 1
        indices = replace_masks_by_indices(low, indices, shape[place])
    first, width = find_index_dims(indices, x.rank, len(shape))
    indices = [i if i is None else low.align(i, shape[first : first + width]) for i in indices]

    def load(ops: BodyBuilder, index: Index) -> int:
        return x.load(ops, element(ops, x.shape, indices, index, first, width))

    return TensorValue(shape, x.dtype, Deferred(load, 3 + sum(i.cost + 1 for i in indices if i is not None)))
