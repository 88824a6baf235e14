"""What random programs found: each text is the smallest program that went wrong, and it must go right for good."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

import ingot
from ingot import passes
from ingot.errors import PassError
from ingot.ir.outlining import graph_modules
from ingot.passes.decompositions import aten
from tests.passes.random_programs import programs
from tests.passes.random_programs.checks import check, eager, running

FIRST = [(name, {}) for name in ("functionalize", "insert_effect_tokens", "cse", "dce", "remove_noops", "canonicalize")]

# name → body of forward, and how it is captured.
FOUND: dict[str, tuple[str, dict[str, bool]]] = {
    "control flow in control flow, and a write": (
        """
        def body(i, w):
            v = torch.cond(i > 1, lambda w: w + 1, lambda w: w * 2, (w,))
            v.relu_()
            return i + 1, v
        return torch.while_loop(lambda i, w: i < 3, body, (torch.zeros((), dtype=torch.int64), x * 1))[1]
        """,
        {},
    ),
    "a custom operator that writes to a view and to a buffer": (
        """
        bump(x[1:, :2], 0.25)
        bump(self.seen, 0.5)
        return x + self.seen
        """,
        {},
    ),
    "a branch that closes over an argument, where gradients are on": (
        """
        with torch.enable_grad():
            v = x.float() @ self.weight
            return torch.cond(x.sum() > 0, lambda w: w * 2, lambda w: w + x, (v,))
        """,
        {},
    ),
    "a loop that closes over a weight, where gradients are on": (
        """
        with torch.enable_grad():
            v = x.float() @ self.weight
            start = (torch.zeros((), dtype=torch.int64), v)
            return torch.while_loop(lambda i, w: i < 2, lambda i, w: (i + 1, w @ self.weight + x), start)[1]
        """,
        {},
    ),
    "a preserved call in a loop whose results nobody uses": (
        """
        start = (torch.zeros((), dtype=torch.int64), x.float())
        torch.while_loop(lambda i, w: i < 0, lambda i, w: (i + 1, self.layer(w)), start)
        return x + x
        """,
        {"preserve": True},
    ),
    "writes to values that are not visible outside": (
        """
        v = x.float() * 2
        v += 1
        v.mul_(v).clamp_(-3, 3)
        w = (x > 0).long()
        w.mul_(3).add_(w)
        return v.relu_() + w, v
        """,
        {},
    ),
    "writes to values that are what an operator was given": (
        """
        F.dropout(x, 0.5, False).add_(1)
        torch.einsum('ij->ji', y.reshape(y.shape[0], -1)).mul_(2)
        x.to(x.dtype).sub_(0.5)
        x.contiguous().neg_()
        return x * 1, y * 1
        """,
        {},
    ),
    "a write keeps the type, which its variant would not": (
        """
        v = x.bfloat16() * 2
        v.add_(x.float())
        w = (x * 2).int()
        w.add_(v.int()).mul_(w.short())
        return v, w
        """,
        {},
    ),
    "a comparison that is written keeps the type of what it is written to": (
        """
        v = x * 2
        v.eq_(0)
        w = y * 2
        w.logical_not_()
        u = x.float() * 2
        u.lt_(1)
        return v, w.add_(u.sum().to(w.dtype)), u
        """,
        {},
    ),
    "an effect that writes": ("return stamp(x, y, 'a') + stamp(y[0], x, 'b')", {}),
    "an effect that writes to what it reads": ("return stamp(x, x, 'a')", {}),
    "a region that is cut in a graph which has run": (
        """
        def branch(w):
            with torch.no_grad():
                v = torch.cond(w.sum() < 0, lambda w: w + 1, lambda w: w + 2, (y,))
                v.relu_()
            return v * 1
        return torch.cond(x.sum() < 0, branch, lambda w: w * 2, (x,))
        """,
        {},
    ),
    "a region with an effect whose results nobody uses": (
        """
        with torch.autocast('cpu', dtype=torch.bfloat16):
            pair(x, 'a')
        return x + y
        """,
        {},
    ),
    "a preserved call in a branch whose result nobody uses": (
        """
        def branch(w):
            self.fc(w.float())
            return w * 2
        y.mul_(2)
        return torch.cond(x.sum() > 0, branch, lambda w: w * 1.5, (x,)) + y
        """,
        {"preserve": True},
    ),
    "a preserved call in a branch that names a node of another graph too": (
        """
        z = y.float() * 2
        def branch(w):
            return self.fc(w.float())
        return torch.cond(x.sum() > 0, branch, lambda w: w * 1.5, (z,)) + z
        """,
        {"preserve": True},
    ),
    "a preserved call whose argument has a namesake in a branch": (
        """
        z = self.layer(x.float())
        return torch.cond(x.sum() > 0, lambda w: w.float() * 2, lambda w: (z + w).float() * 1, (x,)), z
        """,
        {"preserve": True},
    ),
    "a dropout in eval hands on what is written later": (
        """
        p = x.view(-1)
        v = self.drop(x)
        p.mul_(0.5)
        return v + p.sum()
        """,
        {},
    ),
    "a dropout in training is written to": (
        """
        v = F.dropout(x, 0.3)
        v.t().mul_(0.5)
        bump(v.t(), 0.25)
        return v
        """,
        {"training": True},
    ),
    "an effect by torch's declaration without a token": ("x.mul_(2)\n        return pair(x, 'a')[0]", {}),
    "a condition on a size, asked in a branch again": (
        """
        def branch(w):
            v = torch.cond(x.shape[0] > 2, lambda w: w + 1, lambda w: w + 2, (w,))
            return torch.cond(
                w.sum() < 0,
                lambda w: torch.cond(x.shape[0] > 2, lambda w: w - 1, lambda w: w - 2, (w,)),
                lambda w: w * 3,
                (v,),
            )
        return torch.cond(x.sum() > 0, branch, lambda w: w * 2, (x,))
        """,
        {"dynamic": True},
    ),
    "statistics that are written and a result that nobody uses": (
        """
        with torch.autocast('cpu', dtype=torch.bfloat16):
            self.norm(x)
        with torch.no_grad():
            self.norm(y)
        return x + y
        """,
        {"training": True},
    ),
}


def text_of(body: str) -> str:
    return f"class Model(Base):\n    def forward(self, x, y):\n        {body.strip()}\n"


@pytest.mark.parametrize("name", FOUND)
def test_found(name: str) -> None:
    body, how = FOUND[name]
    check(text_of(body), FIRST, **how)  # type: ignore[arg-type]


def test_a_custom_operator_that_writes_is_functional_and_survives_a_file(tmp_path: Path) -> None:
    text = text_of("bump(x[0], 0.25)\n        return stamp(y, x, 'a')")
    model = programs.build(text)
    program = ingot.transform(programs.capture(text, copy.deepcopy(model)), passes.DEFAULT_PIPELINE)
    nodes: list[Any] = [n for m in graph_modules(program.graph_module) for n in m.graph.nodes]
    assert not any(getattr(n.target, "_schema", None) and n.target._schema.is_mutable for n in nodes)
    assert {"unwritten_ingot_tests.bump.default", "ingot_unwritten_ingot_tests.stamp.default"} <= {
        str(n.target) for n in nodes
    }
    program.save(tmp_path / "m.ingot")
    args = programs.inputs(2)
    (_, expected, _), got = eager(model, args), running(ingot.load(tmp_path / "m.ingot"), args)
    assert got[1] == expected[1] == ["a"]
    torch.testing.assert_close(got[0], expected[0])


@pytest.mark.parametrize("first", [passes.functionalize, passes.insert_effect_tokens])
def test_a_custom_operator_that_writes_to_memory_which_it_also_reads_is_refused(first: Any) -> None:
    text = text_of("return stamp(x, x[0], 'a')")
    program = programs.capture(text, programs.build(text))
    with pytest.raises(PassError, match="shares its memory"):
        ingot.transform(program, [first])


def test_a_dropout_in_place_is_a_draw_with_a_token() -> None:
    check(text_of("F.dropout(x, 0.3, True, True)\n        return x * 2"), [("insert_effect_tokens", {"random": True})])


def test_names_of_preserved_calls_follow_a_replay() -> None:
    text = text_of(FOUND["a preserved call in a branch that names a node of another graph too"][0])
    program = programs.capture(text, programs.build(text), preserve=True)
    for stage in (passes.functionalize, passes.decompose):
        program = ingot.transform(program, [stage])
        (call,) = [call for call in program.module_calls if call.path == "fc"]
        assert call.signature is not None
        named = {value.name for value in (*call.signature.inputs, *call.signature.outputs)}
        graphs = [{n.name for n in m.graph.nodes} & named for m in graph_modules(program.graph_module)]
        assert [len(found) for found in graphs if found] == [2], "both are in one graph, and in no other"


@pytest.mark.parametrize("count", [None, 0, 1, 4])
@pytest.mark.parametrize("increasing", [False, True])
def test_powers_in_columns(count: int | None, increasing: bool) -> None:
    """torch's decomposition writes to parts of an empty tensor, which cannot be followed."""

    class Powers(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.vander(x, count, increasing)

    for x in (torch.randn(5), torch.arange(5, dtype=torch.int32)):
        program = ingot.capture(Powers(), (x,))
        passes.decompose(program)
        assert torch.equal(program(x), Powers()(x)) and program(x).dtype is Powers()(x).dtype


def test_a_decomposition_that_fixes_a_size_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be right for the example's sizes alone, and nothing would tell."""

    class Large(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.interpolate(x, size=(4, 4), mode="bicubic")

    program = ingot.capture(Large(), (torch.randn(5, 1, 3, 3),), dynamic_shapes={"x": {0: "n"}})
    monkeypatch.setitem(
        aten._OWN._rules, torch.ops.aten.upsample_bicubic2d.vec, lambda x, *_: x.new_zeros(int(x.shape[0]), 1, 4, 4)
    )
    with pytest.raises(PassError, match="cannot be decomposed for every size n"):
        passes.decompose(program)
