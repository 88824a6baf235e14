"""Operators that native code computes in terms of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._inductor import inductor_prims  # noqa: F401  defines the prims of pools
from torch.nn import functional as F

from tests.dynamo.recording import Recording, close

aten, prims = torch.ops.aten, torch.ops.prims


def check(recording: Recording, function: Callable[..., Any], *args: Any) -> Any:
    """The function is native code and computes what eager does, with its dtypes and strides."""
    made = torch.compile(function, backend=recording, fullgraph=True)(*args)
    assert recording.native and all(recording.native), recording.reports
    want = function(*args)
    torch.testing.assert_close(made, want, rtol=1e-5, atol=1e-5)
    assert torch.utils._pytree.tree_map(_layout, made) == torch.utils._pytree.tree_map(_layout, want)
    return made


def _layout(tensor: torch.Tensor) -> Any:
    return tensor.dtype, tensor.shape, tensor.stride()


@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("dims", [2, 3])
def test_low_memory_max_pool(recording: Recording, dims: int, dilation: int) -> None:
    kernel, stride, padding, steps = [3, 3, 2][:dims], [2] * dims, [1] * dims, [dilation] * dims

    def function(x: torch.Tensor) -> Any:
        values, offsets = prims._low_memory_max_pool_with_offsets(x, kernel, stride, padding, steps, False)
        sizes = list(x.shape[-dims:])
        return values, offsets, prims._low_memory_max_pool_offsets_to_indices(
            offsets, kernel, sizes, stride, padding, dilation=steps
        )  # fmt: skip

    check(recording, function, torch.randn(2, 3, *[10, 9, 8][:dims]))


@pytest.mark.parametrize(("kernel", "out"), [((3, 2), (2, 5)), ((1, 1), (9, 8)), ((4, 3), (1, 3)), ((2, 2), (6, 6))])
@pytest.mark.parametrize("has_batch", [True, False])
def test_fractional_max_pool2d(recording: Recording, kernel: Any, out: Any, has_batch: bool) -> None:
    for _ in range(4):
        x, samples = torch.randn(2, 3, 9, 8), torch.rand(2, 3, 2)
        x, samples = (x, samples) if has_batch else (x[0], samples[:1])
        check(recording, lambda x, s: aten.fractional_max_pool2d(x, kernel, out, s), x, samples)


def test_fractional_max_pool3d(recording: Recording) -> None:
    x, samples = torch.randn(2, 3, 9, 8, 7), torch.rand(2, 3, 3)
    check(recording, lambda x, s: aten.fractional_max_pool3d(x, (2, 3, 1), (4, 2, 5), s), x, samples)


@pytest.mark.parametrize("dims", [2, 3])
def test_the_gradient_of_fractional_max_pools(recording: Recording, dims: int) -> None:
    pool = (F.fractional_max_pool2d, F.fractional_max_pool3d)[dims - 2]
    x, samples = torch.randn(2, 3, *[8, 7, 9][:dims]), torch.rand(2, 3, dims)

    def function(x: torch.Tensor) -> torch.Tensor:
        return (pool(x.sin(), 3, output_size=[3] * dims, _random_samples=samples) ** 2).sum()

    mine, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    torch.compile(function, backend=recording)(mine).backward()
    function(other).backward()
    close(mine.grad, other.grad)
    assert recording.halves == ["forward", "backward"] and all(recording.native), recording.reports


def test_copies_of_views(recording: Recording) -> None:
    x = torch.randint(2, 99, (8, 16), dtype=torch.int32)
    check(recording, lambda x: (aten.view_copy(x, dtype=torch.int64), aten.view_copy(x, (4, 32))), x)


def test_copies_with_strides(recording: Recording) -> None:
    check(recording, lambda x: prims.copy_strided(x * 2, [1, 3, 12]).exp(), torch.randn(3, 4, 5))


def test_rows_of_bytes(recording: Recording) -> None:
    scales, offsets = torch.randn(32, 1).view(torch.uint8), torch.randn(32, 1).view(torch.uint8)
    packed = torch.cat([torch.randint(0, 255, (32, 64), dtype=torch.uint8), scales, offsets], -1)
    check(recording, lambda x: torch.ops.quantized.embedding_bag_byte_unpack(x), packed)


def test_a_weight_of_int8(recording: Recording) -> None:
    x, weight = torch.rand(32, 32).bfloat16(), torch.randint(-128, 127, (48, 32), dtype=torch.int8)
    scales = (torch.rand(48) / 100).bfloat16()
    have = torch.compile(torch._weight_int8pack_mm, backend=recording)(x, weight, scales)
    torch.testing.assert_close(have, torch._weight_int8pack_mm(x, weight, scales))
    assert recording.native == [True]


@pytest.mark.parametrize("steps", [5, 1999])
@pytest.mark.parametrize("found", [0.0, 1.0])
@pytest.mark.parametrize("scale", [4.0, 3e38])
def test_the_scale_of_a_loss(recording: Recording, scale: float, found: float, steps: int) -> None:
    def function(scale: torch.Tensor, tracker: torch.Tensor, found: torch.Tensor) -> Any:
        made = torch._amp_update_scale_(scale, tracker, found, 2.0, 0.5, 2000)
        return made + 0, tracker + 0

    def given() -> Any:
        return torch.tensor([scale]), torch.tensor([steps], dtype=torch.int32), torch.tensor([found])

    have, want = torch.compile(function, backend=recording)(*given()), function(*given())
    close(have, want)
    assert recording.native == [True]


def test_repeated_numbers(recording: Recording) -> None:
    function = torch.compile(lambda x: aten.repeat_interleave.Tensor(x, output_size=12), backend=recording)
    for repeats in ([2, 4, 6], [12, 0, 0], [0, 5, 7]):
        x = torch.tensor(repeats)
        close(function(x), aten.repeat_interleave.Tensor(x))
    assert recording.native == [True]
    with pytest.raises(RuntimeError, match="does not match"):
        function(torch.tensor([1, 2, 3]))


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("shape", [(5,), (3, 5)], ids=str)
def test_multinomial(recording: Recording, shape: tuple[int, ...], replacement: bool) -> None:
    weights = torch.tensor([0.0, 1.0, 2.0, 0.0, 7.0]).expand(shape).contiguous()
    draw = torch.compile(lambda w: torch.multinomial(w, 2, replacement), backend=recording)
    torch.manual_seed(0)
    drawn = torch.stack([draw(weights) for _ in range(2000)])
    assert recording.native == [True] and drawn.dtype is torch.int64 and drawn.shape == (2000, *shape[:-1], 2)
    counts = drawn[..., 0].flatten().bincount(minlength=5) / drawn[..., 0].numel()
    torch.testing.assert_close(counts, torch.tensor([0.0, 0.1, 0.2, 0.0, 0.7]), rtol=0, atol=0.04)
    if not replacement:
        assert (drawn[..., 0] != drawn[..., 1]).all()
    torch.manual_seed(0)
    close(draw(weights), drawn[0])
    for wrong in (weights - 1, weights * 0, weights / 0):
        with pytest.raises(RuntimeError, match=r"multinomial|probability"):
            draw(wrong)


def test_no_generator(recording: Recording) -> None:
    def function(x: torch.Tensor) -> Any:
        return torch.rand(4, 5, generator=None) + x, torch.randint(3, 9, (20,), generator=None)

    made = torch.compile(function, backend=recording)(torch.zeros(4, 5))
    assert recording.native == [True]
    assert ((made[0] >= 0) & (made[0] < 1)).all() and ((made[1] >= 3) & (made[1] < 9)).all()


@pytest.mark.parametrize("weight", [0.25, -0.75, 70000, torch.tensor(0.3), torch.linspace(-1, 2, 3)])
def test_lerp(recording: Recording, weight: Any) -> None:
    start, end = torch.rand(3, 10, 3), torch.rand(10, 3, 3).transpose(0, 1)
    check(recording, lambda x, y: (torch.lerp(x, y, weight), torch.lerp(y, x, weight)), start, end)


def test_lerp_of_half_precision(recording: Recording) -> None:
    start, end = torch.rand(3, 4).bfloat16(), torch.rand(3, 4).bfloat16()
    made = torch.compile(torch.lerp, backend=recording)(start, end, 0.7)
    torch.testing.assert_close(made, torch.lerp(start, end, 0.7))
    assert recording.native == [True]


@pytest.mark.parametrize("trains", [False, True])
def test_operators_that_check_their_results(recording: Recording, trains: bool) -> None:
    """AOTAutograd calls these checks with tokens; the whole graph is native code all the same, and eager's error is
    the user's."""

    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.linalg.solve(torch.linalg.inv(a), b)

    a = (torch.eye(4) + 0.1 * torch.randn(4, 4)).requires_grad_(trains)
    compiled = torch.compile(function, backend=recording, fullgraph=True)
    b = torch.randn(4, 2)
    made, want = compiled(a, b), function(a, b)
    close(made, want)
    assert recording.native and all(recording.native), recording.reports
    if trains:
        close(*(torch.autograd.grad(one.square().sum(), a)[0] for one in (made, want)))
        assert recording.halves == ["forward", "backward"]
    with pytest.raises(RuntimeError, match="singular"):
        compiled(torch.zeros(4, 4, requires_grad=trains), b)
