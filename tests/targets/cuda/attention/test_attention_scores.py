"""Scores that add a distance times a slope: exact distances, one conversion to float32 for each tile, fused sums."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ingot.lowering.index_expr import symbol
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.loop_ir import Attention
from ingot.targets.cuda.codegen.attention_kernels.score_functions import find_affine
from tests.support.cuda_emulation.emulated_steps import EmulatedSteps
from tests.support.cuda_emulation.kernels import check_cubin, write_kernels
from tests.support.cuda_emulation.toolkit import count, disassemble, needs_nvrtc
from tests.support.kernel_functions import Attending, attend
from tests.targets.cuda.test_attention import Flexible, check, double, draw, run

SLOPES = torch.tensor([0.5, -0.037])
# A score, and whether it is a product and a distance times a slope alone.
SCORES: dict[str, tuple[Callable[..., torch.Tensor], bool]] = {
    "added": (lambda s, b, h, i, j, t: s + t[h] * (j - i), True),
    "subtracted": (lambda s, b, h, i, j, t: s - (i - j) * t[h], True),
    "of a constant": (lambda s, b, h, i, j, t: (3 * j - 2 * i + 7) * 0.125 + s, True),
    "of a key": (lambda s, b, h, i, j, t: s + t[h] * j, True),
    "scaled": (lambda s, b, h, i, j, t: s * 1.5 + t[h] * (j - i), False),
    "squared": (lambda s, b, h, i, j, t: s + t[h] * (j - i) * (j - i), False),
    "read": (lambda s, b, h, i, j, t: s + t[(j - i) % 2] * (j - i), False),
    "inexact": (lambda s, b, h, i, j, t: s + t[h] * ((j - i) * 1000003), False),
}


@pytest.mark.parametrize("name", SCORES)
def test_scores(name: str) -> None:
    score, is_slope = SCORES[name]
    case = Attending(score, (lambda b, h, i, j, t: j - i < 40) if is_slope else None, lambda: [SLOPES])
    dtype = torch.bfloat16 if name in ("added", "of a key", "read") else torch.float16
    q, k, v = (draw(1, 2, n, 64, dtype=dtype, seed=n) for n in (67, 133, 133))
    (out, lse), emulated = run(Flexible(case, [SLOPES]), q, k, v)
    exact = attend(case, *double((q, k, v)), [SLOPES.double()])
    check(out, exact[0], dtype, name)
    check(lse, exact[1], torch.float32, name)
    text, _ = write_kernels(emulated.steps[-1][1])
    assert ("const float s_slope" in text) == is_slope
    assert ("IG_FREE_SCORE" in text.split("using shape")[-1]) == (name != "read")


def test_distances_that_float32_holds() -> None:
    ops = BodyBuilder()
    keys = ops.index(symbol("j"))
    queries = ops.index(symbol("i"))
    both = ops.call("sub", keys, queries)
    twice = ops.call("add", both, both)
    body = ops.finish([twice])
    assert set(find_affine(body, 64, 16384)) == {keys, queries, both, twice}
    assert set(find_affine(body, 64, (1 << 23) + 64)) == {keys, queries, both}
    assert set(find_affine(body, 64, 1 << 24)) == {queries}
    assert not find_affine(body, 64, symbol("n0"))
    below = symbol("n0", below=4096)
    assert set(find_affine(body, below, below)) == {keys, queries, both, twice}


@needs_nvrtc
def test_a_tile_converts_once(tmp_path: Path) -> None:
    case = Attending(SCORES["added"][0], None, lambda: [SLOPES])
    given = [torch.zeros(2, 16, 1024, 64, dtype=torch.bfloat16) for _ in range(3)]
    module = EmulatedSteps({Attention}).compile(Flexible(case, [torch.ones(16)]), given).module
    text, _ = write_kernels(replace(module, steps=tuple(s for s in module.steps if isinstance(s, Attention))))
    for architecture in ("sm_80", "sm_90a"):
        (code,) = disassemble(check_cubin(text, [architecture])[architecture], tmp_path).values()
        assert count(code, "I2F", "I2FP") + len(re.findall(r"\bI2FP?\.", code)) < 8


HIDING: dict[str, tuple[Callable[..., torch.Tensor], bool]] = {
    "hidden": (lambda s, b, h, i, j, t: torch.where(j - i < 40, s, -torch.inf), True),
    "by a table": (lambda s, b, h, i, j, t: torch.where(t[j % 2] > 0, s, -torch.inf), True),
    "lowered": (lambda s, b, h, i, j, t: torch.where(j - i < 40, s, -2.0), False),
    "by itself": (lambda s, b, h, i, j, t: torch.where(s < 1, s, -torch.inf), False),
    "shifted": (lambda s, b, h, i, j, t: torch.where(j - i < 40, s + 1, -torch.inf), False),
}


@pytest.mark.parametrize("name", HIDING)
def test_scores_that_only_hide_are_masks(name: str) -> None:
    score, is_mask = HIDING[name]
    case = Attending(score, None, lambda: [SLOPES])
    for dtype in (torch.bfloat16, torch.float32) if name == "hidden" else (torch.float16,):
        q, k, v = (draw(1, 2, n, 64, dtype=dtype, seed=n) for n in (67, 133, 133))
        (out, lse), emulated = run(Flexible(case, [SLOPES]), q, k, v)
        exact = attend(case, *double((q, k, v)), [SLOPES.double()])
        check(out, exact[0], dtype, name)
        check(lse, exact[1], torch.float32, name)
        text, _ = write_kernels(emulated.steps[-1][1])
        assert ("const auto mask = " in text) == is_mask
