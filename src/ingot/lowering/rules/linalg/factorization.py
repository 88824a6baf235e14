"""Triangular factors and what is solved with them. Everything is computed in float64 and rounded at the end."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ingot.lowering import tensor_views
from ingot.lowering.index_expr import Size, product, smallest
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.loop_ir import Assert
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.rules.reductions import reduce
from ingot.lowering.tensor_views import Deferred, Index, TensorValue, broadcast_shapes

aten = torch.ops.aten


def _exact(x: TensorValue) -> TensorValue:
    if x.dtype == "float64":
        return x
    return TensorValue(
        x.shape, "float64", Deferred(lambda ops, index: ops.cast(x.load(ops, index), "float64"), x.cost + 1)
    )


def _round(x: TensorValue, dtype: str) -> TensorValue:
    if x.dtype == dtype:
        return x
    return TensorValue(x.shape, dtype, Deferred(lambda ops, index: ops.cast(x.load(ops, index), dtype), x.cost + 1))


def _transpose(x: TensorValue) -> TensorValue:
    return tensor_views.permute(x, (*range(x.rank - 2), x.rank - 1, x.rank - 2))


def _count(x: TensorValue) -> Size:
    return product(x.shape[:-2])


def _together(low: Lowering, a: TensorValue, b: TensorValue) -> tuple[TensorValue, TensorValue]:
    """Both with the batch dims that either has."""
    lead = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return low.expand(a, (*lead, *a.shape[-2:])), low.expand(b, (*lead, *b.shape[-2:]))


# ---------------------------------------------------------------------- factors


def factor_lu(low: Lowering, a: TensorValue, pivot: bool = True) -> tuple[TensorValue, TensorValue, TensorValue]:
    """L and U in one matrix, in float64; the swaps; and the place of the first pivot that is 0."""
    lead, (m, n) = a.shape[:-2], a.shape[-2:]
    results = [(a.shape, "float64"), ((*lead, smallest(m, n)), "int32"), (lead, "int32")]
    lu, pivots, info = low.routine("lu", [_exact(a)], results, (_count(a), m, n), pivot=pivot)
    return lu, pivots, info


def factor_cholesky(low: Lowering, a: TensorValue, upper: bool) -> tuple[TensorValue, TensorValue]:
    results = [(a.shape, "float64"), (a.shape[:-2], "int32")]
    found, info = low.routine("cholesky", [_exact(a)], results, (_count(a), smallest(*a.shape[-2:])), upper=upper)
    return found, info


def triangular(low: Lowering, a: TensorValue, b: TensorValue, upper: bool, unit: bool = False) -> TensorValue:
    """x of a · x = b; one half of `a` is read."""
    a, b = _together(low, _exact(a), _exact(b))
    sizes = (_count(a), a.shape[-1], b.shape[-1])
    (x,) = low.routine("triangular", [a, b], [(b.shape, "float64")], sizes, upper=upper, unit=unit)
    return x


def permutation(low: Lowering, pivots: TensorValue, m: Size, inverse: bool = False) -> TensorValue:
    """For each row of P · A the row of A that it is; inverse: for each row of A the row of P · A."""
    shape = (*pivots.shape[:-1], m)
    sizes = (product(pivots.shape[:-1]), m, pivots.shape[-1])
    (places,) = low.routine("permutation", [pivots], [(shape, "int64")], sizes, inverse=inverse)
    return places


def _rows(low: Lowering, b: TensorValue, places: TensorValue) -> TensorValue:
    b = low.materialize_if_expensive(b)

    def load(ops: BodyBuilder, index: Index) -> int:
        lead = tuple(map(tensor_views.broadcast_place, index[:-2], places.shape[:-1], b.shape[:-2]))
        row = ops.as_index(places.load(ops, (*lead, index[-2])), b.shape[-2])
        return b.load(ops, (*index[:-2], row, index[-1]))

    return TensorValue(b.shape, b.dtype, Deferred(load, 3))


def solve_lu(low: Lowering, lu: TensorValue, pivots: TensorValue, b: TensorValue, adjoint: bool = False) -> TensorValue:
    """x of A · x = b, or of Aᵀ · x = b, for A = P · L · U."""
    lead = broadcast_shapes(lu.shape[:-2], b.shape[:-2])
    lu = low.expand(lu, (*lead, *lu.shape[-2:]))
    b = low.expand(_exact(b), (*lead, *b.shape[-2:]))
    places = permutation(low, pivots, lu.shape[-1], inverse=adjoint)
    if not adjoint:
        return triangular(low, lu, triangular(low, lu, _rows(low, b, places), False, True), True)
    turned = _transpose(lu)
    return _rows(low, triangular(low, turned, triangular(low, turned, b, False), True, True), places)


def _identity(low: Lowering, a: TensorValue) -> TensorValue:
    def load(ops: BodyBuilder, index: Index) -> int:
        return ops.cast(ops.call("eq", ops.index(index[-1]), ops.index(index[-2])), "float64")

    return TensorValue(a.shape, "float64", Deferred(load, 2))


def _check(low: Lowering, info: TensorValue, what: str) -> None:
    """The run fails unless every matrix was factored."""
    if info.numel == 0:
        return
    worst = low.realize(reduce(low, info, None, False, "max", "int32"))
    ops = BodyBuilder()
    fine = ops.call("eq", worst.load(ops, ()), ops.const(0, "int32"))
    message = f"{what}: a matrix is singular or not positive definite"
    low.steps.append(Assert(ops.finish([fine]), message, origin=low.origin))


@lowers(aten._linalg_check_errors.default)
def check_errors(low: Lowering, info: TensorValue, name: str, *, is_matrix: bool) -> None:
    _check(low, info, name)


# ---------------------------------------------------------------------- rules


@lowers(aten.linalg_cholesky_ex.default)
def cholesky_ex(
    low: Lowering, a: TensorValue, *, upper: bool = False, check_errors: bool = False
) -> tuple[TensorValue, TensorValue]:
    found, info = factor_cholesky(low, a, upper)
    if check_errors:
        _check(low, info, "cholesky")
    return _round(found, a.dtype), info


@lowers(aten.cholesky.default)
def cholesky(low: Lowering, a: TensorValue, upper: bool = False) -> TensorValue:
    found, info = factor_cholesky(low, a, upper)
    _check(low, info, "cholesky")
    return _round(found, a.dtype)


@lowers(aten.cholesky_solve.default)
def cholesky_solve(low: Lowering, b: TensorValue, a: TensorValue, upper: bool = False) -> TensorValue:
    lower = _transpose(a) if upper else a
    return _round(triangular(low, _transpose(lower), triangular(low, lower, b, False), True), low.out_dtype)


@lowers(aten.cholesky_inverse.default)
def cholesky_inverse(low: Lowering, a: TensorValue, upper: bool = False) -> TensorValue:
    return cholesky_solve(low, _identity(low, a), a, upper)


@lowers(aten.linalg_solve_triangular.default)
def solve_triangular(
    low: Lowering, a: TensorValue, b: TensorValue, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> TensorValue:
    if left:
        return _round(triangular(low, a, b, upper, unitriangular), low.out_dtype)
    turned = triangular(low, _transpose(a), _transpose(b), not upper, unitriangular)
    return _round(_transpose(turned), low.out_dtype)


@lowers(aten.triangular_solve.default)
def triangular_solve(
    low: Lowering,
    b: TensorValue,
    a: TensorValue,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> tuple[TensorValue, TensorValue]:
    a, b = _together(low, a, b)
    matrix = _transpose(a) if transpose else a
    return _round(triangular(low, matrix, b, upper != transpose, unitriangular), b.dtype), a


@lowers(aten.linalg_lu_factor_ex.default)
def lu_factor(
    low: Lowering, a: TensorValue, *, pivot: bool = True, check_errors: bool = False
) -> tuple[TensorValue, TensorValue, TensorValue]:
    lu, pivots, info = factor_lu(low, a, pivot)
    if check_errors:
        _check(low, info, "lu_factor")
    return _round(lu, a.dtype), pivots, info


def _parts(
    low: Lowering, lu: TensorValue, pivots: TensorValue, dtype: str
) -> tuple[TensorValue, TensorValue, TensorValue]:
    """P, L and U of A = P · L · U."""
    lead, (m, n) = lu.shape[:-2], lu.shape[-2:]
    k = smallest(m, n)
    places = permutation(low, pivots, m, inverse=True)

    def p(ops: BodyBuilder, index: Index) -> int:
        return ops.cast(ops.call("eq", places.load(ops, (*index[:-2], index[-2])), ops.index(index[-1])), "float64")

    def lower(ops: BodyBuilder, index: Index) -> int:
        i, j = ops.index(index[-2]), ops.index(index[-1])
        below = ops.where(ops.call("gt", i, j), lu.load(ops, index), ops.const(0, "float64"))
        return ops.where(ops.call("eq", i, j), ops.const(1, "float64"), below)

    def upper(ops: BodyBuilder, index: Index) -> int:
        kept = ops.call("le", ops.index(index[-2]), ops.index(index[-1]))
        return ops.where(kept, lu.load(ops, index), ops.const(0, "float64"))

    made = [
        TensorValue((*lead, m, m), "float64", Deferred(p, 3)),
        TensorValue((*lead, m, k), "float64", Deferred(lower, 3)),
        TensorValue((*lead, k, n), "float64", Deferred(upper, 3)),
    ]
    first, second, third = (_round(t, dtype) for t in made)
    return first, second, third


@lowers(aten.linalg_lu.default)
def lu(low: Lowering, a: TensorValue, *, pivot: bool = True) -> tuple[TensorValue, TensorValue, TensorValue]:
    made, pivots, _ = factor_lu(low, a, pivot)
    p, lower, upper = _parts(low, made, pivots, a.dtype)
    return (p if pivot else low.full((0,), 0, a.dtype)), lower, upper


@lowers(aten.lu_unpack.default)
def lu_unpack(
    low: Lowering, made: TensorValue, pivots: TensorValue, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[TensorValue, TensorValue, TensorValue]:
    p, lower, upper = _parts(low, low.make_contiguous(_exact(made)), pivots, made.dtype)
    nothing = low.full((0,), 0, made.dtype)
    return (p if unpack_pivots else nothing), (lower if unpack_data else nothing), (upper if unpack_data else nothing)


@lowers(aten.linalg_lu_solve.default)
def lu_solve(
    low: Lowering, made: TensorValue, pivots: TensorValue, b: TensorValue, *, left: bool = True, adjoint: bool = False
) -> TensorValue:
    lu_ = _exact(made)
    if left:
        return _round(solve_lu(low, lu_, pivots, b, adjoint), low.out_dtype)
    return _round(_transpose(solve_lu(low, lu_, pivots, _transpose(b), not adjoint)), low.out_dtype)


@lowers(aten._linalg_solve_ex.default)
def solve(
    low: Lowering, a: TensorValue, b: TensorValue, *, left: bool = True, check_errors: bool = False
) -> tuple[TensorValue, TensorValue, TensorValue, TensorValue]:
    vector = b.rank == 1 or (b.rank == a.rank - 1 and tuple(b.shape) == tuple(a.shape[:-1]))
    right = tensor_views.insert(b, b.rank) if vector else b
    made, pivots, info = factor_lu(low, a)
    if check_errors:
        _check(low, info, "solve")
    if left:
        x = solve_lu(low, made, pivots, right)
    else:
        x = _transpose(solve_lu(low, made, pivots, _transpose(right), True))
    x = tensor_views.drop(x, (x.rank - 1,)) if vector else x
    return _round(x, a.dtype), _round(made, a.dtype), pivots, info


@lowers(aten.linalg_inv_ex.default)
def inverse(low: Lowering, a: TensorValue, *, check_errors: bool = False) -> tuple[TensorValue, TensorValue]:
    made, pivots, info = factor_lu(low, a)
    if check_errors:
        _check(low, info, "inverse")
    return _round(solve_lu(low, made, pivots, _identity(low, a)), a.dtype), info


def _diagonal(low: Lowering, made: TensorValue, pivots: TensorValue) -> tuple[TensorValue, TensorValue]:
    """U's diagonal, and for each of its places whether rows were swapped there."""
    shape = made.shape[:-1]
    diagonal = TensorValue(shape, "float64", Deferred(lambda ops, i: made.load(ops, (*i, i[-1])), 1))

    def load_sign(ops: BodyBuilder, index: Index) -> int:
        stays = ops.call("eq", ops.cast(pivots.load(ops, index), "int64"), ops.index(index[-1] + 1))
        return ops.where(stays, ops.const(1, "float64"), ops.const(-1, "float64"))

    return diagonal, TensorValue(shape, "float64", Deferred(load_sign, 2))


def _product(low: Lowering, factors: Sequence[TensorValue]) -> TensorValue:
    x = factors[0]

    def times(ops: BodyBuilder, value: int, index: Index) -> tuple[int]:
        for other in factors[1:]:
            value = ops.call("mul", value, other.load(ops, index))
        return (value,)

    (made,) = low.reduce(x, (x.rank - 1,), ("prod",), times, ("float64",))
    return made


@lowers(aten._linalg_det.default)
def det(low: Lowering, a: TensorValue) -> tuple[TensorValue, TensorValue, TensorValue]:
    made, pivots, _ = factor_lu(low, a)
    diagonal, swapped = _diagonal(low, made, pivots)
    return _round(_product(low, (diagonal, swapped)), a.dtype), _round(made, a.dtype), pivots


@lowers(aten._linalg_slogdet.default)
def slogdet(low: Lowering, a: TensorValue) -> tuple[TensorValue, TensorValue, TensorValue, TensorValue]:
    made, pivots, _ = factor_lu(low, a)
    diagonal, swapped = _diagonal(low, made, pivots)
    signs = TensorValue(diagonal.shape, "float64", Deferred(lambda ops, i: ops.call("sign", diagonal.load(ops, i)), 2))
    sign = _product(low, (signs, swapped))

    def logarithm(ops: BodyBuilder, value: int, index: Index) -> tuple[int]:
        return (ops.call("log", ops.call("abs", value)),)

    (total,) = low.reduce(diagonal, (diagonal.rank - 1,), ("sum",), logarithm, ("float64",))
    return _round(sign, a.dtype), _round(total, a.dtype), _round(made, a.dtype), pivots
