"""Strip-mined steps as C: one task is a strip of lines, and the steps' parts of it follow one another.

A strip of what lies between two steps is in the worker's scratch. Its pointer is moved back by what the strip does not
hold, so that the steps' own indices, which count from the first line of the first image, are right as they are. Where
the worker did the strip above just before, the lines that both need are moved to the front, and are not computed again.
"""

from __future__ import annotations

from ingot.codegen.c_expressions import STORED
from ingot.lowering.dtypes import BYTES
from ingot.targets.cpu.codegen.convolution import write_lines
from ingot.targets.cpu.codegen.gemm import write_product_rows
from ingot.targets.cpu.codegen.kernel_writer import CKernelWriter, Kernel
from ingot.targets.cpu.schedule.statements import PackedGemm, StripMined
from ingot.targets.cpu.schedule.strip_mining import held_lines, line_size, window


def strips_kernel(out: CKernelWriter, step: StripMined) -> Kernel:
    last = len(step.steps) - 1
    lines = out.size(step.grids[last][0])
    strips = (step.grids[last][0] + step.lines - 1) // step.lines
    out.open("for (int64_t task = begin; task < end; ++task)")
    out.line(
        f"const int64_t image = task / ({out.size(strips)}), from{last} = task % ({out.size(strips)}) * {step.lines};"
    )
    out.line(f"const int64_t to{last} = ig_min(from{last} + {step.lines}, {lines});")
    out.line(f"const int goes_on = ig_goes_on(c, worker, task) && from{last} > 0;")
    out.line(
        f"const int64_t above{last} = from{last} - {step.lines}, there{last} = from{last}, done{last} = from{last};"
    )
    for place in range(last - 1, -1, -1):
        _emit_needed_lines(out, step, place)
    for place, count in enumerate(held_lines(step)):
        _hold(out, step, place, count)
    for place, stage in enumerate(step.steps):
        high, wide = (out.size(size) for size in step.grids[place])
        first, end = (f"image * ({high}) + {name}{place}" for name in ("done", "to"))
        out.open("")
        if isinstance(stage, PackedGemm):
            write_product_rows(out, stage, f"({first}) * ({wide})", f"({end}) * ({wide})")
        else:
            write_lines(out, stage, first, end)
        out.close()
    out.close()
    return out.finish(step.images * strips, 1)


def _emit_needed_lines(out: CKernelWriter, step: StripMined, place: int) -> None:
    """Lines [from, to) of what a step writes are what the next one reads of it. The strip above had [above, there); of
    those, the worker may still have what lies before `done`."""
    stride, padding, reach = window(step.steps[place + 1])
    limit = out.size(step.grids[place][0])

    def begin(line: str) -> str:
        return f"ig_clamp({line} * {stride} - {padding}, {limit})"

    def end(line: str) -> str:
        return f"ig_clamp(({line} - 1) * {stride} - {padding} + {reach}, {limit})"

    following = place + 1
    out.line(f"const int64_t from{place} = {begin(f'from{following}')}, to{place} = {end(f'to{following}')};")
    out.line(f"const int64_t above{place} = {begin(f'above{following}')}, there{place} = {end(f'there{following}')};")
    out.line(f"const int64_t done{place} = goes_on ? ig_max(from{place}, there{place}) : from{place};")


def _hold(out: CKernelWriter, step: StripMined, place: int, count: int) -> None:
    name = step.local[place]
    dtype = out.buffers[name].dtype
    stored, line = STORED[dtype], line_size(step, place)
    out.own(f"held{place}", stored, count * line * BYTES[dtype])
    out.line(
        f"if (done{place} > from{place}) memmove(held{place}, held{place} + (from{place} - above{place}) * {line}, "
        f"(size_t)(done{place} - from{place}) * {line * BYTES[dtype]});"
    )
    out.line(
        f"{stored} *const strip{place} = held{place} - "
        f"(image * ({out.size(step.grids[place][0])}) + from{place}) * {line};"
    )
    out.locals[name] = (f"strip{place}", True)
