"""Program ⇄ ExportedProgram: from torch.export's own programs and back."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim, export

import ingot
from ingot.errors import CallError, IngotError, UntrustedFile
from ingot.interop.torch_export import from_exported, to_exported
from ingot.ir import metadata
from ingot.ir.dialects import CAPTURED, CORE, FUNCTIONAL
from ingot.ir.signature import InputKind, OutputKind
from tests.interop.exported_models import (
    CASES,
    FORMS,
    DynamicInt,
    Guarded,
    Literals,
    Related,
    Repeated,
    X,
    check,
    exported,
    numbers,
    reloaded,
    same,
    same_state,
)

torch.set_num_threads(1)
# torch copies its own specs with a class that it calls deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*:FutureWarning")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CASES)
def test_from_torch_export(name: str, form: str) -> None:
    case = CASES[name]
    torch.manual_seed(0)
    model = case.build()
    ep = exported(case, model, form)
    program = from_exported(ep)
    program.verify()
    reference = copy.deepcopy(model)
    check(program, reference, case)
    same_state(program, reference)
    assert program.dialect in ((CORE, FUNCTIONAL) if form == "decomposed" else (CAPTURED,))
    again = to_exported(from_exported(ep))
    again.validate()
    back = from_exported(again)
    back.verify()
    check(again.module(), copy.deepcopy(model), case)
    check(back, copy.deepcopy(model), case)
    # Those were called, and wrote to their buffers; what they were made of has not noticed.
    check(from_exported(ep), copy.deepcopy(model), case)
    assert back.signature.in_tree == program.signature.in_tree
    assert back.signature.out_tree == program.signature.out_tree
    assert back.module_calls == program.module_calls
    assert (back.dims, [str(c) for c in back.constraints]) == (program.dims, [str(c) for c in program.constraints])
    assert [n.name for n in back.graph.nodes] == [n.name for n in program.graph.nodes]


@pytest.mark.parametrize("name", ["mutated-buffer", "derived-dim", "auto-dim", "cond", "no-grad"])
def test_after_torch_saved_it(name: str) -> None:
    """A loaded ExportedProgram has lost its shape environment: guards are text, and symbols have no sources."""
    case = CASES[name]
    torch.manual_seed(0)
    model = case.build()
    program = from_exported(exported(case, model, "non-strict"))
    loaded = from_exported(reloaded(to_exported(program)))
    loaded.verify()
    check(loaded, model, case)
    assert loaded.dims == program.dims
    assert [str(c) for c in loaded.constraints] == [str(c) for c in program.constraints]


def test_sizes_are_checked_as_torch_does() -> None:
    program = from_exported(exported(CASES["auto-dim"], Guarded(), "non-strict"))
    assert program.constraints
    with pytest.raises(CallError):
        program(numbers(7, 4))
    module = to_exported(program).module()
    with pytest.raises(AssertionError, match="Guard failed"):
        module(numbers(7, 4))
    program = from_exported(exported(CASES["derived-dim"], Related(), "non-strict"))
    with pytest.raises(CallError):
        program(numbers(8), numbers(7), numbers(16))
    with pytest.raises(CallError):
        program(numbers(101), numbers(100), numbers(200))


def test_an_int_argument_stays_one() -> None:
    program = from_exported(exported(CASES["dynamic-int"], DynamicInt(), "non-strict"))
    assert [i.kind for i in program.signature.inputs] == [InputKind.ARGUMENT, InputKind.ARGUMENT]
    with pytest.raises(CallError, match="n is"):
        program(X, 2.5)


def test_literals_are_checked_on_both_sides() -> None:
    case = CASES["literals"]
    program = from_exported(exported(case, Literals(), "non-strict"))
    assert [i.value for i in program.signature.inputs_of_kind(InputKind.LITERAL)] == [None, 3, "mul", True, 0.5]
    assert [o.value for o in program.signature.outputs if o.kind is OutputKind.LITERAL] == [3, None, "mul"]
    with pytest.raises(CallError, match="times"):
        program(X, None, 4, "mul", flag=True, rate=0.5)
    with pytest.raises(AssertionError, match="Guard failed"):
        to_exported(program).module()(X, None, 4, "mul", flag=True, rate=0.5)


def test_a_program_knows_its_mode() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout())
    assert from_exported(export(model.train(), (X,))).training
    assert not from_exported(export(model.eval(), (X,))).training


def test_module_calls_and_stacks() -> None:
    program = from_exported(exported(CASES["repeated"], Repeated(), "non-strict"))
    calls = {call.path: call for call in program.module_calls}
    assert list(calls) == ["", "fc", "inner", "inner.0", "inner.1", "fc@1"]
    assert calls["fc@1"].module == "fc"
    assert calls["fc@1"].type == "torch.nn.modules.linear.Linear"
    assert calls["fc"].signature is not None
    assert [str(v) for v in calls["fc"].signature.inputs] == ["x"]
    last = next(n for n in program.graph.nodes if n.name == "linear_2")
    assert [frame.call for frame in metadata.module_stack_of(last)] == ["", "fc@1"]


@pytest.mark.parametrize("decompose", [False, True])
def test_effects(decompose: bool) -> None:
    """An effect that torch orders by tokens."""

    class Prints(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.ops.aten._print("seen")
            return x + 1

    ep = export(Prints(), (X,))
    program = from_exported(ep.run_decompositions() if decompose else ep)
    assert bool(program.signature.inputs_of_kind(InputKind.TOKEN)) == decompose
    same(program(X), X + 1)
    same(program.module()(X), X + 1)
    same(to_exported(program).module()(X), X + 1)


def test_archives_are_loaded(tmp_path: Path) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 2)
            self.register_buffer("scale", torch.ones(2) * 3, persistent=False)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"y": self.linear(x) * self.scale}

    model, path = Scaled(), tmp_path / "m.pt2"
    torch.export.save(torch.export.export(model, (torch.randn(3, 4),), dynamic_shapes=({0: Dim("n")},)), path)
    program = ingot.load(path)
    assert isinstance(program, ingot.Program)
    for size in (2, 7):
        x = torch.randn(size, 4)
        torch.testing.assert_close(program(x), model(x))
        torch.testing.assert_close(ingot.compile(program)(x), model(x))
    with pytest.raises(UntrustedFile, match=r"archive of torch\.export"):
        ingot.load(path, trust=False)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(IngotError):
        ingot.load(path)


def test_names_are_those_that_torch_has() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.param = nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor, p_param: torch.Tensor, div: str = "floor") -> torch.Tensor:
            y = torch.div(x, p_param + 1, rounding_mode=div) + self.param
            return torch.cond(y.sum() > 0, lambda y: y * 2, lambda y: y - 1, (y,))

    model = Named()
    ep = ingot.capture(model, (torch.ones(3), torch.ones(3), "floor"), strict=True).to_exported()
    names = [node.name for node in ep.graph.nodes if node.op == "placeholder"]
    assert names == ["p_param_1", "x", "p_param", "div"]
    assert [name for name, _ in ep.graph_module.named_children()] == ["true_graph_0", "false_graph_0"]
    again = from_exported(ep)
    for x in (torch.full((3,), 2.0), torch.full((3,), -2.0)):
        y = torch.div(x, x + 1, rounding_mode="floor") + 1
        wanted = y * 2 if y.sum() > 0 else y - 1
        torch.testing.assert_close(ep.module()(x, x, "floor"), wanted)
        torch.testing.assert_close(again(x, x, "floor"), wanted)


def test_run_time_checks_say_what_torch_says() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        n = x.item()
        torch._check(n >= 3)
        torch._check(n <= 5)
        return torch.ones(n)

    program = ingot.capture(f, (torch.tensor(4),)).to_exported()
    assert program.module()(torch.tensor(5)).shape == (5,)
    with pytest.raises(RuntimeError, match=r"Runtime assertion failed for expression u\d+ >= 3"):
        program.module()(torch.tensor(2))


def test_annotations_are_kept() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.fx.traceback.annotate({"stage": 1}):
            y = x.sin()
        return y.cos()

    ep = ingot.capture(f, (torch.ones(3),)).to_exported()
    found = {node.name: node.meta.get("custom") for node in ep.graph.nodes if node.op == "call_function"}
    assert found == {"sin": {"stage": 1}, "cos": None}


def test_collections_of_shapes() -> None:
    x, y = torch.randn(4, 3), torch.randn(4, 3)
    shapes = torch.export.ShapesCollection()
    shapes[x] = (Dim("n"), None)
    shapes[y] = (Dim.AUTO, None)
    program = ingot.capture(lambda x, y: x + y, (x, y), dynamic_shapes=shapes)
    assert [dim.name for dim in program.dims] == ["n"]
    more = torch.export.AdditionalInputs()
    more.add((torch.randn(6, 3), torch.randn(6, 3)))
    program = ingot.capture(lambda x, y: x + y, (x, y), dynamic_shapes=more)
    assert program(torch.ones(2, 3), torch.ones(2, 3)).shape == (2, 3)


def test_one_part_of_shapes_for_all_positional_arguments() -> None:
    class Sum(nn.Module):
        def forward(self, *args: torch.Tensor) -> torch.Tensor:
            return args[0] + args[1].sum(0)

    example = torch.randn(3, 4), torch.randn(5, 4)
    for shapes in ((({0: "n"}, {0: "m"}),), ({0: "n"}, {0: "m"}), {"args": ({0: "n"}, {0: "m"})}):
        program = ingot.capture(Sum(), example, dynamic_shapes=shapes)
        assert [dim.name for dim in program.dims] == ["n", "m"]
        assert program(torch.ones(2, 4), torch.ones(7, 4)).tolist() == [[8.0] * 4] * 2
