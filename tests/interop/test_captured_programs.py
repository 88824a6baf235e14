"""Program ⇄ ExportedProgram: from ingot.capture's programs and back."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.export import export

import ingot
from ingot.errors import ConversionError
from ingot.interop.torch_export import from_exported
from ingot.ir.dialects import CAPTURED
from tests.interop.exported_models import (
    CASES,
    Autocast,
    Case,
    Guarded,
    State,
    Unknown,
    X,
    check,
    numbers,
    reloaded,
    same,
)

torch.set_num_threads(1)
# torch copies its own specs with a class that it calls deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*:FutureWarning")


CAPTURED_CASES: dict[str, Case] = {
    **{name: case for name, case in CASES.items() if name not in ("dynamic-int", "dataclass", "auto-dim")},
    "auto-dim": Case(Guarded, (numbers(6, 4),), dynamic={"x": {0: "auto", 1: "auto"}}, others=((numbers(8, 6),),)),
}


@pytest.mark.parametrize("name", CAPTURED_CASES)
def test_captured_programs(name: str) -> None:
    case = CAPTURED_CASES[name]
    torch.manual_seed(0)
    model = case.build()
    args, kwargs = copy.deepcopy((case.args, case.kwargs))
    program = ingot.capture(model, args, kwargs, dynamic_shapes=case.dynamic, **(case.options or {}))
    ep = program.to_exported()
    back = from_exported(ep)
    back.verify()
    # torch saves no named tuple that is not registered, and cannot load a program that returns a string.
    loaded = reloaded(ep) if name not in ("nested", "literals") else program.to_exported()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of its own parts
        decomposed = program.to_exported().run_decompositions()
    functional = from_exported(decomposed)
    functional.verify()
    assert functional.dialect is not CAPTURED
    for run in (ep.module(), loaded.module(), back, functional, program):
        check(run, copy.deepcopy(model), case)
    assert back.signature.in_tree == program.signature.in_tree
    assert back.signature.out_tree == program.signature.out_tree
    assert [d.name for d in back.dims] == [d.name for d in program.dims]


def test_a_function() -> None:
    program = ingot.capture(lambda x, y=2: x * y, (X, 3))
    module = program.to_exported().module()
    same(module(X, 3), X * 3)
    same(from_exported(program.to_exported().run_decompositions())(X, 3), X * 3)


def test_unregistered_dataclasses() -> None:
    """torch leaves None fields out of a dataclass, ours does not; and registering it must not change our programs."""

    def model(given: Unknown) -> tuple[Unknown, list[Unknown]]:
        return Unknown(given.hidden * given.scale, given.extra), [given, Unknown(given.hidden, given.hidden)]

    example = Unknown(X)
    program = ingot.capture(model, (example,))
    ep = program.to_exported()
    with torch.serialization.safe_globals([Unknown]):  # torch pickles the example inputs
        back = from_exported(reloaded(ep))
    for run in (ep.module(), program, back):
        out, (same_one, other) = run(Unknown(X + 1))
        assert isinstance(out, Unknown)
        assert (out.extra, out.scale, same_one.extra) == (None, 2, None)
        torch.testing.assert_close(out.hidden, 2 * (X + 1))
        torch.testing.assert_close(other.extra, X + 1)
    assert back.signature == program.signature
    back.verify()


def test_an_object_that_torch_does_not_know() -> None:
    class Holder:
        def __init__(self, value: torch.Tensor) -> None:
            self.value = value

    program = ingot.capture(lambda x: Holder(x + 1), (X,))
    with pytest.raises(ConversionError, match=r"Holder.*\n.*\n.*register"):
        program.to_exported()


def test_a_preserved_call_inside_of_a_region() -> None:
    """Its values do not exist in torch's outermost graph, so torch has no signature for it; the rest stands."""
    program = ingot.capture(Autocast(), (X,), preserve_module_call_signature=("fc",))
    ep = program.to_exported()
    assert [entry.fqn for entry in ep.module_call_graph] == ["", "fc", "fc@1"]
    same(ep.module()(X), program(X))


def test_a_fixed_tensor_is_an_unused_argument() -> None:
    fixed = numbers(3, 4, seed=1)
    program = ingot.capture(lambda x, y: x + y, (X, fixed), concrete_args={"y": fixed})
    ep = program.to_exported()
    assert list(ep.graph_signature.user_inputs) == ["x", "y"]
    same(ep.module()(X + 1, fixed), X + 1 + fixed)


def test_grad_modes_inside_of_autocast() -> None:
    """torch.export itself forgets the no_grad here: the weight would get a gradient by way of `z`."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = self.fc(x)
                with torch.no_grad():
                    z = self.fc(x)
                w = self.fc(x)
            return y, z, w, self.fc(x)

    model = Model()
    ep = ingot.capture(model, (X,)).to_exported()
    for run in (model, ep.module(), from_exported(ep), reloaded(ep).module()):
        assert [t.requires_grad for t in run(X)] == [True, False, True, True]
        same(run(X), model(X))


def test_switches_in_all_nestings() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
                a = self.fc(x)
                with torch.autocast("cpu", enabled=False):
                    b = self.fc(x)
                    with torch.enable_grad():
                        c = torch.cond(x.sum() > 0, self.branch, lambda x: x * 1, (x,))
            with torch.no_grad():
                self.calls.add_(1)
            with torch.no_grad():
                with torch.enable_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
                    d = self.fc(x)
                e = self.fc(d.float())
            return a, b, c, d, e

        def branch(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                y = self.fc(x)
            return self.fc(x) + y

    model = Model()
    case = Case(Model, (X,), others=((X - 10,),))
    program = ingot.capture(copy.deepcopy(model), (X,))
    ep = program.to_exported()
    loaded = reloaded(ep).module()
    back = from_exported(ep)
    back.verify()
    assert [o.name for o in back.signature.outputs] == [o.name for o in program.signature.outputs]
    wanted = [t.requires_grad for t in copy.deepcopy(model)(X)]
    assert wanted == [False, False, True, True, False]
    for run in (program, ep.module(), loaded, back):
        check(run, copy.deepcopy(model), case)
        assert [t.requires_grad for t in run(X)] == wanted


def test_argument_is_not_an_exported_program() -> None:
    with pytest.raises(ConversionError, match="takes a torch"):
        from_exported(State())  # type: ignore[arg-type]


def test_a_custom_object() -> None:
    ep = export(State(), (X,))
    spec = ep.graph_signature.input_specs[-1]
    spec.arg = torch.export.graph_signature.CustomObjArgument("x", "__torch__.torch.classes.Stack")
    with pytest.raises(ConversionError, match="Stack"):
        from_exported(ep)


def test_parameters_that_came_from_a_file_are_parameters() -> None:
    program = ingot.capture(State(), (X,))
    program.state_dict = {name: tensor.detach() for name, tensor in program.state_dict.items()}
    same(program.to_exported().module()(X), program(X))
