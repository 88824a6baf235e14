"""Models with effects that can be heard: operators that write down that they were called, and checks of them."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

import ingot
from ingot import passes
from ingot import torch_internals as internals
from ingot.ir.outlining import graph_modules
from ingot.passes.insert_effect_tokens import declare_effect

SAID: list[str] = []


@torch.library.custom_op("ingot_tests::say", mutates_args=())
def say(x: torch.Tensor, what: str) -> None:
    """Returns nothing, so it is an effect."""
    SAID.append(what)


@torch.library.custom_op("ingot_tests::count", mutates_args=())
def count(x: torch.Tensor, what: str) -> torch.Tensor:
    """Returns something; the test declares that it is an effect."""
    SAID.append(what)
    return x + 1


@torch.library.custom_op("ingot_tests::pair", mutates_args=())
def pair(x: torch.Tensor, what: str) -> tuple[torch.Tensor, torch.Tensor]:
    SAID.append(what)
    return x + 1, x * 2


@torch.library.custom_op("ingot_tests::pure", mutates_args=())
def pure(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@torch.library.custom_op("ingot_tests::some", mutates_args=())
def some(x: torch.Tensor) -> torch.Tensor:
    """Its size is known only when it runs."""
    SAID.append("some")
    return x[x > 0].clone()


@torch.library.custom_op("ingot_tests::complain", mutates_args=())
def complain(x: torch.Tensor) -> None:
    raise RuntimeError("a broken kernel")


complain.register_fake(lambda x: None)
say.register_fake(lambda x, what: None)
count.register_fake(lambda x, what: torch.empty_like(x))
pair.register_fake(lambda x, what: (torch.empty_like(x), torch.empty_like(x)))
pure.register_fake(lambda x: torch.empty_like(x))
some.register_fake(lambda x: x.new_empty(torch.library.get_ctx().new_dynamic_size()))
declare_effect(count)
declare_effect(torch.ops.ingot_tests.some)
torch.library._register_effectful_op("ingot_tests::pair", torch._higher_order_ops.effects._EffectType.ORDERED)


class Sub(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x < 50).all(), "too large")
        return self.fc(x)


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sub = Sub()
        self.register_buffer("seen", torch.zeros(()))


class AssertAndCond(Base):
    def forward(self, x: torch.Tensor) -> Any:
        y = self.sub(x)
        return torch.cond(y.sum() > 0, lambda v: v + 1, lambda v: v * 2, (y,))


class OneBranch(Base):
    def forward(self, x: torch.Tensor) -> Any:
        def true(v: torch.Tensor) -> torch.Tensor:
            say(v, "true")
            return v + 1

        return torch.cond(x.sum() > 0, true, lambda v: v * 2, (x,)), torch.cond(
            x.sum() < 0, true, lambda v: v * 2, (x,)
        )


class BothBranches(Base):
    def forward(self, x: torch.Tensor) -> Any:
        def true(v: torch.Tensor) -> torch.Tensor:
            say(v, "true")
            return count(v, "true too")

        def false(v: torch.Tensor) -> torch.Tensor:
            say(v, "false")
            return self.sub(v)

        say(x, "before")
        y = torch.cond(x.sum() > 0, true, false, (x,))
        say(y, "after")
        return torch.cond(x.sum() < 0, true, false, (y,))


class OnlyInLoop(Base):
    def forward(self, x: torch.Tensor) -> Any:
        def body(i: torch.Tensor, v: torch.Tensor) -> Any:
            say(v, "round")
            return i + 1, v * 2

        return torch.while_loop(lambda i, v: i < 3, body, (torch.zeros((), dtype=torch.int64), x))


class InCondition(Base):
    def forward(self, x: torch.Tensor) -> Any:
        def condition(i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            say(v, "asked")
            return i < 2

        return torch.while_loop(condition, lambda i, v: (i + 1, v * 2), (torch.zeros((), dtype=torch.int64), x))


class CountedLoop(Base):
    """The condition is on an int, and has an effect."""

    def forward(self, x: torch.Tensor) -> Any:
        def condition(i: int, v: torch.Tensor) -> Any:
            say(v, "asked")
            return i < 2

        def body(i: int, v: torch.Tensor) -> Any:
            return i + 1, count(v, "round")

        return torch.while_loop(condition, body, (0, x))[1]


class Nested(Base):
    def forward(self, x: torch.Tensor) -> Any:
        def small(v: torch.Tensor) -> torch.Tensor:
            say(v, "small")
            return v * 3

        def body(i: torch.Tensor, v: torch.Tensor) -> Any:
            say(v, "round")
            return i + 1, torch.cond(v.sum() < 20, small, lambda w: w + 1, (v,))

        say(x, "first")
        _, y = torch.while_loop(lambda i, v: i < 4, body, (torch.zeros((), dtype=torch.int64), x))
        say(y, "last")
        return self.sub(y * 0)


class Scanned(Base):
    def forward(self, x: torch.Tensor) -> Any:
        def step(carry: torch.Tensor, row: torch.Tensor) -> Any:
            say(row, "step")
            return carry + row, carry * row

        return torch._higher_order_ops.scan(step, x[0] * 0, x)


class Mapped(Base):
    def forward(self, x: torch.Tensor) -> Any:
        def step(row: torch.Tensor) -> torch.Tensor:
            say(row, "row")
            return row + 1

        say(x, "before")
        y = torch._higher_order_ops.map(step, x)
        say(y, "after")
        return y


class Regions(Base):
    def forward(self, x: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            say(x, "cast")
            y = self.sub(x)
            with torch.no_grad():
                say(y, "no grad")
        with torch.no_grad():
            z = torch.cond(x.sum() > 0, lambda v: count(v, "inside"), lambda v: v * 2, (x,))
            with torch.autocast("cpu", dtype=torch.float16):
                self.sub(x)
        say(x, "outside")
        return y, z


class Writes(Base):
    def forward(self, x: torch.Tensor) -> Any:
        say(self.seen, "zero")
        self.seen.add_(1)
        y = count(self.seen, "one")
        x = x.clone()
        x[0] = y
        a, b = pair(x, "pair")
        return {"a": a, "b": b + self.seen, "none": None, "y": y}


class Unused(Base):
    """Nobody uses what the effects compute."""

    def forward(self, x: torch.Tensor) -> Any:
        count(x, "a")
        pair(x, "b")
        return pair(x, "c")[1]


class Ranges(Base):
    """A size that only running tells, with torch's own checks of it."""

    def forward(self, x: torch.Tensor) -> Any:
        found = some(x.relu() + 1)
        torch._check(found.shape[0] < 100, lambda: "too many")
        number = (x > 0).sum().item()
        torch._check(number >= 0)
        torch._check(number < 40)
        return found.sum() + torch.zeros(number).sum()


MODELS: list[type[Base]] = [
    AssertAndCond,
    OneBranch,
    BothBranches,
    OnlyInLoop,
    InCondition,
    CountedLoop,
    Nested,
    Scanned,
    Mapped,
    Regions,
    Writes,
    Unused,
    Ranges,
]
TO_EFFECTS: list[Any] = [passes.tracepoints, passes.autocast, passes.grad_mode]


def made(cls: Callable[[], nn.Module]) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return cls(), torch.rand(3, 4)


def program_of(model: nn.Module, *args: Any, **kwargs: Any) -> ingot.Program:
    return ingot.transform(ingot.capture(copy.deepcopy(model), args, **kwargs), TO_EFFECTS)


def call_as_it_is(function: Callable[..., Any], args: Any, kwargs: Any = None) -> Any:
    """Runs control flow on real tensors.

    For operands that require a gradient torch traces the functions first, and that trace refuses every real tensor that
    a function closes over. Values do not depend on gradients, so nothing of the kind is asked for.
    """
    with torch.no_grad():
        return function(*args, **(kwargs or {}))


def heard(function: Callable[..., Any], *args: Any) -> tuple[Any, list[str]]:
    """The result of a call, and what was said meanwhile."""
    SAID.clear()
    torch.manual_seed(3)
    with torch.no_grad(), internals.intercept_control_flow(call_as_it_is):  # torch would compile it first
        result = function(*args)
    return result, list(SAID)


def assert_same(expected: tuple[Any, list[str]], got: tuple[Any, list[str]]) -> None:
    a, b = (torch.utils._pytree.tree_leaves(result) for result, _ in (expected, got))
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y
    assert expected[1] == got[1]


def targets(program: ingot.Program) -> list[Any]:
    return [node.target for module in graph_modules(program.graph_module) for node in module.graph.nodes]


# ---------------------------------------------------------------------- passes that know nothing of effects


def naive_dce(program: ingot.Program) -> int:
    """Drops whatever nobody uses, effect or not."""
    count = 0
    for module in reversed(list(graph_modules(program.graph_module))):
        for node in reversed(list(module.graph.nodes)):
            if node.op in ("call_function", "get_attr") and not node.users:
                module.graph.erase_node(node)
                count += 1
    return count


def naive_cse(program: ingot.Program) -> int:
    """Makes one of two calls with equal arguments, effect or not."""
    count = 0
    for module in graph_modules(program.graph_module):
        seen: dict[Any, fx.Node] = {}
        for node in list(module.graph.nodes):
            key = (node.op, node.target, repr(node.args), repr(node.kwargs))
            if node.op != "call_function" or seen.setdefault(key, node) is node:
                continue
            node.replace_all_uses_with(seen[key])
            module.graph.erase_node(node)
            count += 1
    return count


def shuffle(program: ingot.Program, *, seed: int = 0) -> int:
    """Puts the nodes of every graph into any order that their arguments allow."""
    dice = random.Random(seed)
    for module in graph_modules(program.graph_module):
        nodes = [n for n in module.graph.nodes if n.op not in ("placeholder", "output")]
        waiting = {node: sum(n in set(nodes) for n in node.all_input_nodes) for node in nodes}
        anchor = next(iter(reversed(module.graph.nodes)))
        ready = [node for node, left in waiting.items() if not left]
        while ready:
            node = ready.pop(dice.randrange(len(ready)))
            anchor.prepend(node)
            for user in node.users:
                if user in waiting:
                    waiting[user] -= 1
                    if not waiting[user]:
                        ready.append(user)
        module.recompile()
    return 1
