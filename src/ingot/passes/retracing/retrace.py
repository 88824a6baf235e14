"""Runs a program's graph again on fakes and records what comes of it, so that a pass may change operators on the way.

    functionalize   replays with writes replaced by new values: writes and aliases are gone
    decompose       replays below autocast, with operators replaced by their decompositions

Every node that is recorded carries the user's line and the module of the node that was being replayed, and keeps its
name where the operator is the same. Regions are opened into switches and left to the caller to cut again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.errors import IngotError, PassError, format_error
from ingot.frontend import control_flow
from ingot.ir import functional_custom_ops, metadata, subgraphs, symbolic_dims
from ingot.ir.meta_kernels import COMPOSED
from ingot.ir.outlining import name_apart
from ingot.ir.printer import operator_name
from ingot.ir.program import Program
from ingot.ir.signature import InputKind, Output, OutputKind, Signature, rename_calls, values_of
from ingot.passes.retracing.tracer import Decompositions, ReplayRecorder, keep_expression, map_values

T = TypeVar("T")

_REGIONS = (torch.ops.higher_order.wrap_with_autocast, torch.ops.higher_order.wrap_with_set_grad_enabled)
_BRANCHING = frozenset(op for op in subgraphs.LAYOUTS if op not in _REGIONS)


class Replay:
    """One replay of one program. With `repeats`, operators that stay as they are need not run on fakes."""

    repeats = True

    def __init__(self, program: Program, decompositions: Decompositions | None = None) -> None:
        self.program = program
        self.mode = metadata.fake_mode_of(program.graph.nodes)
        self.recorder = ReplayRecorder(self.mode, decompositions)
        self.left_out: Collection[fx.Node] = ()  # nodes that are their first argument, and are not recorded
        self._named = values_of(program.module_calls)
        self._followed: dict[str, fx.Node] = {}

    def record(self, body: Callable[[], T]) -> T:
        """What `body` returns; its calls are recorded."""

        def run(region: internals.Region) -> T:
            recorder = self.recorder
            control_flow.install_rules(type(recorder))
            region.enter(internals.on_autocast_switch(recorder.enter_autocast, recorder.exit_autocast))
            region.enter(internals.suppress_size_guards(recorder.env))
            region.enter(self.mode)
            region.hold(internals.enable_python_dispatcher)
            region.enter(recorder)
            return body()

        return internals.run_isolated(run)

    def record_all(self, outputs: Sequence[Output]) -> None:
        """Replays the program's graph; what is recorded becomes the program's, with these outputs."""

        def run() -> None:
            results = self.run(self.program.graph_module, self.placeholders())
            self.finish(list(results), outputs)

        self.record(run)

    def placeholders(self) -> list[Any]:
        """Fresh fakes for the program's inputs, as inputs of the new graph."""
        values = []
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                value = metadata.value_of(node)
                if isinstance(value, torch.Tensor):
                    value = internals.fake_alias(value)
                made = self.recorder.frame.placeholder(node.name, value)
                made.name = made.target = node.name  # fx avoids names of builtins, as torch.export does not: input
                metadata.inherit_origin(made, node)
                values.append(value)
        return values

    def run(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        """Replays a graph, and what it calls, on values; returns its output."""
        values: dict[fx.Node, Any] = {}
        given = iter(inputs)
        outer = self.recorder.source
        for node in module.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(given)
            elif node.op == "output":
                self.recorder.source = outer
                return fx.map_arg(node.args[0], lambda n: values[n])
            elif node.op == "get_attr":
                values[node] = self._function(getattr(module, str(node.target)))
            else:
                self.recorder.source = node
                values[node] = keep_expression(metadata.value_of(node), self._call(node, values))
            if node.name in self._named:
                self._follow(node, values[node])
        raise AssertionError("a graph without an output")

    def _follow(self, node: fx.Node, value: Any) -> None:
        """Writes down which node is now what a preserved module call knows by an old one's name."""
        if not isinstance(value, torch.Tensor) and not internals.is_symbolic(value):
            return
        made = self.recorder.argument(value)
        if isinstance(made, fx.Node):
            self.recorder.kept.add(made)
            self._followed.setdefault(node.name, made)

    def _call(self, node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
        if node.target is internals.exit_autocast:
            handle = values[node.args[0]]  # type: ignore[index]
            return handle.__exit__(None, None, None)
        if node in self.left_out:
            return values[node.args[0]]  # type: ignore[index]
        args = fx.map_arg(node.args, lambda n: values[n])
        kwargs = fx.map_arg(node.kwargs, lambda n: values[n])
        try:
            if node.target is torch.ops.aten.instance_norm.default and internals.unannotated_mutations(
                node.target, node.args
            ):
                return node.target.decompose(*args, **kwargs)  # whole, it would write statistics and not say so
            if self.recorder.functional and node.target in _BRANCHING:
                return self._call_branching(node, args, kwargs)
            if self.recorder.functional and functional_custom_ops.has_form(node.target):
                functional_custom_ops.check_apart(node)
                return self._call_writing(node.target, args, kwargs)
            if self.recorder.decompositions is not None and _turns_nothing(node.target, args):
                return args[0]
            if node.target in _CUTS and not kwargs and _any_symbolic(args):
                return _cut(len(metadata.value_of(node)), _CUTS[node.target], args)
            if self._stays(node, values) and self.recorder.known.arguments(args, kwargs, node.target) is None:
                return self.recorder.repeat(node.target, args, kwargs, metadata.value_of(node))
            # Torch's own decompositions of these ask for sizes.
            return COMPOSED.get(node.target, node.target)(*args, **kwargs)  # type: ignore[operator]
        except IngotError:
            raise
        except internals.FixedSize as failure:
            size = symbolic_dims.format_dim(failure.expr)
            raise PassError(
                format_error(
                    f"{operator_name(node.target)} cannot be decomposed for every size {size}.",
                    where=metadata.where(node),
                    why="its decomposition depends on that number, for example with one step for each",
                    fix=f"leave {size} out of dynamic_shapes",
                )
            ) from failure
        except Exception as failure:
            raise PassError(
                format_error(
                    f"The graph cannot be replayed: {type(failure).__name__}: {str(failure).splitlines()[0]}",
                    where=metadata.where(node),
                )
            ) from failure

    def _stays(self, node: fx.Node, values: Mapping[fx.Node, Any]) -> bool:
        """Whether an operator is recorded as it is and returns a new tensor of the type that it has in the graph, since
        its arguments have the types that they have there: running it on fakes would show nothing new."""
        op, decompositions = node.target, self.recorder.decompositions
        if decompositions is None or not self.repeats or not internals.computes_new_tensor(op):
            return False
        if op in COMPOSED or decompositions.get(op) is not None or internals.may_change_layout(op):
            return False
        if internals.autocasts_in_force() or torch.get_default_dtype() is not torch.float32:
            return False
        return internals.is_fixed(metadata.value_of(node)) and all(
            internals.same_fixed_type(metadata.value_of(operand), values[operand]) for operand in node.all_input_nodes
        )

    def _call_branching(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """Control flow: each of its functions is made functional by itself."""

        def checked(value: Any) -> Any:
            return self._without_writes(value, node) if callable(value) else value

        return node.target(*map_values(checked, args), **map_values(checked, kwargs))  # type: ignore[operator]

    def _without_writes(self, function: Callable[..., Any], node: fx.Node) -> Callable[..., Any]:
        """The function, which must not write to what it is given."""

        def call(*inputs: Any) -> Any:
            for value in inputs:
                if isinstance(value, torch.Tensor):
                    self.recorder.mark_restrided(value)
            results = function(*inputs)
            if any(isinstance(value, torch.Tensor) and self.recorder.aliases.is_written(value) for value in inputs):
                raise PassError(
                    format_error(
                        f"A function of {node.name} writes to a tensor from outside it.",
                        where=metadata.where(node),
                        fix="let the function return the new value, and write it afterwards",
                    )
                )
            return results

        return call

    def _call_writing(self, op: Any, args: Any, kwargs: Any) -> Any:
        """A custom operator works on copies of what it writes to, which are then written."""
        origins = functional_custom_ops.returned_positions(op)
        given = functional_custom_ops.arguments_of(op, args, kwargs)
        made = functional_custom_ops.make_functional(op)(*args, **kwargs)
        values = list(made) if isinstance(made, tuple) else [made]
        results = [values.pop(0) if origin is None else given[origin] for origin in origins]
        for place, value in zip(functional_custom_ops.mutated_positions(op), values, strict=True):
            pairs = (
                [(given[place], value)] if isinstance(value, torch.Tensor) else zip(given[place], value, strict=True)
            )
            for target, copy in pairs:
                target.copy_(copy)
        return results[0] if len(results) == 1 else tuple(results)

    def _function(self, function: fx.GraphModule) -> Callable[..., Any]:
        def call(*inputs: Any) -> Any:
            return self.run(function, inputs)

        return call

    def finish(self, results: Sequence[Any], outputs: Sequence[Output]) -> None:
        """Puts the recorded graph in the program's place, returning these values as these outputs."""
        recorder, frame = self.recorder, self.recorder.frame
        nodes = [recorder.argument(value) for value in results]
        renamed = [
            Output(o.kind, n.name, o.target) if isinstance(n, fx.Node) else Output(OutputKind.LITERAL, value=n)
            for o, n in zip(outputs, nodes, strict=True)
        ]
        made = iter(renamed)
        literals = [o for o in self.program.signature.outputs if o.kind is OutputKind.LITERAL]
        kept = [n for n in nodes if isinstance(n, fx.Node)]
        output = frame.graph.output(tuple(kept))
        metadata.set_value(output, tuple(metadata.value_of(n) for n in kept))
        control_flow.prune(frame.graph, recorder.kept)
        old = self.program.signature
        mutations = [next(made) for o in outputs if o.kind not in (OutputKind.RESULT, OutputKind.LITERAL)]
        ordered = [next(made) if o.kind is OutputKind.RESULT else o for o in old.user_outputs]
        assert len(literals) + len(renamed) >= len(ordered)
        self.program.signature = Signature(old.inputs, (*mutations, *ordered), old.in_tree, old.out_tree)
        self.program.graph_module = internals.LazyGraphModule(frame.root, frame.graph)
        name_apart(self.program.graph_module, self._followed.values())
        names = {name: node.name for name, node in self._followed.items()}
        self.program.module_calls = rename_calls(self.program.module_calls, names)


def argument_targets(program: Program) -> list[tuple[InputKind, str, str | None]]:
    """For each placeholder its kind, its name, and the key of the state behind it."""
    return [(i.kind, i.name, i.target) for i in program.signature.placeholders]


__all__ = ["Replay", "argument_targets"]


# Operators that cut a dim in parts, and the size of a part by the size of the dim and what is given.
_CUTS: dict[Any, Callable[[Any, Any], Any]] = {
    torch.ops.aten.chunk.default: lambda size, parts: (size + parts - 1) // parts,
    torch.ops.aten.split.Tensor: lambda size, part: part,
}


def _any_symbolic(args: Any) -> bool:
    x, given, *dim = args
    return isinstance(x.shape[dim[0] if dim else 0], torch.SymInt) or isinstance(given, torch.SymInt)


def _cut(count: int, part_of: Callable[[Any, Any], Any], args: Any) -> Any:
    """As many parts as capture found, which every call must have: torch would count them by the example's sizes."""
    x, given, dim = (*args, 0)[:3]
    size = x.shape[dim]
    part = part_of(size, given)
    parts = [part] * (count - 1)
    return torch.ops.aten.split_with_sizes.default(x, [*parts, size - part * (count - 1)], dim)


def _turns_nothing(target: Any, args: Any) -> bool:
    """Whether it is a transpose of a dim with itself, or of a tensor with fewer than two."""
    if target is torch.ops.aten.t.default:
        return bool(args[0].dim() < 2)
    if target is not torch.ops.aten.transpose.int:
        return False
    rank = max(args[0].dim(), 1)
    return bool(args[1] % rank == args[2] % rank)
