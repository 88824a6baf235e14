"""The kernels of attention's gradient, emulated, against autograd in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from ingot.autograd.trainable_model import TrainableModel
from ingot.compiler import _run_pipeline
from ingot.lowering.loop_ir import AttentionBackward
from ingot.pipelines import TRAINING
from tests.support.cuda_emulation.emulated_steps import EmulatedSteps
from tests.support.kernel_functions import ATTENDING, HEADS, Attending, attend, masking, scoring

TOLERANCE = {torch.float64: 1e-6, torch.float32: 5e-6, torch.bfloat16: 1.5e-2, torch.float16: 2e-3}


class Trained(nn.Module):
    """A model that holds flex_attention and learns some of its function's tables."""

    def __init__(self, case: Attending) -> None:
        super().__init__()
        self.case = case
        tables = case.tables()
        self.learned = nn.ParameterList([nn.Parameter(table) for table in tables[: case.learned]])
        self.fixed = tables[case.learned :]

    @property
    def tables(self) -> list[torch.Tensor]:
        return [*self.learned, *self.fixed]

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        mask = masking(self.case, self.tables)
        blocks = None
        if mask is not None:
            blocks = create_block_mask(mask, q.shape[0], q.shape[1], q.shape[2], k.shape[2], device="cpu")
        score = scoring(self.case, self.tables)
        return flex_attention(q, k, v, score_mod=score, block_mask=blocks, enable_gqa=True, return_lse=True)


def copy_leaves(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copies in float64 that gather gradients."""
    return [t.detach().double().requires_grad_(t.requires_grad) if t.is_floating_point() else t for t in tensors]


@pytest.mark.parametrize(
    ("name", "dtype", "sizes", "heads"),
    [
        ("plain", torch.bfloat16, (67, 130, 64, 64), 2),
        ("plain", torch.float32, (40, 35, 20, 13), 2),
        ("window", torch.float16, (200, 199, 16, 40), 1),
        ("relative", torch.bfloat16, (33, 40, 128, 16), 2),
        ("per head", torch.float32, (66, 70, 16, 8), 2),
        ("buckets", torch.bfloat16, (20, 35, 7, 5), 1),
        ("temperature", torch.float64, (9, 33, 8, 8), 2),
        ("empty rows", torch.bfloat16, (66, 130, 144, 16), 2),
    ],
)
def test_gradients(name: str, dtype: torch.dtype, sizes: tuple[int, int, int, int], heads: int) -> None:
    torch.manual_seed(3)
    queries, keys, depth, values = sizes
    model = Trained(ATTENDING[name])
    shapes = ((2, HEADS, queries, depth), (2, heads, keys, depth), (2, heads, keys, values))
    given = [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]
    emulated = EmulatedSteps({AttentionBackward})
    trained = TrainableModel(
        model, emulated.build_half, lambda program: _run_pipeline(program, TRAINING, emulated), (given, {})
    )
    out, lse = trained(*given)
    exact, exact_tables = copy_leaves(given), copy_leaves(model.tables)
    theirs = attend(ATTENDING[name], *exact, exact_tables)
    asked = [torch.randn_like(out), torch.randn_like(lse).masked_fill(~torch.isfinite(lse), 0)]
    leaves = [t for t in (*given, *model.tables) if t.requires_grad]
    ours = torch.autograd.grad((out, lse), leaves, asked)
    truth = torch.autograd.grad(
        theirs, [t for t in (*exact, *exact_tables) if t.requires_grad], [t.double() for t in asked]
    )
    assert len(emulated.steps) == 2
    for mine, right in zip(ours, truth, strict=True):
        scale = float(right.abs().max())
        torch.testing.assert_close(
            mine.double() / scale, right / scale, rtol=0, atol=TOLERANCE[dtype], msg=lambda text: f"{name}: {text}"
        )
