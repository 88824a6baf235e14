"""Maps: one thread per point."""

from __future__ import annotations

from collections.abc import Sequence

from ingot.lowering.dependence import reads_and_writes
from ingot.lowering.index_expr import Size, product
from ingot.lowering.loop_ir import Loop, Map
from ingot.targets.cuda.codegen.kernel import CudaKernel, Grid
from ingot.targets.cuda.codegen.kernel_rules import KERNELS
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter

BLOCK = 256


def unflatten(out: CudaKernelWriter, name: str, type_: str, loops: Sequence[Loop]) -> None:
    """Declares the loops' variables for a place in their row-major order."""
    rest = name
    for number in range(len(loops) - 1, 0, -1):
        loop = loops[number]
        extent = f"({type_})({out.size(loop.extent)})"
        out.line(f"const {type_} {loop.variable} = {rest} % {extent};")
        after = loops[0].variable if number == 1 else f"{name}{number}"
        out.line(f"const {type_} {after} = {rest} / {extent};")
        rest = after
    if len(loops) == 1:
        out.line(f"const {type_} {loops[0].variable} = {rest};")


@KERNELS.register(Map)
def write_map(out: CudaKernelWriter, step: Map) -> CudaKernel:
    read, written = reads_and_writes(step)
    total: Size = product([loop.extent for loop in step.loops])
    type_ = out.index_type(sorted(read | written), [loop.extent for loop in step.loops])
    if step.collides:
        out.open(f"for ({type_} o = 0; o < {out.size(total)}; ++o)")
    else:
        out.line(f"const {type_} o = ({type_})blockIdx.x * {BLOCK} + ({type_})threadIdx.x;")
        out.line(f"if (o >= {out.size(total)}) return;")
    unflatten(out, "o", type_, step.loops)
    code = out.statements(step.body, ())
    out.declare_flags(code)
    for line in (*code.before, *code.inside):
        out.line(line)
    for store in step.stores:
        given = code.empty_dims(store.index)
        guard = f"if ({' && '.join(given)}) " if given else ""
        out.line(f"{guard}{out.store(store, code.results[store.result])}")
    out.report_flags(code)
    if step.collides:
        out.close()
        return out.finish(Grid(1), 1)
    return out.finish(Grid((total + BLOCK - 1) // BLOCK), BLOCK)
