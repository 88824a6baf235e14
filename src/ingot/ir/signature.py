"""The inputs and outputs of a Program's graph.

The graph is lifted: it closes over nothing. Its placeholders are, in this order, parameters, buffers, constants and the
tensors of the user's arguments; its output is a flat tuple of mutations, then the tensors of the result.

    inputs  = [Input(PARAMETER, "p_fc_weight", target="fc.weight"), Input(ARGUMENT, "x"), Input(LITERAL, value=True)]
    outputs = [Output(BUFFER_MUTATION, "add", target="count"), Output(RESULT, "relu"), Output(LITERAL, value=None)]

A literal has a place in the user's nested arguments or result and none in the graph.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ingot.ir.pytree import LEAF, Path, Tree, leaf_paths


class InputKind(enum.Enum):
    """Where the value of a placeholder comes from."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    CONSTANT = "constant"
    ARGUMENT = "argument"
    LITERAL = "literal"
    TOKEN = "token"


class OutputKind(enum.Enum):
    """Where a value of the output tuple goes."""

    RESULT = "result"
    LITERAL = "literal"
    BUFFER_MUTATION = "buffer_mutation"
    PARAMETER_MUTATION = "parameter_mutation"
    ARGUMENT_MUTATION = "argument_mutation"
    TOKEN = "token"


STATE_KINDS = frozenset({InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT})
USER_KINDS = frozenset({InputKind.ARGUMENT, InputKind.LITERAL})
MUTATION_KINDS = frozenset({OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION, OutputKind.ARGUMENT_MUTATION})


@dataclass(frozen=True, slots=True)
class Input:
    """One input: a placeholder by name, or a literal that has none.

    `target` is the state's key for parameters, buffers and constants. `persistent` is False for a buffer that
    `state_dict()` of the user's module leaves out.
    """

    kind: InputKind
    name: str = ""
    target: str | None = None
    value: Any = None
    persistent: bool = True


@dataclass(frozen=True, slots=True)
class Output:
    """One output: a node by name, or a literal. `target` is a state key, or the placeholder of a mutated argument."""

    kind: OutputKind
    name: str = ""
    target: str | None = None
    value: Any = None


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs and outputs of a graph with the trees of the user's arguments, `(args, kwargs)`, and result."""

    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    in_tree: Tree
    out_tree: Tree

    def rename_nodes(self, names: Mapping[str, str]) -> Signature:
        """The signature after every node of `names` has become the one that it maps to."""
        return replace(
            self,
            inputs=tuple(replace(i, name=names[i.name]) if i.name in names else i for i in self.inputs),
            outputs=tuple(_rename_output(o, names) for o in self.outputs),
        )

    def inputs_of_kind(self, *kinds: InputKind) -> tuple[Input, ...]:
        return tuple(i for i in self.inputs if i.kind in kinds)

    @property
    def user_inputs(self) -> tuple[Input, ...]:
        """One for each leaf of `in_tree`, in its order."""
        return tuple(i for i in self.inputs if i.kind in USER_KINDS)

    @property
    def user_outputs(self) -> tuple[Output, ...]:
        """One for each leaf of `out_tree`, in its order."""
        return tuple(o for o in self.outputs if o.kind in (OutputKind.RESULT, OutputKind.LITERAL))

    @property
    def state_inputs(self) -> tuple[Input, ...]:
        return tuple(i for i in self.inputs if i.kind in STATE_KINDS)

    @property
    def placeholders(self) -> tuple[Input, ...]:
        """The inputs that the graph has a placeholder for, in the graph's order."""
        return tuple(i for i in self.inputs if i.kind is not InputKind.LITERAL)

    @property
    def graph_outputs(self) -> tuple[Output, ...]:
        """The outputs that the graph returns, in its order."""
        return tuple(o for o in self.outputs if o.kind is not OutputKind.LITERAL)

    def argument_paths(self) -> dict[str, Path]:
        """Where each argument placeholder is in the user's arguments, spelled without the args/kwargs level."""
        paths = [path[1:] for path in leaf_paths(self.in_tree)]
        return {i.name: path for i, path in zip(self.user_inputs, paths, strict=True) if i.kind is InputKind.ARGUMENT}


def _rename_output(output: Output, names: Mapping[str, str]) -> Output:
    if output.name in names:
        output = replace(output, name=names[output.name])
    if output.kind is OutputKind.ARGUMENT_MUTATION and output.target is not None and output.target in names:
        output = replace(output, target=names[output.target])
    return output


@dataclass(frozen=True, slots=True)
class Value:
    """An argument or result of a module call: a node's name, a SymInt node's name, or a literal."""

    kind: str
    name: str = ""
    literal: Any = None

    def __str__(self) -> str:
        return repr(self.literal) if self.kind == "literal" else self.name


@dataclass(frozen=True, slots=True)
class CallSignature:
    """The values that went into and came out of one call of a preserved module, with their nesting."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    in_tree: Tree
    out_tree: Tree

    def rename_nodes(self, names: Mapping[str, str]) -> CallSignature:
        return replace(
            self,
            inputs=tuple(replace(v, name=names.get(v.name, v.name)) for v in self.inputs),
            outputs=tuple(replace(v, name=names.get(v.name, v.name)) for v in self.outputs),
        )


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """One call of one module. `path` is the call's own name ("fc", "fc@1"); `module` is the module's ("fc").

    A module reachable under several names has `module` equal to the name it was called by. `type` is its class.
    """

    path: str
    module: str
    type: str
    signature: CallSignature | None = None


def rename_calls(calls: Iterable[ModuleCall], names: Mapping[str, str]) -> tuple[ModuleCall, ...]:
    """The calls after every node of `names` has become the one that it maps to."""
    return tuple(
        replace(call, signature=call.signature.rename_nodes(names)) if call.signature is not None else call
        for call in calls
    )


def values_of(calls: Iterable[ModuleCall]) -> frozenset[str]:
    """The nodes that calls name as their arguments and results."""
    signatures = [call.signature for call in calls if call.signature is not None]
    return frozenset(value.name for s in signatures for value in (*s.inputs, *s.outputs) if value.name)


EMPTY_TREE = Tree("tuple", "tuple", (0, 1), (Tree("tuple", "tuple"), Tree("dict", "dict")))

__all__ = [
    "EMPTY_TREE",
    "LEAF",
    "CallSignature",
    "Input",
    "InputKind",
    "ModuleCall",
    "Output",
    "OutputKind",
    "Signature",
    "Value",
    "rename_calls",
    "values_of",
]
