"""Side effects: which nodes have one, and the message of a failing assertion."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.errors import AssertionFailed, format_error
from ingot.ir import effect_tokens, metadata, subgraphs

SWITCHES = (internals.enter_autocast, internals.exit_autocast, internals.set_grad_enabled)


def has_side_effects(node: fx.Node) -> bool:
    """Whether a node must stay even if its value is unused: it writes, draws, asserts, switches, or may do so."""
    target = node.target
    if node.op in ("placeholder", "output"):
        return True
    if node.op == "get_attr":
        return False
    if isinstance(target, internals.OpOverload):
        return op_has_side_effects(target, node)
    if target in subgraphs.LAYOUTS:
        return any(has_side_effects(inner) for function in _functions(node) for inner in _inner_nodes(function))
    if isinstance(target, internals.HigherOrderOperator):
        return True
    return target in SWITCHES


def op_has_side_effects(op: internals.OpOverload, node: fx.Node) -> bool:
    """Whether a call of an operator does, or may do, anything besides returning its value."""
    return (
        op.namespace not in ("aten", "prims")
        or op._schema.is_mutable
        or bool(internals.unannotated_mutations(op, node.args))
        or not op._schema.returns
        or torch.Tag.nondeterministic_seeded in op.tags
    )


def _functions(node: fx.Node) -> list[fx.GraphModule]:
    owner = node.graph.owning_module
    assert owner is not None
    return [getattr(owner, str(attribute.target)) for attribute in subgraphs.function_attributes(node)]


def _inner_nodes(module: fx.GraphModule) -> list[fx.Node]:
    return [n for n in module.graph.nodes if n.op not in ("placeholder", "output")]


# ---------------------------------------------------------------------- assertions

_ASSERTION = re.compile(r"aten::(_functional)?(_assert_(async|scalar|tensor_metadata)|_?sym_constrain_range)")
_STATEMENT = re.compile(r"\s*(\w+)(?:\s*:[^=]*)? = ")


def asserts(node: fx.Node) -> bool:
    """Whether a node does nothing but fail if something is not so."""
    target = effect_tokens.plain_target(node)
    return isinstance(target, internals.OpOverload) and _ASSERTION.match(target._schema.name) is not None


@contextmanager
def explain_assertions() -> Iterator[None]:
    """Inside, an assertion of a graph that fails raises AssertionFailed, with the user's line and the module's path."""
    try:
        yield
    except RuntimeError as failure:
        node = _running(failure.__traceback__)
        if node is None or not asserts(node):
            raise
        text = str(failure).strip() or "an assertion does not hold"
        raise AssertionFailed(
            format_error(text, where=metadata.where(node), why="the model asserts it there")
        ) from failure


def _running(trace: TracebackType | None) -> fx.Node | None:
    """The innermost node of a GraphModule that an exception comes from, found by the line of generated code."""
    found: fx.Node | None = None
    while trace is not None:
        module = trace.tb_frame.f_locals.get("self")
        if isinstance(module, fx.GraphModule) and trace.tb_frame.f_code.co_name == "forward":
            line = _STATEMENT.match(linecache.getline(trace.tb_frame.f_code.co_filename, trace.tb_lineno))
            named = line.group(1) if line is not None else None
            found = next((node for node in module.graph.nodes if node.name == named), None)
        trace = trace.tb_next
    return found
