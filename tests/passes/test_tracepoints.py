"""Tracepoints: the signatures of preserved module calls, in every place a call can stand."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot import torch_internals as internals
from ingot.errors import CaptureError, UnflattenError, VerifyError
from ingot.ir.outlining import graph_modules
from ingot.ir.signature import CallSignature, ModuleCall
from ingot.passes import tracepoints


class Scale(nn.Module):
    """Takes everything that a call can take, and ignores some of it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((4,), 3.0))

    def forward(self, x: torch.Tensor, by: Any = 1, *, bias: torch.Tensor | None = None, ignored: Any = None) -> Any:
        y = x * self.weight * by
        return {"out": y if bias is None else y + bias, "same": x, "none": None}


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return x + self.count


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = Scale()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale(x, 2, bias=x[0], ignored=x)["out"].relu()


class InAutocast(Plain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.scale(x @ x.mT @ x)["out"] + 1


class InNoGrad(Plain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = self.scale(x, 2)["out"]
        return y + 1


class InCond(Plain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: self.scale(x)["out"], lambda x: x - 1, (x,))


class SizeArgument(Plain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale(x, x.shape[0])["out"]


class CalledTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.counter = Counter()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.counter(self.counter(x) * 2)


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.outer = CalledTwice()
        self.unused = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.unused(x)
        return self.outer(x).sin()


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = self.first
        self.items = nn.ModuleList([self.first, nn.ReLU()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.second(x)
        for item in self.items:
            x = item(x)
        return x


def calls(program: ingot.Program) -> dict[str, ModuleCall]:
    return {call.path: call for call in program.module_calls}


def signature(program: ingot.Program, path: str) -> CallSignature:
    found = calls(program)[path].signature
    assert found is not None
    return found


def markers(program: ingot.Program) -> int:
    return sum(n.target is internals.tracepoint for gm in graph_modules(program.graph_module) for n in gm.graph.nodes)


CASES: list[tuple[str, Callable[[], nn.Module], tuple[str, ...]]] = [
    ("plain", Plain, ("scale",)),
    ("in autocast", InAutocast, ("scale",)),
    ("in no_grad", InNoGrad, ("scale",)),
    ("in cond", InCond, ("scale",)),
    ("with a size", SizeArgument, ("scale",)),
    ("called twice, buffer mutated between", CalledTwice, ("counter",)),
    ("nested, inner and outer", Nested, ("outer", "outer.counter", "unused")),
    ("shared under two names", Shared, ("second",)),
    ("shared, reached through a list", Shared, ("items.0",)),
]


@pytest.mark.parametrize(("build", "preserve"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_every_place_a_preserved_call_can_stand(build: Callable[[], nn.Module], preserve: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    model = build()
    x = torch.randn(3, 4)
    program = ingot.capture(
        copy.deepcopy(model), (x,), dynamic_shapes={"x": {0: "n"}}, preserve_module_call_signature=preserve
    )
    assert markers(program) == 0
    program.verify()
    assert tracepoints(program) == 0, "a second run changes nothing"
    for name in preserve:
        kept = signature(program, name)
        assert kept.in_tree.leaf_count == len(kept.inputs)
        assert kept.out_tree.leaf_count == len(kept.outputs)
    for runner in (program, program.unflatten()):
        eager = copy.deepcopy(model)
        for name, tensor in eager.state_dict().items():
            program.state_dict[name].data.copy_(tensor)  # each runner starts from the captured state
        for size in (3, 5, 2):
            y = torch.randn(size, 4)
            assert torch.equal(runner(y), eager(y))


def test_the_signature_tells_tensors_sizes_and_constants() -> None:
    program = ingot.capture(
        SizeArgument(), (torch.ones(3, 4),), dynamic_shapes={"x": {0: "n"}}, preserve_module_call_signature=("scale",)
    )
    kept = signature(program, "scale")
    assert [value.kind for value in kept.inputs] == ["tensor", "size"]
    assert [value.kind for value in kept.outputs] == ["tensor", "tensor", "literal"]
    assert kept.outputs[1].name == kept.inputs[0].name == "x", "a module that returns its input returns that node"


def test_keyword_arguments_ignored_inputs_and_none_are_kept_in_order() -> None:
    program = ingot.capture(Plain(), (torch.ones(3, 4),), preserve_module_call_signature=("scale",))
    kept = signature(program, "scale")
    assert str(kept.in_tree) == "((*, *), {bias: *, ignored: *})"
    assert [str(v) for v in kept.inputs] == ["x", "2", "select", "x"]


def test_a_repeated_call_has_its_own_signature_and_the_same_trees() -> None:
    program = ingot.capture(CalledTwice(), (torch.ones(4),), preserve_module_call_signature=("counter",))
    first, second = signature(program, "counter"), signature(program, "counter@1")
    assert (first.in_tree, first.out_tree) == (second.in_tree, second.out_tree)
    assert first.inputs != second.inputs
    assert calls(program)["counter@1"].module == "counter"


def test_a_shared_module_is_recorded_under_the_name_it_was_called_by_and_only_there() -> None:
    program = ingot.capture(Shared(), (torch.ones(2, 4),), preserve_module_call_signature=("second", "items.0"))
    assert {"second", "items.0"} <= calls(program).keys()
    assert "first" not in calls(program)
    assert signature(program, "second").outputs == signature(program, "items.0").inputs


def test_a_name_that_is_never_called_is_an_error_that_says_how_it_is_called() -> None:
    with pytest.raises(CaptureError, match=r"calls it as items\.0, second"):
        ingot.capture(Shared(), (torch.ones(2, 4),), preserve_module_call_signature=("first",))


def test_an_unknown_name_is_an_error_with_a_suggestion() -> None:
    with pytest.raises(CaptureError, match="did you mean 'second'"):
        ingot.capture(Shared(), (torch.ones(2, 4),), preserve_module_call_signature=("secnd",))


def test_a_marker_outside_of_every_module_is_named() -> None:
    program = ingot.capture(lambda x: x + 1, (torch.ones(2),))
    node = next(n for n in program.graph.nodes if n.op == "call_function")
    with program.graph.inserting_after(node):
        program.graph.create_node(
            "call_function", internals.tracepoint, (node,), {"kind": "module_call_inputs"}, "lost"
        )
    with pytest.raises(VerifyError, match="marker lost is in no module"):
        tracepoints(program)


@pytest.mark.parametrize("build", [Plain, InAutocast, InNoGrad, InCond])
def test_a_preserved_module_can_be_swapped(build: Callable[[], nn.Module]) -> None:
    class Other(nn.Module):
        def forward(self, x: torch.Tensor, by: Any = 1, **rest: Any) -> Any:
            return {"out": x * 10 * by, "same": x, "none": None}

    model, x = build(), torch.rand(3, 4)
    unflattened = ingot.capture(model, (x,), preserve_module_call_signature=("scale",)).unflatten()
    unflattened.scale = Other()
    model.scale = Other()
    assert torch.equal(unflattened(x), model(x))


def test_swapping_a_module_that_was_not_preserved_is_refused() -> None:
    unflattened = ingot.capture(Plain(), (torch.ones(3, 4),)).unflatten()
    unflattened.scale = nn.Identity()
    with pytest.raises(UnflattenError, match="preserve_module_call_signature"):
        unflattened(torch.ones(3, 4))


def test_a_swapped_module_with_another_result_is_refused() -> None:
    unflattened = ingot.capture(Plain(), (torch.ones(3, 4),), preserve_module_call_signature=("scale",)).unflatten()
    unflattened.scale = Counter2()
    with pytest.raises(UnflattenError, match="returns"):
        unflattened(torch.ones(3, 4))


class Counter2(nn.Module):
    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return x


def test_repeated_calls_with_a_mutated_buffer_stay_in_step_with_eager() -> None:
    model = CalledTwice()
    unflattened = ingot.capture(copy.deepcopy(model), (torch.zeros(4),)).unflatten()
    for _ in range(3):
        assert torch.equal(unflattened(torch.zeros(4)), model(torch.zeros(4)))
    assert unflattened.counter.count == model.counter.count == 6
