"""Runs a program's graph again on fakes and records what comes of it, so that a pass may change operators on the way.

    functionalize   replays under torch's functionalization: writes and aliases are gone
    decompose       replays below autocast, with operators replaced by their decompositions

Every node that is recorded carries the user's line and the module of the node that was being replayed, and keeps its
name where the operator is the same. Regions are opened into switches and left to the caller to cut again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.capture import control_flow
from ingot.capture.modules import ModuleTracker
from ingot.capture.recorder import Recorder
from ingot.errors import IngotError, PassError, explain
from ingot.program import dims, metadata, subgraphs, writeless
from ingot.program.cutting import name_apart
from ingot.program.printer import operator_name
from ingot.program.program import Program
from ingot.program.signature import InputKind, Output, OutputKind, Signature, rename_calls, values_of

_REGIONS = (torch.ops.higher_order.wrap_with_autocast, torch.ops.higher_order.wrap_with_set_grad_enabled)
_BRANCHING = frozenset(op for op in subgraphs.LAYOUTS if op not in _REGIONS)
_CHANNELS_LAST = {4: (torch.channels_last,), 5: (torch.channels_last_3d,)}


class Decompositions(Protocol):
    """What a replay calls in an operator's place; None leaves the operator as it is."""

    def get(self, op: Any, /) -> Callable[..., Any] | None: ...


class ReplayRecorder(Recorder):
    """A Recorder whose nodes come from the nodes of another graph instead of the user's frames."""

    def __init__(self, mode: internals.FakeTensorMode, decompositions: Decompositions | None) -> None:
        super().__init__(mode, ModuleTracker(None), _no_constants)
        self.source: fx.Node | None = None
        self.decompositions = decompositions
        self._outdated: set[int] = set()  # tensors that a decomposition wrote to through another one

    def annotate(self, node: fx.Node, value: Any, trace: str | None = None) -> None:
        metadata.set_value(node, value)
        if self.source is not None:
            metadata.inherit_origin(node, self.source)

    def append(self, func: Any, args: Any, kwargs: Any, out: Any, name: str | None = None) -> fx.Node:
        if self.source is not None and self._replays(func):
            name = self.source.name
        node = super().append(func, args, kwargs, out, name)
        if metadata.bindings_of(node):
            self._use_known_symbols(node)
        return node

    def _use_known_symbols(self, node: fx.Node) -> None:
        """Sizes known only at run time get new symbols at each run; here they are those that the source binds."""
        made = metadata.bindings_of(node)
        old = metadata.bindings_of(self.source) if self.source is not None else None
        if not old or len(old) != len(made):
            return
        renamed = {}
        for (fresh, path), known in zip(made.items(), _in_order(old, made), strict=True):
            internals.rename_symbol(self.env, fresh, known)
            renamed[known] = path
            for expr in [e for e in self.frame.expressions if fresh in e.free_symbols]:  # a bool is `fresh == 1`
                self.frame.expressions[expr.xreplace({fresh: known})] = self.frame.expressions.pop(expr)
        metadata.set_bindings(node, renamed)

    def _replays(self, func: Any) -> bool:
        return self.source is not None and self.source.target is func

    def user_trace(self) -> str:
        return ""

    def user_place(self) -> str:
        return metadata.where(self.source) if self.source is not None else ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.decompositions is None:
            return super().__torch_dispatch__(func, types, args, kwargs)
        # Below autograd the operator arrives whole, after autocast has cast its arguments.
        with internals.below_autograd(), self._physical:
            return func(*args, **(kwargs or {}))

    def record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        rule = self.decompositions.get(func) if self.decompositions is not None else None
        if func is torch.ops.aten.view.default and self.decompositions is not None:
            return self._view(args, kwargs)
        if func is torch.ops.aten.alias.default and self.decompositions is not None and not self._replays(func):
            return args[0]  # something that decompositions do for autograd's sake
        if self.decompositions is not None and torch.Tag.inplace_view in func.tags and _restrides(args):
            self.run(func, args, kwargs)  # strides are no part of a functional graph's meaning
            return args[0]
        if rule is None and self.decompositions is not None and not self._replays(func):
            functional = internals.functional_form(func)
            if functional is not None:
                return self._write(functional, args, kwargs)
        if rule is None:
            out = super().record(func, args, kwargs)
            return self._laid_out(func, out) if internals.lays_out_anew(func) else out
        with self._physical:
            out = rule(*args, **kwargs)
        return super().record(func, args, kwargs) if out is NotImplemented else out

    def _write(self, functional: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A decomposition writes to a tensor that it made: from now on that tensor is what would have been written.

        What it is a view of, or its views, would have seen the write as well: they must not be read any more.
        """
        with self._physical:
            out = functional(*args, **kwargs)
            if out.dtype is not args[0].dtype:  # a write rounds to what it is written to
                out = torch.ops.aten._to_copy.default(out, dtype=args[0].dtype)
        old, made = self.frame.find(args[0]), self.node_of(out)
        sharing = [v for v in self.frame.alive if isinstance(v, torch.Tensor) and _share(v, args[0])]
        for other in sharing:
            if self.frame.nodes[id(other)] is old:  # another wrapper of the same tensor
                self.frame.nodes[id(other)] = made
            elif other is sharing[0] or args[0] is sharing[0]:  # two parts of one tensor may well lie apart
                self._outdated.add(id(other))
        self.frame.nodes[id(args[0])] = made
        self._outdated.discard(id(args[0]))
        return args[0]

    def node_of(self, tensor: torch.Tensor) -> fx.Node:
        if id(tensor) in self._outdated:
            raise PassError(
                explain(
                    "A decomposition writes to a tensor through a view of it, and a write would be lost.",
                    where=self.user_place(),
                    fix="keep the operator whole, with decompose(keep=[...]), and report it: it needs a rule of ours",
                )
            )
        return super().node_of(tensor)

    def _view(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A decomposition may give other strides than the operator did, and then a view of them needs a copy."""
        view = torch.ops.aten.view.default
        try:
            return super().record(view, args, kwargs)
        except (ValueError, RuntimeError):
            copied = super().record(torch.ops.aten.clone.default, args[:1], {"memory_format": torch.contiguous_format})
            return super().record(view, (copied, *args[1:]), kwargs)

    def _laid_out(self, func: Any, out: Any) -> Any:
        """What a batch norm gave, with the strides it is said to have: a copy, where the CPU's kernel gives others.

        The views that follow are chosen by these strides, and fail when the program runs if it has others.
        """
        if self._replays(func) and (self.decompositions is None or func is not torch.ops.aten.batch_norm.default):
            return out  # no view was chosen yet, or the copy is in the graph that is replayed
        result = out if isinstance(out, torch.Tensor) else out[0]
        formats = (torch.contiguous_format, *_CHANNELS_LAST.get(result.dim(), ()))
        if any(result.is_contiguous(memory_format=each) for each in formats):
            return out
        copied = super().record(torch.ops.aten.clone.default, (result,), {"memory_format": torch.contiguous_format})
        return copied if isinstance(out, torch.Tensor) else (copied, *out[1:])

    def enter_autocast(self, device: str, dtype: torch.dtype, enabled: bool, cache: bool) -> None:
        if self.decompositions is None:
            super().enter_autocast(device, dtype, enabled, cache)

    def exit_autocast(self) -> None:
        if self.decompositions is None:
            super().exit_autocast()


def _in_order(old: Mapping[Any, Any], made: Mapping[Any, Any]) -> list[Any]:
    """The symbols of one node's bindings in the order of another's: by where they are in the value, if that agrees."""
    by_path = {str(path): symbol for symbol, path in old.items()}
    paths = [str(path) for path in made.values()]
    return [by_path[path] for path in paths] if by_path.keys() == set(paths) else list(old)


def _share(a: torch.Tensor, b: torch.Tensor) -> bool:
    return internals.storage_id(a) == internals.storage_id(b)


def _restrides(args: tuple[Any, ...]) -> bool:
    """Whether an in-place view leaves the sizes as they are."""
    return len(args) > 2 and isinstance(args[1], (list, tuple)) and list(args[1]) == list(args[0].shape)


def _no_constants(tensor: torch.Tensor) -> None:
    raise PassError(explain("A pass made a tensor of its own while replaying a graph.", why=f"of shape {tensor.shape}"))


class Replay:
    """One replay of one program."""

    def __init__(self, program: Program, decompositions: Decompositions | None = None) -> None:
        self.program = program
        self.mode = _mode_of(program)
        self.recorder = ReplayRecorder(self.mode, decompositions)
        self.left_out: Collection[fx.Node] = ()  # nodes that are their first argument, and are not recorded
        self.functional: internals.Functionalization | None = None
        self._named = values_of(program.module_calls)
        self._followed: dict[str, fx.Node] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Inside, calls are recorded."""
        control_flow.install_rules(type(self.recorder))
        recorder = self.recorder
        with ExitStack() as stack:
            stack.enter_context(internals.modes_restored())
            stack.enter_context(internals.autocast_watched(recorder.enter_autocast, recorder.exit_autocast))
            stack.enter_context(internals.guards_suppressed(recorder.env))
            stack.enter_context(self.mode)
            stack.enter_context(internals.enable_python_dispatcher())
            stack.enter_context(recorder)
            yield

    def placeholders(self) -> list[Any]:
        """Fresh fakes for the program's inputs, as inputs of the new graph."""
        values = []
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                value = metadata.value_of(node)
                if isinstance(value, torch.Tensor):
                    with self.recorder.paused():
                        value = self.recorder.run(torch.ops.aten.detach.default, (value,), {})
                made = self.recorder.frame.placeholder(node.name, value)
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
                values[node] = self._call(node, values)
            if node.name in self._named:
                self._follow(node, values[node])
        raise AssertionError("a graph without an output")

    def _follow(self, node: fx.Node, value: Any) -> None:
        """Writes down which node is now what a preserved module call knows by an old one's name."""
        if not isinstance(value, torch.Tensor) and not internals.is_symbolic(value):
            return
        if self.functional is not None:
            with self.functional.off():
                value = self.functional.unwrap(value)
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
            if node.target is torch.ops.aten.instance_norm.default and internals.hidden_writes(node.target, node.args):
                return node.target.decompose(*args, **kwargs)  # whole, it would write statistics and not say so
            if self.functional is not None and node.target is torch.ops.aten.einsum.default:
                return node.target.decompose(*args, **kwargs)  # whole, it may be a view and not say so
            if self.functional is not None and node.target in _BRANCHING:
                return self._call_branching(node, args, kwargs, self.functional)
            if self.functional is not None and _kept_from_torch(node.target):
                return self._call_plain(node.target, args, kwargs, self.functional)
            if self.functional is not None and writeless.has_form(node.target):
                writeless.check_apart(node)
                return self._call_writing(node.target, args, kwargs)
            if _turns_nothing(node.target, args):
                # Torch's own form of it returns its argument, which it then does not accept from a view.
                if self.functional is not None:
                    return torch.ops.aten.alias.default(args[0])
                if self.recorder.decompositions is not None:
                    return args[0]
            if node.target in _CUTS and not kwargs and _any_symbolic(args):
                return _cut(len(metadata.value_of(node)), _CUTS[node.target], args)
            return node.target(*args, **kwargs)  # type: ignore[operator]
        except IngotError:
            raise
        except internals.FixedSize as failure:
            size = dims.spell(failure.expr)
            raise PassError(
                explain(
                    f"{operator_name(node.target)} cannot be decomposed for every size {size}.",
                    where=metadata.where(node),
                    why="what it is made of hangs on that number: one step for each, say",
                    fix=f"leave {size} out of dynamic_shapes",
                )
            ) from failure
        except Exception as failure:
            raise PassError(
                explain(
                    f"The graph cannot be replayed: {type(failure).__name__}: {str(failure).splitlines()[0]}",
                    where=metadata.where(node),
                )
            ) from failure

    def _call_plain(self, op: Any, args: Any, kwargs: Any, functional: internals.Functionalization) -> Any:
        """A call whose results are tensors of their own is recorded as it is."""
        with functional.off():
            out = op(*_mapped(functional.unwrap, args), **_mapped(functional.unwrap, kwargs))
            with self.recorder.paused():
                return _mapped(functional.wrap, out)

    def _call_branching(self, node: fx.Node, args: Any, kwargs: Any, functional: internals.Functionalization) -> Any:
        """Control flow is recorded on plain tensors; each of its functions is made functional by itself."""

        def plain(value: Any) -> Any:
            return self._functional(value, node) if callable(value) else value

        return self._call_plain(node.target, _mapped(plain, args), _mapped(plain, kwargs), functional)

    def _functional(self, function: Callable[..., Any], node: fx.Node) -> Callable[..., Any]:
        def call(*inputs: Any) -> Any:
            outer = self.functional
            with self.recorder.paused():
                functional = self.functional = internals.Functionalization()
                wrapped = [functional.wrap(value) for value in inputs]
            with functional:
                results = function(*wrapped)
            for value, wrap in zip(inputs, wrapped, strict=True):
                if functional.unwrap(wrap) is not value:
                    raise PassError(
                        explain(
                            f"A function of {node.name} writes to a tensor from outside of it.",
                            where=metadata.where(node),
                            fix="let the function return the new value, and write it afterwards",
                        )
                    )
            self.functional = outer
            return _mapped(functional.unwrap, results)

        return call

    def _call_writing(self, op: Any, args: Any, kwargs: Any) -> Any:
        """A custom operator works on copies of what it writes to, which are then written."""
        origins = writeless.returned(op)
        given = writeless.arguments_of(op, args, kwargs)
        made = writeless.without_write(op)(*args, **kwargs)
        values = list(made) if isinstance(made, tuple) else [made]
        results = [values.pop(0) if origin is None else given[origin] for origin in origins]
        for place, value in zip(writeless.written(op), values, strict=True):
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


def _kept_from_torch(target: Any) -> bool:
    """Whether torch's functionalization would do more than it should: a dropout's result could not be written to, and
    an effect would have to carry torch's own token."""
    effect = isinstance(target, internals.OpOverload) and internals.is_declared_effectful(target)
    return target is torch.ops.aten.dropout.default or (effect and not target._schema.is_mutable)


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _mapped(function, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_mapped(function, item) for item in value)
    return function(value)


def _mode_of(program: Program) -> internals.FakeTensorMode:
    for node in program.graph.nodes:
        for tensor in metadata.tensors_in(metadata.value_of(node)):
            found = internals.fake_mode_of(tensor)
            if found is not None:
                return found
    return internals.new_fake_mode()[0]


def argument_targets(program: Program) -> list[tuple[InputKind, str, str | None]]:
    """For each placeholder its kind, its name, and the key of the state behind it."""
    return [(i.kind, i.name, i.target) for i in program.signature.placeholders]


__all__ = ["Replay", "ReplayRecorder", "argument_targets"]


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
