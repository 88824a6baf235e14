"""Attention by groups of four warps, emulated: what Hopper's instructions compute, in tiles of 128 queries."""

from __future__ import annotations

import pytest
import torch

from ingot.lowering.loop_ir import Attention
from ingot.targets.cuda.codegen import attention
from ingot.targets.cuda.schedule import attention_tiles
from tests.support.cuda_emulation.emulated_steps import EmulatedSteps
from tests.support.cuda_emulation.kernels import write_kernels
from tests.support.kernel_functions import ATTENDING, attend
from tests.targets.cuda.test_attention import Attend, Flexible, check, double, draw, draw_operands, run


@pytest.fixture(autouse=True)
def one_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that one block fills: then small problems have large tiles. Those with copies by maps are for others."""
    monkeypatch.setattr(attention_tiles, "PROCESSORS", 1)
    monkeypatch.setattr(attention, "choose_producer_tile", lambda *_, **__: None)


def uses_groups(emulated: EmulatedSteps) -> bool:
    return "using shape = ig_group_shape<" in write_kernels(emulated.steps[-1][1])[0]


@pytest.mark.parametrize(
    ("dtype", "depth", "causal"), [(torch.bfloat16, 64, True), (torch.float16, 128, False)], ids=str
)
def test_lengths(dtype: torch.dtype, depth: int, causal: bool) -> None:
    model = Attend(is_causal=causal)
    queries, keys = torch.export.Dim("queries", max=4096), torch.export.Dim("keys", max=4096)
    shapes = {"q": {2: queries}, "k": {2: keys}, "v": {2: keys}}
    emulated = EmulatedSteps({Attention})
    compiled = emulated.compile(model, draw_operands(dtype, 130, 70, depth), dynamic_shapes=shapes)
    for lengths in ((1, 1), (64, 65), (129, 63), (128, 128), (200, 130)):
        given = draw_operands(dtype, *lengths, depth)
        check(compiled(*given), model(*double(given)), dtype, str(lengths))
    assert uses_groups(emulated)


@pytest.mark.parametrize("name", ["alibi", "window", "empty rows"])
def test_functions(name: str) -> None:
    case = ATTENDING[name]
    tables = case.tables()
    q, k, v = (draw(1, h, 199, 64, dtype=torch.bfloat16, seed=h) for h in (4, 2, 2))
    (out, lse), emulated = run(Flexible(case, tables), q, k, v)
    exact = attend(case, *double((q, k, v)), double(tables))
    check(out, exact[0], torch.bfloat16, name)
    check(lse, exact[1], torch.bfloat16, name)
    assert uses_groups(emulated)
