"""Gradients that are written in terms of other operators: native, and those of eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.dynamo.recording import Recording, close

CASES: dict[str, tuple[Callable[[torch.Tensor], Any], tuple[int, ...]]] = {
    "average of windows": (lambda x: F.avg_pool2d(x, 3, stride=2, padding=1), (2, 3, 7, 8)),
    "average of what is inside": (
        lambda x: F.avg_pool2d(x, (3, 2), stride=2, padding=1, ceil_mode=True, count_include_pad=False),
        (2, 3, 8, 7),
    ),
    "average, up": (lambda x: F.avg_pool2d(x, 3, stride=2, padding=1, ceil_mode=True), (2, 3, 8, 6)),
    "average with a divisor": (lambda x: F.avg_pool2d(x, 2, divisor_override=3), (2, 3, 6, 6)),
    "average in 1-D": (lambda x: F.avg_pool1d(x, 3, stride=1), (2, 3, 9)),
    "average in 3-D": (lambda x: F.avg_pool3d(x, 2, padding=1), (2, 3, 4, 5, 6)),
    "adaptive average": (lambda x: F.adaptive_avg_pool2d(x, (3, 5)), (2, 3, 7, 8)),
    "adaptive average in 3-D": (lambda x: F.adaptive_avg_pool3d(x, (3, 2, 4)), (2, 3, 7, 5, 6)),
    "maximum in 2-D": (lambda x: F.max_pool2d(x, 3, stride=2, padding=1), (2, 3, 7, 8)),
    "maximum in 3-D": (lambda x: F.max_pool3d(x, 2, stride=1), (2, 3, 4, 5, 6)),
    "adaptive maximum": (lambda x: F.adaptive_max_pool2d(x, (3, 5)), (2, 3, 7, 8)),
    "adaptive maximum in 3-D": (lambda x: F.adaptive_max_pool3d(x, 2), (2, 3, 4, 5, 6)),
    "replicated in 1-D": (lambda x: F.pad(x, (2, 1), mode="replicate"), (2, 3, 5)),
    "replicated in 2-D": (lambda x: F.pad(x, (2, 1, 0, 3), mode="replicate"), (2, 3, 5, 4)),
    "replicated in 3-D": (lambda x: F.pad(x, (1, 1, 0, 2, 2, 0), mode="replicate"), (2, 3, 3, 4, 5)),
    "reflected": (lambda x: F.pad(x, (2, 1, 0, 3), mode="reflect"), (2, 3, 5, 4)),
    "interpolated": (lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"), (2, 3, 5, 4)),
    "nearest": (lambda x: F.interpolate(x, size=(9, 7)), (2, 3, 5, 4)),
    "running sums": (lambda x: x.cumsum(1) * x.logcumsumexp(0), (4, 5)),
    "sorted": (lambda x: x.sort(-1)[0] * x.topk(5)[0], (4, 5)),
    "indexed": (lambda x: x[[0, 2, 0]] * x.gather(1, torch.tensor([[1, 1, 0, 4, 3]])).sum(), (4, 5)),
    "norms": (lambda x: F.group_norm(x, 2) + F.instance_norm(x) + F.layer_norm(x, (5,)), (2, 4, 5)),
    "heads that share keys": (
        lambda x: F.scaled_dot_product_attention(x, x[:, ::2] * 2, x[:, 1::2].cos(), is_causal=True, enable_gqa=True),
        (2, 4, 5, 8),
    ),
    "nearest, exact": (lambda x: F.interpolate(x, size=(9, 7), mode="nearest-exact"), (2, 3, 5, 4)),
    "bicubic": (lambda x: F.interpolate(x, size=(9, 7), mode="bicubic", align_corners=True), (2, 3, 5, 4)),
    "interpolated in 3-D": (lambda x: F.interpolate(x, size=(5, 7, 3), mode="trilinear"), (2, 3, 3, 4, 2)),
    "shrunk": (lambda x: F.softshrink(x, 0.3) + F.hardshrink(x), (4, 5)),
    "scattered under a mask": (lambda x: torch.zeros_like(x).masked_scatter(x > 0, x * 2), (4, 5)),
    "losses": (lambda x: F.cross_entropy(x, torch.tensor([1, 0, 4, 2])) + F.huber_loss(x, x.detach() + 1), (4, 5)),
}

# Those whose gradients are rules of ingot.autograd.
OF_ANY_SIZE = (
    "average of what is inside", "average with a divisor", "average in 3-D", "adaptive average", "maximum in 3-D",
    "adaptive maximum", "replicated in 2-D", "bicubic", "shrunk", "scattered under a mask", "heads that share keys",
)  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_eager_s(recording: Recording, name: str) -> None:
    function, shape = CASES[name]
    x = torch.randn(shape, requires_grad=True)
    weights = torch.randn(function(x).shape)
    compiled = torch.compile(function, backend=recording)
    found = [torch.autograd.grad((run(x) * weights).sum(), x)[0] for run in (compiled, function)]
    close(*found)
    assert found[0].stride() == found[1].stride()
    assert recording.native == [True, True], recording.reports


@pytest.mark.parametrize("name", OF_ANY_SIZE)
def test_gradients_for_all_sizes_are_eager_s(recording: Recording, name: str) -> None:
    function, shape = CASES[name]
    compiled = torch.compile(function, backend=recording, dynamic=True)
    for more in (0, 2):
        x = torch.randn([*shape[:-2], *(size + more for size in shape[-2:])], requires_grad=True)
        weights = torch.randn(function(x).shape)
        close(*(torch.autograd.grad((run(x) * weights).sum(), x)[0] for run in (compiled, function)))
    assert all(recording.native), recording.reports
