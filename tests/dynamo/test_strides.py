"""Results have the strides that eager's have, as far as torch's meta functions promise them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.dynamo.recording import Recording, close


def _channels_last(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to(memory_format=torch.channels_last)


CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "relu of channels_last": (lambda x: x.relu(), lambda: (_channels_last(2, 3, 4, 4),)),
    "relu of channels_last, 3-D": (
        lambda x: x.relu(),
        lambda: (torch.randn(2, 3, 2, 4, 4).to(memory_format=torch.channels_last_3d),),
    ),
    "sum with a contiguous one": (lambda x, y: x + y, lambda: (_channels_last(2, 3, 4, 4), torch.randn(2, 3, 4, 4))),
    "transposed + 1": (lambda x: x.t() + 1, lambda: (torch.randn(4, 3),)),
    "permute": (lambda x: (x * 2).permute(1, 0), lambda: (torch.randn(4, 3),)),
    "full_like": (lambda x: torch.full_like(x, 3.0), lambda: (torch.randn(4, 3).t(),)),
    "expand": (lambda x: (x * 2).expand(4, 3), lambda: (torch.randn(1, 3),)),
    "expand in the middle, permuted": (
        lambda x: (x * 2).unsqueeze(1).expand(4, 5, 3).permute(2, 1, 0),
        lambda: (torch.randn(4, 3),),
    ),
    "every second": (lambda x: (x * 2)[:, ::2], lambda: (torch.randn(4, 6),)),
    "a window": (lambda x: (x * 2).unfold(0, 4, 2), lambda: (torch.randn(10),)),
    "a diagonal": (lambda x: (x * 2).diagonal(), lambda: (torch.randn(4, 4),)),
    "empty_strided": (
        lambda x: torch.empty_strided((3, 4), (1, 3)).copy_(x),
        lambda: (torch.randn(3, 4),),
    ),
    "new_empty_strided with holes": (
        lambda x: x.new_empty_strided((3, 4), (8, 2)).copy_(x),
        lambda: (torch.randn(3, 4),),
    ),
    "contiguous": (lambda x: (x + 1).contiguous(), lambda: (_channels_last(2, 3, 4, 4),)),
    "to channels_last": (
        lambda x: (x + 1).to(memory_format=torch.channels_last),
        lambda: (torch.randn(2, 3, 4, 4),),
    ),
    "one channel": (lambda x: x * 2, lambda: (_channels_last(2, 1, 4, 4),)),
    "no rows": (lambda x: x * 2, lambda: (torch.randn(0, 3),)),
    "a matmul of transposed ones": (lambda a, b: (a.t() @ b).t(), lambda: (torch.randn(5, 4), torch.randn(5, 3))),
    "heads put together": (
        lambda q: nn.functional.scaled_dot_product_attention(q, q, q).transpose(1, 2),
        lambda: (torch.randn(2, 4, 6, 8),),
    ),
}


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_strides_are_eager_s(recording: Recording, name: str) -> None:
    function, make = CASES[name]
    args = make()
    want = function(*args)
    compiled = torch.compile(function, backend=recording)
    for _ in range(2):
        have = compiled(*args)
        assert have.stride() == want.stride() and have.shape == want.shape and have.dtype == want.dtype
        close(have, want)
    assert recording.native == [True]


@torch.no_grad()
def test_a_convolution_in_channels_last(recording: Recording) -> None:
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU()).to(memory_format=torch.channels_last)
    model.eval()
    x = _channels_last(2, 3, 6, 6)
    have, want = torch.compile(model, backend=recording)(x), model(x)
    assert have.stride() == want.stride()
    close(have, want)
    assert recording.native == [True]


# torch.compile itself asks what comes in after the break for its .grad.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("gradients", [False, True])
def test_a_view_after_a_graph_break(recording: Recording, gradients: bool) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.permute(0, 2, 3, 1).relu()  # in eager, with the strides of x
        torch._dynamo.graph_break()
        return y.permute(0, 3, 1, 2).view(-1)

    x = torch.randn(2, 3, 4, 4, requires_grad=gradients)
    close(torch.compile(function, backend=recording)(x), function(x))
    assert recording.native and all(recording.native)


@torch.no_grad()
def test_strides_of_dynamic_sizes(recording: Recording) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return y.permute(2, 0, 1), (y + 1).sum(0).unsqueeze(0).expand(x.shape[0], -1, -1), (x + 3)[:, ::2]

    compiled = torch.compile(function, backend=recording, dynamic=True)
    for shape in ((2, 3, 4), (5, 6, 7), (3, 9, 2)):
        x = torch.randn(shape)
        for have, want in zip(compiled(x), function(x), strict=True):
            assert have.stride() == want.stride()
            close(have, want)
    assert recording.native == [True]


def test_gradients_have_the_strides_of_what_they_are_the_gradient_of(recording: Recording) -> None:
    x = _channels_last(2, 3, 4, 4).requires_grad_()
    torch.compile(lambda x: (x.sin() * 2).sum(), backend=recording)(x).backward()
    assert x.grad is not None and x.grad.stride() == x.stride()
    assert recording.native == [True, True]


READS_STRIDES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "an argument": lambda x: x.as_strided((3, 2), (2, 1)) * 2,
    "a value": lambda x: (x * 2).as_strided((3, 2), (2, 1)),
    "a transposed value": lambda x: (x.t() + 1).as_strided((3, 2), (2, 1)),
}


@pytest.mark.parametrize("name", READS_STRIDES)
@torch.no_grad()
def test_strides_that_the_model_reads(recording: Recording, name: str) -> None:
    function = READS_STRIDES[name]
    compiled = torch.compile(function, backend=recording)
    for x in (torch.arange(12.0).view(3, 4), torch.arange(12.0).view(4, 3).t()):
        close(compiled(x), function(x))


def test_views_of_gradients(recording: Recording) -> None:
    """Attention's gradient, whose strides are those of its arguments: the view of it is one in eager."""

    def function(x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.view(2, 5, 4, 8).transpose(1, 2) for part in x.split(32, dim=-1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return y.transpose(1, 2).reshape(2, 5, 32)

    x, other = (torch.linspace(-1, 1, 960).view(2, 5, 96).requires_grad_() for _ in range(2))
    torch.compile(function, backend=recording)(x).square().sum().backward()
    function(other).square().sum().backward()
    close(x.grad, other.grad)
    assert recording.native == [True, True], recording.reports
