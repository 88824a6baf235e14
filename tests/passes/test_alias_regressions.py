"""Writes through every kind of alias: results, arguments and later reads are those of eager, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan

import ingot
from ingot import passes
from ingot.errors import PassError
from ingot.passes.retracing.retrace import Replay

aten = torch.ops.aten
View = Callable[[torch.Tensor], torch.Tensor]

# Each may return its argument or a view of it; the schemas of most say nothing of it.
ALIASES: dict[str, View] = {
    "broadcast_tensors": lambda v: torch.broadcast_tensors(v, v[:1])[0],
    "meshgrid": lambda v: torch.meshgrid(v[0], v[1], indexing="ij")[0],
    "atleast_2d of several": lambda v: torch.atleast_2d(v, v)[0],
    "atleast_3d": torch.atleast_3d,
    "type_as": lambda v: v.type_as(torch.zeros(1)),
    "einsum": lambda v: torch.einsum("ij->ji", v),
    "dropout": lambda v: F.dropout(v, 0.5, False),
    "alpha_dropout": lambda v: F.alpha_dropout(v, 0.5, False),
    "native_dropout": lambda v: torch.native_dropout(v, 0.5, False)[0],
    "unsafe_chunk": lambda v: torch.unsafe_chunk(v, 2)[0],
    "unsafe_split": lambda v: torch.unsafe_split(v, 1)[1],
    "lift_fresh": aten.lift_fresh.default,
    "_unsafe_view": lambda v: aten._unsafe_view(v, [4, 3]),
    "cartesian_prod": lambda v: torch.cartesian_prod(v[0]),
    "contiguous": lambda v: v.contiguous(),
    "reshape": lambda v: v.reshape(4, 3),
    "reshape that copies": lambda v: v.T.reshape(3, 4),
    "unbind": lambda v: v.unbind(1)[1],
    "split_with_sizes": lambda v: v.split([1, 2])[1],
    "tensor_split": lambda v: torch.tensor_split(v, 2)[1],
    "diagonal": lambda v: v.diagonal(1),
    "as_strided": lambda v: v.as_strided((2, 2), (1, 2), 1),
    "as_strided of a view": lambda v: v[1:].as_strided((2, 3), (4, 1)),
    "unfold that leaves gaps": lambda v: v.unfold(1, 1, 2),
    "row of an unfold": lambda v: v.unfold(1, 2, 1)[:, 2],
    "row of an expand": lambda v: v[:1].expand(3, 4)[1],
    "expand by ones": lambda v: v.expand(1, 3, 4),
    "broadcast_to": lambda v: torch.broadcast_to(v, (3, 4)),
    "chain": lambda v: v.T[1:].unsqueeze(0)[0, ::2].movedim(0, 1),
    "view_as_complex": lambda v: torch.view_as_real(torch.view_as_complex(v.view(3, 2, 2)))[:, 0],
    "alias": aten.alias.default,
    "data": lambda v: v.data,
    # On the CPU these copy, though torch's fake kernels return a view.
    "channel_shuffle of one group": lambda v: torch.channel_shuffle(v.view(1, 2, 3, 2), 1),
    "native_channel_shuffle of one group": lambda v: torch.native_channel_shuffle(v.view(1, 2, 3, 2), 1),
    "channel_shuffle of single channels": lambda v: torch.channel_shuffle(v.view(6, 2, 1, 1), 2),
    "channel_shuffle": lambda v: torch.channel_shuffle(v.view(1, 4, 3), 2),
}


class Writes(nn.Module):
    def __init__(self, view: View, through_view: bool, inner: bool) -> None:
        super().__init__()
        self.view, self.through_view, self.inner = view, through_view, inner

    def forward(self, v: torch.Tensor) -> Any:
        v = v + 0 if self.inner else v
        alias = self.view(v)
        if self.through_view:
            alias.fill_(1e-3).mul_(3)
        else:
            v.mul_(2).add_(1)
        return v * 1, alias * 1


def check_as_eager(model: nn.Module, x: torch.Tensor, steps: Any = (passes.functionalize,)) -> None:
    """Twice, so that a call that leaves something behind is found."""
    program = ingot.transform(ingot.capture(model, (x.clone(),)), list(steps))
    given, expected = x.clone(), x.clone()
    for _ in range(2):
        want, got = model(expected), program(given)
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(given, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("inner", [False, True], ids=["argument", "intermediate"])
@pytest.mark.parametrize("through_view", [False, True], ids=["to the base", "through the alias"])
@pytest.mark.parametrize("name", ALIASES)
def test_a_write_reaches_whatever_shares_the_memory(name: str, through_view: bool, inner: bool) -> None:
    x = torch.tensor([[1e8, float("inf"), -0.0, 3.0]]) * torch.tensor([[1.0], [-1.0], [0.5]])
    model = Writes(ALIASES[name], through_view, inner)
    if name == "meshgrid" and through_view:
        with pytest.raises(RuntimeError):
            model(x.clone())
        return
    if name == "as_strided of a view" and not inner:
        with pytest.raises(PassError, match="as_strided of a view of an argument"):
            check_as_eager(model, x)
        return
    check_as_eager(model, x)


def test_fakes_of_composite_operators_with_a_cpu_kernel_are_known() -> None:
    """Fakes run an operator's composite kernel, real tensors its CPU kernel: only the latter tells what is an alias."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    names = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")}
    both = {name for name in names if has_kernel(name, "CompositeImplicitAutograd") and has_kernel(name, "CPU")}
    assert both <= {"aten::native_channel_shuffle", "aten::mish_backward", "aten::silu_backward"}


class InPlaceViews(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        y = x * 2
        old = y[0]
        self.function(y)
        y[0].add_(1)
        return y[:, :-1] + 0, y.sum(-1), old * 1, y.clone()


@pytest.mark.parametrize(
    "function",
    [
        *(lambda y: y.squeeze_(), lambda y: y.squeeze_(0), lambda y: y.t_() if y.dim() == 2 else y.squeeze_(0).t_()),
        *(lambda y: y.unsqueeze_(0), lambda y: y.transpose_(1, 2), lambda y: y.swapaxes_(1, 2)),
        *(lambda y: y.swapdims_(0, 2), lambda y: y.squeeze_(0).transpose_(0, 1), lambda y: y.unsqueeze_(1).squeeze_(0)),
        *(lambda y: y.detach_(), lambda y: y.resize_(1, 4, 4)),
    ],
)
def test_views_in_place(function: Callable[[torch.Tensor], Any]) -> None:
    check_as_eager(InPlaceViews(function), torch.randn(1, 4, 4))
    check_as_eager(InPlaceViews(function), torch.randn(1, 4, 4), (passes.functionalize, passes.decompose))


def test_an_argument_that_changes_its_shape_is_refused() -> None:
    class Unsqueezes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.unsqueeze_(0)
            return x * 2

    program = ingot.capture(Unsqueezes(), (torch.randn(3),))
    with pytest.raises(PassError, match="in place"):
        ingot.transform(program, [passes.functionalize])


class Spectrogram(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.stft(x, 16, 4, window=torch.hann_window(16), return_complex=True)
        return F.normalize(spectrum.abs()[:, :-1], dim=1)


def test_a_decomposition_that_views_in_place() -> None:
    x = torch.randn(64)
    program = ingot.capture(Spectrogram(), (x,))
    core = ingot.transform(program, [passes.functionalize, passes.decompose], check="numerics")
    torch.testing.assert_close(core(x), Spectrogram()(x))


def test_a_write_that_would_stay_is_refused() -> None:
    x = torch.randn(3)
    replay = Replay(ingot.capture(nn.ReLU(), (x,)))
    replay.recorder.functional = True
    with pytest.raises(PassError, match="writes to its argument"):
        replay.recorder.append(aten.add_.Tensor, (), {}, x)


def test_an_idle_native_dropout_is_a_copy() -> None:
    class Drops(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            made = torch.full_like(x, 2.0)
            return made * 1, torch.native_dropout(made, 0.5, False)[0], torch.native_dropout(x, 0.5, False)[0]

    x = torch.randn(3)
    program = ingot.transform(ingot.capture(Drops(), (x,)), [passes.functionalize, passes.remove_noops])
    results = program(x)
    results[2].add_(1)
    torch.testing.assert_close(results, (torch.full((3,), 2.0), torch.full((3,), 2.0), x + 1))


def _double_every_other(t: torch.Tensor) -> torch.Tensor:
    doubled = t * 2
    doubled.reshape(-1)[::2].mul_(2)  # a view where t lies dense in some order, else a copy that is lost
    return doubled


class Maps(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = map_rows(_double_every_other, x)
        return made


class Scans(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def step(total: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return total + t.sum(), _double_every_other(t)

        made: torch.Tensor = scan(step, x.new_zeros(()), x)[1]
        return made


@pytest.mark.parametrize("model", [Maps(), Scans()])
def test_a_step_is_strided_as_a_slice_of_the_whole(model: nn.Module) -> None:
    for x in (torch.randn(2, 3, 4), torch.randn(4, 3, 2).transpose(0, 2), torch.randn(2, 4, 3).transpose(1, 2)):
        expected = torch.stack([_double_every_other(t) for t in x])
        program = ingot.transform(ingot.capture(model, (x,)), [passes.functionalize])
        torch.testing.assert_close(program(x), expected)


def test_a_view_of_a_value_that_a_write_laid_out_anew() -> None:
    class Flattens(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            flat = torch.einsum("ij->ji", x).reshape(-1)  # a view, since x is transposed
            x.masked_fill_(x > 0, 5.0)  # masked_fill's own result is row-major
            return flat * 1, x + 0

    for rows, columns in ((2, 2), (3, 4)):
        check_as_eager(Flattens(), torch.randn(rows, columns).t())


def test_a_view_of_a_value_that_has_other_strides_than_its_fake() -> None:
    class Zeroes(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            parts = x.unfold(0, 2, 2)
            parts.clamp_(max=0.5)
            parts.zero_()
            return parts * 1, x * 1

    class Transforms(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.fft.rfft(x).abs().reshape(-1)

    class Finds(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.isin(x, 0.0).reshape(-1)

    class Fills(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            parts, same = x.unfold(1, 1, 3), x.transpose(0, 0)
            torch.mul(same * 1, 2, out=x)
            flat = same.reshape(-1)
            parts.index_fill_(0, torch.tensor([0, 1]), 7.0)
            return flat * 1

    check_as_eager(Fills(), torch.randn(4, 3).t())
    for model in (Zeroes(), Transforms(), Finds()):
        check_as_eager(model, torch.randn(4, 1, 2).transpose(0, 2).contiguous().transpose(0, 2))
        check_as_eager(model, torch.randn(4, 3, 2).transpose(0, 1).contiguous().transpose(0, 1))
