"""Kernels that begin before the one before them has ended: what that one writes is read behind the wait.

Only a GPU shows a read that the compiler moved in front of the wait, and only sometimes. What allows it is visible
here: a `__restrict__` pointer to memory that another kernel of the call writes, which NVRTC reads with `ld.global.nc`.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ingot
from ingot.compiler import run_cpu_pipeline
from ingot.lowering.loop_module import Module
from ingot.targets.cuda.build import nvrtc
from ingot.targets.cuda.target import CUDA
from tests.support.cuda_emulation.kernels import write_kernels
from tests.support.cuda_emulation.toolkit import needs_nvrtc


class Residuals(nn.Module):
    """Every kind of kernel on values that the kernel before it made, with the values read again behind a product."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(9, 9)
        self.wide = nn.Linear(64, 64)
        self.grid = nn.Conv2d(9, 9, 3, padding=1)
        self.norm = nn.LayerNorm(64)

    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.line(x)
        x = self.line(x) * x
        y = self.norm(self.wide(y) + y)
        y = F.scaled_dot_product_attention(y, y, y) + y
        y = y + (self.wide(y) @ y.transpose(-1, -2)).softmax(-1).sum(-1, keepdim=True)
        z = self.grid(z)
        return x, y, self.grid(z) + z


def schedule(model: nn.Module, *args: torch.Tensor) -> Module:
    program = run_cpu_pipeline(ingot.capture(model.eval(), args), (), CUDA)
    return CUDA.schedule(CUDA.lower(program, "float32"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rows", [1, 5, 128])
def test_only_weights_are_promised_to_be_constant(dtype: torch.dtype, rows: int) -> None:
    args = (torch.randn(rows, 9), torch.randn(1, 2, rows, 64), torch.randn(1, 9, 8, 8))
    module = schedule(Residuals().to(dtype), *(arg.to(dtype) for arg in args))
    overlapping = [kernel for step in write_kernels(module)[1] for _, kernel in step.kernels if kernel.waits]
    assert len(overlapping) >= 6
    for kernel in overlapping:
        for buffer, parameter in zip(kernel.buffers, kernel.signature, strict=False):
            if "__restrict__" in parameter:
                assert module.buffers[buffer].kind == "weight", (buffer, kernel.text)


@needs_nvrtc
def test_no_read_can_pass_the_wait() -> None:
    """Operands too narrow for asynchronous copies, and one of them read again behind the product."""

    class Product(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return torch.relu(a @ b) * a

    text, steps = write_kernels(schedule(Product(), torch.randn(9, 9).bfloat16(), torch.randn(9, 9).bfloat16()))
    assert any(kernel.waits for step in steps for _, kernel in step.kernels)
    assert "ld.global.nc" not in nvrtc.compile_text(text, "sm_90a", ptx=True).decode()
