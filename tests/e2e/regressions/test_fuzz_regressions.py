"""What random programs found: each case is small and named after the mistake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ingot_runtime
from tests.support.pipeline_fixtures import build

X = torch.Tensor


def x(*shape: int, seed: int = 0) -> X:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def check(f: Callable[..., object], *args: X, tolerance: float = 1e-5) -> None:
    """The same results as eager, and the same arguments afterwards."""
    ours, theirs = [a.clone() for a in args], [a.clone() for a in args]
    compiled = build(f, [a.clone() for a in args])
    got, expected = compiled(*ours), f(*theirs)
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance, equal_nan=True)


def test_an_argument_is_overwritten_with_itself_in_another_order() -> None:
    def f(a: X) -> X:
        a.copy_(a.flip(0))
        return a + 1

    check(f, x(7, 5))


def test_an_argument_is_overwritten_with_a_product_of_itself() -> None:
    def f(a: X, w: X) -> X:
        a.copy_(F.linear(a, w))
        return a + 1

    check(f, x(70, 60), x(60, 60) / 8)


def test_an_argument_is_overwritten_with_a_convolution_of_itself() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(8, 8, 3, padding=1)

        def forward(self, a: X) -> X:
            a.copy_(self.conv(a))
            return a * 2

    torch.manual_seed(0)
    with torch.no_grad():
        check(Model(), x(2, 8, 9, 9))


def test_an_argument_is_overwritten_with_its_softmax_across_rows() -> None:
    def f(a: X) -> X:
        a.copy_(torch.softmax(a, 0))
        return a.sum(-1)

    check(f, x(9, 33))


def test_a_buffer_that_two_kernels_write_is_local_to_neither() -> None:
    def f(a: X) -> X:
        b = F.elu(a)
        joined = torch.cat((torch.relu(b), torch.atan(b)), 1)
        return torch.softmax(joined, 1)

    check(f, x(5, 17))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_integers_have_remainders(dtype: torch.dtype) -> None:
    a = torch.arange(-9, 9).to(dtype)
    check(lambda a: (torch.remainder(a, 4), torch.fmod(a, 4), torch.div(a, 4, rounding_mode="floor")), a)


def test_bytes_are_never_negative_and_integers_never_nan() -> None:
    a = torch.arange(0, 256, 5).to(torch.uint8)
    check(lambda a: (a < 0, a >= 0, a.abs(), torch.sign(a), torch.relu(a), torch.isnan(a), torch.isinf(a)), a)


def test_gather_of_nothing_by_places_of_another_rank() -> None:
    check(lambda a, places: a.gather(0, places), x(5), torch.zeros(0, 3, dtype=torch.int64))


def test_what_is_empty_runs_no_loop() -> None:
    check(lambda a: (a.permute(1, 2, 0) * 2 + 1, a.sum(0), a.amax((1, 2)), a.cumsum(1)), x(0, 3, 5))
    check(lambda a: (a.cumsum(0), a.sort(-1).values, a @ a.mT), x(3, 0))


def test_an_index_into_one_place_is_checked_all_the_same() -> None:
    def f(a: X, places: X) -> X:
        return a[places] + 1

    check(f, x(1, 4), torch.tensor([0, -1, 0]))
    compiled = build(f, (x(1, 4), torch.tensor([0, -1, 0])))
    with pytest.raises(Exception, match="index"):
        compiled(x(1, 4), torch.tensor([0, 1, 0]))


def test_attention_without_a_batch() -> None:
    check(lambda a: F.scaled_dot_product_attention(a, a, a), x(50, 8))


def test_inputs_and_outputs_that_nothing_reads_or_writes() -> None:
    check(lambda a, b: (a * 2, b[:0] + 1), x(3), x(4))


def test_weights_that_end_anywhere_can_be_saved_and_loaded(tmp_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("last", x(5))

        def forward(self, a: X) -> X:
            return a * self.last

    compiled = build(Model(), (x(3, 5),))
    compiled.save(tmp_path / "m.ingot")
    made = ingot_runtime.load(tmp_path / "m.ingot")(x(3, 5).numpy())
    torch.testing.assert_close(torch.from_numpy(made), Model()(x(3, 5)))


def test_a_dim_transposed_with_itself_is_still_a_view() -> None:
    def f(a: X) -> X:
        b = a.clone()
        turned = b.transpose(0, -1)
        turned.mul_(2)
        return b + 1

    compiled = build(f, (x(11),), dynamic_shapes={"a": {0: "n"}})
    torch.testing.assert_close(compiled(x(5)), f(x(5)))


def test_a_convolution_of_no_channels_in_groups_gives_none() -> None:
    check(lambda a, w: F.conv1d(a, w, groups=2), x(1, 0, 3), x(4, 0, 1))


def test_a_dim_that_may_be_empty_is_compared_and_not_multiplied_in_a_condition() -> None:
    """gcc warns of `(n*3) ? … : 0`, and this test compiles with -Werror."""

    def f(a: X, at: X) -> X:
        return a.transpose(0, 1).reshape(-1)[at]

    compiled = build(
        f, (x(3, 5), torch.tensor([14, 0])), dynamic_shapes={"a": {1: torch.export.Dim("n", min=0)}, "at": None}
    )
    for size in (5, 1, 7):
        a, at = x(3, size), torch.tensor([3 * size - 1, 0])
        torch.testing.assert_close(compiled(a, at), f(a, at), rtol=0, atol=0)
