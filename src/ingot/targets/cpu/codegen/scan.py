"""Scans as C: the state of a block of neighbouring points lies in vectors, and the iterations follow one another.

for each block of up to 64, 128 or 256 points of the innermost loop
    start → state
    for each iteration: body(state, what it reads) → state, results to memory
"""

from __future__ import annotations

from ingot.codegen.c_expressions import COMPUTED
from ingot.lowering.index_expr import product
from ingot.lowering.loop_ir import Loop, Scan
from ingot.targets.cpu.codegen.kernel_writer import CKernelWriter, Kernel
from ingot.targets.cpu.codegen.loop_nests import GRAIN, declare_flags, flag_clauses, report_flags, simd, unflatten

# Neighbouring points whose states are carried together: the more, the longer the pieces of memory that an iteration
# reads and writes. But there must be work for several threads.
LANES = (256, 128, 64)
TASKS = 8


def scan_kernel(out: CKernelWriter, step: Scan) -> Kernel:
    *outer, inner = step.loops or (Loop("lane", 1),)
    rows, wide = out.hint(product([loop.extent for loop in outer])), out.hint(inner.extent)
    lanes = next((n for n in LANES if n <= wide and rows * (wide // n) >= TASKS), LANES[-1])
    blocks = (inner.extent + lanes - 1) // lanes
    dtypes = [COMPUTED[step.start.ops[result].dtype] for result in step.start.results]
    out.open("for (int64_t task = begin; task < end; ++task)")
    out.line(f"const int64_t first = task % ({out.size(blocks)}) * {lanes};")
    out.line(f"const int64_t last = ig_min(first + {lanes}, {out.size(inner.extent)});")
    if outer:
        out.line(f"const int64_t o = task / ({out.size(blocks)});")
        unflatten(out, "o", outer)
    for number, dtype in enumerate(dtypes):
        out.line(f"_Alignas(64) {dtype} carried{number}[{lanes}];")
    lane, turn, turns = inner.variable, step.over.variable, out.size(step.over.extent)
    _lanes(out, step, lane, start=True)
    if step.back:
        out.open(f"for (int64_t {turn} = {turns} - 1; {turn} >= 0; --{turn})")
    else:
        out.open(f"for (int64_t {turn} = 0; {turn} < {turns}; ++{turn})")
    _lanes(out, step, lane, start=False)
    out.close()
    out.close()
    total = product([loop.extent for loop in outer]) * blocks
    work = max(1, out.hint(step.over.extent)) * min(lanes, max(1, wide))
    return out.finish(total, max(1, GRAIN // work))


def _lanes(out: CKernelWriter, step: Scan, lane: str, *, start: bool) -> None:
    """The first state, or one iteration, of every point of the block."""
    body = step.start if start else step.body
    count = len(step.start.results)
    code = out.statements(body, [lane])
    declare_flags(out, code)
    for line in code.before:
        out.line(line)
    simd(out, False, flag_clauses(code))
    out.open(f"for (int64_t {lane} = first; {lane} < last; ++{lane})")
    if not start:
        for number in range(count):
            out.line(
                f"const {COMPUTED[step.start.ops[step.start.results[number]].dtype]} state{number} = "
                f"carried{number}[{lane} - first];"
            )
    for line in code.inside:
        out.line(line)
    for number in range(count):
        out.line(f"carried{number}[{lane} - first] = {code.results[number]};")
    if not start:
        for store in step.stores:
            out.line(out.store(store, code.results[store.result]))
    out.close()
    report_flags(out, code)
