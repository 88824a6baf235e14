"""Replaces complex numbers, of which native code and ONNX have none, by their real and their imaginary parts.

before                                  after decompose_complex
pairs = aten.view_as_complex(x)         real = aten.select(x, -1, 0); imaginary = aten.select(x, -1, 1)
mul = aten.mul(pairs, turns)            … four products, a sub and an add
back = aten.view_as_real(mul)           back = aten.cat([sub, add], -1)
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from ingot.errors import IngotError, PassError, format_error
from ingot.ir import metadata
from ingot.ir.dialects import CORE
from ingot.ir.outlining import graph_modules
from ingot.ir.program import Program
from ingot.ir.regions import cut_grad_mode
from ingot.ir.signature import STATE_KINDS, InputKind, Output, values_of
from ingot.passes.decompose import overloads
from ingot.passes.decompositions import dft
from ingot.passes.decompositions.aten import Rules
from ingot.passes.decompositions.complex import RULES, Parts, put_together, take_apart
from ingot.passes.insert_effect_tokens import strip_tokens
from ingot.passes.manager import register
from ingot.passes.retracing.retrace import Replay
from ingot.passes.retracing.tracer import map_values

_GRAD_MODE = torch.ops.higher_order.wrap_with_set_grad_enabled
# Steps to and from complex numbers, and to one of several.
_BORDER = (torch.ops.aten.view_as_complex.default, torch.ops.aten.view_as_real.default, operator.getitem)


@register(takes=CORE, gives=CORE, exact=False, retraces=True)
def decompose_complex(
    program: Program, *, keep: Sequence[Any] = (), parameters: bool = False, partial: bool = False
) -> int:
    """Replays the graph with two values for each complex one; `keep` is that of `decompose`, and keeps FFTs too.

    All or nothing: the program stays as it is if an operator has no rule for complex numbers or is kept, or if one is
    an argument or a result, is written to, or passes through a branch, a loop or a preserved module call. With
    `partial` those stay complex, between view_as_complex and view_as_real, and all others are replaced.

    State that is complex becomes real, with one more dim of 2; parameters only where that is asked for, as no gradient
    reaches them then.
    """
    kinds = STATE_KINDS if parameters else STATE_KINDS - {InputKind.PARAMETER}
    kept = overloads(keep)
    found = [node for node in _nodes(program) if metadata.touches_complex(node)]
    transforms = dft.choose_transforms(kept)
    split = [node for node in found if _splits(program, node, kinds, kept, transforms)]
    if partial:
        split = split if any(map(_computes, split)) else []
    elif len(split) < len(found) or _names_of_calls(program).intersection(
        n.name for n in found if metadata.is_complex(n)
    ):
        return 0
    if not split:
        return 0
    with strip_tokens(program):
        replay = _Splitting(program, Rules(kept), found, split, transforms)
        replay.record_all(program.signature.graph_outputs)
    cut_grad_mode(program.graph_module)  # a replay opens regions
    return len(split)


def has_complex(program: Program) -> bool:
    return any(map(metadata.is_complex, _nodes(program)))


def has_rule(op: Any) -> bool:
    """Whether an operator on complex numbers can be replaced by operators on their parts."""
    return op in RULES


def _nodes(program: Program) -> Iterator[fx.Node]:
    for module in graph_modules(program.graph_module):
        yield from module.graph.nodes


def _computes(node: fx.Node) -> bool:
    """Whether a node is more than a step to or from complex numbers, or an end of a graph."""
    return node.op == "call_function" and node.target not in _BORDER


def _splits(
    program: Program,
    node: fx.Node,
    kinds: Collection[InputKind],
    kept: Collection[Any],
    transforms: dft.Transforms,
) -> bool:
    if node.op == "placeholder" and node.graph is program.graph:
        written = {output.target for output in program.signature.outputs}
        known = next(i for i in program.signature.placeholders if i.name == node.name)
        return known.kind in kinds and known.target not in written and node.name not in _names_of_calls(program)
    if node.op in ("placeholder", "output"):
        return node.graph is not program.graph  # the caller of the region is checked as well
    if node.target is _GRAD_MODE:
        return True
    if RULES.has_tag(node.target, "transform") and (node.target in kept or not dft.fits(node, transforms)):
        return False
    return node.target in RULES


def _names_of_calls(program: Program) -> frozenset[str]:
    return values_of(program.module_calls)


class _Splitting(Replay):
    """A replay in which the value of a complex node is its Parts.

    `found` are the nodes that take or give one. Those that are not in `split` are called with complex tensors.
    """

    def __init__(
        self,
        program: Program,
        rules: Rules,
        found: Collection[fx.Node],
        split: Collection[fx.Node],
        transforms: dft.Transforms,
    ) -> None:
        super().__init__(program, rules)
        self._transforms = transforms
        self._split = frozenset(split)
        self._whole = frozenset(found) - self._split
        self._inputs = [node for node in program.graph.nodes if node.op == "placeholder"]
        state = {i.name: str(i.target) for i in program.signature.placeholders}
        for node in self._split.intersection(self._inputs):
            held = program.state_dict if state[node.name] in program.state_dict else program.constants
            held[state[node.name]] = torch.view_as_real(held[state[node.name]].detach().resolve_conj())
            with self.mode:
                metadata.set_value(node, torch.view_as_real(metadata.value_of(node).resolve_conj()))

    def placeholders(self) -> list[Any]:
        values = zip(self._inputs, super().placeholders(), strict=True)
        return [
            Parts(value.select(-1, 0), value.select(-1, 1)) if node in self._split else take_apart(value)
            for node, value in values
        ]

    def finish(self, results: Sequence[Any], outputs: Sequence[Output]) -> None:
        super().finish(list(map(put_together, results)), outputs)

    def _follow(self, node: fx.Node, value: Any) -> None:
        super()._follow(node, value if node.op == "placeholder" else put_together(value))

    def _call(self, node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
        if node in self._whole:
            complete = {given: map_values(_complete, values[given]) for given in node.all_input_nodes}
            return map_values(take_apart, super()._call(node, complete))
        if node not in self._split:
            return super()._call(node, values)
        args: Any = fx.map_arg(node.args, lambda n: values[n])
        kwargs: Any = fx.map_arg(node.kwargs, lambda n: values[n])
        if node.target is _GRAD_MODE:
            enabled, function, *operands = args
            with torch.set_grad_enabled(enabled):
                return function(*operands)
        if RULES.has_tag(node.target, "transform"):
            args = (self._transforms, *args)
        try:
            made = RULES[node.target](*args, **kwargs)
        except IngotError:
            raise
        except Exception as failure:
            raise PassError(
                format_error(
                    f"A complex number cannot be split: {type(failure).__name__}: {str(failure).splitlines()[0]}",
                    where=metadata.where(node),
                )
            ) from failure
        # Of a complex tensor in a real dtype, as zeros_like may be asked for, torch keeps the real part.
        return made.real if isinstance(made, Parts) and not metadata.is_complex(node) else made


def _complete(value: Any) -> Any:
    """What an operator is called with that takes complex tensors: Parts as one, a graph as a function of such."""
    if not callable(value):
        return put_together(value)

    def call(*inputs: Any) -> Any:
        return map_values(put_together, value(*map_values(take_apart, inputs)))

    return call
