"""The whole of an export: a program's inputs and state, its graph, its outputs, as one onnx-ir model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir
import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.errors import OnnxError, format_error
from ingot.ir import pytree
from ingot.ir.metadata import source_of, value_of
from ingot.ir.outlining import graph_modules
from ingot.ir.program import Program
from ingot.ir.signature import MUTATION_KINDS, STATE_KINDS, InputKind, OutputKind
from ingot.ir.unsupported import explain_missing_values
from ingot.onnx.exporter import Exporter
from ingot.onnx.node_builder import find_used_nodes
from ingot.onnx.registry import OLDEST_OPSET, RULES, TAKES, rule_for, unsupported_error
from ingot.onnx.values import OnnxValue, sizes_of

DEFAULT_OPSET = 20
NEWEST_OPSET = 26
# The first version of the format in which nodes may say where they come from.
IR_VERSION = 10


@dataclass(frozen=True, slots=True)
class Exported:
    """A model, and what those who run it need to know of it.

    `inputs` names, for each ONNX input that the caller passes, the program's placeholder; `state` names the inputs that
    have a default, a buffer that the model writes to, with the state's key. `outputs` are the results in order and
    then what was written: ("result", place) or ("state", key) or ("argument", placeholder). `dropped` says what the
    model asserts and the file does not: message and line of each.
    """

    model: ir.Model
    opset: int
    inputs: tuple[tuple[str, str], ...]
    state: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str, Any], ...]
    draws: bool
    dropped: tuple[str, ...] = ()


def whole(program: Program, splits: Callable[[Any], bool]) -> list[Any]:
    """The operators that need not be decomposed: there are rules for them that take every node of this program.

    `splits` says whether a pass can replace an operator on complex numbers by operators on their parts.
    """
    import ingot.onnx.rules  # noqa: F401  fills RULES

    taken: dict[Any, bool] = {}
    refused: set[Any] = set()  # on complex numbers: what these are made of may have rules
    for module in graph_modules(program.graph_module):
        for node in module.graph.nodes:
            if node.target in TAKES:
                taken[node.target] = taken.get(node.target, True) and TAKES[node.target](node)
            if rule_for(node) is None and not splits(node.target):
                refused.add(node.target)
    fits = (op for op in RULES if (op not in TAKES or taken.get(op, False)) and op not in refused)
    return [op for op in fits if isinstance(op, internals.OpOverload)]


def check_opset(opset: int | None) -> int:
    """The opset to write. Raises OnnxError for one that we do not."""
    chosen = DEFAULT_OPSET if opset is None else opset
    newest = min(NEWEST_OPSET, onnx.defs.onnx_opset_version())
    if not isinstance(chosen, int) or not OLDEST_OPSET <= chosen <= newest:
        raise OnnxError(
            format_error(
                f"opset={opset!r} cannot be written.",
                why=f"the exporter writes opsets {OLDEST_OPSET} to {newest}",
                fix=f"give one of them, or none for {DEFAULT_OPSET}",
            )
        )
    return chosen


# Operators that an opset newer than the default says better: weights in blocks, of 4 bits where they fit.
_SINCE = {"quantized_decomposed.dequantize_per_channel_group.default": 21}


def _enough(program: Program) -> int:
    """The default opset, or the newer one that an operator of the program needs."""
    nodes = (node for module in graph_modules(program.graph_module) for node in module.graph.nodes)
    return max((_SINCE.get(str(node.target), DEFAULT_OPSET) for node in nodes), default=DEFAULT_OPSET)


def convert(program: Program, opset: int | None = None) -> Exported:
    """The program as an ONNX model. Every operator that cannot be said is named in one UnsupportedByOnnx."""
    import ingot.onnx.rules  # noqa: F401  fills RULES

    valueless = explain_missing_values(program)
    if valueless is not None:
        raise OnnxError(valueless)
    ex = Exporter(program, _enough(program) if opset is None else check_opset(opset))
    ex.check_supported()
    inputs, state = _placeholders(ex)
    names = _output_names(ex)  # before nodes take names: these are what the user sees
    outputs = _outputs(ex, ex.run(program.graph), names)
    graph = ir.Graph(
        [value.value for value, _ in (*inputs, *state)],
        [value.value for value, _ in outputs],
        nodes=find_used_nodes(ex.scope.nodes, [value.value for value, _ in outputs]),
        initializers=[value for value in ex.initializers if value.uses() or value.is_graph_input()],
        opset_imports={"": ex.opset},
        name="main",
    )
    from ingot import __version__

    model = ir.Model(
        graph,
        ir_version=max(IR_VERSION, _ir_version(ex.opset)),
        producer_name="ingot",
        producer_version=__version__,
    )
    return Exported(
        model,
        ex.opset,
        tuple((str(value.value.name), name) for value, name in inputs),
        tuple((str(value.value.name), name) for value, name in state),
        tuple((str(value.value.name), *what) for value, what in outputs),
        ex.draws,
        tuple(dict.fromkeys(_format_assertion(node, message) for node, message in ex.dropped)),
    )


def _format_assertion(node: fx.Node, message: str) -> str:
    """What an assertion says, and where it stands."""
    said, source = message or "an assertion without a message", source_of(node)
    return said if source is None else f"{said} ({source})"


def _ir_version(opset: int) -> int:
    found: int = onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)], ignore_unknown=True)
    return found


# ---------------------------------------------------------------------- inputs


def _placeholders(ex: Exporter) -> tuple[list[tuple[OnnxValue, str]], list[tuple[OnnxValue, str]]]:
    """Inputs by their own names, and the state that the model writes to, as inputs that have a default."""
    program = ex.program
    nodes = [n for n in program.graph.nodes if n.op == "placeholder"]
    written = {o.target for o in program.signature.outputs if o.kind in MUTATION_KINDS}
    inputs: list[tuple[OnnxValue, str]] = []
    state: list[tuple[OnnxValue, str]] = []
    tied: dict[Any, OnnxValue] = {}
    names = _argument_names(program)
    pairs = list(zip(program.signature.placeholders, nodes, strict=True))
    for spec, node in sorted(pairs, key=lambda pair: pair[0].kind in STATE_KINDS):  # the user's own names come first
        value = value_of(node)
        if spec.kind in STATE_KINDS:
            if not node.users and spec.target not in written:
                continue
            tensor = program.state_of(spec)
            key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
            made = tied.get(key) if tensor.numel() and spec.target not in written else None
            if made is None:
                made = _store_state(ex, str(spec.target), tensor)
                tied[key] = made
            if spec.target in written:
                state.append((made, str(spec.target)))
                ex.written.add(made.value)
            ex.values[node] = made
        elif spec.kind is InputKind.TOKEN:
            continue
        elif isinstance(value, torch.Tensor):
            if value.dtype.is_complex:
                raise unsupported_error([(node, "ONNX has no complex numbers, and an argument is one")])
            made = ex.named_input(names[spec.name], value.dtype, sizes_of(value.shape))
            inputs.append((made, spec.name))
            ex.values[node] = made
            for dim, size in enumerate(made.sizes):
                ex.sizes.learn(size, made, dim)
        else:
            inputs.append((_number(ex, node, names[spec.name], value), spec.name))
    return inputs, state


def _store_state(ex: Exporter, name: str, tensor: torch.Tensor) -> OnnxValue:
    """A tensor of the state; a complex one as pairs."""
    if not tensor.is_complex():
        return ex.initializer(name, tensor)
    made = ex.initializer(name, torch.view_as_real(tensor.detach().resolve_conj()))
    return OnnxValue(made.value, tensor.dtype, tuple(tensor.shape))


def _argument_names(program: Program) -> dict[str, str]:
    """What the user calls each argument: "mask", "cache.0.1"; its placeholder may have another name."""
    names = {}
    for placeholder, path in program.signature.argument_paths().items():
        first, *rest = path
        known = isinstance(first, int) and first < len(program.parameter_names)
        start = program.parameter_names[int(first)] if known else f"args.{first}" if isinstance(first, int) else first
        names[placeholder] = ".".join(map(str, (start, *rest)))
    return names


def _number(ex: Exporter, node: fx.Node, name: str, value: Any) -> OnnxValue:
    """An argument that is an int, a float or a bool: a tensor of rank 0."""
    dtype = torch.int64
    if isinstance(value, float | torch.SymFloat):
        dtype = torch.float64
    elif isinstance(value, bool | torch.SymBool):
        dtype = torch.bool
    made = ex.named_input(name, dtype, ())
    if isinstance(value, torch.SymInt | torch.SymFloat):
        ex.sizes.learn(value.node.expr, made, None)
        ex.values[node] = ex.symbolic(value)
    else:
        ex.values[node] = made
    return made


# ---------------------------------------------------------------------- outputs


def _outputs(ex: Exporter, values: Sequence[Any], names: Sequence[str]) -> list[tuple[OnnxValue, tuple[str, Any]]]:
    """Results, then what the model wrote, each under its name."""
    program = ex.program
    results: list[tuple[OnnxValue, tuple[str, Any]]] = []
    writes: list[tuple[OnnxValue, tuple[str, Any]]] = []
    places = iter(_result_places(program))
    claimed: set[ir.Value] = set()
    ex.node = next(n for n in reversed(program.graph.nodes) if n.op == "output")
    for spec, value, name in zip(program.signature.graph_outputs, values, names, strict=True):
        if spec.kind is OutputKind.TOKEN:
            continue
        tensor = value
        if isinstance(value, OnnxValue) and value.dtype.is_complex:
            raise unsupported_error([(ex.node, "ONNX has no complex numbers, and a result is one")])
        if not isinstance(value, OnnxValue):  # a number
            dtype = _plain_type(value)
            tensor = ex.renamed(OnnxValue(ex.operand(value, dtype).value, dtype, ()), name)
        if tensor.value.producer() is None or tensor.value in claimed:
            tensor = ex.renamed(tensor, name)  # an input, or an output already
        claimed.add(tensor.value)
        tensor.value.name = name
        if spec.kind is OutputKind.RESULT:
            results.append((tensor, ("result", next(places)[0])))
        else:
            writes.append((tensor, ("argument" if spec.kind is OutputKind.ARGUMENT_MUTATION else "state", spec.target)))
    if not results and not writes:
        raise OnnxError(
            format_error(
                "The model returns no tensor, but an ONNX file must.",
                why="it returns None or plain values, which an ONNX graph cannot hold",
                fix="return a tensor from forward",
            )
        )
    return [*results, *writes]


def _plain_type(value: Any) -> torch.dtype:
    return torch.bool if isinstance(value, bool) else torch.float64 if isinstance(value, float) else torch.int64


def _output_names(ex: Exporter) -> list[str]:
    """A name for each value that the graph returns: its path in the user's result, or what it is written to."""
    places = iter(_result_places(ex.program))
    names = []
    for spec in ex.program.signature.graph_outputs:
        name = next(places)[1] if spec.kind is OutputKind.RESULT else f"{spec.target}.out"
        names.append(ex.unique(name))
    return names


def _result_places(program: Program) -> list[tuple[int, str]]:
    """The position of each result of the graph among the leaves of the user's result, and its path there."""
    paths = pytree.leaf_paths(program.signature.out_tree)
    found = []
    for place, (spec, path) in enumerate(zip(program.signature.user_outputs, paths, strict=True)):
        if spec.kind is OutputKind.RESULT:
            words = ".".join(str(step) for step in path)
            found.append(
                (place, words if words and not words[0].isdigit() else f"output.{words}" if words else "output")
            )
    return found
