"""Hand-written kernels: sorting, scans and small linear algebra, a thread for each row, line or matrix.

Each is a macro or a function of a C header that all targets share, written out once for each dtype that a model uses.
Long rows are sorted, and long lines are scanned, by a block each.
"""

from __future__ import annotations

from collections.abc import Callable

from ingot.codegen.c_expressions import STORED
from ingot.lowering.index_expr import Size
from ingot.lowering.loop_ir import ExternKernel
from ingot.registry import Registry
from ingot.targets.cuda.codegen.kernel import WARP, CudaKernel, Grid
from ingot.targets.cuda.codegen.kernel_rules import KERNELS
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter

# Writes the call for unit of work `at`; returns how many there are.
Emitter = Callable[[CudaKernelWriter, ExternKernel], Size]

BLOCK = 64
# What a scan's sum and product are carried in.
_CARRIED = {"float32": "double", "float64": "double"}


# Elements from which on a row or a line has a block of its own.
LONG_ROW = 17
LONG_LINE = 65
SCAN_THREADS = 256
# Elements of a row whose places lie in shared memory while they are sorted.
MOST_SHARED = 6144


@KERNELS.register(ExternKernel)
def write_extern(out: CudaKernelWriter, step: ExternKernel) -> CudaKernel:
    if step.name == "sort" and out.hint(step.sizes[1]) >= LONG_ROW:
        return _write_block_sort(out, step)
    if step.name == "scan" and _suits_block_scan(out, step):
        return _write_block_scan(out, step)
    for name in (*step.reads, *step.writes):
        out.pointer(name)
    out.written.update(step.writes)
    body = out.next_kernel()
    body.pointers, body.written, body.types, body.depth = out.pointers, out.written, out.types, out.depth
    total = _EMITTERS[step.name](body, step)
    out.sizes |= body.sizes
    out.computed.update(body.computed)
    out.line(f"const int64_t at = (int64_t)blockIdx.x * {BLOCK} + (int64_t)threadIdx.x;")
    out.line(f"if (at >= {out.size(total)}) return;")
    out.lines += body.lines
    return out.finish(Grid((total + BLOCK - 1) // BLOCK), BLOCK)


# ---------------------------------------------------------------------- by blocks


def _write_block_sort(out: CudaKernelWriter, step: ExternKernel) -> CudaKernel:
    rows, n = step.sizes
    x, values, places = _pointers(out, step)
    out.written.update(step.writes)
    out.library.use("sort.cuh")
    length = out.size(n)
    threads = WARP
    while threads < 1024 and threads < out.hint(n):
        threads *= 2
    shared = 8 * n if isinstance(n, int) and n <= MOST_SHARED else 0
    out.line(f"const int64_t at = (int64_t)blockIdx.x * ({length});")
    if shared:
        out.line(f"int *const from = (int *)ig_shared(), *const to = from + {length};")
    else:
        memory = out.scratch_pointer(out.scratch.reserve(rows * n * 8), "int", written=True)
        out.line(f"int *const from = {memory} + 2 * at, *const to = from + {length};")
    down = int(dict(step.attributes)["descending"])
    out.line(f"ig_sort_row({x} + at, {values} + at, {places} + at, from, to, (int)({length}), {down}, {threads});")
    return out.finish(Grid(rows), threads, shared)


def _suits_block_scan(out: CudaKernelWriter, step: ExternKernel) -> bool:
    """Where parts of a line may be put together in any order without a result that runs over: a sum of doubles, or a
    product, may on its way."""
    _, n, inner = step.sizes
    kind, dtype = dict(step.attributes)["kind"], out.buffers[step.reads[0]].dtype
    if inner != 1 or out.hint(n) < LONG_LINE:
        return False
    return bool(kind == "logsumexp" or (kind == "sum" and dtype != "float64"))


def _write_block_scan(out: CudaKernelWriter, step: ExternKernel) -> CudaKernel:
    outer, n, _ = step.sizes
    x, y = _pointers(out, step)
    out.written.update(step.writes)
    kind, dtype = dict(step.attributes)["kind"], out.buffers[step.reads[0]].dtype
    wide, start = _CARRIED.get(dtype, STORED[dtype]), "0"
    out.library.use("scan.cuh")
    if kind == "logsumexp":
        out.library.functions.update({"ig_exp_f64", "ig_log1p_f64"})
        out.library.use("scan.cuh", "IG_STEP_LOGSUMEXP")
        start = "-INF_F64"
    length = out.size(n)
    out.line(f"const int64_t at = (int64_t)blockIdx.x * ({length});")
    out.line(f"ig_scan_line<{SCAN_THREADS}>({x} + at, {y} + at, {length}, ({wide})({start}), ig_step_{kind}());")
    return out.finish(Grid(outer), SCAN_THREADS)


# ---------------------------------------------------------------------- by threads


def _own(out: CudaKernelWriter, total: Size, name: str, type_: str, count: Size) -> None:
    """Declares memory of `count` numbers of 8 bytes that belongs to the unit of work."""
    memory = out.scratch_pointer(out.scratch.reserve(total * count * 8), type_, written=True)
    out.line(f"{type_} *const {name} = {memory} + at * ({out.size(count)});")


def _pointers(out: CudaKernelWriter, step: ExternKernel) -> list[str]:
    return [out.pointer(name) for name in (*step.reads, *step.writes)]


_EMITTERS: Registry[str, Emitter] = Registry("CUDA emitter of an extern kernel")


@_EMITTERS.register("sort")
def _sort(out: CudaKernelWriter, step: ExternKernel) -> Size:
    """values, places = sort(x): rows of n; stable; a nan is larger than anything."""
    rows, n = step.sizes
    x, values, places = _pointers(out, step)
    dtype = out.buffers[step.reads[0]].dtype
    out.library.use("sort.h", f"IG_SORT({dtype}, {STORED[dtype]})")
    length = out.size(n)
    down = int(dict(step.attributes)["descending"])
    _own(out, rows, "spare", "int64_t", n)
    out.line(
        f"ig_sort_{dtype}({x} + at * ({length}), {values} + at * ({length}), {places} + at * ({length}), "
        f"spare, {length}, {down});"
    )
    return rows


@_EMITTERS.register("mode")
def _mode(out: CudaKernelWriter, step: ExternKernel) -> Size:
    """value, place = mode(sorted, places): the longest run of equals, the first of such; the last of its places."""
    rows, n = step.sizes
    x, from_, value, place = _pointers(out, step)
    dtype = out.buffers[step.reads[0]].dtype
    out.library.use("sort.h", f"IG_MODE({dtype}, {STORED[dtype]})")
    length = out.size(n)
    out.line(
        f"ig_mode_{dtype}({x} + at * ({length}), {from_} + at * ({length}), {value} + at, {place} + at, {length});"
    )
    return rows


@_EMITTERS.register("search")
def _search(out: CudaKernelWriter, step: ExternKernel) -> Size:
    """place = searchsorted(sequence, value): rows of n borders; `every` values share a row, or all of them the one."""
    values, n, every = step.sizes
    order = _pointers(out, step)
    sequence, value, result = order[0], order[1], order[-1]
    dtype = out.buffers[step.reads[0]].dtype
    out.library.use("sort.h", f"IG_SEARCH({dtype}, {STORED[dtype]})")
    length = out.size(n)
    row = f"at / ({out.size(every)}) * ({length})"
    sorter = f"{order[2]} + {row}" if len(step.reads) == 3 else "(const int64_t *)0"
    right = int(dict(step.attributes)["right"])
    out.line(f"{result}[at] = ig_search_{dtype}({sequence} + {row}, {sorter}, {length}, {value}[at], {right});")
    return values


def _line_start(out: CudaKernelWriter, step: ExternKernel) -> tuple[str, str, str]:
    """Where a line along the middle of (outer, n, inner) begins, its length, and how far apart its elements lie."""
    _, n, inner = step.sizes
    wide, length = out.size(inner), out.size(n)
    return f"at / ({wide}) * ({length}) * ({wide}) + at % ({wide})", length, wide


@_EMITTERS.register("scan")
def _scan(out: CudaKernelWriter, step: ExternKernel) -> Size:
    """y = scan(x) along the middle of (outer, n, inner): sum, prod or logsumexp."""
    outer, _, inner = step.sizes
    kind = dict(step.attributes)["kind"]
    x, y = _pointers(out, step)
    dtype = out.buffers[step.reads[0]].dtype
    if kind == "logsumexp":
        out.library.functions.update({"ig_exp_f64", "ig_log1p_f64"})
        out.library.use("scan.h", f"IG_SCAN_LOGSUMEXP({dtype}, {STORED[dtype]})")
    else:
        sign, carried = "+" if kind == "sum" else "*", _CARRIED.get(dtype, STORED[dtype])
        macro = f"IG_SCAN({kind}, {sign}, {int(kind == 'prod')}, {dtype}, {STORED[dtype]}, {carried})"
        out.library.use("scan.h", macro)
    start, length, wide = _line_start(out, step)
    out.line(f"ig_scan_{kind}_{dtype}({x} + {start}, {y} + {start}, {length}, {wide});")
    return outer * inner


@_EMITTERS.register("scan_places")
def _scan_places(out: CudaKernelWriter, step: ExternKernel) -> Size:
    """y, place = scan(x): the extreme so far and where it was met last."""
    outer, _, inner = step.sizes
    kind = dict(step.attributes)["kind"]
    x, y, place = _pointers(out, step)
    dtype = out.buffers[step.reads[0]].dtype
    out.library.use("scan.h", f"IG_SCAN_PLACES({kind}, {'>=' if kind == 'max' else '<='}, {dtype}, {STORED[dtype]})")
    start, length, wide = _line_start(out, step)
    out.line(f"ig_scan_{kind}_{dtype}({x} + {start}, {y} + {start}, {place} + {start}, {length}, {wide});")
    return outer * inner


# ---------------------------------------------------------------------- linear algebra


@_EMITTERS.register("cholesky")
def _cholesky(out: CudaKernelWriter, step: ExternKernel) -> Size:
    count, n = step.sizes
    a, found, info = _pointers(out, step)
    out.library.use("linalg.h", "IG_CHOLESKY(float64, double)")
    at, upper = f"at * ({out.size(n * n)})", int(dict(step.attributes)["upper"])
    out.line(f"ig_cholesky_float64({a} + {at}, {found} + {at}, {info} + at, {out.size(n)}, {upper});")
    return count


@_EMITTERS.register("lu")
def _lu(out: CudaKernelWriter, step: ExternKernel) -> Size:
    count, m, n = step.sizes
    a, lu, pivots, info = _pointers(out, step)
    out.library.use("linalg.h", "IG_LU(float64, double)")
    _own(out, count, "work", "double", m * n)
    high, wide = out.size(m), out.size(n)
    at, pivot = f"at * ({out.size(m * n)})", int(dict(step.attributes)["pivot"])
    out.line(
        f"ig_lu_float64({a} + {at}, {lu} + {at}, {pivots} + at * ig_min({high}, {wide}), {info} + at, work, "
        f"{high}, {wide}, {pivot});"
    )
    return count


@_EMITTERS.register("triangular")
def _triangular(out: CudaKernelWriter, step: ExternKernel) -> Size:
    count, n, columns = step.sizes
    a, b, x = _pointers(out, step)
    out.library.use("linalg.h", "IG_TRIANGULAR(float64, double)")
    _own(out, count, "work", "double", n)
    at, attributes = f"at * ({out.size(n * columns)})", dict(step.attributes)
    out.line(
        f"ig_triangular_float64({a} + at * ({out.size(n * n)}), {b} + {at}, {x} + {at}, work, "
        f"{out.size(n)}, {out.size(columns)}, {int(attributes['upper'])}, {int(attributes['unit'])});"
    )
    return count


@_EMITTERS.register("permutation")
def _permutation(out: CudaKernelWriter, step: ExternKernel) -> Size:
    count, m, swaps = step.sizes
    pivots, places = _pointers(out, step)
    out.library.use("linalg.h")
    _own(out, count, "work", "int64_t", m)
    high, steps = out.size(m), out.size(swaps)
    inverse = int(dict(step.attributes)["inverse"])
    out.line(f"ig_permutation({pivots} + at * ({steps}), {places} + at * ({high}), work, {high}, {steps}, {inverse});")
    return count


@_EMITTERS.register("qr")
def _qr(out: CudaKernelWriter, step: ExternKernel) -> Size:
    count, m, n = step.sizes
    a, r, tau = _pointers(out, step)
    out.library.use("qr_svd.h")
    at, high, wide = f"at * ({out.size(m * n)})", out.size(m), out.size(n)
    out.line(f"ig_qr({a} + {at}, {r} + {at}, {tau} + at * ig_min({high}, {wide}), {high}, {wide});")
    return count


@_EMITTERS.register("reflect")
def _reflect(out: CudaKernelWriter, step: ExternKernel) -> Size:
    count, m, n, reflections, columns = step.sizes
    v, tau, matrix, x = _pointers(out, step)
    out.library.use("qr_svd.h")
    at, several = f"at * ({out.size(m * columns)})", out.size(reflections)
    out.line(
        f"ig_reflect({v} + at * ({out.size(m * n)}), {tau} + at * ({several}), {matrix} + {at}, {x} + {at}, "
        f"{out.size(m)}, {out.size(n)}, {several}, {out.size(columns)}, {int(dict(step.attributes)['transposed'])});"
    )
    return count


@_EMITTERS.register("svd")
def _svd(out: CudaKernelWriter, step: ExternKernel) -> Size:
    count, m, n, columns = step.sizes
    a, u, s, v = _pointers(out, step)
    out.library.use("qr_svd.h")
    _own(out, count, "work", "double", m * n + n * n + 2 * n)
    out.line(
        f"ig_svd({a} + at * ({out.size(m * n)}), {u} + at * ({out.size(m * columns)}), {s} + at * ({out.size(n)}), "
        f"{v} + at * ({out.size(n * n)}), work, {out.size(m)}, {out.size(n)}, {out.size(columns)});"
    )
    return count
