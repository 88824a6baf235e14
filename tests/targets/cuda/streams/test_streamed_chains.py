"""Streamed products one after another in one kernel: numbers against float64, and what the kernel must be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ingot.errors import ScheduleError
from ingot.lowering.loop_module import Module
from ingot.targets.cuda.schedule import streams
from ingot.targets.cuda.schedule.statements import StreamedChain, StreamedGemm, TiledGemm
from ingot.targets.cuda.schedule.streamed_chains import list_groups
from ingot.targets.cuda.schedule.streamed_groups import plan_group
from ingot.targets.cuda.schedule.streams import plan_ring, plan_stream
from ingot.targets.cuda.schedule.verifier import verify_schedule
from tests.support.cuda_emulation.emulated_model import EmulatedModel
from tests.support.cuda_emulation.kernels import build_text, check_cubin, write_kernels
from tests.support.cuda_emulation.toolkit import count, disassemble, needs_nvrtc
from tests.targets.cuda.streams import test_streamed_groups as groups
from tests.targets.cuda.streams.test_streamed_groups import Gated, Norm
from tests.targets.cuda.test_gemm_epilogues import compare, randn
from tests.targets.cuda.test_schedule import print_pass

Golden = Callable[[str, str], None]
check = partial(groups.check, disabled=())
schedule = partial(groups.schedule, disabled=())


@pytest.fixture(autouse=True)
def stream_small_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_LEAST_ELEMENTS", 1)


class Layers(nn.Module):
    """Gated layers: of each, two products."""

    def __init__(self, width: int, hidden: int, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Gated(width, hidden) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            (x,) = layer(x)
        return x


class Plain(nn.Module):
    """Products of several rows, of very different sizes, with residuals that reach over more than one of them."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.last = nn.Linear(widths[-1], widths[0], bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x
        for part in self.parts:
            y = F.gelu(part(y))
        return x + self.last(y), y


def find_chains(module: Module) -> list[list[str]]:
    return [[type(one).__name__ for one in step.steps] for step in module.steps if isinstance(step, StreamedChain)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_layers_are_one_kernel(dtype: torch.dtype, golden: Golden) -> None:
    torch.manual_seed(0)
    model = Layers(40, 72, 2).to(dtype).eval()
    x = randn(1, 1, 40, dtype=dtype)
    module = check(model, x)
    assert find_chains(module) == [["StreamedGemm", "TiledGemm", "StreamedGemm", "TiledGemm"]]
    assert len(module.steps) == 1
    if dtype == torch.bfloat16:
        golden("streamed_chains", print_pass(schedule(Layers(40, 72, 1).to(dtype).eval(), (x,))[1], "chains"))
    assert not find_chains(groups.check(model, x))


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_products_of_very_different_sizes(rows: int) -> None:
    """One has fewer blocks than the others, one more terms than a slot has."""
    torch.manual_seed(0)
    module = check(Plain(40, 2312, 16, 520).bfloat16().eval(), randn(rows, 40))
    assert [len(chain) for chain in find_chains(module)] == [4]


def test_fewer_blocks_than_a_product_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU with few multiprocessors, blocks take lines in turns. So they do with the sums of many rows."""
    torch.manual_seed(0)
    model, x = Plain(40, 264, 72).bfloat16().eval(), randn(2, 40)
    program, _, module = schedule(model, (x,))
    (chain,) = module.steps
    assert isinstance(chain, StreamedChain)
    for blocks in (1, 3, 32):
        text, written = write_kernels(module)
        (name, kernel) = written[0].kernels[0]
        assert kernel.together and kernel.grid.x == 33
        fewer = replace(written[0], kernels=((name, replace(kernel, grid=replace(kernel.grid, x=blocks))),))
        compare(model, (x,), EmulatedModel(program, module, build_text(text), [fewer]))
    monkeypatch.setattr(streams, "_SUM_BYTES", 1 << 9)
    module = check(Plain(40, 1064, 72).bfloat16().eval(), randn(8, 40))
    (chain,) = (step for step in module.steps if isinstance(step, StreamedChain))
    assert max(plan_group(group).blocks for group in list_groups(chain.steps)) > 132


def test_long_runs_are_several_kernels() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(24, 24) for _ in range(11))).bfloat16().eval()
    assert [len(chain) for chain in find_chains(check(model, randn(1, 24)))] == [8, 3]


def test_a_row_that_a_later_product_reads() -> None:
    class Kept(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.one, self.other = Norm(24), nn.Linear(24, 24), nn.Linear(24, 24)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows = self.norm(x)
            return self.other(torch.tanh(self.one(rows))) * rows

    assert find_chains(check(Kept().bfloat16().eval(), randn(1, 24)))


def test_plans_of_chains() -> None:
    """Of a decoder's layer: eleven slots of 1,024 terms, three of them on their way, and room for a small block beside
    them."""
    plans = [
        plan_stream(1, 2048, 2048),
        plan_stream(1, 11264, 2048, pairs=True),
        plan_stream(1, 2048, 5632),
        plan_stream(1, 3072, 2048, pairs=True),
    ]
    ring = plan_ring(plans)
    assert (ring.slots, ring.terms, ring.flight) == (11, 1024, 3)
    assert ring.shared <= 200 << 10 and ring.plain_shared <= 20 << 10


def test_refused_chains() -> None:
    _, _, module = schedule(Layers(40, 72, 1).bfloat16().eval(), (randn(1, 1, 40),))
    (chain,) = module.steps
    assert isinstance(chain, StreamedChain)
    verify_schedule(module, "chains")

    def refuse(why: str, *steps: Any) -> None:
        with pytest.raises(ScheduleError, match=why):
            verify_schedule(replace(module, steps=(replace(chain, steps=steps),)), "chains")

    first, second = chain.steps
    assert isinstance(first, StreamedGemm) and isinstance(second, TiledGemm)
    refuse("two to 8 products", first)
    refuse("not streamed", first, replace(second, algorithm="rows"))
    refuse("no step before it writes that", second, first)
    refuse("not streamed", replace(first, steps=(*first.steps[:1], replace(first.product, algorithm="rows"))), second)


@needs_nvrtc
def test_the_kernel_spills_nothing(tmp_path: Path) -> None:
    module = schedule(Layers(2048, 5632, 2).bfloat16().eval(), (randn(1, 1, 2048),))[2]
    assert find_chains(module)
    for architecture, cubin in check_cubin(write_kernels(module)[0]).items():
        for name, found in disassemble(cubin, tmp_path).items():
            assert count(found, "STL", "LDL") == 0, f"{name} spills registers on {architecture}"
            assert count(found, "HMMA") >= 16
            if architecture == "sm_90a":
                assert count(found, "UBLKCP") > 0 and count(found, "ATOMG") > 0, name
