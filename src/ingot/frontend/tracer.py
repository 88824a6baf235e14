"""Writes every ATen call of a running model into an FX graph.

The model runs on fake tensors. A `GraphTracer` sits above autocast and autograd, so it sees the calls as the user made
them: `linear`, not its decomposition; `dropout` with its probability, in eval too. For each call it

    turns tensors into the nodes that made them, and symbolic sizes into nodes that compute them (on demand, shared),
    runs the call on the fakes,
    appends a node that knows its value, the user's line and the module it is in.

Control flow opens a `Frame` of its own for each branch or body; what such a frame uses from outside is lifted into an
extra input of it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.errors import UntraceableError, format_error
from ingot.frontend.constant_tracking import ConstantTracker, mutated_tensors
from ingot.frontend.dtype_checks import check_dtypes
from ingot.frontend.graph_builder import Frame
from ingot.frontend.module_stack import ModuleTracker
from ingot.frontend.run_time_checks import CHECKS, RunTimeChecks
from ingot.frontend.source_locations import user_frame, user_place
from ingot.frontend.sparse_constants import DenseCall, SparseConstants, is_sparse
from ingot.ir import metadata, symbolic_dims
from ingot.ir.meta_kernels import on_fakes
from ingot.ir.names import identifier

if TYPE_CHECKING:
    from ingot.frontend.guards import GuardRecorder

aten = torch.ops.aten

# Of how many of its tensors an operator uses the values, where it asks the others for their shape or dtype only.
_VALUES_USED: dict[Any, int] = {
    aten.sym_size.int: 0,
    aten.zeros_like.default: 0,
    aten.ones_like.default: 0,
    aten.full_like.default: 0,
    aten.new_zeros.default: 0,
    aten.new_ones.default: 0,
    aten.new_full.default: 0,
    aten.type_as.default: 1,
}


class PhysicalMode(internals.DispatchMode):
    """Sees the calls that a functorch transform (vmap, grad) makes on the tensors it wraps."""

    def __init__(self, record: Callable[..., Any]) -> None:
        super().__init__()
        self._record = record

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._record(func, args, kwargs or {})


class GraphTracer(internals.RecordingMode):
    """The dispatch mode that records; see the module's docstring."""

    def __init__(
        self,
        mode: internals.FakeTensorMode,
        modules: ModuleTracker,
        lift_constant: Callable[[torch.Tensor], Any],
        watch: GuardRecorder | None = None,
    ) -> None:
        super().__init__()
        self._watch = watch
        self.mode = mode
        assert mode.shape_env is not None
        self.env: internals.ShapeEnv = mode.shape_env
        self.modules = modules
        self.frame = Frame()
        self.inside_op = 0
        self.mutated_storages: set[int] = set()
        self.known = ConstantTracker(self.mutated_storages)
        self.arguments: set[fx.Node] = set()
        self.kept: set[fx.Node] = set()  # they stay even if they are unused
        self._lift_constant = lift_constant
        self._constants: dict[int, torch.Tensor] = {}
        self._real_storage: dict[int, int] = {}
        self._grad = torch.is_grad_enabled()
        self._autocasts: list[fx.Node] = []
        self._physical = PhysicalMode(self.record)
        self._default_dtype = torch.get_default_dtype()
        self.checks = RunTimeChecks(self)
        self._sparse = SparseConstants()
        # What is known of a tensor is known by its id, so none of those met may die, not even of a graph given up.
        self._frames = [self.frame]

    # ------------------------------------------------------------------ what torch calls

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if internals.is_inside_transform():
            with self._physical:
                return func(*args, **(kwargs or {}))
        return self.record(func, args, kwargs or {})

    def record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs one call on fakes and writes its node."""
        self.sync_grad_mode()
        if func.namespace == "profiler":  # names a stretch of time, and computes nothing
            return func(*args, **kwargs)
        if any(map(is_sparse, args)):
            made = self._sparse.compute(func, args, kwargs, self.user_place())
            return self.record(made.operator, made.args, kwargs) if isinstance(made, DenseCall) else made
        if func is aten.lift_fresh.default and not isinstance(args[0], internals.FakeTensor):
            func = aten.lift_fresh_copy.default
        data_dependent = torch.Tag.data_dependent_output in func.tags or func is aten.item.default
        if data_dependent:
            answer = self.known.answer(func, args, kwargs, self.user_place)
            if answer is not None:
                self._check_values_read()
                return answer
        if func is aten.is_nonzero.default:
            return (
                (args[0] != 0).item() if args[0].dtype is not torch.bool else self.record(aten.item.default, args, {})
            )
        if torch.Tag.inplace_view in func.tags:
            self._keep_old_shape(args[0])
        node_args = tuple([self.argument(a) for a in args])
        node_kwargs = {key: self.argument(a) for key, a in kwargs.items()}
        known = self.known.arguments(args, kwargs, func) if not data_dependent else None
        if self._constants:
            args, kwargs = self._replace_constants(args), self._replace_constants(kwargs)
        with self.checks.ignore(scoped=False) if func in CHECKS else nullcontext():  # the node says it
            out = self.run(func, args, kwargs)
        if not self._is_recorded(func, out):
            return out
        check_dtypes(func, args, kwargs)
        self._check_plain((args, kwargs))
        self._note_writes(func, args, kwargs)
        if torch.get_default_dtype() is not self._default_dtype:
            node_kwargs = self._add_dtype(func, args, node_kwargs, out)
        self.append(func, node_args, node_kwargs, out)
        self.known.carry(func, known, args, kwargs, out, self.frame)
        return out

    def _check_values_read(self) -> None:
        """Asserts in the graph that buffers still hold the values that Python has read."""
        for name, fake, value in self.known.take_unchecked():
            equal = self.record(aten.eq.Scalar, (fake, value), {})
            if equal.dim():
                equal = self.record(aten.view.default, (equal, []), {})
            self.record(aten._assert_async.msg, (equal, f"the model was captured with {name} = {value}"), {})

    def _add_dtype(self, func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> dict[str, Any]:
        """The arguments of a call with its dtype among them, where that follows from a default which forward set."""
        default = torch.get_default_dtype()
        given = [t.dtype for t in metadata.tensors_in([*args, *kwargs.values()])]
        made = [t.dtype for t in metadata.tensors_in(out)]
        names = internals.argument_names(func)
        if default not in made or default in given or kwargs.get("dtype") is not None:
            return kwargs
        if "dtype" in names and len(args) <= names.index("dtype"):
            return {**kwargs, "dtype": default}
        raise UntraceableError(
            format_error(
                f"The dtype that {func} returns depends on the default dtype, which forward changes.",
                where=self.user_place(),
                why="a Program does not set torch's default dtype when it runs",
                fix="convert the tensors with .to(dtype) instead of torch.set_default_dtype",
            )
        )

    def operator_asks(self) -> bool:
        """Whether a question about a size comes from inside an operator."""
        return self.inside_op > 0

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call on fakes, unrecorded. Runs below autograd: fakes never need gradients."""
        watched: AbstractContextManager[list[Any]] = nullcontext([])
        if self._watch is not None:
            watched = self._watch.operator(func, args, kwargs)
        with watched as results:
            self.inside_op += 1
            try:
                with internals.below_autograd(), internals.keep_aliases(self.mode, func):
                    out = on_fakes(func)(*args, **kwargs)
            finally:
                self.inside_op -= 1
            results.append(out)
        return out

    def append(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, name: str | None = None
    ) -> fx.Node:
        """A call_function node for `out`, and a getitem node for each tensor of a tuple."""
        graph = self.frame.graph
        if name is None:
            name = func._opname if isinstance(func, internals.OpOverload) else identifier(func.__name__)
        node = graph.create_node("call_function", func, args, kwargs, name=name)
        trace = self.user_trace()
        self.annotate(node, out, trace)
        if internals.pending_symbols(self.env):
            with self.mode:
                metadata.set_bindings(node, internals.compute_unbacked_bindings(self.env, out))
        if isinstance(out, torch.Tensor) or internals.is_symbolic(out):
            self.frame.bind(out, node)
        elif isinstance(out, list | tuple):
            self._bind_items(node, out, trace)
        self.checks.write_pending()
        return node

    def _bind_items(self, node: fx.Node, items: Sequence[Any], trace: str) -> None:
        for index, item in enumerate(items):
            if isinstance(item, torch.Tensor | list | tuple) or internals.is_symbolic(item):
                part = self.frame.graph.create_node("call_function", operator.getitem, (node, index))
                self.annotate(part, item, trace)
                if isinstance(item, list | tuple):
                    self._bind_items(part, item, trace)
                else:
                    self.frame.bind(item, part)

    def annotate(self, node: fx.Node, value: Any, trace: str | None = None) -> None:
        metadata.set_value(node, value)
        metadata.set_trace(node, trace if trace is not None else self.user_trace())
        metadata.share_module_stack(node, self.modules.entry)
        metadata.set_custom(node, internals.custom_annotation())

    # ------------------------------------------------------------------ arguments

    def argument(self, value: Any) -> Any:
        """What stands for `value` in a node's arguments."""
        if isinstance(value, torch.Tensor):
            return self.node_of(value)
        if internals.is_symbolic(value):
            return self.size(internals.expr_to_check(value) if isinstance(value, torch.SymBool) else value.node.expr)
        if isinstance(value, list | tuple):
            items = [self.argument(item) for item in value]
            return items if isinstance(value, list) else tuple(items)
        if isinstance(value, dict):
            return {key: self.argument(item) for key, item in value.items()}
        return value

    def _check_plain(self, value: Any) -> None:
        """Raises for an argument of a node that a graph cannot hold."""
        for item in value.values() if isinstance(value, dict) else value:
            if isinstance(item, list | tuple | dict):
                self._check_plain(item)
            elif isinstance(item, torch.ScriptObject | torch.Generator):
                raise UntraceableError(
                    format_error(
                        f"An operator takes a {type(item).__name__}, which a Program cannot hold.",
                        where=self.user_place(),
                        why="a Program's graph holds tensors and plain values",
                        fix="leave the generator out, and seed with torch.manual_seed"
                        if isinstance(item, torch.Generator)
                        else "use the operator that takes the object's tensors, or import the model with"
                        " from_torchscript",
                    )
                )

    def node_of(self, tensor: torch.Tensor) -> fx.Node:
        node = self.frame.find(tensor)
        if node is not None:
            return node
        if not isinstance(tensor, internals.FakeTensor):
            self._lift_constant(tensor)
            node = self.frame.find(tensor)
            assert node is not None
            self._constants[id(tensor)] = metadata.value_of(node)
            self._real_storage[internals.storage_id(metadata.value_of(node))] = internals.storage_id(tensor)
            return node
        return self._find_alias(tensor)

    def _replace_constants(self, value: Any) -> Any:
        """The value with real tensors replaced by fakes, since an operator on real ones alone would run for real."""
        if isinstance(value, torch.Tensor):
            return self._constants.get(id(value), value)
        if isinstance(value, list | tuple):
            return type(value)(self._replace_constants(item) for item in value)
        if isinstance(value, dict):
            return {key: self._replace_constants(item) for key, item in value.items()}
        return value

    def _find_alias(self, tensor: torch.Tensor) -> fx.Node:
        """`.data` and the like make a tensor without a call; it is a detached alias of one that we know."""
        frame: Frame | None = self.frame
        while frame is not None:
            for known in reversed(frame.alive):
                if isinstance(known, torch.Tensor) and internals.same_memory(known, tensor):
                    return self._alias(known, tensor)
            frame = frame.parent
        raise UntraceableError(
            format_error(
                "A tensor was made where the capture could not see it.",
                where=self.user_place(),
                why="it comes from a C extension, another thread, or a tensor subclass that hides its operations",
                fix="wrap that code in a custom operator (torch.library.custom_op with register_fake)",
            )
        )

    def _alias(self, known: torch.Tensor, tensor: torch.Tensor) -> fx.Node:
        origin = self.node_of(known)
        self.known.alias(known, tensor)
        made_of = [metadata.value_of(n) for n in origin.all_input_nodes]
        if origin.op == "call_function" and not any(isinstance(value, torch.Tensor) for value in made_of):
            self.frame.bind(tensor, origin)  # torch.zeros and its kin hand out another wrapper of what they made
            return origin
        return self.append(aten.detach.default, (origin,), {}, tensor)

    def size(self, expr: sympy.Basic) -> Any:
        """A node, or a number, that computes a symbolic size where the graph stands now."""

        def symbol(s: sympy.Symbol) -> Any:
            raise UntraceableError(
                format_error(
                    f"The size {symbolic_dims.name_of(s)} is used where no input or operation defines it.",
                    where=self.user_place(),
                    fix="compute it from a tensor's shape inside forward",
                )
            )

        def apply(name: str, parts: tuple[Any, ...], whole: sympy.Basic) -> Any:
            node = self.frame.graph.create_node("call_function", symbolic_dims.OPERATIONS[name].function, parts)
            self.annotate(node, internals.symbolic_value(self.env, whole))
            self.frame.expressions[whole] = node
            return node

        try:
            return symbolic_dims.fold(expr, symbol, lambda c: c, apply, self._known_size)
        except symbolic_dims.UnknownOperation as failure:
            raise UntraceableError(
                format_error(f"A size is computed in a way a Program cannot hold: {failure}.", where=self.user_place())
            ) from failure

    def _known_size(self, expr: sympy.Basic) -> fx.Node | None:
        node = self.frame.expressions.get(expr)
        if node is not None or not expr.free_symbols:
            return node
        if self.frame.parent is not None:
            outer, self.frame = self.frame, self.frame.parent
            try:
                known = self._known_size(expr)
            finally:
                self.frame = outer
            # A condition on sizes is asked again inside: operators take numbers and tensors from outside only.
            if known is None or isinstance(metadata.value_of(known), torch.SymBool):
                return None
            return self.frame.lift(metadata.value_of(known), "size")
        return self._size_of_tensor(expr) if isinstance(expr, sympy.Symbol) else None

    def _size_of_tensor(self, symbol: sympy.Symbol) -> fx.Node | None:
        """A node for a dim's size: the size of the first tensor that has it, or solved from one that has 2*dim + 1."""
        found: tuple[torch.Tensor, int, int, int] | None = None
        for tensor in self.frame.alive:
            for dim, size in enumerate(tensor.shape if isinstance(tensor, torch.Tensor) else ()):
                expr = internals.expr_of(size)
                if expr == symbol:
                    return self._write_size(tensor, dim, symbol)
                scale = expr.coeff(symbol) if symbol in expr.free_symbols else sympy.S.Zero
                offset = sympy.expand(expr - scale * symbol)
                if found is None and scale.is_Integer and scale > 0 and offset.is_Integer:
                    found = tensor, dim, int(scale), int(offset)
        if found is None:
            return None
        tensor, dim, scale, offset = found
        node = self._write_size(tensor, dim, scale * symbol + offset)
        for function, operand, idle, expr in (
            (operator.sub, offset, 0, scale * symbol),
            (operator.floordiv, scale, 1, symbol),
        ):
            if operand == idle:
                continue
            node = self.frame.graph.create_node("call_function", function, (node, operand))
            self.annotate(node, internals.symint(self.env, expr))
            self.frame.expressions[expr] = node
        return node

    def _write_size(self, tensor: torch.Tensor, dim: int, expr: sympy.Basic) -> fx.Node:
        args = (self.frame.nodes[id(tensor)], dim)
        node = self.frame.graph.create_node("call_function", aten.sym_size.int, args, name="sym_size")
        self.annotate(node, tensor.shape[dim])
        self.frame.expressions[expr] = node
        return node

    # ------------------------------------------------------------------ modes and effects

    def sync_grad_mode(self) -> None:
        """Writes a grad-mode switch if the user's code made one since the last node."""
        grad = torch.is_grad_enabled()
        if grad != self._grad:
            self._grad = grad
            node = self.frame.graph.create_node("call_function", internals.set_grad_enabled, (grad,))
            self.annotate(node, None)

    def pause(self) -> Any:
        """Inside, nothing is recorded."""
        return internals.pause_recording()

    def enter_autocast(self, device: str, dtype: torch.dtype, enabled: bool, cache: bool) -> None:
        if self.inside_op:
            return
        self.sync_grad_mode()
        node = self.frame.graph.create_node(
            "call_function", internals.enter_autocast, (device, dtype, enabled, cache), name="enter_autocast"
        )
        self.annotate(node, None)
        self._autocasts.append(node)

    def exit_autocast(self) -> None:
        if self.inside_op:
            return
        self.sync_grad_mode()
        node = self.frame.graph.create_node(
            "call_function", internals.exit_autocast, (self._autocasts.pop(),), name="exit_autocast"
        )
        self.annotate(node, None)

    # ------------------------------------------------------------------ what is recorded

    def _is_recorded(self, func: Any, out: Any) -> bool:
        """Questions about a tensor (its rank, its device) leave no node; their answers are numbers."""
        if metadata.tensors_in(out) or not func._schema.returns:
            return True
        if internals.is_symbolic(out):
            symbols = out.node.expr.free_symbols
            return (
                any(internals.is_unbacked(s) for s in symbols)
                and self._known_size(out.node.expr) is None
                and not all(self._known_size(s) is not None for s in symbols)
            )
        return False

    def _note_writes(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if func._schema.is_mutable or internals.unannotated_mutations(func, args):
            written = [internals.storage_id(t) for t in mutated_tensors(func, args, kwargs)]
            self.mutated_storages.update(written, (self._real_storage[s] for s in written if s in self._real_storage))

    def _keep_old_shape(self, tensor: torch.Tensor) -> None:
        """An in-place view (t_, squeeze_) reshapes the fake itself; the node before it keeps a copy of its own."""
        node = self.frame.nodes.get(id(tensor))
        if node is not None:
            metadata.set_value(node, self.run(aten.detach.default, (tensor,), {}))

    # ------------------------------------------------------------------ the user's place

    def user_trace(self) -> str:
        """The innermost frame of code that is neither torch's nor ours, as node metadata holds it."""
        frame = user_frame()
        if frame is None:
            return ""
        code = frame.f_code
        return metadata.trace_text(code.co_filename, frame.f_lineno, code.co_name)

    def user_place(self) -> str:
        return user_place()

    def origin(self, tensor: torch.Tensor) -> str:
        """The user's line that computed a tensor of the root graph."""
        node = self.frame.nodes.get(id(tensor))
        source = metadata.source_of(node) if node is not None else None
        return "" if source is None else f"{source}" + (f": {source.text}" if source.text else "")

    def varies(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor may differ at the next call: it depends on arguments, random draws, or mutable state."""
        start = self.frame.nodes.get(id(tensor))
        if start is None:
            return True
        seen, waiting = {start}, [start]
        while waiting:
            node = waiting.pop()
            value = metadata.value_of(node)
            if isinstance(value, torch.Tensor) and internals.storage_id(value) in self.mutated_storages:
                return True
            if node in self.arguments:
                return True
            if isinstance(node.target, internals.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags:
                return True
            # What depends on sizes and dtypes only is recomputed for each of them.
            inputs = node.all_input_nodes[: _VALUES_USED.get(node.target)]
            waiting.extend(n for n in inputs if n not in seen)
            seen.update(inputs)
        return False

    @contextmanager
    def subframe(self) -> Iterator[Frame]:
        """Inside, nodes go to a new graph whose outer scope is the current one."""
        outer, outer_casts, grad = self.frame, self._autocasts, self._grad
        self.frame, self._autocasts = Frame(outer), []
        self._frames.append(self.frame)
        try:
            with internals.scope_checks(self.env):
                yield self.frame
                self.sync_grad_mode()
        finally:
            self.frame, self._autocasts, self._grad = outer, outer_casts, grad
