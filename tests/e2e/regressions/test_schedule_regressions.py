"""Values that a step reads twice: as what it multiplies, and in its epilogue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ingot.targets.cpu.schedule.statements import DualGemm
from tests.support.pipeline_fixtures import assemble, lowered

X = torch.Tensor

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(32, 32), (4, 32)),
    "linear over a sequence": (lambda: nn.Linear(32, 32), (2, 7, 32)),
    "conv1d": (lambda: nn.Conv1d(32, 32, 5, padding=2), (1, 32, 20)),
    "conv 1x1": (lambda: nn.Conv2d(16, 16, 1), (1, 16, 8, 8)),
    "conv 3x3": (lambda: nn.Conv2d(16, 16, 3, padding=1), (1, 16, 8, 8)),
    "conv3d": (lambda: nn.Conv3d(16, 16, 3, padding=1), (1, 16, 4, 4, 4)),
    "depthwise": (lambda: nn.Conv2d(32, 32, 3, padding=1, groups=32), (1, 32, 8, 8)),
    "conv and batch norm": (
        lambda: nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16)),
        (1, 16, 8, 8),
    ),
}
FORMS: dict[str, Callable[[Any, X], Any]] = {
    "b(y) + y": lambda m, x: (lambda y: m.b(y) + y)(m.a(x)),
    "c(b(y) + y)": lambda m, x: (lambda y: m.c(m.b(y) + y))(m.a(x)),
    "c(b(y) + y), relu": lambda m, x: (lambda y: m.c(m.b(y) + y))(m.a(x).relu()),
    "c(relu(b(y) + y))": lambda m, x: (lambda y: m.c((m.b(y) + y).relu()))(m.a(x)),
    "c(b(relu(y)) * y)": lambda m, x: (lambda y: m.c(m.b(y.relu()) * y))(m.a(x)),
    "c(b(y) * y), y": lambda m, x: (lambda y: (m.c(m.b(y) * y), y))(m.a(x)),
}


class Forms(nn.Module):
    """Every form of one kind of layer, as one model."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.a, self.b, self.c = make(), make(), make()

    def forward(self, x: X) -> list[Any]:
        return [form(self, x + place) for place, form in enumerate(FORMS.values())]


@pytest.mark.parametrize("kind", LAYERS)
def test_a_residual_around_a_layer_reads_what_was_written(kind: str) -> None:
    make, shape = LAYERS[kind]
    torch.manual_seed(0)
    model, x = Forms(make).eval(), torch.randn(shape)
    with torch.no_grad():
        expected = model(x)
        native = assemble(*lowered(model, (x,)))
        torch.testing.assert_close(native(x), expected, rtol=1e-4, atol=1e-4)


def test_two_layers_that_meet_are_still_a_pair() -> None:
    class Meeting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(32, 64), nn.Linear(48, 64)

        def forward(self, x: X, z: X) -> X:
            return self.a(x) + self.b(z)

    _, module = lowered(Meeting().eval(), (torch.randn(9, 32), torch.randn(9, 48)))
    assert [type(step) for step in module.steps] == [DualGemm]


# ---------------------------------------------------------------------- blocks of EfficientNetV2


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, inner, 1), nn.Conv2d(inner, channels, 1)

    def forward(self, x: X) -> X:
        return x * self.up(F.silu(self.down(F.adaptive_avg_pool2d(x, 1)))).sigmoid()


def conv_norm(ins: int, outs: int, kernel: int, stride: int = 1, groups: int = 1, act: bool = True) -> nn.Sequential:
    conv = nn.Conv2d(ins, outs, kernel, stride, kernel // 2, groups=groups, bias=False)
    norm = nn.BatchNorm2d(outs, eps=1e-3)
    return nn.Sequential(conv, norm, nn.SiLU()) if act else nn.Sequential(conv, norm)


class Block(nn.Module):
    """Fused-MBConv without a depthwise convolution, MBConv with one and squeeze-excite."""

    def __init__(self, ins: int, outs: int, widen: int, stride: int, fused: bool) -> None:
        super().__init__()
        wide = ins * widen
        if fused:
            last = [conv_norm(wide, outs, 1, act=False)] if widen != 1 else []
            layers = [conv_norm(ins, wide if last else outs, 3, stride), *last]
        else:
            layers = [conv_norm(ins, wide, 1), conv_norm(wide, wide, 3, stride, wide), SqueezeExcite(wide, ins // 4)]
            layers.append(conv_norm(wide, outs, 1, act=False))
        self.layers, self.residual = nn.Sequential(*layers), stride == 1 and ins == outs

    def forward(self, x: X) -> X:
        return x + self.layers(x) if self.residual else self.layers(x)


def test_blocks_of_efficientnet_v2() -> None:
    torch.manual_seed(0)
    stages = [(24, 24, 1, 1, True), (24, 24, 1, 1, True), (24, 48, 4, 2, True), (48, 48, 4, 1, True)]
    stages += [(48, 64, 4, 2, False), (64, 64, 4, 1, False), (64, 64, 4, 1, False), (64, 80, 6, 1, False)]
    blocks = [Block(*stage) for stage in stages]
    model = nn.Sequential(
        conv_norm(3, 24, 3, 2), *blocks, conv_norm(80, 128, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 9)
    ).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.5, 0.5)
            nn.init.uniform_(module.running_var, 0.5, 2)
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        native = assemble(*lowered(model, (x,)))
        torch.testing.assert_close(native(x), model(x), rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------------- padding


class Padded(nn.Module):
    """Convolutions of what is computed on the way: x + 1 is 0 outside the image, though x is 0 there too."""

    def __init__(self) -> None:
        super().__init__()
        self.three, self.turned = nn.Conv3d(2, 3, 3, padding=1), nn.ConvTranspose2d(3, 2, 3, stride=2, padding=1)
        self.first, self.second = (nn.Conv2d(17, 17, 3, padding=1, groups=17) for _ in range(2))

    def forward(self, x: X, y: X, z: X) -> list[X]:
        deep = self.second(self.first(z) + 1)
        return [self.three(x + 1), self.three(1 - x), self.turned(y.cos()), deep, F.avg_pool2d(y + 1, 3, padding=1)]


def test_padding_is_zero_whatever_is_computed_on_the_way() -> None:
    torch.manual_seed(0)
    model = Padded().eval()
    args = torch.randn(1, 2, 4, 4, 4), torch.randn(1, 3, 5, 5), torch.randn(1, 17, 6, 6)
    with torch.no_grad():
        native = assemble(*lowered(model, args))
        torch.testing.assert_close(native(*args), model(*args), rtol=1e-4, atol=1e-5)
