"""Products and convolutions of integers for Arm processors: every order of a sum gives the same bits."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ingot.codegen.build.isa import find_isa
from tests.e2e.products.test_bfloat16 import judge, narrow
from tests.e2e.products.test_random_windows import check_bytes, check_whole_numbers
from tests.support.arm_emulation.emulator import PROCESSORS, find_missing
from tests.support.arm_emulation.target import EMULATED

_MISSING = find_missing()
pytestmark = pytest.mark.skipif(_MISSING is not None, reason=str(_MISSING))
SEEDS = (0, 1)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("isa", PROCESSORS)
def test_bytes_are_exact(isa: str, seed: int) -> None:
    check_bytes(find_isa(isa), seed, EMULATED[isa])


@pytest.mark.parametrize(
    ("isa", "kind"),
    [("aarch64", "float32"), ("aarch64", "float64"), ("aarch64", "bfloat16"), ("aarch64-bf16", "bfloat16")],
)
@pytest.mark.parametrize("seed", SEEDS)
def test_integers_are_exact(kind: str, isa: str, seed: int) -> None:
    check_whole_numbers(kind, find_isa(isa), seed, EMULATED[isa])


@pytest.mark.parametrize(
    ("rows", "depth", "columns"), [(1, 64, 64), (13, 769, 50), (70, 1100, 96), (5, 35, 17), (6, 34, 17)]
)
@pytest.mark.parametrize("isa", PROCESSORS)
def test_bfloat16_keeps_its_bound(isa: str, rows: int, depth: int, columns: int) -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(depth, columns, bias=False), torch.randn(rows, depth)
    judge(model, x, narrow(model, x, isa=find_isa(isa), target=EMULATED[isa]), depth)
