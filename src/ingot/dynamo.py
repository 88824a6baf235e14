"""`torch.compile(model, backend="ingot")`: every graph that torch.compile makes becomes native code.

    compiled = torch.compile(model, backend="ingot")
    with torch.no_grad():
        compiled(x)

It is for inference. A graph that needs gradients, or that cannot be compiled, runs in eager instead, and a message of
the logger "ingot.dynamo" says why. Weights are packed when a graph is compiled; if they change, they are packed again.
torch finds this file by the entry point group "torch_dynamo_backends".
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import fx, nn

from ingot import api, compiler
from ingot import torch_internals as internals
from ingot.artifacts.compiled_model import CompiledModel
from ingot.artifacts.tensor_exchange import native_of, run_model
from ingot.errors import CallError, CaptureError, CompileError, IngotError, format_error
from ingot.frontend.source_locations import SourceLocationInterpreter
from ingot.ir.metadata import value_of
from ingot.ir.program import Program
from ingot.ir.pytree import unflatten
from ingot.ir.signature import InputKind, OutputKind

# How often weights may change before a graph is left to eager: packing them takes longer than a call.
REPACKS = 8

_log = logging.getLogger("ingot.dynamo")
_OPTIONS = ("threads", "cache", "disable_passes")

Graph = Callable[..., Any]


class GraphNotSupported(CompileError):
    """A graph that could be compiled, with another result than eager's or none at all."""


def compile_graph(graph: fx.GraphModule, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None) -> Graph:
    """What torch.compile calls with each graph: native code for it, or the graph itself, which runs in eager.

    A graph of tensors on a GPU runs there, on torch's current stream. `options` are `threads`, torch's own number by
    default, `cache` and `disable_passes`, as in `ingot.compile`.
    """
    chosen = dict(options or {})
    unknown = ", ".join(key for key in chosen if key not in _OPTIONS)
    if unknown:
        raise ValueError(f"backend ingot has no option {unknown}; it has {', '.join(_OPTIONS)}")
    compiler.resolve_disabled(chosen.get("disable_passes", ()))  # a wrong name is an error, not a reason for eager
    chosen.setdefault("threads", torch.get_num_threads())
    try:
        return _NativeGraph(graph, inputs, chosen)
    except IngotError as error:
        return _fall_back_to_eager(graph, error)


def _fall_back_to_eager(graph: fx.GraphModule, error: Exception) -> Graph:
    _log.warning("A graph of %d operations runs in eager. %s", _operations(graph), error)
    return graph.forward


def _operations(graph: fx.GraphModule) -> int:
    return sum(node.op.startswith("call_") for node in graph.graph.nodes)


class _NativeGraph:
    """A graph as native code. Called with what the graph is called with."""

    def __init__(self, graph: fx.GraphModule, inputs: Sequence[Any], options: Mapping[str, Any]) -> None:
        _check_gradients(graph, inputs)
        self._graph = graph
        self._options = options
        self._roles = _roles(graph, inputs)
        self._lock = threading.Lock()
        self._repacks = 0
        self._said = False
        self._eager: Graph | None = None
        self._build(inputs)

    def __call__(self, *args: Any) -> Any:
        if self._eager is not None:
            return self._eager(*args)
        native = self._native
        if native.version != _version(args, native.state):
            changed = self._rebuild(args)
            if changed is None:
                return self._graph(*args)
            native = changed
        try:
            return native.run(args)
        except CallError as error:  # nothing was written yet
            if not self._said:
                _log.warning("A call of a graph of %d operations runs in eager. %s", _operations(self._graph), error)
                self._said = True
            return self._graph(*args)

    def _rebuild(self, args: Sequence[Any]) -> _Native | None:
        """Native code with the weights of this call; None where eager has taken over."""
        with self._lock:
            if self._eager is None and self._native.version != _version(args, self._native.state):
                self._repacks += 1
                why = "its weights keep changing, and packing them takes longer than a call"
                try:
                    if self._repacks > REPACKS:
                        raise GraphNotSupported(format_error("The graph is left to eager.", why=why))
                    self._build(args)
                except IngotError as error:
                    self._eager = _fall_back_to_eager(self._graph, error)
            return None if self._eager is not None else self._native

    def _build(self, inputs: Sequence[Any]) -> None:
        state = frozenset(place for place, role in enumerate(self._roles) if role == "state")
        wrapper, program = _capture(self._graph, inputs, self._roles, state)
        written = wrapper.mutated_state(program)
        if written:
            # What the graph writes to is the caller's: an argument, so that native code writes to it where it lies.
            state -= written
            wrapper, program = _capture(self._graph, inputs, self._roles, state)
        returned = _find_returned_arguments(program, wrapper)
        # torch.compile runs a model in the mode that it is in.
        with internals.ignore_warnings(".*train mode"):
            compiled = compiler.compile(program, target=compiler.choose_target(inputs), **self._options)
        compiled.program.example_inputs = None  # would keep the first call's tensors
        kept = tuple(sorted(state))
        self._native = _Native(compiled, wrapper.given, kept, _version(inputs, kept), returned)


@dataclass(frozen=True)
class _Native:
    """Native code, which arguments it takes, the state that was packed into it, and which results are arguments."""

    compiled: CompiledModel
    given: tuple[int, ...]
    state: tuple[int, ...]
    version: tuple[tuple[int, int], ...]
    returned: Mapping[int, int]

    def run(self, args: Sequence[Any]) -> Any:
        if self.compiled.draws:  # torch.manual_seed decides about our draws too
            self.compiled.seed(int(torch.randint(0, 2**62, ())))
        results = run_model(self.compiled.model, [native_of(args[place]) for place in self.given])
        found = [
            args[self.returned[number]] if number in self.returned else result for number, result in enumerate(results)
        ]
        produced = iter(found)
        signature = self.compiled.program.signature
        leaves = [o.value if o.kind is OutputKind.LITERAL else next(produced) for o in signature.user_outputs]
        return unflatten(leaves, signature.out_tree)


def _version(args: Sequence[Any], state: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Changes when a tensor of the state is written to or is another one. The packed ones are alive, so no other tensor
    has their address."""
    return tuple((t.data_ptr(), 0 if t.is_inference() else t._version) for t in (args[place] for place in state))


# ---------------------------------------------------------------------- what the arguments of a graph are


def _placeholders(graph: fx.GraphModule) -> list[fx.Node]:
    return [node for node in graph.graph.nodes if node.op == "placeholder"]


def _roles(graph: fx.GraphModule, inputs: Sequence[Any]) -> list[Any]:
    """For each argument: "state" if it stays the same from call to call, "tensor", "unused", or what tells a size."""
    fakes = [node.meta.get("example_value") for node in _placeholders(graph)]
    bound: dict[sympy.Basic, tuple[int, int]] = {}
    for place, fake in enumerate(fakes):
        if isinstance(fake, torch.Tensor):
            for dim, size in enumerate(fake.shape):
                if isinstance(size, torch.SymInt):
                    bound.setdefault(internals.expr_of(size), (place, dim))
    roles: list[Any] = []
    for node, given, fake in zip(_placeholders(graph), inputs, fakes, strict=True):
        if isinstance(given, torch.Tensor):
            roles.append("state" if internals.is_static_input(given) else "tensor")
        elif not node.users:
            roles.append("unused")
        elif isinstance(fake, torch.SymInt) and internals.expr_of(fake) in bound:
            roles.append(bound[internals.expr_of(fake)])
        else:
            raise GraphNotSupported(
                format_error(
                    f"Scalar input {node.name} is dynamic but is not the size of any tensor input.",
                    fix="pass it as a tensor, or mark it as a constant of the function",
                )
            )
    return roles


def _check_gradients(graph: fx.GraphModule, inputs: Sequence[Any]) -> None:
    if not torch.is_grad_enabled():
        return
    values = [node.meta.get("example_value") for node in graph.graph.output_node().all_input_nodes]
    known = all(value is not None for value in values)
    needed = [v for v in (values if known else inputs) if isinstance(v, torch.Tensor) and v.requires_grad]
    if needed:
        raise GraphNotSupported(
            format_error(
                "Its result needs gradients, and native code has none.",
                fix="call the compiled model under torch.no_grad() or torch.inference_mode()",
            )
        )


# ---------------------------------------------------------------------- from torch.compile's graph to a Program


class _Wrapper(nn.Module):
    """A graph whose state is a module's state, and whose sizes come from its tensors."""

    def __init__(
        self, graph: fx.GraphModule, inputs: Sequence[Any], roles: Sequence[Any], state: frozenset[int]
    ) -> None:
        super().__init__()
        self.graph = graph
        self.roles = roles
        self.given = tuple(i for i, role in enumerate(roles) if role in ("state", "tensor") and i not in state)
        self.names = {place: f"input_{place}" for place in sorted(state)}
        for place, name in self.names.items():
            self.register_buffer(name, inputs[place].detach())

    def forward(self, *tensors: torch.Tensor) -> Any:
        found: dict[int, Any] = dict(zip(self.given, tensors, strict=True))
        found |= {place: getattr(self, name) for place, name in self.names.items()}
        for place, role in enumerate(self.roles):
            if isinstance(role, tuple):
                found[place] = found[role[0]].shape[role[1]]
            elif role == "unused":
                found[place] = 0
        return SourceLocationInterpreter(self.graph).run(*(found[place] for place in range(len(self.roles))))

    def mutated_state(self, program: Program) -> frozenset[int]:
        """The state that the graph writes to: a Program has its own copy of that, and of nothing else."""
        mine = {place: getattr(self, name) for place, name in self.names.items()}
        theirs = program.state_dict
        return frozenset(p for p, t in mine.items() if t.data_ptr() != theirs[self.names[p]].data_ptr())


def _capture(
    graph: fx.GraphModule, inputs: Sequence[Any], roles: Sequence[Any], state: frozenset[int]
) -> tuple[_Wrapper, Program]:
    wrapper = _Wrapper(graph, inputs, roles, state)
    nodes = _placeholders(graph)
    shapes = [_dims(nodes[place].meta.get("example_value")) for place in wrapper.given]
    arguments = tuple(inputs[place].detach() for place in wrapper.given)
    with internals.detach_from_dynamo():
        try:
            program = api.capture(wrapper, arguments, dynamic_shapes=shapes if any(shapes) else None)
        except IngotError:
            raise
        except Exception as error:  # torch's own tracing may fail on what only its compiler writes
            raise CaptureError(
                format_error("The graph cannot be captured.", why=f"{type(error).__name__}: {error}")
            ) from error
    return wrapper, program


def _dims(fake: Any) -> dict[int, Any] | None:
    """The sizes of an argument that torch.compile leaves open, as `ingot.capture` wants them declared."""
    found: dict[int, Any] = {}
    for dim, size in enumerate(fake.shape if isinstance(fake, torch.Tensor) else ()):
        if isinstance(size, torch.SymInt):
            expr = internals.expr_of(size)
            if isinstance(expr, sympy.Symbol):
                low, high = internals.range_of(size)
                found[dim] = torch.export.Dim(str(expr), min=low, max=high)
            elif not expr.is_Integer:  # torch.compile has found out that it is always that number
                found[dim] = str(expr)
    return found or None


def _find_returned_arguments(program: Program, wrapper: _Wrapper) -> dict[int, int]:
    """Which results are an argument itself, by number: x.add_(1) returns x.

    Raises where a result otherwise shares memory with an argument or another result, as native results never do.
    """
    places = {name: place for place, name in wrapper.names.items()}
    order = iter(wrapper.given)
    memories: dict[int, tuple[torch.Tensor, int | None]] = {}
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    for spec, node in zip(program.signature.placeholders, nodes, strict=True):
        place = next(order) if spec.kind is InputKind.ARGUMENT else places.get(str(spec.target))
        memories.setdefault(internals.storage_id(value_of(node)), (value_of(node), place))
    found: dict[int, int] = {}
    results: Any = program.graph.output_node().args[0]
    for number, node in enumerate(results):
        value = value_of(node)
        if not isinstance(value, torch.Tensor):
            continue
        owner, place = memories.setdefault(internals.storage_id(value), (value, None))
        if owner is value and place is None:
            continue
        if place is None or not internals.same_memory(owner, value):
            raise GraphNotSupported(
                format_error(
                    f"A result is a view of an argument or of another result: {node.name}.",
                    why="writing to one would change the other, and native results have memory of their own",
                    fix="return a copy of it: .clone()",
                )
            )
        found[number] = place
    return found
