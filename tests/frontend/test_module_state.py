"""Hand-written models that each hold one difficulty of state: parameters, buffers, caches, constants."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.ir.signature import InputKind
from tests.frontend.checks import assert_same, check, check_calls, unchanged


def x(*shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (2, 4)), generator=torch.Generator().manual_seed(0))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(ids))


def test_tied_parameters_stay_one() -> None:
    program = check(Tied(), (torch.tensor([[1, 2, 3]]),))
    assert len(program.signature.inputs_of_kind(InputKind.PARAMETER)) == 1
    assert program.state_dict["embed.weight"] is program.state_dict["head.weight"]
    with torch.no_grad():
        program.state_dict["head.weight"].zero_()
    assert program(torch.tensor([[1, 2, 3]])).abs().sum() == 0


def test_shared_submodules_under_several_names() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.second = self.first
            self.all = nn.ModuleList([self.first, nn.ReLU(), self.first])

        def forward(self, a: torch.Tensor) -> torch.Tensor:
            a = self.second(self.first(a))
            for layer in self.all:
                a = layer(a)
            return self.second(a)

    program = check(Model(), (x(),))
    paths = [call.path for call in program.module_calls]
    assert paths == ["", "first", "second", "all.0", "all.1", "all.2", "second@1"]
    assert len(program.signature.inputs_of_kind(InputKind.PARAMETER)) == 2


def test_non_persistent_buffers_are_constants_of_the_program() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("kept", x())
            self.register_buffer("table", x() * 2, persistent=False)
            self.register_buffer("unused", x() * 2, persistent=False)
            self.register_buffer("nothing", None)

        def forward(self, a: torch.Tensor) -> torch.Tensor:
            return a + self.kept * self.table

    program = check(Model(), (x(),))
    assert list(program.state_dict) == ["kept"]


@pytest.mark.parametrize("train", [True, False])
def test_batch_norm(train: bool) -> None:
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5, eps=1e-3, momentum=0.03), nn.ReLU()).train(train)
    program = check(model, (x(2, 3, 6, 6),))
    assert program.training is train


def test_batch_norm_program_does_not_update_the_model() -> None:
    model = nn.BatchNorm1d(4)
    program = ingot.capture(model, (x(),))
    program(x())
    assert model.num_batches_tracked == 0 and program.state_dict["num_batches_tracked"] == 1
    model(x())
    assert model.num_batches_tracked == 1 and program.state_dict["num_batches_tracked"] == 1


class Cache(nn.Module):
    def __init__(self, write: str) -> None:
        super().__init__()
        self.write = write
        self.register_buffer("keys", torch.zeros(2, 8, 4))
        self.register_buffer("length", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, a: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        if self.write == "index_copy_":
            self.keys.index_copy_(1, at, a)
        elif self.write == "slice":
            self.keys[:, 2:4] = a
        elif self.write == "index":
            self.keys[:, at] = a
        elif self.write == "roll":
            self.keys.copy_(torch.cat([self.keys[:, 2:], a], 1))
        else:
            self.keys = torch.cat([self.keys[:, 2:], a], 1)
        self.length += a.shape[1]
        return self.keys.sum(1) + self.length


@pytest.mark.parametrize("write", ["index_copy_", "slice", "index", "roll", "assign"])
def test_a_cache_in_a_buffer(write: str) -> None:
    a = x(2, 2, 4)
    calls = [((a * (i + 1), torch.tensor([2 * i, 2 * i + 1])), {}) for i in range(3)]
    check_calls(Cache(write), calls)


def test_reassigned_buffers() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("n", torch.zeros(()))
            self.register_buffer("last", torch.zeros(2, 4))
            self.register_buffer("swap_a", x())
            self.register_buffer("swap_b", x() * 2)

        def forward(self, a: torch.Tensor) -> torch.Tensor:
            self.n = self.n + 1
            previous, self.last = self.last, a * self.n
            self.swap_a, self.swap_b = self.swap_b, self.swap_a
            return previous + self.swap_a

    check_calls(Model(), [((x() * i,), {}) for i in range(1, 5)])


def test_buffer_assigned_the_argument_does_not_alias_it() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("last", torch.zeros(2, 4))

        def forward(self, a: torch.Tensor) -> torch.Tensor:
            out = self.last + 1
            self.last = a
            return out

    check_calls(Model(), [((x() * i,), {}) for i in range(1, 4)])


def test_written_buffer_whose_old_value_is_the_result() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("n", torch.zeros(2))

        def forward(self, a: torch.Tensor) -> Any:
            old = self.n
            self.n = self.n + a
            return old, self.n

    check_calls(Model(), [((torch.full((2,), float(i)),), {}) for i in range(1, 4)])


def test_one_buffer_under_two_names() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("one", torch.zeros(4, 3))
            self.register_buffer("same", self.one)

        def forward(self, a: torch.Tensor) -> torch.Tensor:
            self.one.add_(1)
            self.same[1] += a
            return self.one * 1

    program = check(Model(), (x(3),))
    assert program.state_dict["one"] is program.state_dict["same"]


def test_buffers_that_share_memory_may_be_read() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("whole", x())
            self.register_buffer("row", self.whole[1])

        def forward(self, a: torch.Tensor) -> torch.Tensor:
            return a + self.whole + self.row

    check(Model(), (x(),))


def test_plain_attribute_written_in_place() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count = torch.zeros(4)

        def forward(self, a: torch.Tensor) -> torch.Tensor:
            self.count.add_(a.sum(0))
            return self.count * 2

    check(Model(), (x(),))


def test_closed_over_tensor_written_in_place() -> None:
    counter = torch.zeros(2)

    def f(a: torch.Tensor) -> torch.Tensor:
        counter.add_(1)
        counter[0].mul_(2)
        return a + counter

    program = ingot.capture(f, (x(2),))
    assert counter.tolist() == [0.0, 0.0]
    got = [program(x(2)) for _ in range(3)]
    assert counter.tolist() == [0.0, 0.0]
    assert_same(got, [f(x(2)) for _ in range(3)])


def test_arguments_written_in_place() -> None:
    def f(a: torch.Tensor, b: list[torch.Tensor]) -> torch.Tensor:
        a.add_(1)
        a[0].mul_(2)
        b[0][:, 1:3] = a[:, :2]
        b[1].t_().zero_()
        return a.view(-1) * 2

    check(f, (x(), [x(), x()]))


def test_max_norm_embedding_writes_its_weight() -> None:
    model = nn.Embedding(5, 4, max_norm=0.5)
    program = ingot.capture(copy.deepcopy(model), (torch.tensor([1, 2]),))
    twin = copy.deepcopy(model)
    with torch.no_grad():
        assert_same(program(torch.tensor([1, 2])), twin(torch.tensor([1, 2])))
    assert torch.equal(program.state_dict["weight"], twin.weight)


class Lazy(nn.Module):
    """Does at its first call what could be done in __init__, in every way that a module can."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(x(4))
        self.groups = [[self.weight], {"deep": (self.weight, [self.weight])}]
        self.cache: dict[str, Any] = {}
        self.box = Box()
        self.hidden = [nn.BatchNorm1d(4)]
        self.child = nn.Identity()

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        if "ready" not in self.cache:
            self.cache["ready"] = [self.weight * 2]
            self.box.kept.append(self.weight.exp())
            self.child.register_forward_hook(lambda module, args, out: out + 1)
            self.register_buffer("table", torch.arange(4.0), persistent=False)
            self.made = nn.Identity()
        deep = self.groups[1]["deep"][1][0]
        return self.hidden[0](self.made(self.child(a))) + self.cache["ready"][0] + self.box.kept[0] + self.table + deep


class Box:
    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []


def test_what_is_made_at_the_first_call() -> None:
    with unchanged(model := Lazy()):
        program = ingot.capture(model, (x(),))
    want = copy.deepcopy(model)(x())
    assert_same(program(x()), want)
    assert_same(model(x()), want)


def test_a_cache_by_size_is_computed_anew() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.positions: torch.Tensor | None = None

        def forward(self, a: torch.Tensor) -> torch.Tensor:
            if self.positions is None or self.positions.shape[0] != a.shape[0]:
                self.positions = torch.arange(a.shape[0]) * 2.0
            return a + self.positions

    program = ingot.capture(Model(), (x(4),), dynamic_shapes={"a": {0: "n"}})
    for size in (1, 2, 4, 9):
        assert_same(program(x(size)), Model()(x(size)))


@functools.lru_cache(maxsize=4)
def table_of(size: int) -> torch.Tensor:
    return torch.arange(size) * 2.0


class Memoized(nn.Module):
    @functools.cache  # noqa: B019
    def mask(self, size: int) -> torch.Tensor:
        return torch.ones(size, size).tril()

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return a @ self.mask(4) + table_of(4)


@pytest.mark.parametrize("warm", [False, True])
def test_memoized_functions_keep_no_fakes(warm: bool) -> None:
    model = Memoized()
    table_of.cache_clear()
    if warm:
        model(x())
    program = ingot.capture(model, (x(),))
    assert_same(program(x()), model(x()))


# ---------------------------------------------------------------------- constants


OUTER = torch.arange(4.0)


class Constants(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.plain = x() * 3
        self.table = [x() * 4, {"deep": x() * 5}]
        self.trained = nn.Parameter(x())
        self.alias = [self.trained]

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        made = torch.tensor([[1.0, 2.0, 3.0, 4.0]]) + torch.ones(4) + torch.arange(4)
        return a + OUTER + self.plain + self.table[0] * self.table[1]["deep"] + made + self.alias[0]


def test_tensors_made_or_closed_over_are_constants() -> None:
    program = check(Constants(), (x(),))
    names = [i.target for i in program.signature.inputs_of_kind(InputKind.CONSTANT)]
    assert "plain" in names and len(names) == 5
    assert [i.target for i in program.signature.inputs_of_kind(InputKind.PARAMETER)] == ["trained"]


def test_tensors_made_of_tensors() -> None:
    def f(a: torch.Tensor) -> Any:
        halves = torch.tensor([[a[0, 0], 1.0], [2, a.sum()]])
        return (
            halves,
            torch.tensor([a.argmax(), 3]),
            torch.tensor([a[0, 0] > 0, True]),
            torch.tensor([a.double().sum()]),
        )

    check(f, (x(),))


def test_a_literal_tensor_is_fresh_at_every_call() -> None:
    def f(a: torch.Tensor) -> torch.Tensor:
        count = torch.tensor([0.0, 0.0, 0.0, 0.0])
        count += a.sum(0)
        return count

    check(f, (x(),))


def test_values_of_constants_are_known() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("sizes", torch.tensor([1, 3]), persistent=False)

        def forward(self, a: torch.Tensor) -> Any:
            n = torch.tensor([3]).item()
            parts = a.split(self.sizes.tolist(), dim=1)
            if torch.arange(4).sum() > 5:
                a = a * 2
            return parts, a[:, : int(n)], [a * i for i in torch.arange(3).tolist()]

    check(Model(), (x(),))
