"""Groups of Maps in one kernel: their loop IR as text, their numbers against float64, and that NVRTC compiles them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from ingot.targets.cuda.build import nvrtc
from ingot.targets.cuda.codegen import writer_modules as _writers
from ingot.targets.cuda.schedule.statements import MapGroup
from ingot.targets.cuda.target import CUDA
from tests.support.cuda_emulation.kernels import check_cubin, write_kernels
from tests.support.cuda_emulation.toolkit import needs_nvrtc
from tests.targets.cuda.test_schedule import Cache, check_calls, lower, print_pass

assert _writers

Golden = Callable[[str, str], None]


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


@needs_nvrtc
def test_groups_compile_by_nvrtc() -> None:
    modules = [lower(Independent(), (torch.randn(5, 3), torch.tensor([4, 0, 4, 1, 2])))[1]]
    modules.append(lower(Cache().bfloat16(), (torch.randn(1, 1, 32).bfloat16(), torch.tensor([2])))[1])
    for module in modules:
        text, _ = write_kernels(CUDA.schedule(module, verify=True))
        cubins = check_cubin(text)
        assert set(cubins) == {"sm_80", "sm_90a"} and all(cubins.values())


@needs_nvrtc
def test_small_kernels_read_nothing_before_they_wait() -> None:
    """But for weights, which no kernel writes: a promise of constant memory lets reads move over the wait."""

    class Plain(nn.Module):
        def forward(self, x: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = F.layer_norm(x, (3,)) @ x.t()
            return *Independent()(x, at), torch.softmax(y.reshape(1, -1), -1), torch.exp(x), x[:, 0].sum()

    module = lower(Plain(), (torch.randn(5, 3), torch.tensor([4, 0, 4, 1, 2])))[1]
    text, steps = write_kernels(CUDA.schedule(module, verify=True))
    small = {name for step in steps for name, kernel in step.kernels if kernel.waits}
    assert len(small) >= 3
    ptx = nvrtc.compile_text(text, "sm_90a", ptx=True).decode()
    for kernel in ptx.split(".entry ")[1:]:
        name = kernel.split("(")[0]
        if name in small:
            assert "ld.global" not in kernel[: kernel.index("griddepcontrol.wait")], name
