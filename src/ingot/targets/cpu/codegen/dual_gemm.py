"""Dual GEMMs as C: the kernel of the first step, which also computes the second one's sums of each tile."""

from __future__ import annotations

from ingot.targets.cpu.codegen.convolution import windows_kernel, write_windows_beside
from ingot.targets.cpu.codegen.gemm import product_kernel, write_product_beside
from ingot.targets.cpu.codegen.kernel_writer import CKernelWriter, Kernel
from ingot.targets.cpu.schedule.statements import DualGemm, PackedGemm


def pair_kernel(out: CKernelWriter, pair: DualGemm) -> Kernel:
    first, second = pair.steps

    def write_second(rows: int) -> None:
        if isinstance(second, PackedGemm):
            write_product_beside(out, second, rows)
        else:
            write_windows_beside(out, second, rows)

    if isinstance(first, PackedGemm):
        return product_kernel(out, first, write_second)
    return windows_kernel(out, first, write_second)
