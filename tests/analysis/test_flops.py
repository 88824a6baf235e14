"""The rules against numbers worked out by hand, and against torch's own counter where it has the operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ingot import api
from ingot.analysis import flops as counting
from ingot.cli.inspection import model_summary
from ingot.ir.program import Program

aten = torch.ops.aten
F = nn.functional


def capture(model: Any, *args: Any, **options: Any) -> Program:
    with torch.no_grad():
        return api.capture(model, args, **options)


def flops(model: Any, *args: Any) -> int:
    return model_summary.take(capture(model, *args)).total.flops


CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], int]] = {
    "linear": (nn.Linear(32, 64), (torch.ones(2, 7, 32),), 2 * 2 * 7 * 32 * 64),
    "linear of a vector": (nn.Linear(32, 64), (torch.ones(32),), 2 * 32 * 64),
    "matmul, broadcast": (torch.matmul, (torch.ones(5, 1, 2, 3), torch.ones(4, 3, 6)), 2 * 5 * 4 * 2 * 3 * 6),
    "addmm": (torch.addmm, (torch.ones(6), torch.ones(2, 3), torch.ones(3, 6)), 2 * 2 * 3 * 6),
    "bmm": (torch.bmm, (torch.ones(5, 2, 3), torch.ones(5, 3, 6)), 2 * 5 * 2 * 3 * 6),
    "baddbmm": (torch.baddbmm, (torch.ones(5, 2, 6), torch.ones(5, 2, 3), torch.ones(5, 3, 6)), 2 * 5 * 2 * 3 * 6),
    "tensordot": (
        lambda a, b: torch.tensordot(a, b, dims=([1, 2], [0, 1])),
        (torch.ones(2, 3, 4), torch.ones(3, 4, 5)),
        2 * 2 * 3 * 4 * 5,
    ),
    "conv1d": (nn.Conv1d(4, 6, 3), (torch.ones(2, 4, 10),), 2 * 2 * 6 * 8 * 4 * 3),
    "conv2d, stride and groups": (
        nn.Conv2d(8, 16, 3, stride=2, padding=1, groups=4),
        (torch.ones(2, 8, 9, 9),),
        2 * (2 * 16 * 5 * 5) * (8 // 4) * 9,
    ),
    "conv2d, depthwise": (nn.Conv2d(8, 8, 3, groups=8), (torch.ones(1, 8, 6, 6),), 2 * (8 * 4 * 4) * 9),
    "conv2d, same padding": (nn.Conv2d(3, 5, 3, padding="same"), (torch.ones(1, 3, 6, 6),), 2 * (5 * 36) * 27),
    "conv3d": (nn.Conv3d(2, 3, 2), (torch.ones(1, 2, 4, 4, 4),), 2 * (3 * 27) * (2 * 8)),
    "conv_transpose2d": (
        nn.ConvTranspose2d(8, 6, 3, stride=2, groups=2),
        (torch.ones(2, 8, 5, 5),),
        2 * (2 * 8 * 5 * 5) * (6 // 2) * 9,
    ),
    "einsum, a product": (
        lambda a, b: torch.einsum("bij,bjk->bik", a, b),
        (torch.ones(5, 2, 3), torch.ones(5, 3, 6)),
        2 * 5 * 2 * 3 * 6,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_rules_agree_with_hand_and_torch(name: str) -> None:
    model, args, expected = CASES[name]
    assert flops(model, *args) == expected
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        model(*args)
    assert counter.get_total_flops() == expected


ONLY_OURS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], int]] = {
    "matrix times vector": (torch.matmul, (torch.ones(4, 3), torch.ones(3)), 2 * 4 * 3),
    "addbmm": (torch.addbmm, (torch.ones(2, 6), torch.ones(5, 2, 3), torch.ones(5, 3, 6)), 2 * 5 * 2 * 3 * 6),
    "attention": (
        F.scaled_dot_product_attention,
        (torch.ones(2, 4, 10, 16), torch.ones(2, 4, 12, 16), torch.ones(2, 4, 12, 16)),
        2 * (2 * 4 * 10 * 12) * (16 + 16),
    ),
    "grouped-query attention": (
        lambda q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True),
        (torch.ones(2, 8, 10, 16), torch.ones(2, 2, 12, 16)),
        2 * (2 * 8 * 10 * 12) * (16 + 16),
    ),
    "einsum, ellipsis": (
        lambda a, b: torch.einsum("...ij,jk->...ik", a, b),
        (torch.ones(7, 5, 2, 3), torch.ones(3, 6)),
        2 * 7 * 5 * 2 * 3 * 6,
    ),
    "einsum, no arrow": (
        lambda a, b: torch.einsum("ij,jk", a, b),
        (torch.ones(2, 3), torch.ones(3, 6)),
        2 * 2 * 3 * 6,
    ),
    "einsum, elementwise": (lambda a, b: torch.einsum("ij,ij->ij", a, b), (torch.ones(2, 3), torch.ones(2, 3)), 0),
    "einsum, outer product": (lambda a, b: torch.einsum("i,j->ij", a, b), (torch.ones(2), torch.ones(3)), 0),
    "einsum, summed first": (
        lambda a, b: torch.einsum("ijx,jk->ik", a, b),
        (torch.ones(2, 3, 50), torch.ones(3, 6)),
        2 * 2 * 3 * 6,
    ),
    "einsum of three": (
        lambda a, b, c: torch.einsum("ij,jk,kl->il", a, b, c),
        (torch.ones(2, 3), torch.ones(3, 4), torch.ones(4, 5)),
        2 * 2 * 3 * 4 + 2 * 2 * 4 * 5,
    ),
    "chain in its cheapest order": (
        lambda a, b, c: torch.linalg.multi_dot([a, b, c]),
        (torch.ones(10, 100), torch.ones(100, 5), torch.ones(5)),
        2 * 100 * 5 + 2 * 10 * 100,
    ),
    "bilinear": (nn.Bilinear(3, 4, 5), (torch.ones(2, 3), torch.ones(2, 4)), 2 * 2 * (5 * 3 * 4 + 5 * 4)),
    "lstm": (
        nn.LSTM(4, 6, num_layers=2, bidirectional=True, batch_first=True),
        (torch.ones(2, 5, 4),),
        2 * (2 * 5) * 2 * (24 * 4 + 24 * 6 + 24 * 12 + 24 * 6),
    ),
    "gru cell": (nn.GRUCell(4, 6), (torch.ones(3, 4), torch.ones(3, 6)), 2 * 3 * (18 * 4 + 18 * 6)),
    "elementwise": (lambda x: (x * 2 + 1).softmax(-1).sum(), (torch.ones(3, 4),), 0),
}


@pytest.mark.parametrize("name", ONLY_OURS)
def test_rules_agree_with_hand(name: str) -> None:
    model, args, expected = ONLY_OURS[name]
    assert flops(model, *args) == expected


@pytest.mark.parametrize(
    ("a", "b", "out"),
    [
        ((30, 8), (4, 8, 5), (30, 5)),  # rows of a go to groups
        ((4, 6, 8), (4, 8, 5), (4, 6, 5)),  # a plain batch
        ((6, 8), (8, 5), (4, 6, 5)),  # the inner dim is split over groups
        ((4, 6, 8), (8, 20), (6, 20)),  # columns of b belong to groups
    ],
)
def test_grouped_products(a: tuple[int, ...], b: tuple[int, ...], out: tuple[int, ...]) -> None:
    expected = {(30, 5): 2 * 30 * 8 * 5, (6, 20): 2 * 6 * 8 * 20}.get(out)
    if expected is None:
        expected = 2 * 4 * 6 * 8 * 5 if len(a) == 3 else 2 * 6 * 8 * 5
    assert counting.flops(aten._grouped_mm.default, (a, b), {}, out) == expected


def test_a_second_rule_raises() -> None:
    with pytest.raises(ValueError, match=r"aten.linear.default has a second counting rule: .*_linear and"):
        counting.counts(aten.linear.default)(lambda x, weight, *, out: 0)


def test_an_operator_without_a_rule_counts_nothing() -> None:
    assert not counting.has_rule(aten.relu.default)
    assert counting.flops(aten.relu.default, ((3, 4),), {}, (3, 4)) == 0


def test_bert_base() -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.BertModel(transformers.BertConfig()).eval()
    counted = model_summary.take(capture(model, torch.ones(1, 128, dtype=torch.int64)))
    tokens, width, heads = 128, 768, 12
    projections = 4 * 2 * tokens * width * width
    feed_forward = 2 * 2 * tokens * width * 4 * width
    attention = 2 * (heads * tokens * tokens) * (64 + 64)
    pooler = 2 * width * width
    assert counted.total.flops == 12 * (projections + feed_forward + attention) + pooler == 22_348_431_360
    assert counted.total.parameters == sum(p.numel() for p in model.parameters())
    layers = [row for row in counted.rows if row.path.startswith("encoder.layer.") and row.depth == 3]
    assert [row.type for row in layers] == ["BertLayer"] * 12
    assert {row.flops for row in layers} == {projections + feed_forward + attention}
