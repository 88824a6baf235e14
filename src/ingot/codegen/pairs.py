"""Pairs as C: the kernel of the first step, with the second one's sums of each tile beside its own."""

from __future__ import annotations

from ingot.codegen.convolutions import windows_kernel, write_windows_beside
from ingot.codegen.kernels import Kernel, Writer
from ingot.codegen.products import product_kernel, write_product_beside
from ingot.lowering.ir import Pair, Product


def pair_kernel(out: Writer, pair: Pair) -> Kernel:
    first, second = pair.steps

    def beside() -> None:
        if isinstance(second, Product):
            write_product_beside(out, second)
        else:
            write_windows_beside(out, second)

    if isinstance(first, Product):
        return product_kernel(out, first, beside)
    return windows_kernel(out, first, beside)
