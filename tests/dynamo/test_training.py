"""Training through torch.compile: both halves native, the numbers of eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from ingot.errors import DoubleBackwardError
from tests.dynamo.recording import Recording, close


def _train(model: Any, run: Any, data: Callable[[int], Any], steps: int = 5, **options: Any) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = run(data(step)).float().square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def _same(recording: Recording, model: nn.Module, data: Callable[[int], Any], **options: Any) -> None:
    """Trains a model and a copy of it in eager: losses, parameters and buffers are the same."""
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend=recording, **options)
    close(torch.tensor(_train(model, compiled, data)), torch.tensor(_train(eager, eager, data)))
    for (name, have), want in zip(model.state_dict().items(), eager.state_dict().values(), strict=True):
        torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
    assert recording.halves.count("forward") == recording.halves.count("backward") > 0


def _rows(*shape: int) -> Callable[[int], torch.Tensor]:
    return lambda step: torch.randn(shape, generator=torch.Generator().manual_seed(step))


class Attention(nn.Module):
    def __init__(self, is_causal: bool = False, mask: torch.Tensor | None = None) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(50, 32), nn.LayerNorm(32)
        self.inner, self.outer = nn.Linear(32, 96), nn.Linear(32, 32)
        self.is_causal, self.mask = is_causal, mask

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        batch, length, width = x.shape
        q, k, v = self.inner(self.norm(x)).view(batch, length, 3, 4, 8).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask, is_causal=self.is_causal)
        return x + F.gelu(self.outer(y.transpose(1, 2).reshape(batch, length, width)))


class Twice(torch.autograd.Function):
    """Its backward is not the gradient of its forward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> Any:
        return self.a(x) + Twice.apply(self.b(x))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer, self.frozen = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False), nn.Linear(8, 8)
        self.outer.weight = self.inner.weight
        self.frozen.requires_grad_(False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.outer(self.frozen(self.inner(ids)).tanh())


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(lambda y: self.second(self.first(y).relu()).tanh(), x, use_reentrant=False)


def _ids(step: int) -> torch.Tensor:
    return torch.randint(0, 20, (2, 7), generator=torch.Generator().manual_seed(step))


_UPPER = torch.ones(7, 7).triu(1).bool()
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], torch.Tensor]]] = {
    "batch norm": (
        lambda: nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)),
        _rows(8, 8),
    ),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, groups=8),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
        ),
        _rows(4, 3, 12, 12),
    ),
    "transposed and interpolated": (
        lambda: nn.Sequential(
            nn.ConvTranspose2d(3, 8, 3, stride=2), nn.GroupNorm(2, 8), nn.SiLU(),
            nn.Upsample(scale_factor=2, mode="bilinear"),
        ),
        _rows(2, 3, 6, 6),
    ),
    "attention": (Attention, _ids),
    "causal attention": (lambda: Attention(is_causal=True), _ids),
    "masked attention": (lambda: Attention(mask=~_UPPER), _ids),
    "attention with a bias": (lambda: Attention(mask=torch.linspace(-2, 2, 49).view(7, 7)), _ids),
    "its own backward": (Custom, _rows(5, 8)),
    "tied and frozen": (Tied, _ids),
    "checkpointed": (Checkpointed, _rows(5, 8)),
    "parametrized": (lambda: parametrizations.weight_norm(nn.Linear(8, 4)), _rows(5, 8)),
}  # fmt: skip


# torch.compile itself makes an object of the class.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("name", MODELS)
def test_training_is_eager_s(recording: Recording, name: str) -> None:
    make, data = MODELS[name]
    _same(recording, make(), data)
    assert all(recording.native), recording.reports


@pytest.mark.parametrize("name", ["batch norm", "causal attention"])
def test_training_with_sizes_that_change(recording: Recording, name: str) -> None:
    make, data = MODELS[name]
    _same(recording, make(), lambda step: data(step)[: 2 + step] if name == "batch norm" else data(step)[:, 2 + step :])
    assert all(recording.native), recording.reports


CONVOLUTIONS: dict[str, Callable[[], tuple[nn.Module, tuple[int, ...]]]] = {
    "1-D": lambda: (nn.Conv1d(3, 4, 5, stride=2, padding=3), (2, 3, 17)),
    "3-D": lambda: (nn.Conv3d(2, 4, 3, padding=1), (2, 2, 5, 6, 4)),
    "strided": lambda: (nn.Conv2d(4, 6, (3, 2), stride=(2, 3), padding=(0, 1)), (2, 4, 8, 9)),
    "dilated": lambda: (nn.Conv2d(4, 6, 3, dilation=(2, 1), padding=2, bias=False), (2, 4, 9, 7)),
    "grouped": lambda: (nn.Conv2d(4, 8, 3, groups=2, stride=2), (2, 4, 8, 7)),
    "depthwise": lambda: (nn.Conv2d(4, 8, 3, groups=4, padding=1), (2, 4, 6, 6)),
    "rows left over": lambda: (nn.Conv2d(2, 3, 3, stride=4, dilation=2), (1, 2, 12, 11)),
    "transposed": lambda: (nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1), (2, 4, 5, 6)),
    "transposed, grouped, dilated": lambda: (
        nn.ConvTranspose1d(4, 6, 3, stride=2, dilation=3, groups=2, output_padding=2), (2, 4, 5),
    ),
    "without a batch": lambda: (nn.Conv2d(3, 4, 3), (3, 6, 6)),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_gradients_of_convolutions(recording: Recording, name: str) -> None:
    layer, shape = CONVOLUTIONS[name]()
    compiled = torch.compile(layer, backend=recording)
    x, other = (torch.linspace(-2, 2, int(torch.tensor(shape).prod())).view(shape).requires_grad_() for _ in range(2))
    weights = torch.randn(layer(other).shape)
    (compiled(x) * weights).sum().backward()
    have = [x.grad, *(p.grad.clone() for p in layer.parameters() if p.grad is not None)]
    layer.zero_grad()
    (layer(other) * weights).sum().backward()
    close(have, [other.grad, *(p.grad for p in layer.parameters())])
    assert recording.native == [True, True], recording.reports


def test_dropout_has_one_mask_in_both_halves(recording: Recording) -> None:
    compiled = torch.compile(lambda x: F.dropout(x, 0.5) * 3, backend=recording)
    found = []
    for seed in (1, 1, 2):
        x = torch.ones(1000, requires_grad=True)
        torch.manual_seed(seed)
        y = compiled(x)
        y.sum().backward()
        assert torch.equal(x.grad, y.detach()) and 350 < (y == 0).sum() < 650
        found.append(y.detach())
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])
    assert recording.native == [True, True]


def test_checkpointed_dropout_has_one_mask(recording: Recording) -> None:
    def function(x: torch.Tensor) -> Any:
        return checkpoint(lambda y: F.dropout(y.sin(), 0.5) * 3, x, use_reentrant=False)

    x = torch.ones(1000, requires_grad=True)
    y = torch.compile(function, backend=recording)(x)
    y.sum().backward()
    want = torch.where(y == 0, 0.0, 6 * torch.ones(1000).cos())
    close(x.grad, want)


def test_train_and_eval(recording: Recording) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.BatchNorm1d(8))
    compiled = torch.compile(model, backend=recording)
    x = torch.randn(64, 8)
    compiled(x).sum().backward()
    mean = model[2].running_mean.clone()
    assert mean.abs().sum() > 0 and model[2].num_batches_tracked == 1
    model.eval()
    close(compiled(x), model(x))
    assert torch.equal(model[2].running_mean, mean)
    model.train()
    assert not torch.equal(compiled(x), compiled(x)) and model[2].num_batches_tracked == 3
    assert all(recording.native)


def test_autocast(recording: Recording) -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend=recording)
    x = torch.randn(8, 16)
    for run in (compiled, eager):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = run(x)
        assert y.dtype is torch.bfloat16
        y.float().square().mean().backward()
    for have, want in zip(model.parameters(), eager.parameters(), strict=True):
        assert have.grad is not None and have.grad.dtype is torch.float32
        torch.testing.assert_close(have.grad, want.grad, rtol=2e-2, atol=2e-2)
    assert recording.native == [True, True], recording.reports


def test_gradients_are_accumulated_and_a_backward_runs_twice(recording: Recording) -> None:
    model = nn.Linear(4, 3)
    compiled = torch.compile(model, backend=recording)
    x = torch.randn(5, 4)
    loss = compiled(x).sum()
    loss.backward(retain_graph=True)
    once = model.weight.grad.clone()
    loss.backward()
    compiled(x).sum().backward()
    close(model.weight.grad, once * 3)
    assert recording.native == [True, True]


def test_a_second_derivative_is_an_error_that_says_so(recording: Recording) -> None:
    x = torch.ones(3, requires_grad=True)
    y = torch.compile(lambda x: (x**3).sum(), backend=recording)(x)
    (first,) = torch.autograd.grad(y, x, create_graph=True)
    with pytest.raises(DoubleBackwardError, match="no second derivative"):
        first.sum().backward()


def test_hooks_and_gradients_of_what_lies_between(recording: Recording) -> None:
    model = nn.Linear(4, 3)
    seen: list[torch.Tensor] = []
    model.weight.register_hook(seen.append)
    y = torch.compile(model, backend=recording)(torch.ones(2, 4))
    y.retain_grad()
    y.square().sum().backward()
    close(y.grad, 2 * y.detach())
    assert len(seen) == 1 and torch.equal(seen[0], model.weight.grad)


def test_gradients_of_functions(recording: Recording) -> None:
    def function(x: torch.Tensor) -> Any:
        return torch.func.vmap(torch.func.grad(lambda y: y.sin().square().sum()))(x)

    x = torch.randn(3, 4)
    close(torch.compile(function, backend=recording)(x), function(x))
    assert recording.native == [True]


def test_some_results_need_gradients(recording: Recording) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return (x * y).sum(), y * 2, (x > 0)

    x, y = torch.randn(3, requires_grad=True), torch.randn(3)
    total, plain, flags = torch.compile(function, backend=recording)(x, y)
    assert total.requires_grad and not plain.requires_grad and not flags.requires_grad
    total.backward()
    close(x.grad, y)
    with torch.no_grad():
        close(torch.compile(function, backend=recording)(x, y)[0], (x * y).sum())
    assert recording.halves == ["forward", "backward", "inference"] and all(recording.native)
