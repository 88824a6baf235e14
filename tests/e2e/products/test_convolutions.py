"""The ways a convolution is computed: windows, depthwise, Winograd tiles; odd sizes, margins, strides, batches."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ingot.artifacts.roofline import Roofline, measure_roofline
from ingot.targets.cpu.schedule.statements import TiledConvolution
from tests.support.pipeline_fixtures import assemble, build, lowered

# Error allowed, over that of eager in float32.
TIMES = 4


def winograd_times(channels: int) -> float:
    """The same of the Winograd algorithm: 2 · sqrt(channels / 32).

    A tile's values are sums of four pixels and of nine weights, each rounded once; what they give is then a sum over
    the channels, one after another, whose error grows with their number, where eager adds blocks of channels, whose
    error grows with its square root. docs/reports/winograd.md has the ratio of the two over shapes, images and seeds:
    by root mean squares 1.15 · sqrt(channels / 32) at most, by the largest error 1.3 at 32 channels, 1.6 at 80, 3.1 at
    256; other draws went up to 1.4, 1.8 and 4.0, which is where the 2 comes from.
    """
    return 2 * (channels / 32) ** 0.5


def judge(model: nn.Module, x: torch.Tensor, times: float, *, sizes: tuple[int, ...] = ()) -> set[str]:
    """Compares native code with float64 eager; says which ways of convolving were taken."""
    torch.manual_seed(3)
    model.eval()
    dims = {"x": {0: "batch"}} if sizes else None
    program, module = lowered(model, (x,), dynamic_shapes=dims)
    native = assemble(program, module, threads=2)
    exact = copy.deepcopy(model).double()
    with torch.no_grad():
        for size in sizes or (x.shape[0],):
            given = torch.randn(size, *x.shape[1:])
            right, eager, ours = exact(given.double()), model(given), native(given)
            assert ours.shape == right.shape
            limit = max(float((eager - right).abs().max()) * times, 4 * 2**-24 * float(right.abs().max()))
            assert float((ours - right).abs().max()) <= limit, size
    steps = [step for step in module.steps if isinstance(step, TiledConvolution)]
    return {step.algorithm for step in steps}


class Padded(nn.Module):
    """Zeros around the image by an operator of their own, and something on either side of the convolution."""

    def __init__(self, conv: nn.Module, margin: tuple[int, ...]) -> None:
        super().__init__()
        self.conv, self.margin = conv, margin

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(F.pad(x.relu(), self.margin))
        return F.relu6(y) + y.mean((2, 3), keepdim=True)


@pytest.mark.parametrize("size", [(15, 19), (16, 16), (17, 14)])
@pytest.mark.parametrize("padding", [0, 1, 2])
def test_winograd_at_odd_sizes_and_paddings(size: tuple[int, int], padding: int) -> None:
    model = nn.Conv2d(32, 48, 3, padding=padding)
    assert judge(model, torch.randn(1, 32, *size), winograd_times(32)) == {"winograd"}


def test_winograd_with_the_most_channels() -> None:
    model = nn.Conv2d(256, 256, 3, padding=1)
    assert judge(model, torch.randn(1, 256, 14, 14), winograd_times(256)) == {"winograd"}


def test_winograd_with_any_batch_a_residual_and_a_panel_that_is_not_full() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(80, 80, 3, padding=1, bias=False), nn.BatchNorm2d(80)
            self.norm.running_mean.normal_()
            self.norm.running_var.uniform_(0.5, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.relu(self.norm(self.conv(x)) + x)

    assert judge(Block(), torch.randn(2, 80, 14, 14), winograd_times(80), sizes=(1, 2, 3, 7)) == {"winograd"}


@pytest.mark.parametrize("case", [{"stride": 2}, {"dilation": 2}, {"groups": 2}, {"channels": 24}, {"size": 4}])
def test_winograd_is_left_out_where_it_does_not_fit_or_pay(case: dict[str, int]) -> None:
    case = dict(case)
    channels, size = case.pop("channels", 32), case.pop("size", 14)
    model = nn.Conv2d(channels, 32, 3, padding=1, **case)
    assert judge(model, torch.randn(1, channels, size, size), TIMES) == {"windows"}


@pytest.mark.parametrize("channels", [16, 48, 80, 160])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation"),
    [(3, 1, 1, 1), (3, 2, 1, 1), (5, 1, 2, 1), (7, 1, 3, 1), (3, 1, 2, 2), (2, 3, 0, 1), ((1, 4), (1, 2), (0, 3), 1)],
)
def test_depthwise(channels: int, kernel: int, stride: int, padding: int, dilation: int) -> None:
    model = nn.Conv2d(channels, channels, kernel, stride, padding, dilation, groups=channels)
    for size in ((7, 7), (11, 5)):
        assert judge(model, torch.randn(2, channels, *size), TIMES) == {"depthwise"}


def test_depthwise_in_one_dim_and_in_a_window_larger_than_the_image() -> None:
    assert judge(nn.Conv1d(32, 32, 5, padding=2, groups=32), torch.randn(1, 32, 19), TIMES) == {"depthwise"}
    assert judge(nn.Conv2d(32, 32, 7, padding=3, groups=32), torch.randn(1, 32, 2, 3), TIMES) == {"depthwise"}


def test_depthwise_with_channels_that_fill_no_vector_is_a_sum_over_taps() -> None:
    assert judge(nn.Conv2d(20, 20, 3, padding=1, groups=20), torch.randn(1, 20, 9, 9), TIMES) == set()
    assert judge(nn.Conv2d(16, 32, 3, padding=1, groups=16), torch.randn(1, 16, 9, 9), TIMES) == set()


@pytest.mark.parametrize(("kernel", "dilation"), [(1, 1), (3, 1), (3, 2), (5, 1), ((1, 3), 1), ((3, 1), 1)])
def test_one_channel_to_one_channel_is_not_vectorized_over_channels(kernel: int, dilation: int) -> None:
    model = nn.Conv2d(1, 1, kernel, padding=1, dilation=dilation)
    assert judge(model, torch.randn(2, 1, 11, 13), TIMES) == {"windows"}


@pytest.mark.parametrize("margin", [(0, 1, 0, 1), (1, 0, 2, 0), (2, 1, 0, 3), (-1, 1, 0, 1), (0, 0, 0, 0, 0, 16)])
@pytest.mark.parametrize("groups", [1, 32])
def test_zeros_around_the_image_are_the_convolutions_own(margin: tuple[int, ...], groups: int) -> None:
    channels = 32 + (16 if len(margin) > 4 else 0)
    groups = min(groups, channels) if channels % groups == 0 else channels
    for stride in (1, 2):
        conv = nn.Conv2d(channels, channels, 3, stride, padding=stride - 1, groups=groups)
        judge(Padded(conv, margin), torch.randn(1, 32, 15, 14), TIMES)
    few = nn.Conv2d(3, 32, 3, 2)
    if len(margin) == 4:
        judge(Padded(few, margin), torch.randn(1, 3, 15, 14), TIMES)


def test_a_file_in_parts_gives_the_same_as_the_file_as_a_whole(tmp_path_factory: pytest.TempPathFactory) -> None:
    from pathlib import Path

    from ingot.artifacts.compiled_model import CompiledModel
    from ingot.codegen.build.isa import host
    from ingot.codegen.build.toolchain import find
    from ingot.scheduling.buffer_planning import plan
    from ingot.targets.cpu.codegen.module_emitter import emit
    from ingot.targets.cpu.target import CPU

    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, 2), nn.ReLU6(), nn.Conv2d(32, 32, 3, padding=1, groups=32), nn.GELU(),
        nn.Conv2d(32, 48, 3, padding=1), nn.Tanh(), nn.Conv2d(48, 16, 1), nn.Flatten(1), nn.LazyLinear(10),
    ).eval()  # fmt: skip
    x = torch.randn(1, 3, 35, 35)
    model(x)
    program, module = lowered(model, (x,))
    source = emit(module, plan(module))
    assert source.groups > 1
    results = []
    for parts in range(1, source.groups + 2):  # the whole, and the run with its kernels in one part or more
        library = Path(tmp_path_factory.mktemp("parts")) / "m.so"
        flags = (f'-DIG_ISA="{host().name}"', "-O1")
        find().compile_library(source.text, host(), library, extra_flags=flags, parts=parts)
        blob = CPU.pack_weights(program, module, source)
        results.append(CompiledModel(program, module, source, blob, {host().name: library.read_bytes()}, CPU, 2)(x))
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_a_number_and_a_nan_on_either_side_of_a_limit() -> None:
    x = torch.tensor([float("nan"), -1.0, 0.5, 9.0, float("inf"), float("-inf")])
    native = build(lambda x: (x.clamp(0, 6), F.relu6(x), x.clamp(min=-0.25), torch.maximum(x, x.flip(0))), (x,))
    expected = (x.clamp(0, 6), F.relu6(x), x.clamp(min=-0.25), torch.maximum(x, x.flip(0)))
    torch.testing.assert_close(native(x), expected, equal_nan=True, rtol=0, atol=0)


def test_limits_are_plausible_and_kernels_are_compared_with_them() -> None:
    limits = measure_roofline(1)
    assert 1e8 < limits.flops < 1e13 and 1e8 < limits.bytes < 1e13
    assert Roofline(10.0, 5.0).seconds(20, 5) == 2 and Roofline(10.0, 5.0).seconds(1, 50) == 10
    x = torch.randn(64, 64)
    profile = build(nn.Linear(64, 64), (x,)).profile(x)
    assert "of peak" in str(profile) and all(profile.peak_fraction(row) > 0 for row in profile.rows)
