"""ingot.compile(…, training=True): state, gradients and random numbers are those of eager."""

from __future__ import annotations

import copy
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import ingot
from ingot.errors import CaptureError, InputError, StateError, UnsupportedOperator

X = torch.Tensor


def compare(model: Any, *calls: tuple[X, ...], tolerance: float = 1e-5) -> Any:
    """Calls the compiled model and a copy in eager, with backward: results, gradients and buffers are the same."""
    exact = copy.deepcopy(model)
    trained = ingot.compile(model, calls[0], training=True, threads=1)
    for given in calls:
        ours, theirs = trained(*given), exact(*given)
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
        if isinstance(ours, X) and ours.requires_grad:
            weights = torch.rand_like(ours)
            (ours * weights).sum().backward()
            (theirs * weights).sum().backward()
    for (name, mine), other in zip(model.named_parameters(), exact.parameters(), strict=True):
        assert (mine.grad is None) == (other.grad is None), name
        if mine.grad is not None:
            torch.testing.assert_close(mine.grad, other.grad, rtol=tolerance, atol=tolerance)
    for (name, mine), other in zip(model.named_buffers(), exact.named_buffers(), strict=True):
        torch.testing.assert_close(mine, other[1], rtol=tolerance, atol=tolerance, msg=name)
    return trained


# ---------------------------------------------------------------------- buffers and other state


def test_running_statistics_are_written_back_and_eval_mode_uses_them() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    exact = copy.deepcopy(model)
    x = torch.randn(16, 6) * 3 + 5
    trained = ingot.compile(model, (x,), training=True, threads=1)
    assert model[1].num_batches_tracked == 0, "compiling takes no step"
    assert torch.equal(model[1].running_mean, torch.zeros(8))  # type: ignore[arg-type]
    steps = [(one, torch.optim.SGD(one.parameters(), 0.05)) for one in (trained, exact)]
    for _ in range(3):
        for one, optimizer in steps:
            optimizer.zero_grad()
            one(x).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(model.state_dict(), exact.state_dict())
    assert model[1].num_batches_tracked == 3
    for mode in (False, True, False):
        model.train(mode)
        exact.train(mode)
        torch.testing.assert_close(trained(x), exact(x))
    torch.testing.assert_close(model.state_dict(), exact.state_dict())


class Counting(nn.Module):
    """Keeps state in a buffer that it replaces, in a tensor of its own, and in a number."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))
        self.last: X | None = None
        self.calls = 0

    def forward(self, x: X) -> X:
        self.count = self.count + 1
        self.calls += 1
        y: X = self.layer(x) * self.count
        if self.last is not None:
            y = y + self.last
        self.last = x.detach() * self.calls
        return y


def test_what_forward_keeps_is_kept() -> None:
    model, x = Counting(), torch.randn(3, 4)
    trained = compare(model, (x,), (x,), (x + 1,), (x,))
    assert model.count == 4 and model.calls == 4 and model.last is not None
    torch.testing.assert_close(model.last, x * 4)
    assert trained.calls == 4


class Growing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[X] = []

    def forward(self, x: X) -> X:
        self.seen.append(x * 2)
        return x


def test_a_list_that_grows_is_an_error_that_says_so() -> None:
    model = Growing()
    with pytest.raises(StateError, match="adds a tensor to seen"):
        ingot.compile(model, (torch.rand(3, requires_grad=True),), training=True)
    assert model.seen == []


def test_an_object_that_keeps_tensors_is_an_error_that_says_so() -> None:
    class Cache:
        def __init__(self, x: X) -> None:
            self.held = {"x": x}

    class Caching(nn.Module):
        def forward(self, x: X) -> X:
            self.cache = Cache(x * 2)
            return x

    model = Caching()
    with pytest.raises(StateError, match="keeps tensors in cache"):
        ingot.compile(model, (torch.rand(3, requires_grad=True),), training=True)
    assert not hasattr(model, "cache")


def test_a_hidden_state_with_gradients_between_calls() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(3, 4)
            self.state = torch.zeros(2, 4)

        def forward(self, x: X) -> X:
            state: X = self.cell(x, self.state)
            self.state = state
            return state

    model = Recurrent()
    exact = copy.deepcopy(model)
    trained = ingot.compile(model, (torch.randn(2, 3),), training=True, threads=1)
    xs = torch.randn(3, 2, 3)
    for one in (trained, exact):
        sum(one(x).sum() for x in xs).backward()  # type: ignore[union-attr]
    for mine, other in zip(model.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)


SCALE = nn.Parameter(torch.full((3,), 2.0))
SHIFT = torch.ones(3)


def test_tensors_that_a_function_closes_over_are_read_at_each_call() -> None:
    weight = torch.rand(3, requires_grad=True)

    def function(x: X) -> X:
        return x * weight * SCALE + SHIFT

    x = torch.rand(2, 3)
    trained = ingot.compile(function, (x,), training=True, threads=1)
    trained(x).sum().backward()
    assert weight.grad is not None and SCALE.grad is not None
    torch.testing.assert_close(weight.grad, (x * SCALE).sum(0))
    with torch.no_grad():
        weight.mul_(3)
        SHIFT.add_(1)
    torch.testing.assert_close(trained(x), function(x))
    SCALE.grad = None


def test_views_of_tensors_that_a_function_closes_over() -> None:
    weight = torch.rand(3, 2, requires_grad=True)

    def function(x: X) -> X:
        return x @ weight.T + weight.shape[0]

    x = torch.rand(4, 2)
    trained = ingot.compile(function, (x,), training=True, threads=1)
    for _ in range(2):
        weight.grad = None
        torch.testing.assert_close(trained(x), function(x))
        trained(x).sum().backward()
        torch.testing.assert_close(weight.grad, x.sum(0).expand(3, 2))


def test_tensors_that_are_made_of_numpy_in_forward() -> None:
    def function(x: X) -> X:
        return x * torch.from_numpy(np.ones(3, np.float32)) + torch.tensor([1.0, 2.0, 3.0])

    x = torch.rand(2, 3, requires_grad=True)
    trained = ingot.compile(function, (x,), training=True, threads=1)
    torch.testing.assert_close(trained(x), function(x))


def test_hooks_on_values_and_gradients_inside_the_model() -> None:
    class Hooked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: X) -> X:
            x = x.detach().requires_grad_()
            y = self.layer(x).tanh()
            y.register_hook(lambda grad: grad * 3)
            (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            return y.sum(1) + slope.square().sum(1)

    compare(Hooked(), (torch.randn(2, 3),))


# ---------------------------------------------------------------------- modes and random numbers


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 400)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: X) -> X:
        y: X = self.drop(self.layer(x))
        return y


def test_dropout_draws_anew_at_each_call_and_eval_mode_drops_nothing() -> None:
    model, x = Dropping(), torch.ones(2, 4)
    before = torch.get_rng_state()
    trained = ingot.compile(model, (x,), training=True, threads=1)
    assert torch.equal(before, torch.get_rng_state()), "compiling draws nothing"
    torch.manual_seed(3)
    first, second = trained(x), trained(x)
    assert not torch.equal(first, second)
    assert 0.4 < (first == 0).double().mean() < 0.6
    torch.manual_seed(3)
    assert torch.equal(trained(x), first) and torch.equal(trained(x), second)
    model.eval()
    torch.testing.assert_close(trained(x), model(x))
    trained.train()
    assert model.training and model.drop.training and (trained(x) == 0).any()
    model.drop.p = 0.0
    torch.testing.assert_close(trained(x), model(x))
    model.drop.p = 1.0
    assert (trained(x) == 0).all()


@pytest.mark.parametrize("checkpoint", [None, False, True], ids=["plain", "checkpoint", "reentrant checkpoint"])
def test_forward_and_backward_have_the_same_mask(checkpoint: bool | None) -> None:
    from torch.utils.checkpoint import checkpoint as recompute

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 400)

        def part(self, x: X) -> X:
            return functional.dropout(self.layer(x), 0.25) * 1.0

        def forward(self, x: X) -> X:
            if checkpoint is None:
                return self.part(x)
            made: X = recompute(self.part, x, use_reentrant=checkpoint)
            return made

    model, x = Masked(), torch.ones(1, 4, requires_grad=True)
    trained = ingot.compile(model, (x,), training=True, threads=1)
    for _ in range(2):
        model.zero_grad()
        result = trained(x)
        result.sum().backward()
        kept = (result != 0).float()[0] / 0.75
        torch.testing.assert_close(model.layer.bias.grad, kept)
        assert 200 < int((kept > 0).sum()) < 380


def test_an_operator_without_a_gradient_has_the_users_line() -> None:
    def function(x: X) -> X:
        y = x * 2
        return torch.heaviside(y, torch.ones(3)) * x

    with pytest.raises(UnsupportedOperator, match="heaviside") as failure:
        ingot.compile(function, (torch.rand(3, requires_grad=True),), training=True)
    assert f"{__file__}:{function.__code__.co_firstlineno + 2}" in str(failure.value)


def test_what_is_no_tensor_and_no_number_is_refused_by_name() -> None:
    trained = ingot.compile(lambda x, scale: x * scale, (torch.rand(3, requires_grad=True), 2.0), training=True)
    x = torch.rand(3, requires_grad=True)
    torch.testing.assert_close(trained(x, 4.0), x * 4)
    with pytest.raises(InputError, match="object"):
        trained(x, object())
    with pytest.raises(InputError, match="to_dense"):
        trained(torch.eye(3).to_sparse(), 2.0)
    with pytest.raises(InputError, match=r"torch\.func"):
        torch.func.grad(lambda x: trained(x, 2.0).sum())(torch.rand(3))


def test_what_is_not_a_model_is_refused_by_name() -> None:
    x = torch.randn(2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        script = torch.jit.trace(nn.Linear(3, 3), x)
    for model in (torch.export.export(nn.Linear(3, 3), (x,)), script):
        with pytest.raises(CaptureError, match=r"ingot\.from_"):
            ingot.compile(model, (x,), training=True)  # type: ignore[call-overload]
    with pytest.raises(CaptureError, match="int"):
        ingot.compile(3, (x,), training=True)  # type: ignore[call-overload]


def test_arguments_that_forward_writes_to() -> None:
    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: X, counts: X) -> X:
            counts.add_(1)
            x.mul_(2)
            y: X = self.layer(x)
            return y * counts

    model = Writing()
    exact = copy.deepcopy(model)
    first = torch.ones(2, 3), torch.zeros(3)
    trained = ingot.compile(model, first, training=True, threads=1)
    assert torch.equal(first[0], torch.ones(2, 3)) and not first[1].any(), "compiling writes nothing"
    other = torch.ones(2, 3), torch.zeros(3)
    for _ in range(2):
        ours, theirs = trained(*first), exact(*other)
        torch.testing.assert_close(ours, theirs)
    ours.sum().backward()
    theirs.sum().backward()
    torch.testing.assert_close(first, other)
    torch.testing.assert_close(model.layer.weight.grad, exact.layer.weight.grad)


def test_results_that_share_memory_and_results_in_containers() -> None:
    class Record(NamedTuple):
        value: X
        rest: dict[str, Any]

    class Sharing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 6)

        def forward(self, x: X) -> Record:
            y = self.layer(x)
            return Record(
                y, {"view": y.view(-1, 3), "turned": y.T, "given": x, "part": x[0], "number": 3, "none": None}
            )

    model, x = Sharing(), torch.randn(2, 4)
    exact = copy.deepcopy(model)
    trained = ingot.compile(model, (x,), training=True, threads=1)
    ours, theirs = trained(x), exact(x)
    assert type(ours) is Record and ours.rest["number"] == 3 and ours.rest["none"] is None
    torch.testing.assert_close(ours, theirs)
    assert ours.rest["given"] is x and ours.rest["part"].data_ptr() == x.data_ptr()
    assert ours.rest["turned"].stride() == theirs.rest["turned"].stride()
    for record in (ours, theirs):
        with torch.no_grad():
            record.value.mul_(2)
    torch.testing.assert_close(ours, theirs)
    for record in (ours, theirs):
        (record.rest["view"].sum() + record.rest["turned"].square().sum()).backward()
    torch.testing.assert_close(model.layer.weight.grad, exact.layer.weight.grad)


def test_the_same_tensor_as_two_arguments() -> None:
    def function(a: X, b: X) -> X:
        return a * 2 + b * b

    x, y = torch.rand(3, requires_grad=True), torch.rand(3, requires_grad=True)
    trained = ingot.compile(function, (x, x), training=True, threads=1)
    for given in ((x, x), (x, y), (y, y)):
        x.grad = y.grad = None
        trained(*given).sum().backward()
        ours = x.grad, y.grad
        x.grad = y.grad = None
        function(*given).sum().backward()
        torch.testing.assert_close(ours, (x.grad, y.grad))


def test_calls_from_several_threads() -> None:
    model, xs = nn.Linear(3, 2), [torch.randn(n, 3) for n in (1, 2, 3, 1, 2, 3)]
    trained = ingot.compile(model, (xs[0],), training=True, threads=1)
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(trained, xs))
    for result, x in zip(results, xs, strict=True):
        torch.testing.assert_close(result, model(x))
