"""Products and convolutions by strips of lines: the same bits as one after another, whatever the sizes and threads."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ingot.scheduling.fusion import fuse
from ingot.targets.cpu.schedule import strip_mining
from ingot.targets.cpu.schedule.limits import FUSION_LIMITS
from ingot.targets.cpu.schedule.statements import StripMined
from tests.support.pipeline_fixtures import assemble, lowered


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is large, and strips are of a few lines."""
    monkeypatch.setattr(strip_mining, "LARGE", 0)
    monkeypatch.setattr(strip_mining, "HELD", 1 << 15)


def check(make: Callable[[], nn.Module], x: torch.Tensor, *, sizes: tuple[int, ...] = ()) -> list[StripMined]:
    """Strips give the bits that the same steps give one after another, with one thread and with three."""
    torch.manual_seed(5)
    model = make().eval()
    dims = {"input": {0: "batch"}} if sizes else None
    program, module = lowered(model, (x,), dynamic_shapes=dims)
    found = [step for step in module.steps if isinstance(step, StripMined)]
    _, plain = lowered(model, (x,), dynamic_shapes=dims, fused=False)
    expected = assemble(program, fuse(plain, FUSION_LIMITS))
    for threads in (1, 3):
        ours = assemble(program, module, threads=threads)
        for size in sizes or (x.shape[0],):
            given = torch.randn(size, *x.shape[1:])
            for _ in range(2):
                assert torch.equal(ours(given), expected(given)), (threads, size)
    return found


def block(inner: int, kernel: int, stride: int, padding: int, dilation: int = 1) -> Callable[[], nn.Module]:
    """An inverted residual block: wider, each channel by itself, narrower."""
    return lambda: nn.Sequential(
        nn.Conv2d(16, inner, 1),
        nn.ReLU6(),
        nn.Conv2d(inner, inner, kernel, stride, padding, dilation, groups=inner),
        nn.ReLU6(),
        nn.Conv2d(inner, 24, 1),
    )


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation"),
    [(3, 1, 1, 1), (3, 2, 1, 1), (3, 2, 0, 1), (5, 1, 2, 1), (7, 3, 3, 1), (3, 1, 2, 2), (2, 3, 0, 1), (1, 2, 0, 1)],
)
def test_an_inverted_residual_block(kernel: int, stride: int, padding: int, dilation: int) -> None:
    found = check(block(32, kernel, stride, padding, dilation), torch.randn(2, 16, 29, 23))
    assert [len(step.steps) for step in found] == [3]
    assert found[0].lines < found[0].grids[-1][0], "more than one strip an image"


@pytest.mark.usefixtures("small")
def test_any_batch_and_a_sum_with_what_the_block_was_given() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide, self.deep = nn.Conv2d(16, 48, 1), nn.Conv2d(48, 48, 3, padding=1, groups=48)
            self.narrow = nn.Conv2d(48, 16, 1)

        def forward(self, input: torch.Tensor) -> torch.Tensor:
            y = F.relu6(self.deep(F.relu6(self.wide(input))))
            return input + self.narrow(y)

    found = check(Block, torch.randn(3, 16, 17, 13), sizes=(1, 2, 3, 7))
    assert [len(step.steps) for step in found] == [3]


@pytest.mark.usefixtures("small")
def test_windows_before_and_after() -> None:
    def make() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1, groups=16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 5, 2, 2, groups=2),
            nn.GELU(),
            nn.Conv2d(32, 8, 1),
        )

    found = check(make, torch.randn(2, 3, 41, 37))
    assert sum(len(step.steps) for step in found) >= 3


@pytest.mark.usefixtures("small")
def test_rows_without_an_image() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(24, 96), nn.GELU(), nn.Linear(96, 24))

    found = check(make, torch.randn(5, 31, 24))
    assert [len(step.steps) for step in found] == [2]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(12))
def test_random_stacks(seed: int) -> None:
    """Stacks of layers of all kinds, of which some become strips."""
    draw = random.Random(seed)

    def make() -> nn.Module:
        layers: list[nn.Module] = []
        channels, depth = 16, draw.randint(2, 6)
        for _ in range(depth):
            kind, kernel = draw.choice(["point", "deep", "window"]), draw.choice([1, 2, 3, 5])
            stride, dilation, padding = (
                draw.choice([1, 1, 2, 3]),
                draw.choice([1, 1, 2]),
                draw.randint(0, kernel // 2 + 1),
            )
            padding = max(padding, (kernel - 1) * dilation // 2)
            after = {"point": draw.choice([16, 24, 48]), "deep": channels, "window": draw.choice([16, 32])}[kind]
            if kind == "deep" and channels % 16:
                continue
            if kind == "point":
                kernel, stride, dilation, padding = 1, 1, 1, 0
            groups = channels if kind == "deep" else 1
            layers += [nn.Conv2d(channels, after, kernel, stride, padding, dilation, groups=groups), nn.ReLU()]
            channels = after
        return nn.Sequential(*layers, nn.Conv2d(channels, 8, 1))

    check(make, torch.randn(draw.randint(1, 3), 16, draw.randint(17, 40), draw.randint(17, 40)))


def test_what_two_read_or_weights_that_are_large_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide, self.deep = nn.Conv2d(16, 32, 1), nn.Conv2d(32, 32, 3, padding=1, groups=32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = F.relu6(self.wide(x))
            return self.deep(y) + y.mean((2, 3), keepdim=True)

    monkeypatch.setattr(strip_mining, "LARGE", 0)
    x = torch.randn(1, 16, 12, 12)
    assert check(Twice, x) == []
    monkeypatch.setattr(strip_mining, "WEIGHTS", 1000)
    assert check(block(32, 3, 1, 1), x) == []
    monkeypatch.undo()
    assert check(block(32, 3, 1, 1), x) == [], "small as it is, it stays in cache by itself"
