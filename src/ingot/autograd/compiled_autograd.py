"""Training: forward and backward as native code, connected by torch's autograd.

    trained = ingot.compile(model, args, training=True)
    loss = trained(*args).sum()
    loss.backward()                 # gradients of the model's own parameters, and of arguments that require them

torch's autograd writes the backward of the captured graph, operator by operator, and cuts both apart; each half is then
a graph like any other and is compiled like any other. Parameters are arguments of both: a step of an optimizer changes
what the next call computes with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from ingot import torch_internals as internals
from ingot.artifacts.compiled_model import CompiledModel
from ingot.autograd.differentiable_graph import Differentiable
from ingot.errors import CompileError, IngotError, UnsupportedOperator, format_error
from ingot.frontend.source_locations import SourceLocationInterpreter
from ingot.ir import effect_tokens, execution
from ingot.ir.program import Program
from ingot.ir.signature import InputKind
from ingot_runtime.native.copy_guard import Uncopied

aten = torch.ops.aten

# A graph on example arguments, as native code.
Build = Callable[[nn.Module, Sequence[torch.Tensor]], CompiledModel]


class TrainableModel(Uncopied):
    """A model whose forward and backward are native code. Called like the model, whose parameters it shares."""

    _instead = "compile the model again where it is needed"

    def __init__(self, program: Program, build: Build) -> None:
        """Use `ingot.compile` with `training=True`. `program` is functional."""
        self.program = program
        self._halves: list[CompiledGraph] = []
        self._build = build
        self._run = internals.compile_with_autograd(
            Differentiable(program.graph_module).run, self._half, self._gradient
        )
        example = program.example_inputs
        if example is not None:  # so that what cannot be compiled is said here, not at the first step
            args, kwargs = example
            self._try(execution.check_call(program, args, kwargs))

    @property
    def forward(self) -> CompiledModel | None:
        """The native code of the forward half."""
        return self._halves[0].compiled if self._halves else None

    @property
    def backward(self) -> CompiledModel | None:
        """The native code of the backward half; None where nothing requires a gradient."""
        return self._halves[1].compiled if len(self._halves) > 1 else None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._run_differentiable(execution.check_call(self.program, args, kwargs))

    def _run_differentiable(self, leaves: Sequence[Any]) -> Any:
        given, state = self._inputs(leaves)
        values = self._run_graph(*state.values(), *given.values())
        return execution.finish(self.program, list(values), given, state.__getitem__)

    def _run_graph(self, *inputs: Any) -> tuple[Any, ...]:
        """The results of the graph. The first call traces it: what torch raises there gets a name."""
        try:
            results: tuple[Any, ...] = self._run(*inputs)
            return results
        except (IngotError, MemoryError):
            raise
        except Exception as error:
            if self._halves:  # both graphs are written: it is not about them
                raise
            raise CompileError(
                format_error(
                    "torch's autograd cannot write the gradient of this model.",
                    why=f"it raised {type(error).__name__}: {str(error).strip()}",
                    fix="check that a loss of the model has a gradient in eager; detach what needs none, or compile "
                    "the model without training=True",
                )
            ) from error

    def _inputs(self, leaves: Sequence[Any]) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        program = self.program
        specs = program.signature.user_inputs
        given = {i.name: leaf for i, leaf in zip(specs, leaves, strict=True) if i.kind is InputKind.ARGUMENT}
        return given, {str(i.target): program.state_of(i) for i in program.signature.state_inputs}

    def _try(self, leaves: Sequence[Any]) -> None:
        """Runs both halves on the example, and leaves no trace in the model: no gradient, no changed buffer."""
        given, state = self._inputs(leaves)
        inputs = [*state.values(), *given.values()]
        results = [r for r in self._run_graph(*inputs) if isinstance(r, torch.Tensor) and r.requires_grad]
        asked = [t for t in inputs if isinstance(t, torch.Tensor) and t.requires_grad]
        if results:
            zeros = [torch.zeros_like(r) for r in results]
            torch.autograd.grad(results, asked, zeros, allow_unused=True)

    def _half(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[[list[Any]], list[Any]]:
        half = CompiledGraph.build(graph, inputs, self._build)
        self._halves.append(half)
        return half

    def _gradient(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[[list[Any]], list[Any]]:
        try:
            return self._half(graph, inputs)
        except UnsupportedOperator as error:  # its operators are autograd's, at the lines that they are the gradient of
            raise UnsupportedOperator(f"The gradient of this model has no native code. {error}") from error

    def close(self) -> None:
        """Releases the threads and memory of both halves."""
        for half in self._halves:
            if half.compiled is not None:
                half.compiled.close()


@dataclass(frozen=True)
class CompiledGraph:
    """One half as native code. What it would only hand through, a saved argument most often, never enters it."""

    compiled: CompiledModel | None
    sources: tuple[tuple[str, Any], ...]  # of each result: ("argument", place), ("result", place) or ("value", itself)

    @staticmethod
    def build(graph: fx.GraphModule, inputs: Sequence[Any], build: Build) -> CompiledGraph:
        places = {n: i for i, n in enumerate(n for n in graph.graph.nodes if n.op == "placeholder")}
        output = graph.graph.output_node()
        computed: dict[fx.Node, int] = {}
        sources: list[tuple[str, Any]] = []
        results: Any = output.args[0]
        for result in results:
            node = _origin(result)
            if effect_tokens.is_token(node):  # native code has none: its effects are in order
                sources.append(("value", effect_tokens.new_token()))
            elif node in places:
                sources.append(("argument", places[node]))
            elif isinstance(node, fx.Node):
                sources.append(("result", computed.setdefault(node, len(computed))))
            else:
                sources.append(("value", node))
        output.args = (tuple(computed),)
        graph.recompile()
        if not computed:
            return CompiledGraph(None, tuple(sources))
        with internals.detach_from_dynamo():
            examples = [_example(value) for value in inputs]
            return CompiledGraph(build(GraphAsModule(graph), examples), tuple(sources))

    # autograd frees what it hands over in a list as soon as the list is emptied
    _boxed_call = True

    def __call__(self, arguments: list[Any]) -> list[Any]:
        given = list(arguments)
        arguments.clear()
        made = self.compiled(*(t.contiguous() for t in given)) if self.compiled is not None else ()
        answers: Mapping[str, Callable[[Any], Any]] = {
            "argument": lambda place: given[place],
            "result": lambda place: made[place],
            "value": lambda value: value,
        }
        return [answers[kind](place) for kind, place in self.sources]


class GraphAsModule(nn.Module):
    """A graph that closes over nothing, as a model of its arguments."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__()
        self.graph = graph

    def forward(self, *arguments: torch.Tensor) -> Any:
        return SourceLocationInterpreter(self.graph).run(*arguments)


def _origin(node: Any) -> Any:
    """What a result is another name of."""
    while isinstance(node, fx.Node) and node.target in (aten.alias.default, aten.detach.default):
        node = node.args[0]
    return node


def _example(value: torch.Tensor) -> torch.Tensor:
    """A tensor like the one that the graph was traced with; its values are not read."""
    return torch.zeros(tuple(map(int, value.shape)), dtype=value.dtype, device=value.device)
