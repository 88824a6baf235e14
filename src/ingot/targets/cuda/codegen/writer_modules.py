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

WRITERS = (
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
