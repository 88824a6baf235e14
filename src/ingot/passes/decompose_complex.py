"""Replaces complex numbers, of which native code has none, by their real and their imaginary parts.

before                                  after decompose_complex
pairs = aten.view_as_complex(x)         real = aten.select(x, -1, 0); imaginary = aten.select(x, -1, 1)
mul = aten.mul(pairs, turns)            … four products, a sub and an add
back = aten.view_as_real(mul)           back = aten.cat([sub, add], -1)
"""

from __future__ import annotations

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
from ingot.ir.signature import STATE_KINDS, InputKind, values_of
from ingot.passes.decompose import overloads
from ingot.passes.decompositions import dft
from ingot.passes.decompositions.aten import Rules
from ingot.passes.decompositions.complex import RULES, Parts
from ingot.passes.insert_effect_tokens import strip_tokens
from ingot.passes.manager import register
from ingot.passes.retracing.retrace import Replay

_GRAD_MODE = torch.ops.higher_order.wrap_with_set_grad_enabled


@register(takes=CORE, gives=CORE, exact=False, retraces=True)
def decompose_complex(program: Program, *, keep: Sequence[Any] = (), parameters: bool = False) -> int:
    """Replays the graph with two values for each complex one; `keep` is that of `decompose`.

    All or nothing: the program stays as it is if an operator has no rule for complex numbers, or if one is an argument
    or a result, is written to, or passes through a branch, a loop or a preserved module call. State that is complex
    becomes real, with one more dim of 2; parameters only where that is asked for, as no gradient reaches them then.
    """
    kinds = STATE_KINDS if parameters else STATE_KINDS - {InputKind.PARAMETER}
    found = [node for node in _nodes(program) if _touches(node)]
    if not found or not all(_splits(program, node, kinds) for node in found):
        return 0
    with strip_tokens(program):
        replay = _Splitting(program, Rules(overloads(keep)), found)
        replay.record_all(program.signature.graph_outputs)
    cut_grad_mode(program.graph_module)  # a replay opens regions
    return len(found)


def has_complex(program: Program) -> bool:
    return any(map(_is_complex, _nodes(program)))


def _nodes(program: Program) -> Iterator[fx.Node]:
    for module in graph_modules(program.graph_module):
        yield from module.graph.nodes


def _is_complex(node: fx.Node) -> bool:
    return any(tensor.dtype.is_complex for tensor in metadata.tensors_in(metadata.value_of(node)))


def _touches(node: fx.Node) -> bool:
    return _is_complex(node) or any(map(_is_complex, node.all_input_nodes))


def _splits(program: Program, node: fx.Node, kinds: Collection[InputKind]) -> bool:
    if node.op == "placeholder" and node.graph is program.graph:
        written = {output.target for output in program.signature.outputs}
        known = next(i for i in program.signature.placeholders if i.name == node.name)
        return known.kind in kinds and known.target not in written and node.name not in _names_of_calls(program)
    if node.op in ("placeholder", "output"):
        return node.graph is not program.graph  # whoever calls the region is asked as well
    if node.target is _GRAD_MODE:
        return True
    if RULES.has_tag(node.target, "transform") and not dft.fits(node):
        return False
    return node.target in RULES and not (_is_complex(node) and node.name in _names_of_calls(program))


def _names_of_calls(program: Program) -> frozenset[str]:
    return values_of(program.module_calls)


class _Splitting(Replay):
    """A replay in which the value of a complex node is its Parts; `found` are the nodes that take or give one."""

    def __init__(self, program: Program, rules: Rules, found: Collection[fx.Node]) -> None:
        super().__init__(program, rules)
        self._found = frozenset(found)
        self._inputs = [node for node in program.graph.nodes if node.op == "placeholder"]
        state = {i.name: str(i.target) for i in program.signature.placeholders}
        for node in self._found.intersection(self._inputs):
            held = program.state_dict if state[node.name] in program.state_dict else program.constants
            held[state[node.name]] = torch.view_as_real(held[state[node.name]].detach().resolve_conj())
            with self.mode:
                metadata.set_value(node, torch.view_as_real(metadata.value_of(node)))

    def placeholders(self) -> list[Any]:
        values = zip(self._inputs, super().placeholders(), strict=True)
        return [
            Parts(value.select(-1, 0), value.select(-1, 1)) if node in self._found else value for node, value in values
        ]

    def _call(self, node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
        if node not in self._found:
            return super()._call(node, values)
        args: Any = fx.map_arg(node.args, lambda n: values[n])
        kwargs: Any = fx.map_arg(node.kwargs, lambda n: values[n])
        if node.target is _GRAD_MODE:
            enabled, function, *operands = args
            with torch.set_grad_enabled(enabled):
                return function(*operands)
        try:
            return RULES[node.target](*args, **kwargs)
        except IngotError:
            raise
        except Exception as failure:
            raise PassError(
                format_error(
                    f"A complex number cannot be split: {type(failure).__name__}: {str(failure).splitlines()[0]}",
                    where=metadata.where(node),
                )
            ) from failure
