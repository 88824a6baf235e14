"""Rewrites: replaces every match of one function by another.

before                                          after rewrite(before=lambda x, w: F.relu(F.linear(x, w)), …)
linear = aten.linear(x, p_fc_weight)            linear_relu = mine.linear_relu(x, p_fc_weight)
relu = aten.relu(linear)                        return (linear_relu,)
return (relu,)

The replacement is traced again for every match, on what the pattern's inputs are there: their shapes, and the literals
that the match has. So it may look at sizes, and compute with an eps. What it does not name itself it keeps: where it
gives an operator a literal that the pattern gives the same operator, it means the match's.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.analysis.side_effects import has_side_effects
from ingot.errors import IngotError, PatternError, format_error
from ingot.ir import metadata
from ingot.ir.dialects import CORE, FUNCTIONAL, Dialect
from ingot.ir.outlining import graph_modules
from ingot.ir.printer import describe_value
from ingot.ir.program import Program, check_program
from ingot.passes.cse import follow, named_values
from ingot.passes.decompose import decompose, overloads
from ingot.passes.decompositions.aten import Rules
from ingot.passes.functionalize import functionalize
from ingot.passes.manager import Check, PassInfo, transform
from ingot.passes.retracing.retrace import Replay
from ingot.passes.retracing.tracer import ReplayRecorder
from ingot.rewriting.matching import Guard, Match, matches
from ingot.rewriting.pattern import Pattern, arguments_of, check_examples, pattern_of, trace_pattern

_PATTERNS: weakref.WeakKeyDictionary[Callable[..., Any], dict[Any, Pattern]] = weakref.WeakKeyDictionary()


def rewrite(
    program: Program,
    before: Callable[..., Any],
    after: Callable[..., Any],
    example_inputs: Sequence[Any],
    where: Guard | None = None,
    *,
    check: Check = "structure",
) -> tuple[Program, int]:
    """Replaces every match of `before` by `after` in a copy of the program; returns it and the number of matches.

    Both take the inputs that `example_inputs` are examples of. `where` is called with each match, and may reject it.
    `check` is that of `transform`. Raises PatternError, and changes nothing, if either function will not do.
    """
    check_program(program, "rewrite")
    made = transform(program, [Rewriting(before, after, example_inputs, where)], check)
    return made, made.history[-1].changes


@dataclass(frozen=True, eq=False)
class Rewriting:
    """A rewrite as a pass, for `transform`."""

    before: Callable[..., Any]
    after: Callable[..., Any]
    example_inputs: Sequence[Any]
    where: Guard | None = None
    pass_info: ClassVar[PassInfo] = PassInfo("rewrite", exact=False)

    def __call__(self, program: Program) -> int:
        pattern = _pattern(self.before, self.example_inputs, program.dialect)
        named = named_values(program)

        def is_wanted(match: Match) -> bool:
            inner = set(match.nodes.values()) - set(match.results)
            free = not any(node.name in named for node in inner) and _place(match) is not None
            return free and (self.where is None or self.where(match))

        count = 0
        for module in list(graph_modules(program.graph_module)):
            moved: dict[fx.Node, fx.Node] = {}  # results that are other nodes now
            for match in matches(pattern, module, is_wanted):
                made = _replace(program, module, _update_match(match, moved), self.after)
                moved.update(made)
                if module is program.graph_module:
                    follow(program, {old.name: new.name for old, new in made.items()})
                count += bool(made)
            module.recompile()
        return count


def _pattern(function: Callable[..., Any], examples: Sequence[Any], dialect: Dialect) -> Pattern:
    """The pattern as a program in this dialect has it. Traced once for each function, kind of inputs and dialect."""
    check_examples(function, examples)
    key = (tuple(map(_kind, examples)), dialect.name, dialect.kept)
    known = _PATTERNS.setdefault(function, {})
    if key not in known:
        program = trace_pattern(function, examples)
        if FUNCTIONAL.accepts(dialect):
            program = transform(program, [functionalize])
        if CORE.accepts(dialect):
            program = transform(program, [(decompose, {"keep": _list_kept_operators(dialect)})])
        known[key] = pattern_of(program, function, examples)
    return known[key]


def _kind(example: Any) -> Any:
    if isinstance(example, torch.Tensor):
        return example.dtype, example.dim(), str(example.device)
    return type(example), example


def _list_kept_operators(dialect: Dialect) -> list[Any]:
    return [internals.operator_named(*name.split(".")) for name in dialect.kept]


# ---------------------------------------------------------------------- where the replacement stands


def _place(match: Match) -> fx.Node | None:
    """The node before which all inputs of the match are known, and no result is needed yet; None if there is none."""
    order = {node: number for number, node in enumerate(match.results[0].graph.nodes)}
    own = set(match.nodes.values())
    given = [node for value in (*match.inputs.values(), *match.literals.values()) for node in _nodes(value)]
    known = max((order[node] for node in given), default=-1)
    behind = max(own, key=order.__getitem__).next
    users = [user for result in match.results for user in result.users if user not in own]
    first = min([*users, behind], key=lambda node: order.get(node, len(order)))
    return first if order[first] > known else None


def _nodes(value: Any) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.map_arg(value, found.append)
    return found


def _update_match(match: Match, moved: Mapping[fx.Node, fx.Node]) -> Match:
    """A match that was found before others were replaced: what it is given may be another node now."""

    def current(value: Any) -> Any:
        return fx.map_arg(value, lambda node: moved.get(node, node))

    inputs = {name: current(value) for name, value in match.inputs.items()}
    return replace(match, inputs=inputs, literals={name: current(value) for name, value in match.literals.items()})


def _replace(
    program: Program, module: fx.GraphModule, match: Match, after: Callable[..., Any]
) -> dict[fx.Node, fx.Node]:
    """Puts the replacement in the match's place; returns the nodes that are its results now."""
    place = _place(match)
    if place is None:
        return {}  # another match took its place
    fragment, results, values = _trace_replacement(program, match, after)
    for node in fragment.nodes:
        if node.op == "get_attr":
            raise PatternError(
                format_error("A replacement has branches or loops inside.", where=metadata.where(match.results[-1]))
            )
        if node.op == "call_function":
            with module.graph.inserting_before(place):
                values[node] = module.graph.node_copy(node, values.__getitem__)
    moved = {}
    for old, result in zip(match.results, results, strict=True):
        made = values[result]
        _check_alike(metadata.value_of(old), metadata.value_of(made), old)
        old.replace_all_uses_with(made)
        moved[old] = made
    for old in reversed([node for node in module.graph.nodes if node in set(match.nodes.values())]):
        module.graph.erase_node(old)
    return moved


def _check_alike(old: Any, made: Any, node: fx.Node) -> None:
    if isinstance(old, torch.Tensor) and isinstance(made, torch.Tensor):
        if old.dtype is made.dtype and old.dim() == made.dim():
            return  # sizes are the verifier's business
    elif type(old) is type(made):
        return
    raise PatternError(
        format_error(
            f"A replacement returns {describe_value(made)} where the pattern returns {describe_value(old)}.",
            where=metadata.where(node),
            fix="let the replacement return what the pattern returns, of the same type and rank",
        )
    )


# ---------------------------------------------------------------------- the replacement


class _Keeping(ReplayRecorder):
    """Records a replacement. A literal that the pattern gives the same operator becomes what the match has there."""

    def __init__(self, mode: internals.FakeTensorMode, decompositions: Any, match: Match) -> None:
        super().__init__(mode, decompositions)
        self._match = match
        self._calls: dict[Any, list[fx.Node]] = {}
        for node in match.pattern.calls:
            self._calls.setdefault(node.target, []).append(node)
        self._seen: dict[Any, int] = {}

    def record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        calls = self._calls.get(func)
        if not calls:
            self.source = self._match.results[-1]
            return super().record(func, args, kwargs)
        number = self._seen[func] = self._seen.get(func, -1) + 1
        mine = calls[min(number, len(calls) - 1)]
        self.source = self._match.nodes[mine]
        return super().record(func, *self._keep_arguments(func, mine, args, kwargs))

    def _keep_arguments(self, func: Any, mine: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        written = arguments_of(mine)
        names, defaults = internals.argument_names(func), internals.fill_arguments(func, (), {})
        made = internals.bind_arguments(func, args, kwargs)
        for name, value in written.items():
            found = fx.map_arg(self._match.literals.get(f"{mine.name}.{name}"), metadata.value_of)
            now = made.get(name, defaults.get(name))
            if f"{mine.name}.{name}" in self._match.literals and _same(now, value) and not _same(now, found):
                made[name] = found
        kept = len(args)
        while kept < len(names) and names[kept] in made and not func._schema.arguments[kept].kwarg_only:
            kept += 1
        return tuple(made[name] for name in names[:kept]), {n: v for n, v in made.items() if n not in names[:kept]}


def _same(value: Any, written: Any) -> bool:
    if isinstance(value, list | tuple) and isinstance(written, list | tuple):
        return len(value) == len(written) and all(map(_same, value, written))
    return type(value) is type(written) and bool(value == written)


def _trace_replacement(
    program: Program, match: Match, after: Callable[..., Any]
) -> tuple[fx.Graph, list[fx.Node], dict[fx.Node, fx.Node]]:
    """The replacement's graph for one match, the nodes of its results, and the program's nodes for its placeholders."""
    core, functional = (dialect.accepts(program.dialect) for dialect in (CORE, FUNCTIONAL))
    rules = Rules(overloads(_list_kept_operators(program.dialect))) if core else None
    replay = Replay(program, rules)
    recorder = replay.recorder = _Keeping(replay.mode, rules, match)
    values: dict[fx.Node, fx.Node] = {}
    node = match.results[-1]

    def run() -> list[fx.Node]:
        given = [_bind_input(recorder, name, match.inputs[name], values) for name in match.pattern.parameters]
        recorder.source = node
        try:
            made = _functional(recorder, after, given, node) if functional and not core else after(*given)
        except IngotError:
            raise
        except Exception as failure:
            raise PatternError(
                format_error(
                    f"The replacement fails: {type(failure).__name__}: {str(failure).strip().splitlines()[0]}",
                    where=metadata.where(node),
                )
            ) from failure
        results = list(made) if isinstance(made, list | tuple) else [made]
        if len(results) != len(match.results):
            raise PatternError(
                format_error(
                    f"The replacement returns {len(results)} results, the pattern {len(match.results)}.",
                    where=metadata.where(node),
                )
            )
        if not all(isinstance(result, torch.Tensor) for result in results):
            raise PatternError(
                format_error("The replacement returns something that is not a tensor.", where=metadata.where(node))
            )
        return [recorder.node_of(result) for result in results]

    nodes = replay.record(run)
    graph = recorder.frame.graph
    graph.output(tuple(nodes))
    graph.eliminate_dead_code(lambda n: n.op in ("placeholder", "output") or has_side_effects(n))
    return graph, nodes, values


def _bind_input(recorder: ReplayRecorder, name: str, value: Any, values: dict[fx.Node, fx.Node]) -> Any:
    """What an input of the pattern is in a match, as an input of the replacement's graph."""
    if not isinstance(value, fx.Node):
        return value
    fake = metadata.value_of(value)
    if isinstance(fake, torch.Tensor):
        with recorder.pause():
            fake = recorder.run(torch.ops.aten.detach.default, (fake,), {})
    values[recorder.frame.placeholder(name, fake)] = value
    return fake


def _functional(recorder: ReplayRecorder, after: Callable[..., Any], given: Sequence[Any], node: fx.Node) -> Any:
    """The replacement without writes: what it writes to must be its own."""
    recorder.functional = True
    made = after(*given)
    if any(isinstance(value, torch.Tensor) and recorder.aliases.is_written(value) for value in given):
        raise PatternError(format_error("The replacement writes to what it is given.", where=metadata.where(node)))
    return made


__all__ = ["Rewriting", "rewrite"]
