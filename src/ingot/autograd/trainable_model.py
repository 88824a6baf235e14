"""Training: forward and backward as native code, connected by torch's autograd.

    trained = ingot.compile(model, args, training=True)
    loss = trained(*args).sum()
    loss.backward()                 # gradients of the model's own parameters, and of arguments that require them

torch's autograd runs the model itself and writes both graphs: what the model does to gradients, with functions of its
own, hooks or switches, is part of them. Each half is then compiled like any other graph. Parameters and buffers are
arguments of both: a step of an optimizer changes what the next call computes with.

Operators that take functions (cond, scan, attention with functions) need a graph that holds these functions: such a
model is captured first, and autograd runs its Program.
"""

from __future__ import annotations

import copy
import inspect
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from ingot import torch_internals as internals
from ingot.api import capture
from ingot.artifacts.compiled_model import CompiledModel
from ingot.autograd.call_tracer import ClosedOver, NeedsProgram
from ingot.autograd.compiled_graph import Build, CompiledGraph
from ingot.autograd.gradient_rules import gradient_rules
from ingot.autograd.model_state import ModelState, literal_key, types_of
from ingot.autograd.second_derivative import OnceDifferentiable
from ingot.autograd.traced_call import ModuleBody, ProgramBody, TracedBody, TracedCall
from ingot.errors import (
    CompileError,
    IngotError,
    InputError,
    UnsupportedOperator,
    UntraceableError,
    format_error,
)
from ingot.frontend.state_snapshot import keep_memories_clean
from ingot.interop.module import ProgramModule
from ingot.ir import execution, pytree
from ingot.ir.program import Program
from ingot_runtime.native.copy_guard import Uncopied

# How many ways of calling a model are kept: sizes, modes, values of arguments that are not tensors.
KEPT = 32
# How many tensors a function may close over: a trace begins anew for each.
RESTARTS = 50
_DEVICES = ("cpu", "cuda")
_log = logging.getLogger("ingot.autograd")

Functionalize = Callable[[Program], Program]


@dataclass(frozen=True)
class TrainingGraph:
    """One way of calling a model, compiled. `backward` is None where nothing requires a gradient."""

    forward: CompiledModel | None
    backward: CompiledModel | None
    program: Program | None  # what autograd ran, where it was not the model itself


class TrainableModel(Uncopied, nn.Module):
    """A module whose forward and backward are native code; its parameters, buffers and submodules are the model's own.

    Each way of calling it is compiled when it is first met: sizes and dtypes of arguments, train and eval mode, with
    and without gradients, autocast, frozen parameters, values of arguments that are not tensors. The latest `KEPT` are
    kept. What the model keeps from call to call, in buffers or other attributes, is kept as in eager.
    """

    _instead = "save its state_dict(), and compile the model again where it is needed"

    def __init__(
        self,
        model: nn.Module | Callable[..., Any] | Program,
        build: Build,
        functionalize: Functionalize,
        example: tuple[Sequence[Any], Mapping[str, Any]] | None = None,
    ) -> None:
        """Use `ingot.compile` with `training=True`."""
        module, call, roots = _parts(model)
        vars(self)["_model"] = module
        mode = module.training
        super().__init__()
        module.training = mode
        own = vars(self)
        for table in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            own[table] = vars(module)[table]
        own["_given"], own["_call"] = model, call
        own["_build"], own["_functionalize"] = build, functionalize
        own["_state"] = ModelState(roots)
        own["_known"], own["_lock"] = OrderedDict(), threading.RLock()
        own["_dropped"] = False
        if example is not None:  # so that what cannot be compiled is said here, not at the first step
            self._compile(*self._leaves(*example))

    # ------------------------------------------------------------------ calls

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        leaves, tree = self._leaves(args, kwargs)
        try:
            state, tensors = self._state.read()
        except NotImplementedError:  # torch's, of memory that is not there
            self._check_memory()
            raise
        key = (state, _call_key(leaves, tree))
        given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        with self._lock:
            found = self._known.get(key)
            if found is None:
                found = self._compile(leaves, tree)
                _, tensors = self._state.read()  # the trace may have met more of it
            else:
                self._known.move_to_end(key)
        return found(tensors, given)

    def _leaves(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], pytree.Tree]:
        if isinstance(self._model, ProgramModule):
            program = self._model.program
            return execution.check_call(program, tuple(args), dict(kwargs), dtypes=False), program.signature.in_tree
        return pytree.flatten((tuple(args), dict(kwargs)))

    def _check_memory(self) -> None:
        for name, tensor in (*self._model.named_parameters(), *self._model.named_buffers()):
            _check_tensor(tensor, name)

    def _compile(self, leaves: Sequence[Any], tree: pytree.Tree) -> _Specialization:
        """Compiles this way of calling the model. Nothing of the model or of the arguments changes."""
        self._state.check()
        try:
            if isinstance(self._model, ProgramModule):
                raise NeedsProgram
            made = self._compile_body(ModuleBody(self._call), leaves, tree)
        except (IngotError, MemoryError):
            raise
        except NeedsProgram:
            made = self._compile_body(self._program_body(leaves, tree), leaves, tree)
        except Exception as error:
            try:  # capture may know what torch's tracer does not
                body = self._program_body(leaves, tree)
            except IngotError:
                raise _explain(error) from error
            made = self._compile_body(body, leaves, tree)
        self._known[made.key] = made
        if len(self._known) > KEPT:
            if not self._dropped:
                vars(self)["_dropped"] = True
                _log.warning(
                    "A model was called in more than %d ways, and the code of the oldest is dropped. Sizes, and values "
                    "of arguments and attributes that are not tensors, are constants of the code.", KEPT
                )  # fmt: skip
            self._known.popitem(last=False)[1].close()
        return made

    def _compile_body(self, body: TracedBody, leaves: Sequence[Any], tree: pytree.Tree) -> _Specialization:
        given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        known = len(self._state.places)
        while True:
            state, tensors = self._state.read()
            made = _Specialization(self, (state, _call_key(leaves, tree)), body, tensors, leaves, tree)
            try:
                made.compile(tensors, given)
                return made
            except ClosedOver as found:
                self._state.watch_tensor(found.tensor)
                if len(self._state.places) > known + RESTARTS:  # it makes them anew in each trace
                    del self._state.places[known:]
                    raise RuntimeError("forward makes tensors where torch does not see it") from None
            except (IngotError, MemoryError, NeedsProgram):
                raise
            except Exception as error:
                if isinstance(body, ModuleBody):
                    raise
                raise _explain(error) from error

    def _program_body(self, leaves: Sequence[Any], tree: pytree.Tree) -> ProgramBody:
        """The model as a Program in its present mode, made functional."""
        module = self._model
        if isinstance(module, ProgramModule):
            program = module.program.copy()
            program.graph_module = module.graph_module
        else:
            args, kwargs = pytree.unflatten(list(leaves), tree)
            with internals.intercept_autograd_functions(_refuse_function):
                program = capture(self._call, args, kwargs)
        body = ProgramBody(self._functionalize(program), module)
        body.program.example_inputs = None
        body.watch(self._state)
        return body

    # ------------------------------------------------------------------ what it is made of

    @property
    def graphs(self) -> tuple[TrainingGraph, ...]:
        """What is compiled so far, the latest used last."""
        return tuple(made.graph for made in self._known.values())

    def unwrap(self) -> Any:
        """The model, as it was given."""
        return self._given

    def close(self) -> None:
        """Releases the threads and memory of everything compiled. A later call compiles again."""
        with self._lock:
            for made in self._known.values():
                made.close()
            self._known.clear()

    # ------------------------------------------------------------------ as a module

    @property
    def training(self) -> bool:
        """Whether the model is in train mode: the model's own flag."""
        return bool(self._model.training)

    @training.setter
    def training(self, mode: bool) -> None:
        self._model.training = mode

    def train(self, mode: bool = True) -> TrainableModel:
        self._model.train(mode)
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self._model.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self._model.load_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._model._load_from_state_dict(*args, **kwargs)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> TrainableModel:
        self._model._apply(fn, recurse)
        return self

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "_model":
                raise
            return getattr(self._model, name)

    def __setattr__(self, name: str, value: Any) -> None:
        is_own = name in vars(self) or isinstance(getattr(type(self), name, None), property) or name == "__class__"
        if is_own or "_state" not in vars(self):
            super().__setattr__(name, value)
        else:
            setattr(self._model, name, value)

    def __deepcopy__(self, memo: Any) -> TrainableModel:
        """A model of its own, with parameters of its own, which is compiled at its first call."""
        given = copy.deepcopy(self._given, memo)
        return type(self)(given, self._build, self._functionalize)


class _Compiled(Exception):
    """Both halves are compiled, and the first would be run now."""


class _Specialization:
    """One way of calling a model: its code, made at the first call."""

    def __init__(
        self,
        model: TrainableModel,
        key: Hashable,
        body: TracedBody,
        tensors: Sequence[torch.Tensor],
        leaves: Sequence[Any],
        tree: pytree.Tree,
    ) -> None:
        self.key = key
        self._compiling = True
        self._model = model
        self._halves: list[CompiledGraph] = []
        self._program = body.program if isinstance(body, ProgramBody) else None
        self._trace = TracedCall(body, model._state, tensors, leaves, tree)
        self._literals = list(leaves) if not all(isinstance(leaf, torch.Tensor) for leaf in leaves) else []
        self._literals = [
            leaf for leaf in self._literals if not isinstance(leaf, torch.Tensor)
        ]  # their ids are in the key
        self._run = internals.compile_with_autograd(
            self._trace, self._half, self._gradient, gradient_rules(), self._prepare
        )

    def compile(self, tensors: Sequence[torch.Tensor], given: Sequence[torch.Tensor]) -> None:
        """Writes and compiles both halves, and runs neither."""
        # torch warns of arguments that are the result of something when it looks at them.
        leaves = {id(t): t.detach().requires_grad_() for t in (*tensors, *given) if t.requires_grad and not t.is_leaf}
        try:
            self._run(*(leaves.get(id(t), t) for t in (*tensors, *given)))
        except _Compiled:
            self._trace.release()
        self._compiling = False

    def __call__(self, tensors: Sequence[torch.Tensor], given: Sequence[torch.Tensor]) -> Any:
        assert self._trace.layout is not None
        return self._trace.layout.finish(self._run(*tensors, *given))

    @property
    def graph(self) -> TrainingGraph:
        halves = [half.compiled for half in self._halves]
        return TrainingGraph(halves[0] if halves else None, halves[1] if len(halves) > 1 else None, self._program)

    def _half(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[[list[Any]], list[Any]]:
        half = CompiledGraph.build(graph, inputs, self._model._build)
        self._halves.append(half)

        def run(arguments: list[Any]) -> list[Any]:
            if self._compiling:
                raise _Compiled
            return half(arguments)

        run._boxed_call = True  # type: ignore[attr-defined]  # arguments come in a list, which is emptied
        return run

    def _gradient(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> OnceDifferentiable:
        try:
            return OnceDifferentiable(self._half(graph, inputs))
        except UnsupportedOperator as error:  # its operators are autograd's, at the lines that they are the gradient of
            raise UnsupportedOperator(f"The gradient of this model has no native code. {error}") from error

    def _prepare(self, region: internals.Region) -> None:
        """In the region, torch is as the trace needs it, on this thread."""
        region.enter(internals.disable_torch_compile())
        region.enter(internals.silence_fake_tensor_logs())
        if self._program is None:
            region.enter(internals.intercept_control_flow(_need_program))
            region.enter(internals.intercept_associative_scan(_need_program))
            region.enter(internals.intercept_attention_functions(_need_program))
            region.enter(internals.skip_noop_module_to())
            region.hold(internals.enable_python_dispatcher)
            for root in self._model._state.roots or (nn.Module(),):
                keep_memories_clean(region, root)
        internals.keep_process_state(region)

    def close(self) -> None:
        for half in self._halves:
            half.close()


def _parts(
    model: nn.Module | Callable[..., Any] | Program,
) -> tuple[nn.Module, Callable[..., Any], Sequence[nn.Module]]:
    """The module whose parameters are those of the result, what to call, and all modules that the call reaches."""
    if isinstance(model, Program):
        module: nn.Module = model.module()
        return module, module, (module,)
    if isinstance(model, torch.export.ExportedProgram | torch.jit.ScriptModule) or not callable(model):
        capture(model)  # says what to call instead
    if isinstance(model, nn.Module):
        return model, model, (model,)
    owner = getattr(model, "__self__", None)
    if isinstance(owner, nn.Module):
        return owner, model, (owner,)
    return nn.Module(), model, tuple(_find_modules(model))


def _find_modules(function: Callable[..., Any]) -> list[nn.Module]:
    """The modules that a function closes over or names."""
    try:
        found = inspect.getclosurevars(function)
    except TypeError:  # not a function of Python
        return []
    values = [*found.nonlocals.values(), *found.globals.values()]
    return [value for value in values if isinstance(value, nn.Module)]


def _call_key(leaves: Sequence[Any], tree: pytree.Tree) -> Hashable:
    literals: list[Hashable] = []
    for leaf, path in zip(leaves, pytree.leaf_paths(tree), strict=True):
        if isinstance(leaf, torch.Tensor):
            _check_tensor(leaf, pytree.format_path(path[1:]))
            continue
        key = literal_key(leaf)
        if key is None:
            raise InputError(
                format_error(
                    f"{pytree.format_path(path[1:])} is a {type(leaf).__name__}, which compiled code cannot take.",
                    fix="give tensors, numbers, strings, and containers of them",
                )
            )
        literals.append((path, key))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    casts = tuple((torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICES)
    modes = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype(), casts)
    same = tuple(map(id, tensors))
    again = tuple(same.index(number) for number in same)
    return tuple(literals), repr(tree), types_of(tensors), again, modes


def _check_tensor(tensor: torch.Tensor, name: str) -> None:
    if not internals.is_real(tensor):
        raise InputError(
            format_error(
                f"{name} is a {type(tensor).__name__} without memory of its own.",
                why="compiled code reads memory: it cannot run inside a transform of torch.func or another trace",
                fix="call the model elsewhere, or transform the model before it is compiled",
            )
        )
    if tensor.layout is not torch.strided:
        raise InputError(
            format_error(
                f"{name} has the layout {tensor.layout}, which compiled code cannot take.",
                fix="give a dense tensor: x.to_dense()",
            )
        )


def _need_program(*_: Any, **__: Any) -> Any:
    raise NeedsProgram


def _refuse_function(cls: type) -> None:
    raise UntraceableError(
        format_error(
            f"The autograd.Function {cls.__qualname__} is used in a model that has to be captured before it trains.",
            why="the model also calls an operator that takes functions, and a Program keeps no gradients of its own",
            fix="compile the part with the function and the part with the operator separately",
        )
    )


def _explain(error: Exception) -> CompileError:
    return CompileError(
        format_error(
            "torch's autograd cannot write the gradient of this model.",
            why=f"it raised {type(error).__name__}: {str(error).strip()}",
            fix="check that a loss of the model has a gradient in eager; detach what needs none, or compile "
            "the model without training=True",
        )
    )
