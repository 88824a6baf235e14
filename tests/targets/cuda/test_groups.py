"""Groups of steps in one kernel: their loop IR as text, their numbers against float64, and that NVRTC compiles them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ingot.lowering.loop_ir_printer import print_steps
from ingot.targets.cuda.codegen import writer_modules as _writers
from ingot.targets.cuda.schedule.statements import GemmGroup, MapGroup
from ingot.targets.cuda.target import CUDA
from tests.support.cuda_emulation.kernels import check_cubin, write_kernels
from tests.targets.cuda.test_gemm_cubins import _has_nvrtc
from tests.targets.cuda.test_schedule import Cache, check_calls, lower, print_pass

assert _writers

Golden = Callable[[str, str], None]


class Siblings(nn.Module):
    """Layers of the same rows, of different widths, two with an activation, one added to what the first gives."""

    def __init__(self, width: int, outs: tuple[int, ...], transposed: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, out) for out in outs)
        self.weights = nn.ParameterList(torch.randn(width, out) / width**0.5 for out in outs) if transposed else None

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if self.weights is not None:
            return tuple(x @ weight for weight in self.weights)
        first, *others = (layer(x) for layer in self.layers)
        return (torch.relu(first), *(F.gelu(other) * 0.5 for other in others))


class Independent(nn.Module):
    """Small Maps of the same inputs: dense, across memory, with a check, and a scatter in order."""

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, ...]:
        table = x.new_zeros(7, x.shape[1]).index_put((at,), x, accumulate=True)
        return x.flip(1) * 2, (x + 1).t().contiguous(), x[at] - 1, table, torch.cat((x, -x), 1)


def test_independent_maps_are_one_kernel(golden: Golden) -> None:
    torch.manual_seed(0)
    args = (torch.randn(5, 3), torch.tensor([4, 0, 4, 1, 2]))
    golden("map_groups", print_pass(lower(Independent(), args)[1], "map_groups"))
    scheduled = check_calls(Independent(), [args], 1e-5)
    assert any(isinstance(step, MapGroup) for step in scheduled.steps)


def test_maps_that_depend_on_each_other_stay_apart() -> None:
    class Chain(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.exp(x)
            return y.flip(0) + y

    module = CUDA.schedule(lower(Chain(), (torch.randn(9),))[1], verify=True)
    assert not any(isinstance(step, MapGroup) for step in module.steps)


@pytest.mark.parametrize(
    ("rows", "dtype", "outs", "transposed"),
    [
        (37, torch.bfloat16, (48, 96, 32), False),
        (37, torch.bfloat16, (48, 48, 48), True),
        (33, torch.float32, (48, 16), False),
        (1, torch.bfloat16, (48, 80, 32), False),
        (3, torch.float32, (64, 16), False),
    ],
)
def test_products_of_the_same_rows_are_one_kernel(
    rows: int, dtype: torch.dtype, outs: tuple[int, ...], transposed: bool
) -> None:
    torch.manual_seed(0)
    model = Siblings(72, outs, transposed).to(dtype)
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
    scheduled = check_calls(model, [(torch.randn(rows, 72).to(dtype),)], tolerance)
    groups = [step for step in scheduled.steps if isinstance(step, GemmGroup)]
    assert [len(group.steps) for group in groups] == [len(outs)]


def test_products_of_the_same_rows_as_text(golden: Golden) -> None:
    model = Siblings(64, (32, 48)).bfloat16()
    module = lower(model, (torch.randn(20, 64).bfloat16(),))[1]
    golden("gemm_groups", print_pass(module, "gemm_groups"))


@pytest.mark.parametrize("outs", [(40, 40), (48, 50)])
def test_columns_that_are_not_aligned_stay_apart(outs: tuple[int, int]) -> None:
    model = Siblings(64, outs).bfloat16()
    module = CUDA.schedule(lower(model, (torch.randn(20, 64).bfloat16(),))[1], verify=True)
    assert not any(isinstance(step, GemmGroup) for step in module.steps)


def test_a_product_that_reads_the_others_result_stays_apart() -> None:
    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(x) * torch.relu(self.first(x))

    torch.manual_seed(0)
    scheduled = check_calls(Chain().eval(), [(torch.randn(20, 32),)], 1e-5)
    text = print_steps(scheduled.steps, locations=False)
    assert not any(isinstance(step, GemmGroup) for step in scheduled.steps), text


@pytest.mark.skipif(not _has_nvrtc(), reason="there is no NVRTC: pip install nvidia-cuda-nvrtc")
def test_groups_compile() -> None:
    dtypes = (torch.bfloat16, torch.float32)
    modules = [lower(Siblings(64, (64, 32)).to(t), (torch.randn(n, 64).to(t),))[1] for t in dtypes for n in (1, 70)]
    modules.append(lower(Independent(), (torch.randn(5, 3), torch.tensor([4, 0, 4, 1, 2])))[1])
    modules.append(lower(Cache().bfloat16(), (torch.randn(1, 1, 32).bfloat16(), torch.tensor([2])))[1])
    for module in modules:
        text, _ = write_kernels(CUDA.schedule(module, verify=True))
        cubins = check_cubin(text)
        assert set(cubins) == {"sm_80", "sm_90a"} and all(cubins.values())
