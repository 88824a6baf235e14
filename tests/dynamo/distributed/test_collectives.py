"""Collectives inside graphs: operations of torch.distributed between pieces of native code, in order and overlapped."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as collectives

import ingot
from ingot.dynamo import pieces
from ingot.dynamo.stages import StagePlan, choose_stages
from ingot.errors import UnsupportedOperator
from tests.dynamo.recording import Recording, close

pytestmark = pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="torch without gloo")
Function = Callable[..., Any]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Any]:
    """A group of this process alone."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[StagePlan]:
    """The stages of every graph in pieces."""
    found: list[StagePlan] = []

    def record(*given: Any) -> StagePlan:
        found.append(choose_stages(*given))
        return found[-1]

    monkeypatch.setattr(pieces, "choose_stages", record)
    return found


def names(stages: StagePlan) -> list[tuple[int, str]]:
    return sorted((stage, node.name) for node, stage in stages.of.items())


def compile(function: Function, recording: Recording, overlap: bool = True) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend=recording, fullgraph=True, options={"overlap": overlap})


def reduce(x: torch.Tensor, group: Any) -> torch.Tensor:
    return collectives.all_reduce(x, "sum", group)


@pytest.mark.parametrize("size, overlap, expected", [(256, True, [0, 1, 2, 3, 4]), (256, False, [0, 1, 0, 1, 2]),
                                                     (8, True, [0, 1, 0, 1, 2])])  # fmt: skip
def test_native_code_runs_while_values_are_on_their_way(
    recording: Recording, chosen: list[StagePlan], group: Any, size: int, overlap: bool, expected: list[int]
) -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        total = reduce(a @ b, group)
        return total + (b @ a).sin()

    given = torch.randn(size, size), torch.randn(size, size)
    close(compile(function, recording, overlap)(*given), function(*given))
    (stages,) = chosen
    of = {node.name: stage for node, stage in stages.of.items()}
    first, second = (name for name in of if name.startswith("mm"))
    order = first, "all_reduce", second, "wait_tensor", "add"
    assert [of[name] for name in order] == expected
    assert recording.reports[0].is_native and recording.reports[0].communications == 2


def test_a_collective_without_a_use_and_two_that_are_alike_are_kept(
    recording: Recording, chosen: list[StagePlan], group: Any
) -> None:
    """Other processes take part in them."""

    def function(x: torch.Tensor) -> torch.Tensor:
        reduce(x, group)
        return reduce(x, group) + reduce(x, group)

    x = torch.randn(4)
    close(compile(function, recording)(x), 2 * x)
    assert sum("all_reduce" in name for _, name in names(chosen[0])) == 3
    program = ingot.capture(function, (x,))
    assert str(program).count("_c10d_functional.all_reduce(") == 3
    close(program(x), 2 * x)
    program = ingot.transform(program, [ingot.passes.functionalize, ingot.passes.cse, ingot.passes.dce])
    assert str(program).count("_c10d_functional.all_reduce(") == 3


def test_collectives_that_write(recording: Recording, group: Any) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y)
        dist.all_reduce(x)
        return y.cos()

    mine, theirs = torch.randn(5), torch.empty(5)
    theirs.copy_(mine)
    close(compile(function, recording)(mine), function(theirs))
    close(mine, theirs)
    assert all(recording.native) and recording.reports[0].communications == 4


def test_gradients_go_through_collectives(recording: Recording, group: Any) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        whole = collectives.all_gather_single_autograd(x.sin(), 0, group)
        return collectives.reduce_scatter_single_autograd(whole * 2, "sum", 0, group).cos()

    if not hasattr(collectives, "all_gather_single_autograd"):
        pytest.skip("an older torch")
    mine = torch.randn(4, 3, requires_grad=True)
    theirs = mine.detach().clone().requires_grad_()
    compile(function, recording)(mine).sum().backward()
    function(theirs).sum().backward()
    close(mine.grad, theirs.grad)
    assert recording.native == [True, True]


def test_native_code_alone_refuses_a_collective_by_name(group: Any) -> None:
    with pytest.raises(UnsupportedOperator, match="all_reduce"):
        ingot.compile(lambda x: reduce(x, group) + 1, (torch.randn(3),))


@pytest.mark.parametrize("seed", range(8))
def test_random_graphs(recording: Recording, chosen: list[StagePlan], group: Any, seed: int) -> None:
    function, given = random_function(seed, group)
    expected = function(*given)
    for overlap in (True, False):
        close(compile(function, recording, overlap)(*given), expected)
    assert all(recording.native)
    for stages in chosen:
        begun = [(stage, node) for node, stage in stages.of.items() if "all_" in node.name or "reduce_" in node.name]
        assert [stage for stage, _ in begun] == sorted(stage for stage, _ in begun)  # in the order of the graph
        for node, stage in stages.of.items():
            assert all(stages.of.get(needed, 0) <= stage for needed in node.all_input_nodes)


def random_function(seed: int, group: Any) -> tuple[Function, list[torch.Tensor]]:
    draws = random.Random(seed)
    size = draws.choice((8, 192))
    steps = [(draws.randrange(6), draws.random(), draws.random()) for _ in range(14)]
    torch.manual_seed(seed)
    given = [torch.randn(size, size) / size**0.5 for _ in range(3)]

    def function(*inputs: torch.Tensor) -> torch.Tensor:
        values = list(inputs)
        for kind, first, second in steps:
            a, b = values[int(first * len(values))], values[int(second * len(values))]
            made = (
                lambda a, b: a @ b,
                lambda a, b: (a + b).sin(),
                lambda a, b: a * 0.5 - b,
                lambda a, b: reduce(a, group),
                lambda a, b: collectives.all_reduce(b, "max", group),
                lambda a, b: torch.ops._c10d_functional.wait_tensor(
                    torch.ops._c10d_functional.all_gather_into_tensor(a, 1, group.group_name)
                ),
            )[kind](a, b)  # fmt: skip
            values.append(made)
        return sum(values[len(inputs) :])  # type: ignore[return-value]

    return function, given
