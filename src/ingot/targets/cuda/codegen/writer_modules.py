"""The modules that write kernels: to import this one is to have them in `KERNELS`."""

from __future__ import annotations

from ingot.targets.cuda.codegen import (
    attention,
    attention_backward,
    convolution,
    extern_kernels,
    gemm,
    loops,
    map_groups,
    mask_blocks,
    reductions,
    scan,
)
from ingot.targets.cuda.codegen.products import coded_product

WRITERS = (
    attention,
    attention_backward,
    coded_product,
    convolution,
    extern_kernels,
    gemm,
    loops,
    map_groups,
    mask_blocks,
    reductions,
    scan,
)
