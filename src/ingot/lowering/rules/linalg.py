"""Triangular factors and what is solved with them. Everything is computed in float64 and rounded at the end."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ingot.lowering import values
from ingot.lowering.body import Recorder
from ingot.lowering.expr import Size, product, smallest
from ingot.lowering.ir import Check
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.rules.reductions import reduced
from ingot.lowering.values import Index, Lazy, Tensor, broadcast_shapes

aten = torch.ops.aten


def _exact(x: Tensor) -> Tensor:
    if x.dtype == "float64":
        return x
    return Tensor(x.shape, "float64", Lazy(lambda ops, index: ops.cast(x.load(ops, index), "float64"), x.cost + 1))


def _rounded(x: Tensor, dtype: str) -> Tensor:
    if x.dtype == dtype:
        return x
    return Tensor(x.shape, dtype, Lazy(lambda ops, index: ops.cast(x.load(ops, index), dtype), x.cost + 1))


def _transposed(x: Tensor) -> Tensor:
    return values.permute(x, (*range(x.rank - 2), x.rank - 1, x.rank - 2))


def _count(x: Tensor) -> Size:
    return product(x.shape[:-2])


def _together(low: Lowering, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Both with the batch dims that either has."""
    lead = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return low.expand(a, (*lead, *a.shape[-2:])), low.expand(b, (*lead, *b.shape[-2:]))


# ---------------------------------------------------------------------- factors


def factor_lu(low: Lowering, a: Tensor, pivot: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """L and U in one matrix, in float64; the swaps; and the place of the first pivot that is 0."""
    lead, (m, n) = a.shape[:-2], a.shape[-2:]
    results = [(a.shape, "float64"), ((*lead, smallest(m, n)), "int32"), (lead, "int32")]
    lu, pivots, info = low.routine("lu", [_exact(a)], results, (_count(a), m, n), pivot=pivot)
    return lu, pivots, info


def factor_cholesky(low: Lowering, a: Tensor, upper: bool) -> tuple[Tensor, Tensor]:
    results = [(a.shape, "float64"), (a.shape[:-2], "int32")]
    found, info = low.routine("cholesky", [_exact(a)], results, (_count(a), smallest(*a.shape[-2:])), upper=upper)
    return found, info


def triangular(low: Lowering, a: Tensor, b: Tensor, upper: bool, unit: bool = False) -> Tensor:
    """x of a · x = b; one half of `a` is read."""
    a, b = _together(low, _exact(a), _exact(b))
    sizes = (_count(a), a.shape[-1], b.shape[-1])
    (x,) = low.routine("triangular", [a, b], [(b.shape, "float64")], sizes, upper=upper, unit=unit)
    return x


def permutation(low: Lowering, pivots: Tensor, m: Size, inverse: bool = False) -> Tensor:
    """For each row of P · A the row of A that it is; inverse: for each row of A the row of P · A."""
    shape = (*pivots.shape[:-1], m)
    sizes = (product(pivots.shape[:-1]), m, pivots.shape[-1])
    (places,) = low.routine("permutation", [pivots], [(shape, "int64")], sizes, inverse=inverse)
    return places


def _rows(low: Lowering, b: Tensor, places: Tensor) -> Tensor:
    b = low.keep(b)

    def load(ops: Recorder, index: Index) -> int:
        lead = tuple(map(values.broadcast_place, index[:-2], places.shape[:-1], b.shape[:-2]))
        row = ops.as_index(places.load(ops, (*lead, index[-2])), b.shape[-2])
        return b.load(ops, (*index[:-2], row, index[-1]))

    return Tensor(b.shape, b.dtype, Lazy(load, 3))


def solve_lu(low: Lowering, lu: Tensor, pivots: Tensor, b: Tensor, adjoint: bool = False) -> Tensor:
    """x of A · x = b, or of Aᵀ · x = b, for A = P · L · U."""
    lead = broadcast_shapes(lu.shape[:-2], b.shape[:-2])
    lu = low.expand(lu, (*lead, *lu.shape[-2:]))
    b = low.expand(_exact(b), (*lead, *b.shape[-2:]))
    places = permutation(low, pivots, lu.shape[-1], inverse=adjoint)
    if not adjoint:
        return triangular(low, lu, triangular(low, lu, _rows(low, b, places), False, True), True)
    turned = _transposed(lu)
    return _rows(low, triangular(low, turned, triangular(low, turned, b, False), True, True), places)


def _identity(low: Lowering, a: Tensor) -> Tensor:
    def load(ops: Recorder, index: Index) -> int:
        return ops.cast(ops.call("eq", ops.index(index[-1]), ops.index(index[-2])), "float64")

    return Tensor(a.shape, "float64", Lazy(load, 2))


def _checked(low: Lowering, info: Tensor, what: str) -> None:
    """The run fails unless every matrix was factored."""
    if info.numel == 0:
        return
    worst = low.realize(reduced(low, info, None, False, "max", "int32"))
    ops = Recorder()
    fine = ops.call("eq", worst.load(ops, ()), ops.const(0, "int32"))
    message = f"{what}: a matrix is singular or not positive definite"
    low.steps.append(Check(ops.finish([fine]), message, origin=low.origin))


@lowers(aten._linalg_check_errors.default)
def check_errors(low: Lowering, info: Tensor, name: str, *, is_matrix: bool) -> None:
    _checked(low, info, name)


# ---------------------------------------------------------------------- rules


@lowers(aten.linalg_cholesky_ex.default)
def cholesky_ex(low: Lowering, a: Tensor, *, upper: bool = False, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    found, info = factor_cholesky(low, a, upper)
    if check_errors:
        _checked(low, info, "cholesky")
    return _rounded(found, a.dtype), info


@lowers(aten.cholesky.default)
def cholesky(low: Lowering, a: Tensor, upper: bool = False) -> Tensor:
    found, info = factor_cholesky(low, a, upper)
    _checked(low, info, "cholesky")
    return _rounded(found, a.dtype)


@lowers(aten.cholesky_solve.default)
def cholesky_solve(low: Lowering, b: Tensor, a: Tensor, upper: bool = False) -> Tensor:
    lower = _transposed(a) if upper else a
    return _rounded(triangular(low, _transposed(lower), triangular(low, lower, b, False), True), low.out_dtype)


@lowers(aten.cholesky_inverse.default)
def cholesky_inverse(low: Lowering, a: Tensor, upper: bool = False) -> Tensor:
    return cholesky_solve(low, _identity(low, a), a, upper)


@lowers(aten.linalg_solve_triangular.default)
def solve_triangular(
    low: Lowering, a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    if left:
        return _rounded(triangular(low, a, b, upper, unitriangular), low.out_dtype)
    turned = triangular(low, _transposed(a), _transposed(b), not upper, unitriangular)
    return _rounded(_transposed(turned), low.out_dtype)


@lowers(aten.triangular_solve.default)
def triangular_solve(
    low: Lowering, b: Tensor, a: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Tensor, Tensor]:
    a, b = _together(low, a, b)
    matrix = _transposed(a) if transpose else a
    return _rounded(triangular(low, matrix, b, upper != transpose, unitriangular), b.dtype), a


@lowers(aten.linalg_lu_factor_ex.default)
def lu_factor(
    low: Lowering, a: Tensor, *, pivot: bool = True, check_errors: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    lu, pivots, info = factor_lu(low, a, pivot)
    if check_errors:
        _checked(low, info, "lu_factor")
    return _rounded(lu, a.dtype), pivots, info


def _parts(low: Lowering, lu: Tensor, pivots: Tensor, dtype: str) -> tuple[Tensor, Tensor, Tensor]:
    """P, L and U of A = P · L · U."""
    lead, (m, n) = lu.shape[:-2], lu.shape[-2:]
    k = smallest(m, n)
    places = permutation(low, pivots, m, inverse=True)

    def p(ops: Recorder, index: Index) -> int:
        return ops.cast(ops.call("eq", places.load(ops, (*index[:-2], index[-2])), ops.index(index[-1])), "float64")

    def lower(ops: Recorder, index: Index) -> int:
        i, j = ops.index(index[-2]), ops.index(index[-1])
        below = ops.where(ops.call("gt", i, j), lu.load(ops, index), ops.const(0, "float64"))
        return ops.where(ops.call("eq", i, j), ops.const(1, "float64"), below)

    def upper(ops: Recorder, index: Index) -> int:
        kept = ops.call("le", ops.index(index[-2]), ops.index(index[-1]))
        return ops.where(kept, lu.load(ops, index), ops.const(0, "float64"))

    made = [Tensor((*lead, m, m), "float64", Lazy(p, 3)), Tensor((*lead, m, k), "float64", Lazy(lower, 3)),
            Tensor((*lead, k, n), "float64", Lazy(upper, 3))]  # fmt: skip
    first, second, third = (_rounded(t, dtype) for t in made)
    return first, second, third


@lowers(aten.linalg_lu.default)
def lu(low: Lowering, a: Tensor, *, pivot: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    made, pivots, _ = factor_lu(low, a, pivot)
    p, lower, upper = _parts(low, made, pivots, a.dtype)
    return (p if pivot else low.full((0,), 0, a.dtype)), lower, upper


@lowers(aten.lu_unpack.default)
def lu_unpack(
    low: Lowering, made: Tensor, pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    p, lower, upper = _parts(low, low.dense(_exact(made)), pivots, made.dtype)
    nothing = low.full((0,), 0, made.dtype)
    return (p if unpack_pivots else nothing), (lower if unpack_data else nothing), (upper if unpack_data else nothing)


@lowers(aten.linalg_lu_solve.default)
def lu_solve(
    low: Lowering, made: Tensor, pivots: Tensor, b: Tensor, *, left: bool = True, adjoint: bool = False
) -> Tensor:
    lu_ = _exact(made)
    if left:
        return _rounded(solve_lu(low, lu_, pivots, b, adjoint), low.out_dtype)
    return _rounded(_transposed(solve_lu(low, lu_, pivots, _transposed(b), not adjoint)), low.out_dtype)


@lowers(aten._linalg_solve_ex.default)
def solve(
    low: Lowering, a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    vector = b.rank == 1 or (b.rank == a.rank - 1 and tuple(b.shape) == tuple(a.shape[:-1]))
    right = values.insert(b, b.rank) if vector else b
    made, pivots, info = factor_lu(low, a)
    if check_errors:
        _checked(low, info, "solve")
    if left:
        x = solve_lu(low, made, pivots, right)
    else:
        x = _transposed(solve_lu(low, made, pivots, _transposed(right), True))
    x = values.drop(x, (x.rank - 1,)) if vector else x
    return _rounded(x, a.dtype), _rounded(made, a.dtype), pivots, info


@lowers(aten.linalg_inv_ex.default)
def inverse(low: Lowering, a: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    made, pivots, info = factor_lu(low, a)
    if check_errors:
        _checked(low, info, "inverse")
    return _rounded(solve_lu(low, made, pivots, _identity(low, a)), a.dtype), info


def _diagonal(low: Lowering, made: Tensor, pivots: Tensor) -> tuple[Tensor, Tensor]:
    """U's diagonal, and for each of its places whether rows were swapped there."""
    shape = made.shape[:-1]
    diagonal = Tensor(shape, "float64", Lazy(lambda ops, i: made.load(ops, (*i, i[-1])), 1))

    def swapped(ops: Recorder, index: Index) -> int:
        stays = ops.call("eq", ops.cast(pivots.load(ops, index), "int64"), ops.index(index[-1] + 1))
        return ops.where(stays, ops.const(1, "float64"), ops.const(-1, "float64"))

    return diagonal, Tensor(shape, "float64", Lazy(swapped, 2))


def _product(low: Lowering, factors: Sequence[Tensor]) -> Tensor:
    x = factors[0]

    def times(ops: Recorder, value: int, index: Index) -> tuple[int]:
        for other in factors[1:]:
            value = ops.call("mul", value, other.load(ops, index))
        return (value,)

    (made,) = low.reduce(x, (x.rank - 1,), ("prod",), times, ("float64",))
    return made


@lowers(aten._linalg_det.default)
def det(low: Lowering, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    made, pivots, _ = factor_lu(low, a)
    diagonal, swapped = _diagonal(low, made, pivots)
    return _rounded(_product(low, (diagonal, swapped)), a.dtype), _rounded(made, a.dtype), pivots


@lowers(aten._linalg_slogdet.default)
def slogdet(low: Lowering, a: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    made, pivots, _ = factor_lu(low, a)
    diagonal, swapped = _diagonal(low, made, pivots)
    signs = Tensor(diagonal.shape, "float64", Lazy(lambda ops, i: ops.call("sign", diagonal.load(ops, i)), 2))
    sign = _product(low, (signs, swapped))

    def logarithm(ops: Recorder, value: int, index: Index) -> tuple[int]:
        return (ops.call("log", ops.call("abs", value)),)

    (total,) = low.reduce(diagonal, (diagonal.rank - 1,), ("sum",), logarithm, ("float64",))
    return _rounded(sign, a.dtype), _rounded(total, a.dtype), _rounded(made, a.dtype), pivots
