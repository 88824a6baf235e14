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

GRID = 0.7 * randn(2, 3, 6, 2)

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
    "grid sample": (lambda x, grid: functional.grid_sample(x, grid, align_corners=False), (randn(2, 3, 5, 4), GRID)),
    "grid sample, reflected": (
        lambda x, grid: functional.grid_sample(x, 2 * grid, padding_mode="reflection", align_corners=True),
        (randn(2, 3, 5, 4), GRID),
    ),
    "grid sample, nearest": (
        lambda x, grid: functional.grid_sample(x, 2 * grid, mode="nearest", padding_mode="border", align_corners=False),
        (randn(2, 3, 5, 4), GRID),
    ),
    "grid sample, bicubic": (
        lambda x, grid: functional.grid_sample(
            x, 1.5 * grid, mode="bicubic", padding_mode="reflection", align_corners=False
        ),
        (randn(2, 3, 5, 4), GRID),
    ),
    "digamma": (torch.digamma, (torch.tensor([-1.7, -0.2, 0.3, 0.9, 4.5, 60.0], dtype=torch.float64),)),
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
    names = [operator.name() for operator in gradient_rules()]
    # What is itself a gradient: polygamma is that of digamma.
    assert all(name.endswith("backward") or "attention" in name or name == "aten::polygamma" for name in names)


aten: Any = torch.ops.aten
THREE = [2, 2, 2]
HEADS = (randn(2, 4, 5, 8), randn(2, 2, 7, 8), randn(2, 2, 7, 8))
# The gradients that are pictures, or volumes: of the operator, sizes of the result and of the input, other arguments.
PICTURES: dict[Any, tuple[tuple[int, ...], tuple[int, ...], Callable[[X, X], tuple[Any, ...]]]] = {
    aten.avg_pool2d_backward.default: (
        (2, 3, 4, 4), (2, 3, 8, 8), lambda g, x: (g, x, [2, 2], [2, 2], [0, 0], False, True, None),
    ),
    aten.avg_pool3d_backward.default: (
        (2, 3, 4, 2, 3), (2, 3, 8, 4, 6), lambda g, x: (g, x, THREE, THREE, [0, 0, 0], False, True, None),
    ),
    aten._adaptive_avg_pool2d_backward.default: ((2, 3, 4, 4), (2, 3, 8, 8), lambda g, x: (g, x)),
    aten._adaptive_avg_pool3d_backward.default: ((2, 3, 4, 2, 3), (2, 3, 8, 4, 6), lambda g, x: (g, x)),
    aten.adaptive_max_pool2d_backward.default: (
        (2, 3, 4, 4), (2, 3, 8, 8), lambda g, x: (g, x, torch.zeros_like(g, dtype=torch.long)),
    ),
    aten.max_pool3d_with_indices_backward.default: (
        (2, 3, 4, 2, 3), (2, 3, 8, 4, 6),
        lambda g, x: (g, x, THREE, THREE, [0, 0, 0], [1, 1, 1], False, torch.zeros_like(g, dtype=torch.long)),
    ),
    aten.upsample_bilinear2d_backward.default: (
        (2, 3, 9, 9), (2, 3, 4, 5), lambda g, x: (g, [9, 9], [*x.shape], False),
    ),
    aten.replication_pad2d_backward.default: ((2, 3, 7, 8), (2, 3, 5, 6), lambda g, x: (g, x, [1, 1, 1, 1])),
    aten.convolution_backward.default: (
        (2, 3, 3, 4), (2, 3, 5, 6),
        lambda g, x: (
            g, x, torch.ones_like(g[:1, :, :, :3]).expand(3, 3, 3, 3).contiguous(), None,
            [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False],
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("last", [False, True], ids=["row-major", "channels last"])
@pytest.mark.parametrize("operator", PICTURES, ids=str)
def test_gradients_lie_in_memory_as_torch_promises(operator: Any, last: bool) -> None:
    result, given, arguments = PICTURES[operator]
    order = torch.contiguous_format
    if last:
        order = torch.channels_last if len(given) == 4 else torch.channels_last_3d
    like = [torch.empty(sizes, device="meta").to(memory_format=order) for sizes in (result, given)]
    args = arguments(like[0], like[1])
    assert _strides(gradient_rules()[operator](*args)) == _strides(operator(*args))


@pytest.mark.parametrize("inside", [False, True], ids=["row-major", "heads inside"])
def test_attention_lies_in_memory_as_torch_promises(inside: bool) -> None:
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) if inside else x for x in HEADS)
    forward = aten._scaled_dot_product_flash_attention_for_cpu.default
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    made = forward(q, k, v)
    assert _strides(gradient_rules()[forward](q, k, v)) == _strides(made)
    args = (torch.ones_like(made[0]), q, k, v, *made, 0.0, False)
    assert _strides(gradient_rules()[backward](*args)) == _strides(backward(*args))


def _strides(made: Any) -> list[tuple[int, ...]]:
    return [x.stride() for x in (made if isinstance(made, tuple) else (made,)) if x is not None]


def test_a_gradient_without_end_stays_with_its_window() -> None:
    """As overflows in half precision are, which are looked for in all gradients."""
    rule = gradient_rules()[aten.avg_pool2d_backward.default]
    grad = torch.ones(1, 1, 2, 2)
    grad[0, 0, 0, 0] = torch.inf
    found = rule(grad, torch.ones(1, 1, 4, 4), [2, 2], [2, 2], [0, 0], False, True, None)
    assert torch.isinf(found).sum() == 4 and torch.isfinite(found).sum() == 12


def test_the_norm_of_a_weight_of_one_dim() -> None:
    rule = gradient_rules()[aten._weight_norm_interface_backward.default]
    v, g, grad = randn(4), randn(4), randn(4)
    torch.testing.assert_close(rule(grad, v, g, v.abs(), 0), (torch.zeros_like(v), grad * v.sign()))
