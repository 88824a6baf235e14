"""Attention with users' functions inside: native code against whole tensors in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import ingot
from tests.native.functions import ATTENDING, HEADS, Attending, attend, masking, scoring

TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 4e-2}


class Attends(nn.Module):
    """A model that holds flex_attention; its tables are buffers, and parameters where they are learned."""

    def __init__(self, case: Attending, tables: list[torch.Tensor]) -> None:
        super().__init__()
        self.case = case
        self.names = [f"table{number}" for number in range(len(tables))]
        for number, (name, table) in enumerate(zip(self.names, tables, strict=True)):
            if number < case.learned:
                setattr(self, name, nn.Parameter(table))
            else:
                self.register_buffer(name, table)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        tables = [getattr(self, name) for name in self.names]
        mask = masking(self.case, tables)
        blocks = None
        if mask is not None:
            blocks = create_block_mask(mask, q.shape[0], q.shape[1], q.shape[2], k.shape[2], device="cpu")
        score = scoring(self.case, tables)
        return flex_attention(q, k, v, score_mod=score, block_mask=blocks, enable_gqa=True, return_lse=True)


def operands(dtype: torch.dtype, queries: int, keys: int, heads: int = 2, depth: int = 16) -> list[torch.Tensor]:
    torch.manual_seed(queries)
    shapes = ((2, HEADS, queries, depth), (2, heads, keys, depth), (2, heads, keys, depth + 3))
    return [torch.randn(shape).to(dtype) for shape in shapes]


def check(ours: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> None:
    assert ours.shape == exact.shape
    torch.testing.assert_close(ours.double(), exact.double(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("name", ATTENDING)
def test_a_model_that_holds_flex_attention(name: str) -> None:
    case, dtype = ATTENDING[name], torch.float32
    torch.manual_seed(3)
    tables = case.tables()
    q, k, v = operands(dtype, 101, 133)
    compiled = ingot.compile(Attends(case, tables).eval(), (q, k, v))
    with torch.no_grad():
        out, lse = attend(case, q.double(), k.double(), v.double(), tables)
        check(compiled(q, k, v)[0], out, dtype)
        check(compiled(q, k, v)[1], lse, dtype)
    compiled.close()
