"""Gradients made of other operators, on odd sizes: results and gradients as in eager, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import ingot
from ingot.autograd.gradient_rules import gradient_rules

X = torch.Tensor


def randn(*sizes: int) -> X:
    return torch.randn(*sizes, dtype=torch.float64)


ATTENTION = functional.scaled_dot_product_attention
HIDDEN = torch.arange(5)[:, None] > torch.arange(7)  # the first query sees nothing

CASES: dict[str, tuple[Callable[..., X], tuple[X, ...]]] = {
    "conv, remainder of the stride": (
        lambda x, w: functional.conv2d(x, w, stride=3),
        (randn(2, 3, 9, 11), randn(4, 3, 2, 3)),
    ),
    "conv, groups and dilation": (
        lambda x, w, b: functional.conv2d(x, w, b, padding=(2, 1), dilation=(2, 3), groups=2),
        (randn(2, 4, 8, 9), randn(6, 2, 3, 2), randn(6)),
    ),
    "conv, depthwise in one dim": (
        lambda x, w: functional.conv1d(x, w, padding=2, groups=4),
        (randn(3, 4, 7), randn(8, 1, 3)),
    ),
    "conv, three dims": (
        lambda x, w: functional.conv3d(x, w, stride=2, padding=1),
        (randn(1, 2, 5, 6, 4), randn(3, 2, 3, 2, 3)),
    ),
    "transposed conv": (
        lambda x, w: functional.conv_transpose2d(x, w, stride=3, padding=1, output_padding=(1, 2), groups=2),
        (randn(2, 4, 4, 5), randn(4, 3, 3, 2)),
    ),
    "transposed conv, dilation": (
        lambda x, w: functional.conv_transpose1d(x, w, stride=2, dilation=3, output_padding=2),
        (randn(2, 3, 5), randn(3, 2, 3)),
    ),
    "average pool, ceil mode": (
        lambda x: functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        (randn(2, 3, 8, 6),),
    ),
    "average pool, padding counts": (
        lambda x: functional.avg_pool2d(x, (3, 2), (2, 3), (1, 0), ceil_mode=True),
        (randn(1, 2, 6, 7),),
    ),
    "average pool, divisor": (lambda x: functional.avg_pool3d(x, 2, divisor_override=3), (randn(1, 2, 4, 5, 6),)),
    "adaptive average pool": (lambda x: functional.adaptive_avg_pool2d(x, (3, 5)), (randn(2, 3, 7, 8),)),
    "max pool": (lambda x: functional.max_pool3d(x, 2, 1), (randn(1, 2, 4, 3, 5),)),
    "adaptive max pool": (lambda x: functional.adaptive_max_pool2d(x, (2, 3)), (randn(2, 3, 7, 8),)),
    "nearest": (lambda x: functional.interpolate(x, scale_factor=(1.5, 2.3)), (randn(1, 2, 5, 4),)),
    "bilinear": (lambda x: functional.interpolate(x, (7, 3), mode="bilinear"), (randn(1, 2, 5, 4),)),
    "bicubic": (
        lambda x: functional.interpolate(x, (7, 9), mode="bicubic", align_corners=True),
        (randn(1, 2, 5, 4),),
    ),
    "replicate": (lambda x: functional.pad(x, (2, 1, 0, 3), mode="replicate"), (randn(1, 2, 5, 4),)),
    "attention": (
        lambda q, k, v: ATTENTION(q, k, v, is_causal=True),
        (randn(2, 2, 5, 4), randn(2, 2, 7, 4), randn(2, 2, 7, 4)),
    ),
    "attention, a query that sees nothing": (
        lambda q, k, v: ATTENTION(q, k, v, HIDDEN, scale=0.3),
        (randn(2, 2, 5, 4), randn(2, 2, 7, 4), randn(2, 2, 7, 4)),
    ),
    "attention, groups of heads": (
        lambda q, k, v: ATTENTION(q, k, v, enable_gqa=True),
        (randn(2, 4, 5, 4), randn(2, 2, 6, 4), randn(2, 2, 6, 4)),
    ),
    "weight norm": (
        lambda v, g, x: functional.linear(x, torch._weight_norm(v, g, 0)),
        (randn(3, 4), randn(3, 1), randn(2, 4)),
    ),
    "softshrink": (lambda x: functional.softshrink(x, 0.3), (randn(20),)),
    "masked scatter": (lambda x, y: x.masked_scatter(torch.arange(6) % 2 == 0, y * 2), (randn(3, 6), randn(12))),
}


class Each(nn.Module):
    """Every case at once: one C file for all."""

    def forward(self, *given: X) -> list[X]:
        tensors, results = iter(given), []
        for function, like in CASES.values():
            results.append(function(*(next(tensors) for _ in like)))
        return results


def leaves() -> list[X]:
    return [x.clone().requires_grad_() for _, given in CASES.values() for x in given]


@pytest.fixture(scope="module")
def gradients() -> list[tuple[list[X], tuple[X, ...]]]:
    """The results and gradients of compiled code, and of eager."""
    found: list[tuple[list[X], tuple[X, ...]]] = []
    trained: Any = ingot.compile(Each(), leaves(), training=True, threads=1)
    for call in (trained, Each()):
        given = leaves()
        results = call(*given)
        weights = [torch.cos(torch.arange(r.numel(), dtype=r.dtype)).view(r.shape) for r in results]
        found.append((results, torch.autograd.grad(results, given, weights)))
    trained.close()
    return found


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_those_of_eager(name: str, gradients: list[tuple[list[X], tuple[X, ...]]]) -> None:
    names = list(CASES)
    place = names.index(name)
    first = sum(len(CASES[other][1]) for other in names[:place])
    (ours, of_ours), (theirs, of_theirs) = gradients
    torch.testing.assert_close(ours[place], theirs[place], rtol=1e-9, atol=1e-9)
    for number in range(first, first + len(CASES[name][1])):
        torch.testing.assert_close(of_ours[number], of_theirs[number], rtol=1e-9, atol=1e-9)


def test_every_rule_is_of_an_operator_once() -> None:
    assert len(gradient_rules()) > 20
    assert all(operator.name().endswith("backward") or "attention" in operator.name() for operator in gradient_rules())
