"""Which blocks of a mask hold anything: a block of threads for each of them."""

from __future__ import annotations

from ingot.codegen.c_expressions import CBodyEmitter
from ingot.lowering.dependence import reads_and_writes
from ingot.lowering.index_expr import product
from ingot.lowering.loop_ir import ClassifyMaskBlocks, Loop
from ingot.targets.cuda.codegen.kernel import CudaKernel, Grid
from ingot.targets.cuda.codegen.kernel_rules import KERNELS
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter
from ingot.targets.cuda.codegen.loop_kernels.loop_points import loop_type, unflatten, write_points

BLOCK = 256


@KERNELS.register(ClassifyMaskBlocks)
def write_mask_blocks(out: CudaKernelWriter, step: ClassifyMaskBlocks) -> CudaKernel:
    """0 says that no pair of the block holds, 1 some, 2 all."""
    read, written = reads_and_writes(step)
    down = (step.queries + step.high - 1) // step.high
    right = (step.keys + step.wide - 1) // step.wide
    points = product([loop.extent for loop in step.batch])
    pairs = (Loop("i", step.queries), Loop("j", step.keys))
    type_ = loop_type(out, sorted(read | written), (*step.batch, *pairs), [step.mask])
    out.line(f"const {type_} tile = ({type_})blockIdx.x;")
    tiles, columns = out.size(down * right), out.size(right)
    out.line(f"const {type_} point = tile / ({tiles}), within = tile % ({tiles});")
    out.line(f"const {type_} top = within / ({columns}) * {step.high}, left = within % ({columns}) * {step.wide};")
    unflatten(out, "point", type_, step.batch)
    out.line("int some = 0, all = 1;")
    out.open(f"for (int pair = (int)threadIdx.x; pair < {step.high * step.wide}; pair += {BLOCK})")
    out.line(f"const {type_} i = top + pair / {step.wide}, j = left + pair % {step.wide};")
    out.line(f"if (i >= {out.size(step.queries)} || j >= {out.size(step.keys)}) continue;")

    def count(code: CBodyEmitter) -> None:
        out.line(f"const int holds = ({code.results[0]}) != 0;")
        out.line("some |= holds, all &= holds;")

    write_points(out, step.mask, (), "pair", type_, None, count)
    out.close()
    out.line(f"__shared__ int warps[{2 * BLOCK // 32}];")
    out.line("const unsigned any = ig_ballot(some), none = ig_ballot(!all);")
    out.line("if (ig_lane() == 0) warps[2 * ig_warp()] = any != 0, warps[2 * ig_warp() + 1] = none == 0;")
    out.line("__syncthreads();")
    out.open("if (threadIdx.x == 0)")
    out.line(f"for (int w = 1; w < {BLOCK // 32}; ++w) warps[0] |= warps[2 * w], warps[1] &= warps[2 * w + 1];")
    out.written.add(step.buffer)
    out.line(f"{out.pointer(step.buffer)}[tile] = warps[0] ? 1 + warps[1] : 0;")
    out.close()
    return out.finish(Grid(points * down * right), BLOCK)
