"""The kernel writer of each type of step. Modules that write kernels register themselves here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ingot.lowering.loop_ir import Stmt
from ingot.registry import Registry
from ingot.targets.cuda.codegen.kernel import CudaKernel
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter

KERNELS: Registry[type[Stmt], Callable[[CudaKernelWriter, Any], CudaKernel | Sequence[CudaKernel]]] = Registry(
    "CUDA kernel writer"
)
