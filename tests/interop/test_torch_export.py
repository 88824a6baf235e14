"""Program ⇄ ExportedProgram: from torch.export's own programs and back, and from ingot.capture's and back."""

from __future__ import annotations

import copy
import io
import warnings
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, ExportedProgram, export
from torch.utils import _pytree as pytree

import ingot
from ingot.errors import CallError, ConversionError
from ingot.interop.torch_export import from_exported, to_exported
from ingot.ir import metadata
from ingot.ir.dialects import CAPTURED, CORE, FUNCTIONAL
from ingot.ir.program import Program
from ingot.ir.signature import InputKind, OutputKind

torch.set_num_threads(1)
# torch copies its own specs with a class that it calls deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*:FutureWarning")

Pair = namedtuple("Pair", ["first", "second"])


@dataclass
class Known:
    """Registered with torch, as torch.export asks of a class it returns."""

    hidden: torch.Tensor
    extra: torch.Tensor | None = None
    pair: tuple[torch.Tensor, ...] | None = None


torch.export.register_dataclass(Known, serialized_type_name="tests.interop.test_torch_export.Known")


@dataclass
class Unknown:
    """Never registered by its author: to_exported does it."""

    hidden: torch.Tensor
    extra: torch.Tensor | None = None
    scale: int = 2


class State(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("offset", torch.randn(4))
        self.register_buffer("factor", torch.randn(4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x + self.offset) * self.factor


class MutatedBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("last", torch.zeros(4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        self.last.copy_(x[0])
        return self.norm(x) + self.count


class MutatedInput(nn.Module):
    def forward(self, x: torch.Tensor, cache: dict[str, torch.Tensor]) -> torch.Tensor:
        cache["keys"][:, 1] = x[:, 0]
        return cache["keys"] + x


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(ids))


class Constant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.randn(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table + torch.tensor([1.0, 2.0, 3.0, 4.0])


class Literals(nn.Module):
    def forward(self, x: torch.Tensor, bias: None, times: int, mode: str, *, flag: bool, rate: float) -> Any:
        y = x * times if mode == "mul" else x + times
        return y * rate if flag else y, times, None, mode


class Keywords(nn.Module):
    def forward(self, x: torch.Tensor, *rest: torch.Tensor, scale: torch.Tensor, **more: torch.Tensor) -> torch.Tensor:
        return x * scale + sum(rest) - more["shift"]


class Nested(nn.Module):
    def forward(self, x: torch.Tensor, pair: Pair) -> dict[str, Any]:
        return {
            "list": [x + pair.first, (x, None, 3)],
            "ordered": OrderedDict(b=x * pair.second, a=x),
            "pair": Pair(x - 1, x + 1),
            "int": {7: x},
        }


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: self.fc(x), lambda x: x - 1, (x,))


class Autocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.fc(x) @ x.t()
            with torch.autocast("cpu", enabled=False):
                z = self.fc(x)
        return (y + 1).float(), z


class NoGrad(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            y = self.fc(x)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                z = self.fc(y)
        return self.fc(y), z


class Repeated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.inner(self.fc(x)))


class Dataclass(nn.Module):
    def forward(self, x: torch.Tensor, given: Known) -> Known:
        return Known(x + given.hidden, None, (x, x * 2))


class Related(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
        return x[1:] + y, z.repeat(2), x.shape[0] * 2


class Guarded(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] % 2 == 0 and x.shape[0] > 3:
            return x.view(x.shape[0] // 2, -1)
        return x


class DynamicInt(nn.Module):
    def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
        return x.new_ones(n + 1, 4).sum(0) + x * n


class Unbacked(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = x.nonzero()
        return found + 1, x[x > 0]


@dataclass(frozen=True)
class Case:
    """A module, its arguments, and other arguments that fit its dynamic shapes."""

    build: Callable[[], nn.Module]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] | None = None
    dynamic: Any = None
    others: tuple[tuple[Any, ...], ...] = ()
    options: dict[str, Any] | None = None


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X = numbers(3, 4)
batch = Dim("batch", min=2, max=64)
CASES: dict[str, Case] = {
    "state": Case(State, (X,)),
    "mutated-buffer": Case(MutatedBuffer, (X,)),
    "mutated-buffer-eval": Case(lambda: MutatedBuffer().eval(), (X,)),
    "mutated-input": Case(MutatedInput, (X, {"keys": numbers(3, 4)})),
    "tied": Case(Tied, (torch.tensor([[1, 2, 3]]),)),
    "constant": Case(Constant, (X,)),
    "literals": Case(Literals, (X, None, 3, "mul"), {"flag": True, "rate": 0.5}),
    "keywords": Case(Keywords, (X, X, X), {"scale": X, "shift": X}),
    "nested": Case(Nested, (X, Pair(X, X))),
    "cond": Case(Branch, (X,), others=((X - 10,),)),
    "autocast": Case(Autocast, (X,), dynamic=({0: batch},), others=((numbers(5, 4),),)),
    "no-grad": Case(NoGrad, (X,)),
    "repeated": Case(Repeated, (X,), options={"preserve_module_call_signature": ("fc", "inner")}),
    "dataclass": Case(Dataclass, (X, Known(X, None, None))),
    "named-dim": Case(State, (X,), dynamic=({0: batch},), others=((numbers(2, 4),), (numbers(7, 4),))),
    "derived-dim": Case(
        Related,
        (numbers(8), numbers(7), numbers(14)),
        dynamic=({0: batch + 1}, {0: batch}, {0: 2 * batch}),
        others=((numbers(6), numbers(5), numbers(10)),),
    ),
    "auto-dim": Case(Guarded, (numbers(6, 4),), dynamic=({0: Dim.AUTO, 1: Dim.AUTO},), others=((numbers(8, 6),),)),
    "dynamic-int": Case(DynamicInt, (X, 5), dynamic=(None, Dim.DYNAMIC), others=((X, 8),)),
    "unbacked": Case(Unbacked, (X,)),
}
FORMS = ("strict", "non-strict", "decomposed")


def exported(case: Case, model: nn.Module, form: str) -> ExportedProgram:
    args, kwargs = copy.deepcopy((case.args, case.kwargs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of its own parts, and of tensors that are no buffers
        options = {"dynamic_shapes": case.dynamic, **(case.options or {})}
        ep = export(model, args, kwargs, strict=form == "strict", **options)
        return ep.run_decompositions() if form == "decomposed" else ep


def check(run: Callable[..., Any], model: nn.Module, case: Case) -> None:
    """Two calls of each give the same results, and leave arguments the same."""
    for args in (case.args, case.args, *case.others):
        ours, theirs = copy.deepcopy(args), copy.deepcopy(args)
        got = run(*ours, **(case.kwargs or {}))
        expected = model(*theirs, **(case.kwargs or {}))
        same(got, expected)
        same(ours, theirs)


def same(got: Any, expected: Any) -> None:
    got_leaves, got_spec = pytree.tree_flatten(got)
    leaves, spec = pytree.tree_flatten(expected)
    assert got_spec == spec
    for a, b in zip(got_leaves, leaves, strict=True):
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a, b, rtol=2e-2 if b.dtype is torch.bfloat16 else 1e-5, atol=1e-5)
        else:
            assert a == b


def same_state(program: Program, model: nn.Module) -> None:
    for name, buffer in model.named_buffers():
        for held in (program.state_dict, program.constants):
            if name in held:
                torch.testing.assert_close(held[name], buffer)


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


def reloaded(ep: ExportedProgram) -> ExportedProgram:
    file = io.BytesIO()
    torch.export.save(ep, file)
    file.seek(0)
    with warnings.catch_warnings():
        # Before torch 2.13 it makes its tensors of bytes that are read only.
        warnings.filterwarnings("ignore", message="The given buffer is not writable", category=UserWarning)
        return torch.export.load(file)


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


# ---------------------------------------------------------------------- from ingot.capture


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


def test_what_is_no_exported_program() -> None:
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
