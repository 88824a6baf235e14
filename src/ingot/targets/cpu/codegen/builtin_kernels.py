"""Hand-written kernels: what calls them, and which of them a file holds.

Each is a macro of `c/`, written out once for each dtype that a model uses. An ExternKernel's operands are dense; its
kernel takes one row, or one line of a scan, as its unit of work.
"""

from __future__ import annotations

from collections.abc import Callable

from ingot.codegen.c_expressions import STORED, SUFFIX
from ingot.codegen.entry_points import DTYPES
from ingot.lowering.custom_rules import C_KERNEL, c_kernel_of
from ingot.lowering.dtypes import BYTES
from ingot.lowering.index_expr import Size, divide, largest
from ingot.lowering.loop_ir import ExternKernel
from ingot.registry import Registry
from ingot.targets.cpu.codegen.kernel_writer import CKernelWriter, Kernel

Emitter = Callable[[CKernelWriter, ExternKernel], Size]

# How many rows a task of work takes at once, where it is more than one.
_LINES = {"dft": 16}
# Numbers up to which the first ones of a row are selected; for more, all of it is sorted.
MOST_SELECTED = 64
# What a scan's sum and product are carried in.
_CARRIED = {"float32": "double", "float64": "double"}


def routine_kernel(out: CKernelWriter, step: ExternKernel) -> Kernel:
    for name in (*step.reads, *step.writes):
        out.pointer(name)
    out.written.update(step.writes)
    out.open("for (int64_t o = begin; o < end; ++o)")
    total = _EMITTERS[step.name](out, step)
    out.close()
    work = max(1, out.hint(step.sizes[1])) * _LINES.get(step.name, 1) if step.name != C_KERNEL else 1
    return out.finish(total, max(1, 4096 // work))


def _use(out: CKernelWriter, header: str, macro: str) -> None:
    out.library.routines.add((header, macro))


_EMITTERS: Registry[str, Emitter] = Registry("C emitter of an extern kernel")


@_EMITTERS.register(C_KERNEL)
def _c_kernel(out: CKernelWriter, step: ExternKernel) -> Size:
    """results = a user's C kernel(tensors, numbers): see lowering/custom_rules.py."""
    attributes = dict(step.attributes)
    kernel = c_kernel_of(attributes["operator"])
    out.library.add_source(kernel.function, kernel.source)
    sizes = iter(map(out.size, step.sizes))
    tensors = []
    for number, (name, rank) in enumerate(zip((*step.reads, *step.writes), attributes["ranks"], strict=True)):
        out.line(f"const int64_t shape{number}[] = {{{', '.join([next(sizes) for _ in range(rank)] or ['0'])}}};")
        code = DTYPES.index(out.buffers[name].dtype)
        tensors.append(f"{{(void *){out.pointer(name)}, {code}, {rank}, shape{number}, 0, 0, 0}}")
    numbers = [f"{{.i = {next(sizes)}}}" if one == "int" else f"{{.f = {one!r}}}" for one in attributes["numbers"]]
    out.line(f"const ingot_tensor inputs[] = {{{', '.join(tensors[: len(step.reads)] or ['{0}'])}}};")
    out.line(f"const ingot_tensor outputs[] = {{{', '.join(tensors[len(step.reads) :])}}};")
    out.line(f"const ingot_number numbers[] = {{{', '.join(numbers or ['{0}'])}}};")
    out.line(f"if ({kernel.function}(inputs, outputs, numbers)) ig_fail(c, INGOT_ASSERTION);")
    return 1


@_EMITTERS.register("sort")
def _sort(out: CKernelWriter, step: ExternKernel) -> Size:
    """values, places = sort(x): rows of n; stable; a nan is larger than anything. With `first`, so many of each row."""
    rows, n = step.sizes
    attributes = dict(step.attributes)
    first = attributes.get("first")
    x, values, places = (out.pointer(name) for name in (*step.reads, *step.writes))
    dtype = out.buffers[step.reads[0]].dtype
    length = out.size(n)
    if first is not None and first <= MOST_SELECTED:
        kind, numbers = "IG_SORT_FIRST", first * 2
    else:
        kind, numbers = "IG_RADIX_SORT", n * 4
    count = length if first is None else f"ig_min({first}, {length})"
    _use(out, "radix_sort.h", f"{kind}({dtype}, {STORED[dtype]})")
    _scratch(out, "spare", "int64_t", numbers)
    out.line(
        f"{kind.lower()}_{dtype}({x} + o * ({length}), {values} + o * ({length}), {places} + o * ({length}), "
        f"spare, {length}, {count}, {int(attributes['descending'])});"
    )
    return rows


@_EMITTERS.register("mode")
def _mode(out: CKernelWriter, step: ExternKernel) -> Size:
    """value, place = mode(sorted, places): the longest run of equals, the first of such; the last of its places."""
    rows, n = step.sizes
    x, at, value, place = (out.pointer(name) for name in (*step.reads, *step.writes))
    dtype = out.buffers[step.reads[0]].dtype
    _use(out, "sort.h", f"IG_MODE({dtype}, {STORED[dtype]})")
    length = out.size(n)
    out.line(f"ig_mode_{dtype}({x} + o * ({length}), {at} + o * ({length}), {value} + o, {place} + o, {length});")
    return rows


@_EMITTERS.register("search")
def _search(out: CKernelWriter, step: ExternKernel) -> Size:
    """place = searchsorted(sequence, value): rows of n borders; `every` values share a row, or all of them the one."""
    values, n, every = step.sizes
    attributes = dict(step.attributes)
    order = [out.pointer(name) for name in (*step.reads, *step.writes)]
    sequence, value, result = order[0], order[1], order[-1]
    dtype = out.buffers[step.reads[0]].dtype
    _use(out, "sort.h", f"IG_SEARCH({dtype}, {STORED[dtype]})")
    length = out.size(n)
    row = f"o / ({out.size(every)}) * ({length})"
    sorter = f"{order[2]} + {row}" if len(step.reads) == 3 else "0"
    out.line(
        f"{result}[o] = ig_search_{dtype}({sequence} + {row}, {sorter}, {length}, {value}[o], "
        f"{int(attributes['right'])});"
    )
    return values


@_EMITTERS.register("scan")
def _scan(out: CKernelWriter, step: ExternKernel) -> Size:
    """y = scan(x) along the middle of (outer, n, inner): sum or prod."""
    outer, n, inner = step.sizes
    kind = dict(step.attributes)["kind"]
    x, y = (out.pointer(name) for name in (*step.reads, *step.writes))
    dtype = out.buffers[step.reads[0]].dtype
    carried = _CARRIED.get(dtype, STORED[dtype])
    if kind == "logsumexp":
        out.library.functions.update({"ig_exp_f64", "ig_log1p_f64"})
        _use(out, "scan.h", f"IG_SCAN_LOGSUMEXP({dtype}, {STORED[dtype]})")
    else:
        sign = "+" if kind == "sum" else "*"
        _use(out, "scan.h", f"IG_SCAN({kind}, {sign}, {int(kind == 'prod')}, {dtype}, {STORED[dtype]}, {carried})")
    wide, length = out.size(inner), out.size(n)
    start = f"o / ({wide}) * ({length}) * ({wide}) + o % ({wide})"
    out.line(f"ig_scan_{kind}_{dtype}({x} + {start}, {y} + {start}, {length}, {wide});")
    return outer * inner


@_EMITTERS.register("scan_places")
def _scan_places(out: CKernelWriter, step: ExternKernel) -> Size:
    """y, place = scan(x): the extreme so far and where it was met last."""
    outer, n, inner = step.sizes
    kind = dict(step.attributes)["kind"]
    x, y, place = (out.pointer(name) for name in (*step.reads, *step.writes))
    dtype = out.buffers[step.reads[0]].dtype
    _use(out, "scan.h", f"IG_SCAN_PLACES({kind}, {'>=' if kind == 'max' else '<='}, {dtype}, {STORED[dtype]})")
    wide, length = out.size(inner), out.size(n)
    start = f"o / ({wide}) * ({length}) * ({wide}) + o % ({wide})"
    out.line(f"ig_scan_{kind}_{dtype}({x} + {start}, {y} + {start}, {place} + {start}, {length}, {wide});")
    return outer * inner


def _scratch(out: CKernelWriter, name: str, type_: str, count: Size) -> None:
    """Declares `count` numbers of 8 bytes of the worker's own memory."""
    out.own(name, type_, count * 8)


@_EMITTERS.register("cholesky")
def _cholesky(out: CKernelWriter, step: ExternKernel) -> Size:
    count, n = step.sizes
    a, found, info = (out.pointer(name) for name in (*step.reads, *step.writes))
    _use(out, "linalg.h", "IG_CHOLESKY(float64, double)")
    size = f"({out.size(n)})"
    upper = int(dict(step.attributes)["upper"])
    out.line(
        f"ig_cholesky_float64({a} + o * {size} * {size}, {found} + o * {size} * {size}, {info} + o, {size}, {upper});"
    )
    return count


@_EMITTERS.register("lu")
def _lu(out: CKernelWriter, step: ExternKernel) -> Size:
    count, m, n = step.sizes
    a, lu, pivots, info = (out.pointer(name) for name in (*step.reads, *step.writes))
    _use(out, "linalg.h", "IG_LU(float64, double)")
    _scratch(out, "work", "double", m * n)
    high, wide = out.size(m), out.size(n)
    at = f"o * ({out.size(m * n)})"
    pivot = int(dict(step.attributes)["pivot"])
    out.line(
        f"ig_lu_float64({a} + {at}, {lu} + {at}, {pivots} + o * ig_min({high}, {wide}), {info} + o, work, "
        f"{high}, {wide}, {pivot});"
    )
    return count


@_EMITTERS.register("triangular")
def _triangular(out: CKernelWriter, step: ExternKernel) -> Size:
    count, n, columns = step.sizes
    a, b, x = (out.pointer(name) for name in (*step.reads, *step.writes))
    _use(out, "linalg.h", "IG_TRIANGULAR(float64, double)")
    _scratch(out, "work", "double", n)
    at = f"o * ({out.size(n * columns)})"
    attributes = dict(step.attributes)
    out.line(
        f"ig_triangular_float64({a} + o * ({out.size(n * n)}), {b} + {at}, {x} + {at}, work, "
        f"{out.size(n)}, {out.size(columns)}, {int(attributes['upper'])}, {int(attributes['unit'])});"
    )
    return count


@_EMITTERS.register("permutation")
def _permutation(out: CKernelWriter, step: ExternKernel) -> Size:
    count, m, swaps = step.sizes
    pivots, places = (out.pointer(name) for name in (*step.reads, *step.writes))
    _use(out, "linalg.h", "")
    _scratch(out, "work", "int64_t", m)
    high, steps = out.size(m), out.size(swaps)
    inverse = int(dict(step.attributes)["inverse"])
    out.line(f"ig_permutation({pivots} + o * ({steps}), {places} + o * ({high}), work, {high}, {steps}, {inverse});")
    return count


@_EMITTERS.register("qr")
def _qr(out: CKernelWriter, step: ExternKernel) -> Size:
    count, m, n = step.sizes
    a, r, tau = (out.pointer(name) for name in (*step.reads, *step.writes))
    _use(out, "qr_svd.h", "")
    at, high, wide = f"o * ({out.size(m * n)})", out.size(m), out.size(n)
    out.line(f"ig_qr({a} + {at}, {r} + {at}, {tau} + o * ig_min({high}, {wide}), {high}, {wide});")
    return count


@_EMITTERS.register("reflect")
def _reflect(out: CKernelWriter, step: ExternKernel) -> Size:
    count, m, n, reflections, columns = step.sizes
    v, tau, matrix, x = (out.pointer(name) for name in (*step.reads, *step.writes))
    _use(out, "qr_svd.h", "")
    at, several = f"o * ({out.size(m * columns)})", out.size(reflections)
    out.line(
        f"ig_reflect({v} + o * ({out.size(m * n)}), {tau} + o * ({several}), {matrix} + {at}, {x} + {at}, "
        f"{out.size(m)}, {out.size(n)}, {several}, {out.size(columns)}, {int(dict(step.attributes)['transposed'])});"
    )
    return count


@_EMITTERS.register("svd")
def _svd(out: CKernelWriter, step: ExternKernel) -> Size:
    count, m, n, columns = step.sizes
    a, u, s, v = (out.pointer(name) for name in (*step.reads, *step.writes))
    _use(out, "qr_svd.h", "")
    _scratch(out, "work", "double", m * n + n * n + 2 * n)
    out.line(
        f"ig_svd({a} + o * ({out.size(m * n)}), {u} + o * ({out.size(m * columns)}), {s} + o * ({out.size(n)}), "
        f"{v} + o * ({out.size(n * n)}), work, {out.size(m)}, {out.size(n)}, {out.size(columns)});"
    )
    return count


@_EMITTERS.register("dft")
def _dft(out: CKernelWriter, step: ExternKernel) -> Size:
    """As many lines at a time as 64 bytes hold numbers. `inner` of them lie between the numbers of one that is read."""
    lines, n, inner, inner_out = step.sizes
    x, turns, y = (out.pointer(name) for name in (*step.reads, *step.writes))
    dtype = out.buffers[step.reads[0]].dtype
    kind = SUFFIX[dtype]
    _use(out, "dft.h", f"IG_DFT({kind}, {STORED[dtype]})")
    _scratch(out, "work", "char", (n * 4 + 4) * 8)
    out.line(
        f"ig_dft_{kind}({x}, {turns}, {y}, work, {out.size(n)}, {out.size(lines)}, {out.size(inner)}, "
        f"{out.size(inner_out)}, o, ig_dft_{dict(step.attributes)['kind']});"
    )
    lanes, wide = 64 // BYTES[dtype], largest(inner, inner_out)
    if isinstance(wide, int) and wide < lanes:
        return (lines + lanes - 1) // lanes
    # If it is small when it runs, too many: the last ones do nothing.
    return divide(lines, wide) * ((wide + lanes - 1) // lanes)


@_EMITTERS.register("winograd")
def _winograd(out: CKernelWriter, step: ExternKernel) -> Size:
    """The tiles of an image, one line of them at a time, each as 16 rows of channels."""
    images, _, high, wide, channels, down, across, padding_y, padding_x = step.sizes
    x, to = (out.pointer(name) for name in (*step.reads, *step.writes))
    kind = SUFFIX[out.buffers[step.reads[0]].dtype]
    out.library.share("winograd", kind)
    out.line(f"const int64_t y = o % ({out.size(down)}), n = o / ({out.size(down)});")
    out.open(f"for (int64_t x = 0; x < {out.size(across)}; ++x)")
    out.line(
        f"ig_spread_{kind}({x} + n * ({out.size(high * wide * channels)}), "
        f"{to} + (o * ({out.size(across)}) + x) * ({out.size(channels)}), "
        f"{out.size(images * down * across * channels)}, {out.size(high)}, {out.size(wide)}, {out.size(channels)}, "
        f"y * 2 - ({out.size(padding_y)}), x * 2 - ({out.size(padding_x)}));"
    )
    out.close()
    return images * down
