"""One capture: a model runs on fake tensors, and what it did becomes a Program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import fx, nn

from ingot import torch_internals as internals
from ingot.errors import CaptureError, format_error
from ingot.frontend import call_signature, control_flow, guards
from ingot.frontend import dynamic_shapes as dynamic
from ingot.frontend.module_stack import ModuleTracker
from ingot.frontend.module_state import Entry, ModuleState
from ingot.frontend.sizes.constraint_solver import derive_constraints
from ingot.frontend.sizes.fake_arguments import make_fake
from ingot.frontend.source_locations import user_frame
from ingot.frontend.state_snapshot import keep_memories_clean
from ingot.frontend.tracer import GraphTracer
from ingot.ir import metadata, pytree
from ingot.ir.metadata import Source
from ingot.ir.names import identifier, unique
from ingot.ir.program import Program
from ingot.ir.signature import CallSignature, Input, InputKind, Output, OutputKind, Signature


class Untranslated(Exception):
    """The model failed while it was traced."""

    def __init__(self, failure: Exception) -> None:
        super().__init__(str(failure))
        self.failure = failure


class CaptureSession:
    """One capture: the fakes, the recorder, and the resulting program."""

    def __init__(
        self,
        model: nn.Module | Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        dynamic_shapes: Any,
        preserve: Sequence[str],
        fixed: frozenset[int],
        exporting: bool,
        resolved: Mapping[str, dynamic.DimSpec | None] = MappingProxyType({}),
        enlarged: bool = False,
    ) -> None:
        self.model = model
        self.fixed = fixed
        self.exporting = exporting
        self.larger_by_symbols = False
        self.symbolic_modules: frozenset[str] = frozenset()  # whose len, int and float return symbols
        self.asking_modules: set[str] = set()  # whose code asks for sizes
        owner = getattr(model, "__self__", None)  # of a bound method, whose parameters are parameters too
        self.root = model if isinstance(model, nn.Module) else owner if isinstance(owner, nn.Module) else None
        self.call = model.forward if isinstance(model, nn.Module) else model
        self.args, self.kwargs = args, kwargs
        self.leaves, self.in_tree = pytree.flatten((args, kwargs))
        parameters = call_signature.signature_parameters(self.call)
        self.parameter_names = tuple(
            p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        )
        self.declared = dynamic.declare(dynamic_shapes, self.leaves, self.in_tree, parameters, resolved, enlarged)
        self.watch = guards.GuardRecorder(lambda: self.recorder.operator_asks(), self._user_source)
        self.mode = internals.fake_mode(self.watch.env)
        self.modules = ModuleTracker(self.root, preserve)
        self.state = ModuleState(self.root, self.mode)
        self.recorder = GraphTracer(self.mode, self.modules, self._lift_constant, self.watch)
        self.inputs: list[Input] = []
        self.constants: dict[str, torch.Tensor] = {}
        self._first_argument: fx.Node | None = None
        self._names: set[str] = set()
        self._argument_names = self._name_arguments()  # first, so that no parameter and no operation takes them

    def run(self) -> Program:
        frame = self.recorder.frame
        for entry in self.state.entries:
            kind = InputKind.PARAMETER if entry.is_parameter else InputKind.BUFFER
            node = frame.placeholder(self._name("p" if entry.is_parameter else "b", entry.name), entry.fake)
            self.inputs.append(Input(kind, node.name, entry.name, persistent=entry.persistent))
            if not entry.is_parameter:
                # A buffer that no state dict can replace is as good as a constant until something writes to it.
                replaceable = entry.name if entry.persistent else ""
                self.recorder.known.record_value(entry.fake, entry.tensor, replaceable)
        fake_leaves = self._fake_arguments()
        fake_args, fake_kwargs = pytree.unflatten(fake_leaves, self.in_tree)
        try:
            outputs, out_tree = internals.run_isolated(lambda region: self._trace(region, fake_args, fake_kwargs))
        except Exception as failure:
            raise Untranslated(failure) from failure
        dims, constraints = derive_constraints(self.declared, self.watch)
        self.watch.env.seal(constraint.condition for constraint in constraints)
        self._check_preserved()
        returned = [output for output, _ in outputs if output.kind is not OutputKind.LITERAL]
        node = frame.graph.output(tuple(n for _, n in outputs if n is not None))
        metadata.set_value(node, tuple(metadata.value_of(n) for _, n in outputs if n is not None))
        assert isinstance(node.args[0], tuple) and len(returned) == len(node.args[0])
        control_flow.prune(frame.graph)
        signature = Signature(tuple(self.inputs), tuple(o for o, _ in outputs), self.in_tree, out_tree)
        return self._program(signature, dims, constraints)

    # ------------------------------------------------------------------ inputs

    def _name(self, prefix: str, text: str) -> str:
        name = identifier(f"{prefix}_{text}" if prefix else text)
        name = unique(name, self._names)
        self._names.add(name)
        return name

    def _name_arguments(self) -> list[str]:
        """A name for each leaf of the arguments."""
        names = []
        for leaf, path in zip(self.leaves, pytree.leaf_paths(self.in_tree), strict=True):
            position = path[1]
            if path[0] == 0 and isinstance(position, int):
                known = self.parameter_names
                position = known[position] if position < len(known) else f"arg{position}"
            names.append(self._name("", "_".join(str(step) for step in (position, *path[2:]))))
            if not isinstance(leaf, torch.Tensor):
                internals.reserve_name(self.recorder.frame.graph, names[-1])
        return names

    def _fake_arguments(self) -> list[Any]:
        fakes: list[Any] = []
        seen: dict[int, Any] = {}
        for index, (leaf, path) in enumerate(zip(self.leaves, pytree.leaf_paths(self.in_tree), strict=True)):
            if not isinstance(leaf, torch.Tensor):
                self.inputs.append(Input(InputKind.LITERAL, value=leaf))
                fakes.append(leaf)
                continue
            if id(leaf) in self.fixed:
                target = unique(f"{format_access(path)}", {*self.constants, *self.state.names})
                self.constants[target] = leaf.detach()
                self.inputs.append(Input(InputKind.LITERAL, target=target))
                fakes.append(leaf)
                continue
            name = self._argument_names[index]
            specs = self.declared.specs.get(index)
            if specs:
                fake = make_fake(leaf, specs, self.declared, self.mode, self.watch)
            elif id(leaf) in seen:
                fake = self.recorder.run(torch.ops.aten.detach.default, (seen[id(leaf)],), {})
            else:
                fake = self.state.fake_of(leaf)
            seen[id(leaf)] = fake
            node = self.recorder.frame.placeholder(name, fake)
            self._first_argument = self._first_argument or node
            self.recorder.arguments.add(node)
            self.inputs.append(Input(InputKind.ARGUMENT, node.name))
            fakes.append(fake)
        return fakes

    def _lift_constant(self, tensor: torch.Tensor) -> None:
        """A real tensor that forward uses, closed over or made on the spot, becomes a constant of the program."""
        attribute = self.state.name_of_attribute(tensor)
        target = unique(attribute or "constant", {*self.constants, *self.state.names})
        self.state.read_constants.add(id(tensor))
        frame = self.recorder.frame
        while frame.parent is not None:
            frame = frame.parent
        with self.recorder.pause():
            fake = self.state.fake_of(tensor)
        self.constants[target] = tensor
        node = frame.placeholder(self._name("c", target), tensor, before=self._first_argument, fake=fake)
        self.inputs.append(Input(InputKind.CONSTANT, node.name, target))

    # ------------------------------------------------------------------ the trace

    def _trace(
        self, region: internals.Region, args: Any, kwargs: Any
    ) -> tuple[list[tuple[Output, fx.Node | None]], pytree.Tree]:
        """Runs the model on fakes: the outputs of the graph and their structure."""
        control_flow.install_rules()
        self.state.swap(region)
        keep_memories_clean(region, self.root or self.model)
        self._enter(region)
        ambient = internals.autocasts_in_force()
        for settings in ambient:
            self.recorder.enter_autocast(*settings)
        result = self.model(*args, **kwargs)
        self.recorder.sync_grad_mode()
        out_leaves, out_tree = pytree.flatten(result)
        assigned = self.state.assigned_buffers()
        outputs = [self._output(leaf) for leaf in self._detach_from_buffers(assigned, out_leaves)]
        self._write_assigned_buffers(assigned)
        self.recorder.checks.write_pending()
        for _ in ambient:
            self.recorder.exit_autocast()
        self.state.check_stored(self.recorder.origin, self.recorder.varies)
        self.recorder.known.check_answers()
        return outputs, out_tree

    def _enter(self, region: internals.Region) -> None:
        """In the region, torch and Python are as the trace needs them, on this thread."""
        recorder = self.recorder
        if self.larger_by_symbols:
            region.enter(internals.symbolic_min_max())
        region.enter(internals.silence_fake_tensor_logs())
        region.enter(internals.disable_torch_compile())
        region.enter(internals.forbid_data_ptr())
        if self.exporting:
            region.enter(internals.exporting())
        region.enter(internals.suppress_conv_backend_guards(self.watch.env))
        region.enter(internals.on_module_setattr(self._attribute_set))
        region.enter(internals.intercept_control_flow(control_flow.call_directly))
        region.enter(internals.intercept_associative_scan(partial(control_flow.scan_directly, recorder)))
        region.enter(internals.call_flex_attention_directly())
        region.enter(internals.dispatch_python_calls())
        region.enter(internals.skip_noop_module_to())
        region.enter(internals.symbolic_math())
        region.enter(internals.symbolic_builtins(self.symbolic_modules))
        region.enter(internals.on_autocast_switch(recorder.enter_autocast, recorder.exit_autocast))
        region.enter(internals.watch_checks(recorder.checks.attach_message))
        region.enter(self.watch.env.report_checks(recorder.checks.note))
        self.modules.follow(region, recorder.sync_grad_mode, self._record_tracepoint)
        region.enter(self.mode)
        region.hold(internals.enable_python_dispatcher)
        region.enter(recorder)
        internals.keep_process_state(region)  # put back before the modes above are left, in their order

    def _attribute_set(self, module: nn.Module, name: str) -> None:
        for table in (vars(module), module._parameters, module._buffers):
            self.state.set_at[id(table), name] = self.recorder.user_place()

    def _record_tracepoint(self, kind: str, leaves: list[Any], attributes: dict[str, Any]) -> None:
        with self.modules.enter_caller(kind == "module_call_inputs"):
            # A size that is computed for the marker is an argument of the call, so it belongs to the caller.
            arguments = tuple(self.recorder.argument(leaf) for leaf in leaves)
        self.recorder.append(internals.tracepoint, arguments, attributes, tuple(leaves), name="tracepoint")

    def _detach_from_buffers(self, assigned: Sequence[tuple[Entry, torch.Tensor]], values: Sequence[Any]) -> list[Any]:
        """The values, where one still looks at what an assigned buffer held before replaced by a copy of it."""
        written = {internals.storage_id(entry.fake) for entry, _ in assigned}
        copies: dict[int, torch.Tensor] = {}

        def detach(value: Any) -> Any:
            if not isinstance(value, internals.FakeTensor) or internals.storage_id(value) not in written:
                return value
            if id(value) not in copies:
                copies[id(value)] = self.recorder.record(torch.ops.aten.clone.default, (value,), {})
            return copies[id(value)]

        return [detach(value) for value in values] if written else list(values)

    def _write_assigned_buffers(self, assigned: Sequence[tuple[Entry, torch.Tensor]]) -> None:
        """A Program's buffers stay where they are, so what forward assigned is copied into them at the end."""
        values = self._detach_from_buffers(assigned, [value for _, value in assigned])
        for (entry, _), value in zip(assigned, values, strict=True):
            target, source = self.recorder.frame.nodes[id(entry.fake)], self.recorder.node_of(value)
            self.recorder.append(torch.ops.aten.copy_.default, (target, source), {}, entry.fake)
            self.recorder.mutated_storages.add(internals.storage_id(entry.fake))

    def _output(self, leaf: Any) -> tuple[Output, fx.Node | None]:
        if isinstance(leaf, torch.Tensor) or internals.is_symbolic(leaf):
            node = self.recorder.argument(leaf)
            if isinstance(node, fx.Node):
                return Output(OutputKind.RESULT, node.name), node
            leaf = node
        return Output(OutputKind.LITERAL, value=leaf), None

    def run_eager(self) -> Any:
        """The model on copies of the real arguments, as a diagnosis; it and the random state are put back."""
        copies = [leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves]
        args, kwargs = pytree.unflatten(copies, self.in_tree)

        def run(region: internals.Region) -> Any:
            internals.keep_process_state(region)
            self.state.keep(region, self.recorder.mutated_storages)
            region.enter(internals.disable_torch_compile())  # it would wait for a compilation that waits for us
            with torch.no_grad():
                return self._original(*args, **kwargs)

        return internals.run_isolated(run)

    @property
    def _original(self) -> Callable[..., Any]:
        """What runs in eager."""
        return self.model

    # ------------------------------------------------------------------ the program

    def _program(self, signature: Signature, dims: Any, constraints: Any) -> Program:
        order = {kind: i for i, kind in enumerate(InputKind)}
        state_inputs = sorted(
            (i for i in signature.inputs if i.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT)),
            key=lambda i: order[i.kind],
        )
        user_inputs = [i for i in signature.inputs if i.kind in (InputKind.ARGUMENT, InputKind.LITERAL)]
        signature = replace(signature, inputs=(*state_inputs, *user_inputs))
        state: dict[str, torch.Tensor] = {}
        written = self.recorder.mutated_storages
        # The program owns the state that it writes, so that it and the model do not update each other's.
        constants = {
            k: t.detach().clone() if internals.storage_id(t) in written else t for k, t in self.constants.items()
        }
        fresh: dict[int, torch.Tensor] = {}
        self.state.check_overlaps(written, self.constants)
        for name, entry in self.state.names.items():
            tensor = entry.tensor
            if not entry.is_parameter and internals.storage_id(entry.fake) in written:
                tensor = fresh.setdefault(id(tensor), tensor.detach().clone())
            (state if entry.persistent else constants)[name] = tensor
        frame = self.recorder.frame
        calls = tuple(
            replace(call, signature=CallSignature((), (), *self.modules.trees[call.path]))
            if call.path in self.modules.trees
            else call
            for call in self.modules.calls
        )
        graph_module = internals.LazyGraphModule(frame.root, frame.graph)
        for module in graph_module.modules():
            for node in module.graph.nodes if isinstance(module, fx.GraphModule) else ():
                for tensor in metadata.tensors_in(metadata.value_of(node)):
                    internals.untrace_indices(tensor)
        return Program(
            graph_module=graph_module,
            signature=signature,
            state_dict=state,
            constants=constants,
            module_calls=calls,
            dims=dims,
            constraints=constraints,
            parameter_names=self.parameter_names,
            example_inputs=(self.args, self.kwargs),
            training=self.root.training if self.root is not None else False,
        )

    def _user_source(self) -> Source | None:
        frame = user_frame()
        if frame is None:
            return None
        self.asking_modules.add(frame.f_globals.get("__name__", ""))
        return Source(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)

    def _check_preserved(self) -> None:
        missing = self.modules.find_uncalled()
        if missing:
            raise CaptureError(
                format_error(
                    f"The preserved module {missing[0]!r} is never called under that name.",
                    why=self.modules.other_names(missing[0]),
                    fix="preserve the name that the model calls it by",
                )
            )


def format_access(path: pytree.Path) -> str:
    """A leaf's path below the args/kwargs level, as a state key."""
    return "_".join(str(step) for step in path[1:])
