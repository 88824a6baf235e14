"""Random programs: statements that hypothesis draws, written out as the source of a model.

    Program(statements, training, dynamic, preserve)      what is drawn; a statement names variables by number
    source(program)                                       the Python text of its forward
    build(text)                                           the model, compiled from that text, whose lines are real

A number stands for whichever variable it comes to, modulo those in scope, so every list of statements is a program and
hypothesis may cut it down as it likes. All full values are [n, 4]; inside a branch or a loop only what was made there
is written to, since torch allows no more.
"""

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import nn

import ingot
from ingot.passes.insert_effect_tokens import declare_effect
from tests.passes.effects.effectful_ops import SAID, count, pair, pure, say

NOTED: list[torch.Tensor] = []


@torch.library.custom_op("ingot_tests::note", mutates_args=())
def note(x: torch.Tensor, what: str) -> None:
    """An effect that sees what it is given, so that a write on the wrong side of it shows."""
    SAID.append(what)
    NOTED.append(x.detach().clone())


@torch.library.custom_op("ingot_tests::bump", mutates_args={"x"})
def bump(x: torch.Tensor, by: float) -> None:
    """Writes to its argument, and no more."""
    x.add_(by)


@torch.library.custom_op("ingot_tests::stamp", mutates_args={"x"})
def stamp(x: torch.Tensor, y: torch.Tensor, what: str) -> torch.Tensor:
    """Writes to its argument, returns something, and is an effect as well."""
    SAID.append(what)
    x.mul_(0.5)
    return y + x.sum()


note.register_fake(lambda x, what: None)
bump.register_fake(lambda x, by: None)
stamp.register_fake(lambda x, y, what: torch.empty_like(y))
declare_effect(stamp)


# ---------------------------------------------------------------------- the grammar
#
#   statement = Make(op, a, b) | View(op, a) | Write(op, a, b) | WritePart(op, a, b) | Effect(op, a)
#             | Region(mode, body) | Cond(question, a, body, body) | While(rounds, a, body) | Over(kind, a, body)


@dataclass(frozen=True)
class Make:
    """A new value from two others."""

    op: str
    a: int
    b: int


@dataclass(frozen=True)
class View:
    """A part of a value, or the value in another shape."""

    op: str
    a: int


@dataclass(frozen=True)
class Write:
    op: str
    a: int
    b: int


@dataclass(frozen=True)
class WritePart:
    op: str
    a: int
    b: int


@dataclass(frozen=True)
class Effect:
    op: str
    a: int


@dataclass(frozen=True)
class Region:
    mode: str
    body: tuple[Any, ...]


@dataclass(frozen=True)
class Cond:
    question: str
    a: int
    true: tuple[Any, ...]
    false: tuple[Any, ...]


@dataclass(frozen=True)
class While:
    rounds: int
    a: int
    body: tuple[Any, ...]


@dataclass(frozen=True)
class Over:
    """A scan or a map over the rows of a value."""

    kind: str
    a: int
    body: tuple[Any, ...]


@dataclass(frozen=True)
class Program:
    statements: tuple[Any, ...]
    results: tuple[int, ...] = (0,)
    training: bool = False
    dynamic: bool = False
    preserve: bool = False


MAKES = {
    "add": "{a} + {b}",
    "mul": "{a} * 0.5 - {b}",
    "tanh": "torch.tanh({a})",
    "relu": "{a}.relu() + {b}",
    "softmax": "torch.softmax({a}, -1)",
    "mean": "{a} - {b}.mean()",
    "matmul": "{a}.float() @ self.weight",
    "cat": "torch.cat([{a}, {b}], -1)[:, 2:6] * 1",
    "clone": "{a}.clone()",
    "linear": "self.fc({a}.float())",
    "shared": "self.twin({a}.float())",
    "block": "self.block({a}.float())",
    "norm": "self.norm({a}.float())",
    "layer norm": "self.layer({a}.float())",
    "dropout": "F.dropout({a}, 0.3)",
    "draw": "{a} + torch.rand_like({b})",
    "bernoulli": "torch.bernoulli(torch.sigmoid({a}.float()))",
    "count": "count({a}, '{n}')",
    "pair": "pair({a}, '{n}')[1]",
    "pure": "pure({a})",
    "state": "{a} + self.seen",
    "twice": "{a}.sin() + {a}.sin()",
    "nothing": "({a}.to({b}.dtype) + 0) * 1",
    "row means": "{a} + {b}.mean(0, keepdim=True).expand({a}.shape[0], 4)",
}
# These write to the model's state, which a branch may not, or may give their argument back.
ROOT_MAKES = {
    "norm": MAKES["norm"],
    "drop": "self.drop({a})",
    "same": "{a}.float()",
    "stamp": "stamp({a}, {b} + 0, '{n}')",
    "stamp itself": "stamp({a}, {a}, '{n}')",
}
VIEWS = {
    "row": "{a}[0]",
    "columns": "{a}[:, 1:3]",
    "transposed": "{a}.t()",
    "flat": "{a}.view(-1)",
    "every other": "{a}[..., ::2]",
    "split": "{a}.split(2, 1)[1]",
    "diagonal": "{a}.diagonal()",
    "unsqueezed": "{a}.unsqueeze(1)",
    "of a view": "{a}[:, :3][1:]",
    "detached": "{a}.detach()",
}
WRITES = {
    "add": "{a}.add_({b})",
    "mul": "{a}.mul_(0.5)",
    "relu": "{a}.relu_()",
    "copy": "{a}.copy_({b})",
    "assign row": "{a}[0] = {b}[1]",
    "assign column": "{a}[:, 2] = {b}.mean(1)",
    "augment": "{a}[:, 1:] += 0.25",
    "fill": "{a}[:, 0].fill_(0.5)",
    "dropout": "F.dropout({a}, 0.3, True, True)",
    "uniform": "{a}.uniform_(-1, 1)",
    "bump": "bump({a}, 0.25)",
    "bump part": "bump({a}[1:, :2], 0.25)",
    "index": "{a}[:, torch.tensor([0, 2])] = 0.125",
    "state": "self.seen.add_({a}.float().mean(0))",
    "state row": "self.seen[1] += 0.5",
    "counter": "self.steps += 1",
}
PART_WRITES = {
    "mul": "{p}.mul_(0.5)",
    "add": "{p}.add_({b}.sum() * 0.1)",
    "tanh": "{p}.tanh_()",
    "first": "{p}[0] = 0.5",
    "bump": "bump({p}, 0.25)",
    "sub": "{p} -= {p}.mean()",
}
EFFECTS = {
    "say": "say({a}, '{n}')",
    "note": "note({a}, '{n}')",
    "note state": "note(self.seen, '{n}')",
    "assert": "torch._assert_async(({a} < 1000).all(), 'too large at {n}')",
    "count": "count({a}, '{n}')",
    "pair": "pair({a}, '{n}')",
    "draw": "torch.rand_like({a})",
}
MODES = {
    "bf16": "torch.autocast('cpu', dtype=torch.bfloat16)",
    # Without the cache, which torch has one of for all dtypes: inside bf16 it would find weights in bf16.
    "fp16": "torch.autocast('cpu', dtype=torch.float16, cache_enabled=False)",
    "off": "torch.autocast('cpu', enabled=False)",
    "no grad": "torch.no_grad()",
    "grad": "torch.enable_grad()",
}


def statements(depth: int = 3, size: int = 5, inside: bool = False) -> st.SearchStrategy[tuple[Any, ...]]:
    """Lists of statements, nested at most `depth` deep. `inside`: of a branch or a loop."""
    number = st.integers(0, 7)
    names = [*MAKES, *ROOT_MAKES] if not inside else [name for name in MAKES if name != "norm"]
    writes = [name for name in WRITES if not (inside and name in ("state", "state row", "counter"))]
    simple: list[Any] = [
        st.builds(Make, st.sampled_from(names), number, number),
        st.builds(View, st.sampled_from(sorted(VIEWS)), number),
        st.builds(Write, st.sampled_from(writes), number, number),
        st.builds(WritePart, st.sampled_from(sorted(PART_WRITES)), number, number),
        st.builds(Effect, st.sampled_from(sorted(EFFECTS)), number),
    ]
    if depth == 0:
        return st.lists(st.one_of(*simple), min_size=1, max_size=size).map(tuple)
    within = statements(depth - 1, 2, True)
    region = st.builds(Region, st.sampled_from(sorted(MODES)), statements(depth - 1, 3, inside))
    nested: list[Any] = [
        region,
        region,
        st.builds(Cond, st.sampled_from(["flag", "not flag", "size"]), number, within, within),
        st.builds(While, st.integers(0, 3), number, within),
        st.builds(Over, st.sampled_from(["scan", "map"]), number, statements(0, 2, True)),
    ]
    return st.lists(st.one_of(*simple, *simple, *nested), min_size=1, max_size=size).map(tuple)


def programs(small: bool = False) -> st.SearchStrategy[Program]:
    results = st.lists(st.integers(0, 9), min_size=1, max_size=3).map(tuple)
    mostly_not = st.sampled_from([False, False, False, True])
    body = statements(2, 3) if small else statements(3, 6)
    return st.builds(Program, body, results, st.booleans(), mostly_not, mostly_not)


# ---------------------------------------------------------------------- the text


@dataclass
class _Scope:
    """The variables that may be read, those that may be written, and views of either."""

    values: list[str] = field(default_factory=list)
    writable: list[str] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    aliases: dict[str, bool] = field(default_factory=dict)  # part → whether it may be written

    def inner(self) -> _Scope:
        return _Scope(list(self.values), [], list(self.parts), dict.fromkeys(self.parts, False))

    def value(self, number: int) -> str:
        return self.values[number % len(self.values)]


class _Writer:
    def __init__(self, dynamic: bool) -> None:
        self.dynamic = dynamic
        self.lines: list[str] = []
        self.depth = 2
        self.names = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def name(self, stem: str) -> str:
        self.names += 1
        return f"{stem}{self.names}"

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.line(head)
        self.depth += 1
        yield
        self.depth -= 1

    def body(self, items: tuple[Any, ...], scope: _Scope) -> None:
        for item in items:
            getattr(self, f"_{type(item).__name__.lower()}")(item, scope)

    def _make(self, item: Make, scope: _Scope) -> None:
        a, b = scope.value(item.a), scope.value(item.b)
        if item.op.startswith("stamp"):
            if not scope.writable:
                return
            a = scope.writable[item.a % len(scope.writable)]
        made = self.name("v")
        text = (ROOT_MAKES.get(item.op) or MAKES[item.op]).format(a=a, b=b, n=made)
        self.line(f"{made} = {text}")
        scope.values.append(made)
        if item.op not in ("drop", "same") or a in scope.writable:
            scope.writable.append(made)

    def _view(self, item: View, scope: _Scope) -> None:
        a, made = scope.value(item.a), self.name("p")
        self.line(f"{made} = {VIEWS[item.op].format(a=a)}")
        scope.parts.append(made)
        scope.aliases[made] = a in scope.writable

    def _write(self, item: Write, scope: _Scope) -> None:
        state = item.op in ("state", "state row", "counter")
        pool = scope.values if state else scope.writable
        if pool:
            a = pool[item.a % len(pool)]
            self.line(WRITES[item.op].format(a=a, b=scope.value(item.b)))

    def _writepart(self, item: WritePart, scope: _Scope) -> None:
        open_ = [part for part in scope.parts if scope.aliases[part]]
        if open_:
            part = open_[item.a % len(open_)]
            self.line(PART_WRITES[item.op].format(p=part, b=scope.value(item.b)))
            made = self.name("v")
            self.line(f"{made} = {scope.value(item.b)} + {part}.sum()")
            scope.values.append(made)
            scope.writable.append(made)

    def _effect(self, item: Effect, scope: _Scope) -> None:
        self.line(EFFECTS[item.op].format(a=scope.value(item.a), n=self.name("e")))

    def _region(self, item: Region, scope: _Scope) -> None:
        with self.block(f"with {MODES[item.mode]}:"):
            self.line("pass")
            self.body(item.body, scope)

    def _cond(self, item: Cond, scope: _Scope) -> None:
        a = scope.value(item.a)
        functions = [self.name("branch"), self.name("branch")]
        for name, body in zip(functions, (item.true, item.false), strict=True):
            self._function(name, ("w",), body, scope, "{last}.float() * 1")
        size = f"{a}.shape[0] > 2" if self.dynamic else "flag > 1"
        question = {"flag": "flag > 0", "not flag": "flag < 0", "size": size}[item.question]
        self._result(f"torch.cond({question}, {functions[0]}, {functions[1]}, ({a},))", scope)

    def _while(self, item: While, scope: _Scope) -> None:
        a, name = scope.value(item.a), self.name("body")
        self._function(name, ("i", "w"), item.body, scope, "i + 1, {last}.float() * 1", counted=True)
        start = f"(torch.zeros((), dtype=torch.int64), {a}.float() * 1)"
        self._result(f"torch.while_loop(lambda i, w: i < {item.rounds}, {name}, {start})[1]", scope)

    def _over(self, item: Over, scope: _Scope) -> None:
        a, name = scope.value(item.a), self.name("step")
        if item.kind == "map":
            self._function(name, ("row",), item.body, scope, "({last}.float() * 1).mean(0)", row="row")
            self._result(f"torch._higher_order_ops.map({name}, {a}.float() * 1)", scope)
            return
        result = "carry * 0.5 + row, ({last}.float() * 1).mean(0)"
        self._function(name, ("carry", "row"), item.body, scope, result, row="row")
        self._result(f"torch._higher_order_ops.scan({name}, {a}[0].float() * 0, {a}.float() * 1)[1]", scope)

    def _function(
        self,
        name: str,
        arguments: tuple[str, ...],
        body: tuple[Any, ...],
        scope: _Scope,
        result: str,
        counted: bool = False,
        row: str = "",
    ) -> None:
        inner = scope.inner()
        with self.block(f"def {name}({', '.join(arguments)}):"):
            if row:
                wide = self.name("v")
                self.line(f"{wide} = {row} + torch.zeros(3, 4)")
                inner.values, inner.writable, inner.parts = [wide], [wide], []
            else:
                inner.values.insert(0, "w")
            if counted:
                self.line("flag = i - 1")
            self.body(body, inner)
            self.line(f"return {result.format(last=inner.values[-1])}")

    def _result(self, text: str, scope: _Scope) -> None:
        made = self.name("v")
        self.line(f"{made} = {text}")
        scope.values.append(made)
        scope.writable.append(made)


def source(program: Program) -> str:
    """The Python text of the program's forward."""
    writer, scope = _Writer(program.dynamic), _Scope(["x", "y"], ["x", "y"])
    writer.line("flag = x.sum() * 1")
    writer.body(program.statements, scope)
    named = [*scope.values[2:], *scope.parts] or ["x + y"]
    results = dict.fromkeys(named[-1 - number % len(named)] for number in program.results)
    writer.line(f"return ({', '.join(results)},)")
    return "\n".join(["class Model(Base):", "    def forward(self, x, y):", *writer.lines, ""])


# ---------------------------------------------------------------------- the model


class Block(nn.Module):
    """A module with effects and with a weight that others have as well."""

    def __init__(self, fc: nn.Module) -> None:
        super().__init__()
        self.fc = fc

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x < 1000).all(), "too large in the block")
        say(x, "block")
        y = self.fc(x)
        y.relu_()
        return y + x


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.twin = self.fc
        self.block = Block(self.fc)
        self.norm, self.layer = nn.BatchNorm1d(4, momentum=0.3), nn.LayerNorm(4)
        self.drop = nn.Dropout(0.3)
        self.weight = nn.Parameter(torch.rand(4, 4) / 4)
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))


_NAMES = {"torch": torch, "F": F, "Base": Base, "say": say, "note": note, "count": count, "pair": pair, "pure": pure}
_NAMES |= {"bump": bump, "stamp": stamp}


def compiled(text: str) -> type[Base]:
    """The class that a text defines; its lines are there for whoever shows them."""
    name = f"<program {hashlib.sha256(text.encode()).hexdigest()[:12]}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    space: dict[str, Any] = dict(_NAMES)
    exec(compile(text, name, "exec"), space)
    made: type[Base] = space["Model"]
    return made


def build(text: str, training: bool = False) -> Base:
    torch.manual_seed(0)
    return compiled(text)().train(training)


def capture(text: str, model: Base, dynamic: bool = False, preserve: bool = False) -> ingot.Program:
    """The model captured on `inputs(1)`. `preserve`: the modules that the text calls keep their signatures."""
    preserved = tuple(name for name in ("block", "layer", "fc") if preserve and f"self.{name}(" in text)
    shapes = {"x": {0: "n"}, "y": {0: "n"}} if dynamic else None
    return ingot.capture(model, inputs(1), dynamic_shapes=shapes, preserve_module_call_signature=preserved)


def inputs(seed: int, size: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sign = 1 if seed % 2 else -1
    return torch.rand(size, 4, generator=generator) * sign, torch.randn(size, 4, generator=generator)
