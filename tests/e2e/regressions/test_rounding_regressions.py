"""An operation has the same bits in every kernel that computes it, and they are eager's where eager rounds each one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import ingot

K = 3.3
Function = Callable[[Tensor], Tensor]


class Apply(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("function", [torch.softmax, torch.log_softmax, torch.logsumexp])
def test_softmax_of_large_products_is_finite(function: Callable[[Tensor, int], Tensor], dim: int) -> None:
    """The product is computed again beside its maximum; a fused multiply-add there gave inf and nan."""
    torch.manual_seed(0)
    x = torch.stack([torch.randn(7, 37, 19) * size + size for size in (1e4, 1e9, 1e10, 1e12)])
    model = Apply(lambda x: function(x * K, dim))
    compiled = ingot.compile(model, (x,), threads=1)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-6, atol=1e-6)


# What is computed in one loop is subtracted from, or compared with, itself in another.
RECOMPUTED: dict[str, Function] = {
    "distance to the maximum": lambda x: x * K - (x * K).amax(0),
    "is the minimum": lambda x: x * K == (x * K).amin(0),
    "fraction": lambda x: x * K - torch.floor(x * K),
    "fraction of a quotient": lambda x: x / K * K - torch.floor(x / K * K),
    "gather of argmax": lambda x: (x * K).gather(0, (x * K).argmax(0, keepdim=True)) - (x * K).amax(0),
    "sum of squares less itself": lambda x: x * x + x.square() - (x * x + x.square()).amax(0),
    "polynomial": lambda x: (x * K + 1) * x - ((x * K + 1) * x).amax(0, keepdim=True),
    "difference of products": lambda x: x * K - x.flip(0).flip(0) * K,
}


@pytest.mark.parametrize("name", RECOMPUTED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_recomputed_value_is_itself(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    x = torch.randn(23, 41, dtype=dtype) * 1e6
    model = Apply(RECOMPUTED[name])
    assert torch.equal(ingot.compile(model, (x,), threads=1)(x), model(x))


@pytest.mark.parametrize("columns", [1, 3, 15, 16, 17, 40])
def test_fused_operators_round_as_eager_does(columns: int) -> None:
    """In vectors and in the columns that fill none."""
    torch.manual_seed(2)
    x, y, z = (torch.randn(5, columns) for _ in range(3))

    def function(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return torch.cat([x * y + z, x * y - z, z - x * y, (x - y) * (x + z) + x * x, -(x * y) - z, x / y + y * z])

    model = Apply(function)
    assert torch.equal(ingot.compile(model, (x, y, z), threads=1)(x, y, z), model(x, y, z))


def test_products_still_multiply_and_add_in_one_instruction() -> None:
    """Where the machine has it: contraction is off, so the kernels name it themselves."""
    from ingot.targets.cpu.codegen.headers import resource

    for header in ("gemm.h", "depthwise.h", "attention.h", "weight_only_gemm.h", "bf16.h"):
        assert "ig_fma_" in resource(header)
