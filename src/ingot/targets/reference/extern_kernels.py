"""The extern kernels of the loop IR, by name. Operands are dense."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ingot.lowering.custom_rules import C_KERNEL
from ingot.lowering.loop_ir import ExternKernel
from ingot.registry import Registry
from ingot.targets.reference.memory import Array

if TYPE_CHECKING:
    from ingot.targets.reference.interpreter import Interpreter


KERNELS: Registry[str, Callable[[Any, Any], None]] = Registry("interpreted kernel")


@KERNELS.register(C_KERNEL)
def _c_kernel(run: Interpreter, step: ExternKernel) -> None:
    """A user's C kernel computes what the operator does in torch, which is called here."""
    attributes = dict(step.attributes)
    namespace, _, name = attributes["operator"].partition(".")
    operator = getattr(torch.ops, namespace)
    for part in name.split("."):
        operator = getattr(operator, part)
    sizes = iter(map(run.size, step.sizes))
    shapes = [tuple(next(sizes) for _ in range(rank)) for rank in attributes["ranks"]]
    tensors = iter(
        torch.from_numpy(run.values(name).copy()).reshape(shape).to(getattr(torch, run.module.buffers[name].dtype))
        for name, shape in zip(step.reads, shapes, strict=False)
    )
    numbers = iter([next(sizes) if one == "int" else one for one in attributes["numbers"]])
    arguments = operator._schema.arguments
    given = [next(tensors if isinstance(one.type, torch.TensorType) else numbers) for one in arguments]
    results = operator(*given)
    for name, result in zip(step.writes, results if isinstance(results, tuple | list) else [results], strict=True):
        wide = result.float() if result.dtype in (torch.bfloat16, torch.float16) else result
        run.write(name, wide.contiguous().numpy())


@KERNELS.register("sort")
def _sort(run: Interpreter, step: ExternKernel) -> None:
    """values, places = sort(x): rows of n; stable; a nan is larger than anything. With `first`, so many of each row."""
    rows, n = map(run.size, step.sizes)
    attributes = dict(step.attributes)
    x = run.values(step.reads[0]).reshape(rows, n)
    if attributes["descending"]:
        # A stable sort of the row backwards, backwards: equals keep their order, and a nan comes first.
        places = n - 1 - np.argsort(x[:, ::-1], axis=1, kind="stable")[:, ::-1]
    else:
        places = np.argsort(x, axis=1, kind="stable")
    values, places = np.take_along_axis(x, places, 1), places.astype(np.int64)
    if "first" in attributes:  # the others are nobody's to read
        values[:, attributes["first"] :] = np.nan if values.dtype.kind == "f" else 0
        places[:, attributes["first"] :] = -1
    run.write(step.writes[0], values)
    run.write(step.writes[1], places)


@KERNELS.register("mode")
def _mode(run: Interpreter, step: ExternKernel) -> None:
    """value, place = mode(sorted, places): the longest run of equals, the first of such; the last of its places."""
    rows, n = map(run.size, step.sizes)
    x, places = (run.values(name).reshape(rows, n) for name in step.reads)
    value, place = np.zeros(rows, x.dtype), np.zeros(rows, np.int64)
    for row in range(rows if n else 0):
        best = length = count = 0
        for i in range(n):
            count = count + 1 if i and x[row, i] == x[row, i - 1] else 1
            if count > length:
                length, best = count, i
        value[row], place[row] = x[row, best], places[row, best]
    if n:
        run.write(step.writes[0], value)
        run.write(step.writes[1], place)


@KERNELS.register("search")
def _search(run: Interpreter, step: ExternKernel) -> None:
    """place = searchsorted(sequence, value): rows of n borders; `every` values share a row."""
    count, n, every = map(run.size, step.sizes)
    borders, values = (run.values(name) for name in step.reads[:2])
    sorter = run.values(step.reads[2]) if len(step.reads) == 3 else None
    right = dict(step.attributes)["right"]
    found = np.zeros(count, np.int64)
    for first in range(0, count, max(every, 1)):
        row = first // every * n
        line = borders[row : row + n]
        if sorter is not None:
            line = line[sorter[row : row + n]]
        found[first : first + every] = _bisect(line, values[first : first + every], right)
    run.write(step.writes[0], found)


def _bisect(borders: Array, values: Array, right: bool) -> Array:
    """How many borders lie before each value, those equal to it among them if `right`; a nan lies behind all."""
    first, last = np.zeros(values.shape, np.int64), np.full(values.shape, borders.size, np.int64)
    while (first < last).any():
        middle = first + (last - first) // 2
        border = borders[np.minimum(middle, borders.size - 1)]
        before = ~(border > values) if right else ~(border >= values)
        going = first < last
        first, last = np.where(going & before, middle + 1, first), np.where(going & ~before, middle, last)
    return first


@KERNELS.register("scan")
def _scan(run: Interpreter, step: ExternKernel) -> None:
    """y = scan(x) along the middle of (outer, n, inner): sum, prod or logsumexp; floats are carried in float64."""
    shape = tuple(map(run.size, step.sizes))
    x = run.values(step.reads[0]).reshape(shape)
    carried = x.astype(np.float64) if x.dtype.kind == "f" else x
    with np.errstate(all="ignore"):
        made = _SCANS[dict(step.attributes)["kind"]](carried)
    run.write(step.writes[0], made.astype(x.dtype))


_SCANS: dict[str, Callable[[Array], Any]] = {
    "sum": lambda x: np.cumsum(x, axis=1, dtype=x.dtype),
    "prod": lambda x: np.cumprod(x, axis=1, dtype=x.dtype),
    "logsumexp": lambda x: np.logaddexp.accumulate(x, axis=1) if x.shape[1] else x,
}


@KERNELS.register("scan_places")
def _scan_places(run: Interpreter, step: ExternKernel) -> None:
    """y, place = scan(x): the extreme so far and where it was met last. A nan stays."""
    outer, n, inner = map(run.size, step.sizes)
    x = run.values(step.reads[0]).reshape(outer, n, inner)
    best, places = x.copy(), np.zeros(x.shape, np.int64)
    largest = dict(step.attributes)["kind"] == "max"
    for i in range(1, n):
        now, before = x[:, i], best[:, i - 1]
        beats = now >= before if largest else now <= before
        taken = (now != now) | ((before == before) & beats)
        best[:, i] = np.where(taken, now, before)
        places[:, i] = np.where(taken, i, places[:, i - 1])
    run.write(step.writes[0], best)
    run.write(step.writes[1], places)


@KERNELS.register("dft")
def _dft(run: Interpreter, step: ExternKernel) -> None:
    """Transforms of lines, complex numbers as pairs; none is scaled. `inner` lines lie between the numbers of one
    that is read, `inner_out` between those of one that is written."""
    lines, n, inner, inner_out = map(run.size, step.sizes)
    kind = dict(step.attributes)["kind"]
    x = run.values(step.reads[0]).astype(np.float64)
    z = x if kind == "of_real" else x.view(np.complex128)
    z = z.reshape(lines // max(inner, 1), -1, inner).swapaxes(1, 2).reshape(lines, -1)
    if kind == "of_real":
        made: Array = np.fft.rfft(z)
    elif kind == "to_real":
        made = np.fft.irfft(z, n, norm="forward")
    else:
        made = np.fft.fft(z) if kind == "forward" else np.fft.ifft(z, norm="forward")
    made = np.ascontiguousarray(made.reshape(-1, inner_out, made.shape[1]).swapaxes(1, 2))
    run.write(step.writes[0], made.view(np.float64))


# ---------------------------------------------------------------------- linear algebra, in float64


@KERNELS.register("cholesky")
def _cholesky(run: Interpreter, step: ExternKernel) -> None:
    count, n = map(run.size, step.sizes)
    a = run.values(step.reads[0]).reshape(count, n, n)
    upper = dict(step.attributes)["upper"]
    found, info = np.zeros((count, n, n)), np.zeros(count, np.int32)
    for one in range(count):
        full = a[one].T if upper else a[one]
        lower = np.zeros((n, n))
        for j in range(n):
            rest = full[j:, j] - lower[j:, :j] @ lower[j, :j]
            if not rest[0] > 0:
                info[one] = j + 1
                break
            lower[j, j] = np.sqrt(rest[0])
            lower[j + 1 :, j] = rest[1:] / lower[j, j]
        found[one] = lower.T if upper else lower
    run.write(step.writes[0], found)
    run.write(step.writes[1], info)


@KERNELS.register("lu")
def _lu(run: Interpreter, step: ExternKernel) -> None:
    count, m, n = map(run.size, step.sizes)
    work = run.values(step.reads[0]).reshape(count, m, n).copy()
    pivots, info = np.zeros((count, min(m, n)), np.int32), np.zeros(count, np.int32)
    for one in range(count):
        a = work[one]
        for k in range(min(m, n)):
            column = np.abs(a[k:, k])
            best = k + int(np.argmax(np.where(np.isnan(column), -1, column))) if dict(step.attributes)["pivot"] else k
            pivots[one, k] = best + 1
            a[[k, best]] = a[[best, k]]
            if a[k, k] == 0:
                info[one] = info[one] or k + 1
                continue
            a[k + 1 :, k] /= a[k, k]
            a[k + 1 :, k + 1 :] -= np.outer(a[k + 1 :, k], a[k, k + 1 :])
    for name, made in zip(step.writes, (work, pivots, info), strict=True):
        run.write(name, made)


@KERNELS.register("triangular")
def _triangular(run: Interpreter, step: ExternKernel) -> None:
    count, n, columns = map(run.size, step.sizes)
    a, b = run.values(step.reads[0]).reshape(count, n, n), run.values(step.reads[1]).reshape(count, n, columns)
    attributes = dict(step.attributes)
    x = np.zeros((count, n, columns))
    with np.errstate(all="ignore"):
        for i in range(n - 1, -1, -1) if attributes["upper"] else range(n):
            known = slice(i + 1, n) if attributes["upper"] else slice(0, i)
            rest = b[:, i] - np.einsum("ck,ckj->cj", a[:, i, known], x[:, known])
            x[:, i] = rest if attributes["unit"] else rest / a[:, i, i, None]
    run.write(step.writes[0], x)


@KERNELS.register("permutation")
def _permutation(run: Interpreter, step: ExternKernel) -> None:
    """Where each row comes from, given the swaps of an LU; or, inverted, where each row goes."""
    count, m, swaps = map(run.size, step.sizes)
    pivots = run.values(step.reads[0]).reshape(count, swaps)
    made = np.tile(np.arange(m, dtype=np.int64), (count, 1))
    for one in range(count):
        for i in range(swaps):
            other = max(min(int(pivots[one, i]) - 1, m - 1), 0)
            made[one, [i, other]] = made[one, [other, i]]
    run.write(step.writes[0], np.argsort(made, axis=1) if dict(step.attributes)["inverse"] else made)


@KERNELS.register("qr")
def _qr(run: Interpreter, step: ExternKernel) -> None:
    """Reflections I - tau · v · vᵀ, v kept below the diagonal as LAPACK keeps it."""
    count, m, n = map(run.size, step.sizes)
    r = run.values(step.reads[0]).reshape(count, m, n).copy()
    tau = np.zeros((count, min(m, n)))
    for one in range(count):
        a = r[one]
        for k in range(min(m, n)):
            below = a[k + 1 :, k]
            scale = np.abs(below).max(initial=0.0)
            if scale == 0:
                continue
            beta = -np.copysign(scale * np.sqrt((a[k, k] / scale) ** 2 + ((below / scale) ** 2).sum()), a[k, k])
            tau[one, k] = (beta - a[k, k]) / beta
            below /= a[k, k] - beta
            a[k, k] = beta
            dots = a[k, k + 1 :] + below @ a[k + 1 :, k + 1 :]
            a[k, k + 1 :] -= tau[one, k] * dots
            a[k + 1 :, k + 1 :] -= tau[one, k] * np.outer(below, dots)
    run.write(step.writes[0], r)
    run.write(step.writes[1], tau)


@KERNELS.register("reflect")
def _reflect(run: Interpreter, step: ExternKernel) -> None:
    """x = Q · c, or Qᵀ · c, for Q of so many reflections below the diagonal of v."""
    count, m, n, reflections, columns = map(run.size, step.sizes)
    v, tau, c = (run.values(name) for name in step.reads)
    v, tau, x = v.reshape(count, m, n), tau.reshape(count, reflections), c.reshape(count, m, columns).copy()
    order = range(reflections) if dict(step.attributes)["transposed"] else range(reflections - 1, -1, -1)
    for k in order:
        below = v[:, k + 1 :, k]
        dots = tau[:, k, None] * (x[:, k] + np.einsum("ci,cij->cj", below, x[:, k + 1 :]))
        x[:, k] -= dots
        x[:, k + 1 :] -= below[:, :, None] * dots[:, None]
    run.write(step.writes[0], x)


@KERNELS.register("svd")
def _svd(run: Interpreter, step: ExternKernel) -> None:
    """A = U · diag(s) · Vᵀ with m >= n; U has so many columns. Signs, and bases of equal values, are anyone's."""
    count, m, n, columns = map(run.size, step.sizes)
    a = run.values(step.reads[0]).reshape(count, m, n)
    u, s, vt = np.linalg.svd(a, full_matrices=columns > n)
    for name, made in zip(step.writes, (u[:, :, :columns], s, np.swapaxes(vt, 1, 2)), strict=True):
        run.write(name, np.ascontiguousarray(made))
