"""What a random program must hold: the default pipeline returns the results, writes and effects of eager, and so do
passes in any order that their dialects allow, each to a fixpoint."""

from __future__ import annotations

import copy
from typing import Any

import torch
from hypothesis import note
from hypothesis import strategies as st
from torch.utils import _pytree

import ingot
from ingot import passes
from ingot.passes.instrumentation.differential_check import compare_values
from ingot.passes.manager import info_of
from tests.passes.effects.effectful_ops import heard
from tests.passes.random_programs import programs

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "insert_effect_tokens": [{}, {"random": True}],
    "decompose": [{}, {"keep": ["linear", "layer_norm", "softmax", "dropout"]}],
}

Outcome = tuple[list[torch.Tensor], list[str], dict[str, torch.Tensor]]
# Arguments, what eager shows for them, and the state that it wrote to.
Call = tuple[tuple[torch.Tensor, ...], Outcome, set[str]]
Order = list[tuple[str, dict[str, Any]]]


def outcome(function: Any, state: dict[str, torch.Tensor], args: tuple[torch.Tensor, ...]) -> Outcome:
    """All that a call shows: results, arguments after it and what effects saw; what was said; state after it."""
    programs.NOTED.clear()
    result, said = heard(function, *args)
    leaves = [*_pytree.tree_leaves(result), *args, *programs.NOTED]
    return [leaf.detach().clone() for leaf in leaves], said, {name: t.detach().clone() for name, t in state.items()}


def eager(model: programs.Base, args: tuple[torch.Tensor, ...]) -> Call:
    own = copy.deepcopy(model)
    shown = outcome(own, own.state_dict(), tuple(a.clone() for a in args))
    before = model.state_dict()
    written = {name for name, after in shown[2].items() if compare_values(before[name], after, True) is not None}
    return args, shown, written


def running(program: ingot.Program, args: tuple[torch.Tensor, ...]) -> Outcome:
    own = program.copy()
    copies = {id(t): t.detach().clone() for t in own.state_dict.values()}
    own.state_dict = {name: copies[id(t)] for name, t in own.state_dict.items()}
    return outcome(own, own.state_dict, tuple(a.clone() for a in args))


def assert_alike(call: Call, got: Outcome, exact: bool, what: str) -> None:
    _, expected, written = call
    assert got[1] == expected[1], f"{what}: other effects"
    assert len(got[0]) == len(expected[0]), what
    assert got[2].keys() <= expected[2].keys(), what  # a pass may fold weights away
    pairs = [*zip(expected[0], got[0], strict=True), *((expected[2][name], tensor) for name, tensor in got[2].items())]
    for a, b in pairs:
        problem = compare_values(a, b, exact)
        assert problem is None, f"{what}: a value {problem}"
    assert written <= got[2].keys(), f"{what}: state is gone that the program writes to"


# ---------------------------------------------------------------------- the checks


def check_pipeline(captured: ingot.Program, calls: list[Call]) -> None:
    """The default pipeline, with numbers compared after each pass, and against eager where bits must be the same."""
    stages: dict[str, ingot.Program] = {}
    lowered = ingot.transform(
        captured, passes.DEFAULT_PIPELINE, check="numerics", snapshots=lambda n, p: stages.update({n: p.copy()})
    )
    back = ingot.transform(lowered, [passes.erase_effect_tokens])
    for call in calls:
        args, *_ = call
        assert_alike(call, running(stages["grad_mode"], args), True, "after grad_mode")
        assert_alike(call, running(stages["insert_effect_tokens"], args), False, "after insert_effect_tokens")
        assert_alike(call, running(lowered, args), False, "after the pipeline")
        assert_alike(call, running(back, args), False, "after erase_effect_tokens")


def check_order(captured: ingot.Program, calls: list[Call], order: Order) -> None:
    """Passes in an order that their dialects allow; each, run again, finds nothing to do."""
    program, exact, done = captured, True, []
    for name, options in order:
        function = passes.REGISTRY[name]
        info = info_of(function)
        if info.takes is not None and not info.takes.accepts(program.dialect):
            continue
        done.append(name)
        program = ingot.transform(program, [(function, options), (function, options)])
        assert program.history[-1].changes == 0, f"{', '.join(done)}: the last one changes something again"
        exact = exact and info.exact
    for call in calls:
        assert_alike(call, running(program, call[0]), exact, ", ".join(done))


def check(text: str, order: Order, training: bool = False, dynamic: bool = False, preserve: bool = False) -> None:
    """Eager, the default pipeline and an order of passes agree on a program's text, on two inputs."""
    model = programs.build(text, training)
    given_ = (programs.inputs(1), programs.inputs(2, 5 if dynamic else 3))
    calls = [eager(model, args) for args in given_]
    captured = programs.capture(text, copy.deepcopy(model), dynamic, preserve)
    check_pipeline(captured, calls)
    check_order(captured, calls, order)


@st.composite
def orders(draw: st.DrawFn) -> Order:
    names = draw(st.permutations(sorted(passes.REGISTRY)))
    return [(name, draw(st.sampled_from(OPTIONS.get(name, [{}])))) for name in names]


def check_drawn(drawn: programs.Program, order: Order) -> None:
    text = programs.source(drawn)
    note(f"{text}\ntraining={drawn.training}, dynamic={drawn.dynamic}, preserve={drawn.preserve}\n{order}")
    check(text, order, drawn.training, drawn.dynamic, drawn.preserve)
