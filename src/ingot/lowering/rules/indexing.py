"""Reads at computed places: embedding, gather, index, index_select. Every computed index is checked at run time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ingot.lowering.body import Recorder
from ingot.lowering.coding import in_words
from ingot.lowering.expr import Size
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.refusing import Unsupported
from ingot.lowering.rules.views import dim_of
from ingot.lowering.values import Index, Lazy, Tensor, broadcast

aten = torch.ops.aten


@lowers(aten.embedding.default)
def embedding(low: Lowering, weight: Tensor, places: Tensor, *_: Any) -> Tensor:
    weight = in_words(low, weight)

    def load(ops: Recorder, index: Index) -> int:
        row = ops.checked(places.load(ops, index[: places.rank]), weight.shape[0], wraps=False)
        return weight.load(ops, (row, *index[places.rank :]))

    return Tensor(low.shape_of(low.out), low.out_dtype, Lazy(load, 3 + places.cost))


@lowers(aten.index_select.default)
def index_select(low: Lowering, x: Tensor, dim: int, places: Tensor) -> Tensor:
    dim = dim_of(x, dim)
    if not x.rank:
        return x
    low.keep(x)

    def load(ops: Recorder, index: Index) -> int:
        at = (index[dim],) if places.rank else ()
        place = ops.checked(places.load(ops, at), x.shape[dim], wraps=False)
        return x.load(ops, (*index[:dim], place, *index[dim + 1 :]))

    return Tensor(low.shape_of(low.out), x.dtype, Lazy(load, 3 + places.cost))


@lowers(aten.gather.default)
def gather(low: Lowering, x: Tensor, dim: int, places: Tensor, **_: Any) -> Tensor:
    if not x.rank:
        return Tensor(places.shape, x.dtype, Lazy(lambda ops, index: x.load(ops, ()), 1))
    if any(size == 0 for size in places.shape):  # the one case in which torch takes places of another rank
        return low.full(places.shape, 0, x.dtype)
    dim = dim_of(x, dim)
    low.keep(x)

    def load(ops: Recorder, index: Index) -> int:
        if not places.rank:
            return x.load(ops, (ops.checked(places.load(ops, ()), x.shape[0], wraps=False),))
        place = ops.checked(places.load(ops, index), x.shape[dim], wraps=False)
        return x.load(ops, (*index[:dim], place, *index[dim + 1 :]))

    return Tensor(places.shape, x.dtype, Lazy(load, 3 + places.cost))


def advanced(indices: Sequence[Tensor | None], rank: int, out_rank: int) -> tuple[int, int]:
    """Where the dims of the broadcast index tensors stand in the result, and how many there are."""
    given = [d for d, i in enumerate(indices) if i is not None]
    width = max((i.rank for i in indices if i is not None), default=0)
    together = given == list(range(given[0], given[-1] + 1)) if given else True
    return (given[0] if together and given else 0), width


def element(
    ops: Recorder, shape: Sequence[Size], indices: Sequence[Tensor | None], index: Index, first: int, width: int
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
            places.append(ops.checked(tensor.load(ops, broadcast(inner, tensor.shape)), size))
    return tuple(places)


@lowers(aten.index.Tensor, aten._unsafe_index.Tensor)
def index_(low: Lowering, x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    low.keep(x)
    shape = low.shape_of(low.out)
    masks = [i for i in indices if i is not None and i.dtype in ("bool", "uint8")]
    if masks:
        from ingot.lowering.rules.masks import without_masks  # which is built on this file

        if len(masks) > 1:
            raise Unsupported("indexing by more than one mask")
        given = [d for d, i in enumerate(indices) if i is not None]
        together = given == list(range(given[0], given[-1] + 1))
        others = [i.rank for i in indices if i is not None and i is not masks[0]]
        place = (given[0] if together else 0) + max([1, *others]) - 1
        indices = without_masks(low, indices, shape[place])
    first, width = advanced(indices, x.rank, len(shape))
    indices = [i if i is None else low.align(i, shape[first : first + width]) for i in indices]

    def load(ops: Recorder, index: Index) -> int:
        return x.load(ops, element(ops, x.shape, indices, index, first, width))

    return Tensor(shape, x.dtype, Lazy(load, 3 + sum(i.cost + 1 for i in indices if i is not None)))
