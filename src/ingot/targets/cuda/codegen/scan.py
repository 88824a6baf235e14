"""Scans by a user's function: a thread for each point, its state in registers, one iteration after another."""

from __future__ import annotations

from ingot.codegen.c_expressions import COMPUTED
from ingot.lowering.dependence import reads_and_writes
from ingot.lowering.index_expr import product
from ingot.lowering.loop_ir import Scan
from ingot.targets.cuda.codegen.kernel import CudaKernel, Grid
from ingot.targets.cuda.codegen.kernel_rules import KERNELS
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter
from ingot.targets.cuda.codegen.loop_kernels.loop_points import loop_type, store_results, unflatten

# Few threads to a block: points are often few, and they should have many multiprocessors.
BLOCK = 64


@KERNELS.register(Scan)
def write_scan(out: CudaKernelWriter, step: Scan) -> CudaKernel:
    read, written = reads_and_writes(step)
    type_ = loop_type(out, sorted(read | written), (*step.loops, step.over), [step.start, step.body])
    total = product([loop.extent for loop in step.loops])
    out.line(f"const {type_} at = ({type_})blockIdx.x * {BLOCK} + ({type_})threadIdx.x;")
    out.line(f"if (at >= {out.size(total)}) return;")
    unflatten(out, "at", type_, step.loops)
    types = [COMPUTED[step.start.ops[result].dtype] for result in step.start.results]
    for number, kind in enumerate(types):
        out.line(f"{kind} state{number};")
    out.open("")
    code = out.statements(step.start, ())
    out.declare_flags(code)
    for line in (*code.before, *code.inside):
        out.line(line)
    for number in range(len(types)):
        out.line(f"state{number} = {code.results[number]};")
    out.report_flags(code)
    out.close()
    turn, turns = step.over.variable, out.size(step.over.extent)
    if step.back:
        out.open(f"for ({type_} {turn} = {turns} - 1; {turn} >= 0; --{turn})")
    else:
        out.open(f"for ({type_} {turn} = 0; {turn} < {turns}; ++{turn})")
    code = out.statements(step.body, ())
    out.declare_flags(code)
    for line in (*code.before, *code.inside):
        out.line(line)
    store_results(out, step.stores, code)
    for number, kind in enumerate(types):
        out.line(f"const {kind} next{number} = {code.results[number]};")
    for number in range(len(types)):
        out.line(f"state{number} = next{number};")
    out.report_flags(code)
    out.close()
    return out.finish(Grid((total + BLOCK - 1) // BLOCK), BLOCK)
