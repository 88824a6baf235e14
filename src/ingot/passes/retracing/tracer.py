"""A recorder of replayed graphs: nodes come from another graph, and a functional one records no writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.errors import PassError, format_error
from ingot.frontend.constant_tracking import mutated_tensors
from ingot.frontend.module_stack import ModuleTracker
from ingot.frontend.tracer import GraphTracer, PhysicalMode
from ingot.ir import metadata
from ingot.passes.retracing.alias_tracking import AliasTracker, find_shared

# What operators do for autograd's sake: a view as another dtype detaches a result that has no gradient.
_FOR_AUTOGRAD = (torch.ops.aten.alias.default, torch.ops.aten.detach.default)
_CHANNELS_LAST = {4: (torch.channels_last,), 5: (torch.channels_last_3d,)}


class Decompositions(Protocol):
    """What a replay calls in an operator's place; None leaves the operator as it is."""

    def get(self, op: Any, /) -> Callable[..., Any] | None: ...


class ReplayRecorder(GraphTracer):
    """A GraphTracer whose nodes come from the nodes of another graph instead of the user's frames.

    A `functional` one records no writes: what is written becomes a new value, and so does what shares its memory.
    """

    def __init__(self, mode: internals.FakeTensorMode, decompositions: Decompositions | None) -> None:
        super().__init__(mode, ModuleTracker(None), _no_constants)
        self.source: fx.Node | None = None
        self.decompositions = decompositions
        self.functional = decompositions is not None
        self.keeps_layouts = False  # whether values are to have the strides of eager, at every size
        self.aliases = AliasTracker(self)
        self._below = False  # whether calls come from below autograd and autocast
        self._physical = PhysicalMode(self._record_below)
        self.replayed: set[fx.Node] = set()  # sources whose operator was recorded as it is
        self._restrided: set[fx.Node] = set()  # values that may have other strides than their fakes

    def annotate(self, node: fx.Node, value: Any, trace: str | None = None) -> None:
        metadata.set_value(node, value)
        if self.source is not None:
            metadata.inherit_origin(node, self.source)

    def append(self, func: Any, args: Any, kwargs: Any, out: Any, name: str | None = None) -> fx.Node:
        if self.functional and isinstance(func, internals.OpOverload) and func._schema.is_mutable:
            raise PassError(
                format_error(
                    f"{func} writes to its argument, and functionalize left it in the graph.",
                    where=self.user_place(),
                    why="this is a bug in Ingot: every write must become a new value",
                    fix="report it with the operator's name",
                )
            )
        if self.source is not None and self._replays(func):
            name = self.source.name
            self.replayed.add(self.source)
        node = super().append(func, args, kwargs, out, name)
        inherited = self._restrided and not self._restrided.isdisjoint(node.all_input_nodes)
        if inherited or internals.may_be_restrided(func):
            self._restrided.add(node)
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
        for (fresh, path), known in zip(made.items(), _order_symbols(old, made), strict=True):
            internals.rename_symbol(self.env, fresh, known)
            renamed[known] = path
            for expr in [e for e in self.frame.expressions if fresh in e.free_symbols]:  # a bool is `fresh == 1`
                self.frame.expressions[expr.xreplace({fresh: known})] = self.frame.expressions.pop(expr)
        metadata.set_bindings(node, renamed)
        if self.source is not None:
            metadata.set_value(node, keep_expression(metadata.value_of(self.source), metadata.value_of(node)))

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

    def _record_below(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        outer, self._below = self._below, True
        try:
            return self.record(func, args, kwargs)
        finally:
            self._below = outer

    def record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        rule = self.decompositions.get(func) if self.decompositions is not None else None
        if func is torch.ops.aten.view.default and self.decompositions is not None:
            return self._view(args, kwargs)
        if func in _FOR_AUTOGRAD and self.decompositions is not None and not self._replays(func):
            return args[0]
        if self.decompositions is not None and torch.Tag.inplace_view in func.tags and _restrides(args):
            self.run(func, args, kwargs)  # strides do not belong to a functional graph's meaning
            return args[0]
        if self.functional and rule is None:
            if func._schema.is_mutable or internals.unannotated_mutations(func, args):
                return self._write(func, args, kwargs)
            if self._is_hidden_view(func, args, kwargs):
                with self._physical:
                    return func.decompose(*args, **kwargs)
            func, args = self._portable(func, args)
        if rule is None:
            out = super().record(func, args, kwargs)
            if self.functional:
                self.aliases.add_call(func, args, kwargs, out)
            return self._laid_out(func, out) if internals.may_change_layout(func) else out
        with self._physical:
            out = rule(*args, **kwargs)
        return super().record(func, args, kwargs) if out is NotImplemented else out

    def repeat(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], like: torch.Tensor) -> torch.Tensor:
        """As `record`, of a call that is known to return a new tensor of this type, whose values are not: it is not run
        on fakes."""
        self.sync_grad_mode()
        node_args = tuple([self.argument(arg) for arg in args])
        node_kwargs = {key: self.argument(arg) for key, arg in kwargs.items()}
        out = internals.fake_dense(self.mode, like, False)
        self.append(func, node_args, node_kwargs, out)
        return out

    def _is_hidden_view(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a composite operator returns a view of its arguments; its parts show of which."""
        if not internals.is_composite_implicit(func) or internals.returns_fresh_tensor(func):
            return False
        if not any("Tensor" in str(result.type) for result in func._schema.returns):
            return False  # item(): to try it would bind the symbol that the recorded call is to bind
        if func is torch.ops.aten.dropout.default:
            return False  # kept, so that it can be switched on again; as a view it is its argument
        if internals.aliased_positions(func) and not self._may_skip_copy(func, args):
            return True
        with self.pause(), internals.ignore_fresh_symbols(self.env):
            out = self.run(func, args, kwargs)
        tensors = metadata.tensors_in([*args, *kwargs.values()])
        return any(find_shared(t, tensors) is not None for t in metadata.tensors_in(out))

    def _may_skip_copy(self, func: Any, args: tuple[Any, ...]) -> bool:
        """Whether an operator that copies here returns a view at other sizes: a dim of size 1 is contiguous anyhow.

        The two differ in the strides of such dims, by which kernels choose how to compute, and how to round.
        """
        return (
            self.keeps_layouts and internals.copies_by_strides(func) and any(map(internals.is_symbolic, args[0].shape))
        )

    def _portable(self, func: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """The same call on a value whose strides are not those of its fake."""
        if func is torch.ops.aten.view.default:
            return self.portable_view(func, self.node_of(args[0])), args
        root = self.aliases.root_of(args[0]) if func is torch.ops.aten.as_strided.default else None
        if root is None or root is args[0]:
            return func, args
        if self.node_of(root).op == "placeholder":
            raise PassError(
                format_error(
                    "as_strided of a view of an argument cannot be expressed without views.",
                    where=self.user_place(),
                    why="it addresses memory, and the offset of the argument is known only at run time",
                    fix="apply as_strided to the argument itself or to a clone",
                )
            )
        offset = args[3] if len(args) > 3 and args[3] is not None else args[0].storage_offset()
        return func, (root, args[1], args[2], offset)

    def portable_view(self, func: Any, node: fx.Node) -> Any:
        """The view as an operator that takes a value of any strides, where this one may not have those of its fake."""
        moved = func is torch.ops.aten.view.default and node in self._restrided
        return torch.ops.aten.reshape.default if moved else func

    def _write(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Records what a call that writes would have written, as new values."""
        if torch.Tag.inplace_view in func.tags:
            return self._view_in_place(func, args, kwargs)
        if func is torch.ops.aten.fill_diagonal_.default and self._has_one_diagonal(args):
            # Its parts are as_strided of memory, which a value may not have.
            self.record(
                torch.ops.aten.fill_.Scalar, (self.record(torch.ops.aten.diagonal.default, args[:1], {}), args[1]), {}
            )
            return args[0]
        functional = internals.functional_form(func) if self.decompositions is not None else None
        if functional is not None:
            with self._physical:
                new = functional(*args, **kwargs)
                if new.dtype is not args[0].dtype:  # a write rounds to what it is written to
                    new = torch.ops.aten._to_copy.default(new, dtype=args[0].dtype)
            self._store(args[0], new)
            return args[0]
        with self.pause():
            functionalization = internals.Functionalization(pre_dispatch=not self._below)
            tensors = {id(t): t for t in metadata.tensors_in([*args, *kwargs.values()])}
            wrapped = {key: functionalization.wrap(tensor) for key, tensor in tensors.items()}
        given = map_values(lambda value: wrapped.get(id(value), value), (args, kwargs))
        with self._physical if self._below else self, functionalization:
            out = func(*given[0], **given[1])
        for tensor in {id(t): t for t in mutated_tensors(func, args, kwargs)}.values():
            with self.pause():
                new = functionalization.unwrap(wrapped[id(tensor)])
            if new is not tensor:
                self._store(tensor, new)
        back = {id(wrap): tensors[key] for key, wrap in wrapped.items()}
        return map_values(lambda value: back[id(value)] if id(value) in back else functionalization.unwrap(value), out)

    def _has_one_diagonal(self, args: tuple[Any, ...]) -> bool:
        """Whether fill_diagonal_ fills the diagonal of a matrix, which it does not begin again below."""
        return args[0].dim() == 2 and (len(args) < 3 or not args[2])

    def mark_restrided(self, tensor: torch.Tensor) -> None:
        """Says that a tensor may come with other strides than its fake has."""
        self._restrided.add(self.node_of(tensor))

    def _store(self, tensor: torch.Tensor, new: torch.Tensor) -> None:
        if list(new.shape) != list(tensor.shape):
            if self.aliases.is_view(tensor) or self.aliases.has_views(tensor):
                self._refuse_resize()
            self.run(torch.ops.aten.resize_.default, (tensor, list(new.shape)), {})
        self.aliases.store(tensor, new)

    def _view_in_place(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A tensor becomes another view of its memory, or of another's. Its views are those of what it was."""
        tensor = args[0]
        aten = torch.ops.aten
        if func is aten.detach_.default:
            return tensor
        if func in (aten.resize_.default, aten.resize_as_.default):
            size = args[1].shape if func is aten.resize_as_.default else args[1]
            if list(size) == list(tensor.shape):
                return tensor
        view = aten.alias.default if func is aten.set_.source_Tensor else internals.functional_form(func)
        if (
            view is None
            or func._opname in ("resize_", "resize_as_")
            or (view.namespace, view._opname) == ("aten", "set")
        ):
            self._refuse_resize()
        node = self.node_of(tensor)
        with self.pause():
            twin = self.run(aten.detach.default, (tensor,), {})
        self.frame.bind(twin, node)
        for known in self.frame.graph.nodes:
            if metadata.value_of(known) is tensor:
                metadata.set_value(known, twin)
        self.aliases.replace(tensor, twin)
        with self.pause():
            self.run(func, args, kwargs)
        made = self.record(view, args[1:] if view is aten.alias.default else (twin, *args[1:]), kwargs)
        self.aliases.add_same(tensor, made)
        self.bind(tensor, made)
        return tensor

    def _refuse_resize(self) -> None:
        raise PassError(
            format_error(
                "The model changes the memory or the size of a tensor in place.",
                where=self.user_place(),
                why="what shares its memory cannot follow",
                fix="assign the new tensor to a name: x = x.reshape(...)",
            )
        )

    def bind(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """From now on a tensor holds what another one does."""
        node = self.node_of(value)
        self.frame.nodes[id(tensor)] = node
        if not internals.same_strides(tensor, value):
            self._restrided.add(node)
        self.known.forget(tensor)
        self.known.alias(value, tensor)

    def node_of(self, tensor: torch.Tensor) -> fx.Node:
        if self.aliases.is_outdated(tensor):
            self.aliases.refresh(tensor)
        return super().node_of(tensor)

    def _alias(self, known: torch.Tensor, tensor: torch.Tensor) -> fx.Node:
        node = super()._alias(known, tensor)
        self.aliases.add_same(tensor, known)
        return node

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


def _order_symbols(old: Mapping[Any, Any], made: Mapping[Any, Any]) -> list[Any]:
    """The symbols of one node's bindings in the order of another's: by where they are in the value, if that agrees."""
    by_path = {str(path): symbol for symbol, path in old.items()}
    paths = [str(path) for path in made.values()]
    return [by_path[path] for path in paths] if by_path.keys() == set(paths) else list(old)


def keep_expression(old: Any, made: Any) -> Any:
    """A number that is the one that the graph had, as the graph had it: in the graph's own symbols.

    A condition that is known to hold because the graph checks it stays a condition: the check is yet to be made.
    """
    if not internals.is_symbolic(old) or not isinstance(made, type(old) | int | float):
        return made
    return old if old.node.expr == internals.expr_of(made) else made


def _restrides(args: tuple[Any, ...]) -> bool:
    """Whether an in-place view leaves the sizes as they are."""
    return len(args) > 2 and isinstance(args[1], (list, tuple)) and list(args[1]) == list(args[0].shape)


def _no_constants(tensor: torch.Tensor) -> None:
    raise PassError(
        format_error("A pass made a tensor of its own while replaying a graph.", why=f"of shape {tensor.shape}")
    )


def map_values(function: Callable[[Any], Any], value: Any) -> Any:
    """Applies a function to the leaves of nested lists, tuples and dicts."""
    if isinstance(value, dict):
        return {key: map_values(function, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map_values(function, item) for item in value)
    return function(value)
