"""Discrete Fourier transforms along a dim: one hand-written kernel, which keeps complex numbers as pairs."""

from __future__ import annotations

import operator

import torch
from torch import fx

from ingot.ir.operators import fourier
from ingot.lowering import tensor_views
from ingot.lowering.index_expr import Size, product
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.rules.views import dim_of, join
from ingot.lowering.tensor_views import TensorValue

aten = torch.ops.aten


def _pairs(low: Lowering, real: TensorValue, imaginary: TensorValue) -> TensorValue:
    """Both parts along a last dim of 2: as they lie in memory, if they do so."""
    last = real.rank
    return join(
        low, [tensor_views.insert(part, last) for part in (real, imaginary)], last, (*real.shape, 2), real.dtype
    )


def _parts(pairs: TensorValue) -> tuple[TensorValue, TensorValue]:
    last = pairs.rank - 1
    return tensor_views.select(pairs, last, 0), tensor_views.select(pairs, last, 1)


def _place_of(low: Lowering, dim: int, rank: int) -> int:
    """Where the dim is written: where every reader moves it to, if all do the same and leave the others in order."""
    readers: list[fx.Node] = []
    for user in low.node.users:
        readers += user.users if user.target is operator.getitem else [user]
    places = {_find_new_place(reader, dim, rank) for reader in readers}
    return places.pop() or 0 if len(places) == 1 and None not in places else dim


def _find_new_place(reader: fx.Node, dim: int, rank: int) -> int | None:
    """Where a permutation puts a dim, if that is all it does."""
    order = list(range(rank))
    if reader.target is aten.permute.default:
        order = [int(d) % rank for d in reader.args[1]]  # type: ignore[union-attr, arg-type]
    elif reader.target is aten.transpose.int:
        a, b = (int(d) % rank for d in reader.args[1:3])  # type: ignore[arg-type]
        order[a], order[b] = b, a
    else:
        return None
    others = [d for d in order if d != dim]
    return order.index(dim) if others == sorted(others) else None


def _transform(
    low: Lowering, kind: str, x: TensorValue, turns: TensorValue, dim: int, n: Size, *, pairs: bool
) -> TensorValue:
    """`n` is how many numbers a line has where there are most: of a real line and half of its spectrum, the line's."""
    rank = low.out.dim()
    others = [d for d in range(rank) if d != dim]
    place = _place_of(low, dim, rank)
    order = [*others[:place], dim, *others[place:]]
    sizes = {d: x.shape[d] for d in others} | {dim: low.shape_of(low.out)[dim]}
    shape = [*(sizes[d] for d in order), *([2] if pairs else [])]
    lines, inner = (product([x.shape[d] for d in some]) for some in (others, others[dim:]))
    written = product([x.shape[d] for d in others[place:]])
    (made,) = low.routine("dft", [x, turns], [(tuple(shape), x.dtype)], (lines, n, inner, written), kind=kind)
    back = [order.index(d) for d in range(rank)]
    return tensor_views.permute(made, [*back, rank] if pairs else back)


@lowers(whole=[fourier.dft])
def dft(
    low: Lowering, real: TensorValue, imaginary: TensorValue, turns: TensorValue, dim: int, backward: bool
) -> tuple[TensorValue, TensorValue]:
    dim = dim_of(real, dim)
    kind = "backward" if backward else "forward"
    return _parts(_transform(low, kind, _pairs(low, real, imaginary), turns, dim, real.shape[dim], pairs=True))


@lowers(whole=[fourier.dft_of_real])
def dft_of_real(low: Lowering, x: TensorValue, turns: TensorValue, dim: int) -> tuple[TensorValue, TensorValue]:
    dim = dim_of(x, dim)
    return _parts(_transform(low, "of_real", x, turns, dim, x.shape[dim], pairs=True))


@lowers(whole=[fourier.dft_to_real])
def dft_to_real(
    low: Lowering, real: TensorValue, imaginary: TensorValue, turns: TensorValue, dim: int, n: Size
) -> TensorValue:
    dim = dim_of(real, dim)
    return _transform(low, "to_real", _pairs(low, real, imaginary), turns, dim, n, pairs=False)
