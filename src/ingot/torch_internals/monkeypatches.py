"""Context managers that temporarily monkey-patch torch, on the current thread only."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._decomp import decompositions as _decompositions
from torch._export import utils as _export_utils
from torch._higher_order_ops import utils as _hop_utils
from torch._subclasses.fake_tensor import (
    FakeTensor,
    unset_fake_temporarily,
)
from torch.fx.experimental.symbolic_shapes import (
    ShapeEnv,
)
from torch.nn.attention import flex_attention as _flex

from ingot.torch_internals.isolation import Patches, Shared, ThreadFlag
from ingot.torch_internals.modes import pause_recording

# The package has a function of the module's name.
_associative_scan = importlib.import_module("torch._higher_order_ops.associative_scan")
TORCH_FOLDER: str = torch.__path__[0]


def disable_mkldnn() -> Patches:
    """Inside, torch's decompositions do not choose operators that only oneDNN has."""
    return Patches((torch._C, "_get_mkldnn_enabled", lambda _: lambda: False))


@contextlib.contextmanager
def patch_attributes(owner: Any, **replacements: Any) -> Iterator[None]:
    """Inside, attributes of an object that this thread alone has are others. Afterwards what was inherited is again."""
    own = {name: vars(owner)[name] for name in replacements if name in vars(owner)}
    for name, value in replacements.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name in replacements:
            setattr(owner, name, own[name]) if name in own else delattr(owner, name)


def exporting() -> Patches:
    """Inside, models that ask whether they are being exported hear yes, as under torch.export.

    The functions that answer get other code, and stay what they are: models import them by name.
    """
    return Patches(*((question, "__code__", Shared(answer.__code__)) for question, answer in _ANSWERS))


# These run in torch.compiler, in the place of functions there: they see its names.
def _is_compiling() -> bool:
    from ingot.torch_internals.isolation import is_patched_here

    return is_patched_here(torch.compiler.is_compiling, "__code__") or torch.compiler._is_compiling_flag


def _is_exporting() -> bool:
    from ingot.torch_internals.isolation import is_patched_here

    return is_patched_here(torch.compiler.is_exporting, "__code__") or torch.compiler._is_exporting_flag


_ANSWERS = ((torch.compiler.is_compiling, _is_compiling), (torch.compiler.is_exporting, _is_exporting))


def silence_fake_tensor_logs() -> Patches:
    """Inside, torch logs no traceback when a fake kernel fails; the exception says as much."""
    # Another level would make every logger forget what it knows.
    log = logging.getLogger("torch._subclasses.fake_tensor")
    return Patches((log, "isEnabledFor", lambda _: lambda level: False))


def disable_torch_compile() -> Patches:
    """Inside, functions under torch.compile run as they were written; compiled code would touch the memory of fakes."""

    def leave(model: Any = None, **options: Any) -> Any:
        return model if model is not None else lambda function: function

    # Where torch._dynamo is not imported, nothing is compiled yet, and importing it takes a while.
    frames = sys.modules.get("torch._dynamo.eval_frame")
    eager = [(frames, "_callback_from_stance", lambda _: lambda callback: None)] if frames is not None else []
    return Patches((torch, "compile", lambda _: leave), *eager)


class MemoryHidden(Exception):
    """A fake tensor was asked where its memory is."""


def forbid_data_ptr() -> Patches:
    """Inside, asking a fake where its memory is raises MemoryHidden; torch would answer 0, which C code may follow."""

    def wrap_tensor(original: Callable[[Any], int]) -> Callable[[Any], int]:
        def pointer(self: torch.Tensor) -> int:
            if isinstance(self, FakeTensor):
                raise MemoryHidden("data_ptr() of a tensor that has no memory while the model is captured")
            return original(self)

        return pointer

    def wrap_storage(original: Callable[[Any], int]) -> Callable[[Any], int]:
        def pointer(self: torch.UntypedStorage) -> int:
            if self.device.type == "meta":
                raise MemoryHidden("data_ptr() of a storage that has no memory while the model is captured")
            return original(self)

        return pointer

    return Patches((torch.Tensor, "data_ptr", wrap_tensor), (torch.UntypedStorage, "data_ptr", wrap_storage))


def on_module_setattr(on_set: Callable[[torch.nn.Module, str], None]) -> Patches:
    """Inside, every assignment to a module's attribute is reported."""

    def wrap_setattr(original: Callable[..., None]) -> Callable[..., None]:
        def setattr_(self: torch.nn.Module, name: str, value: Any) -> None:
            original(self, name, value)
            on_set(self, name)

        return setattr_

    return Patches((torch.nn.Module, "__setattr__", wrap_setattr))


def intercept_control_flow(call: Callable[..., Any]) -> Patches:
    """Inside, torch.cond, while_loop, scan and map reach their operator through `call(fn, args, kwargs)`.

    Outside a trace torch compiles them first, which loses the user's lines and takes seconds.
    """
    if hasattr(_hop_utils, "_hop_compile_and_call"):
        return Patches((_hop_utils, "_hop_compile_and_call", lambda _: call))
    # Before torch 2.12 every operator calls torch.compile itself, with a backend that this function yields.
    ours = object()

    def compile_or_call(compile_: Callable[..., Any]) -> Callable[..., Any]:
        def run(model: Any = None, *, backend: Any = None, **options: Any) -> Any:
            if backend is ours:
                return lambda *args, **kwargs: call(model, args, kwargs)
            return compile_(model, **options) if backend is None else compile_(model, backend=backend, **options)

        return run

    return Patches(
        (_hop_utils, "setup_compilation_env", lambda _: lambda: contextlib.nullcontext(ours)),
        (torch, "compile", compile_or_call),
    )


def intercept_associative_scan(call: Callable[..., Any]) -> Patches:
    """Inside, an associative scan that torch would write out as a tree of slices is `call(original, function, xs)`.

    `function` takes the leaves of two elements and returns those of one; `original()` is what torch would do.
    """

    def direct(original: Callable[..., Any]) -> Callable[..., Any]:
        def run(operator: Any, leaves: Any, dim: int = 0, additional_inputs: Any = ()) -> Any:
            mapped = operator.keywords.get("combine_fn") if isinstance(operator, functools.partial) else None
            # While torch exports, vmap leaves no other trace of what it maps.
            function = inspect.getclosurevars(mapped).nonlocals.get("func") if mapped is not None else None
            if function is None or dim or additional_inputs:
                return original(operator, leaves, dim, additional_inputs)
            single = functools.partial(operator.func, **{**operator.keywords, "combine_fn": function})
            return call(lambda: original(operator, leaves, dim, additional_inputs), single, leaves)

        return run

    return Patches((_associative_scan, "generic_associative_scan", direct))


def suppress_conv_backend_guards(env: ShapeEnv) -> Patches:
    """Inside, a convolution that picks its kernel by batch size does not make that size part of the trace.

    The choice decides about strides, which a program leaves to the kernels, and never about shapes.
    """

    def quiet(choose: Callable[..., Any]) -> Callable[..., Any]:
        def choose_quietly(*args: Any, **kwargs: Any) -> Any:
            with env.suppress_guards():
                return choose(*args, **kwargs)

        return choose_quietly

    return Patches((torch._C, "_select_conv_backend", quiet))


def on_autocast_switch(on_enter: Callable[..., None], on_exit: Callable[[], None]) -> Patches:
    """Inside, every autocast context, the user's or a graph's own, reports its settings when it opens and closes."""

    def entering(enter: Callable[..., Any]) -> Callable[..., Any]:
        def watched_enter(self: Any) -> Any:
            out = enter(self)
            on_enter(self.device, self.fast_dtype, self._enabled, self._cache_enabled)
            return out

        return watched_enter

    def leaving(leave: Callable[..., Any]) -> Callable[..., Any]:
        def watched_exit(self: Any, *exception: Any) -> Any:
            out = leave(self, *exception)
            on_exit()
            return out

        return watched_exit

    cls = torch.amp.autocast_mode.autocast
    return Patches((cls, "__enter__", entering), (cls, "__exit__", leaving))


def watch_checks(
    with_message: Callable[[Callable[[], Any] | None], contextlib.AbstractContextManager[None]],
) -> Patches:
    """Inside, torch._check and its variants run in `with_message(message)` where the run decides about the condition.

    torch._assert is one of them: as written, it would read the condition's value.
    """

    def checking(check_with: Callable[..., None]) -> Callable[..., None]:
        def check(error: type[Exception], condition: Any, message: Callable[[], Any] | None) -> None:
            if not isinstance(condition, torch.SymBool):
                return check_with(error, condition, message)
            with with_message(message):
                return check_with(error, condition, message)

        return check

    def asserting(assert_: Callable[..., None]) -> Callable[..., None]:
        def check_assertion(condition: Any, message: Any) -> None:
            value = condition.item() if isinstance(condition, torch.Tensor) else condition
            if isinstance(value, torch.SymInt | torch.SymFloat):
                value = value != 0
            if isinstance(value, torch.SymBool):
                check: Callable[..., None] = torch._check_with
                return check(AssertionError, value, lambda: message)
            return assert_(value, message)

        return check_assertion

    return Patches((torch, "_check_with", checking), (torch, "_assert", asserting))


def skip_noop_module_to() -> Patches:
    """Inside, `module.to(dtype)` that changes nothing does nothing; torch would swap fakes, which it cannot."""

    def skipping(original: Callable[..., Any]) -> Callable[..., Any]:
        def apply(self: torch.nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
            tensors = [*self.parameters(recurse), *self.buffers(recurse)]
            with pause_recording():
                idle = all(fn(tensor) is tensor for tensor in tensors)
            return self if idle else original(self, fn, recurse)

        return apply

    return Patches((torch.nn.Module, "_apply", skipping))


def call_flex_attention_directly() -> Patches:
    """Inside, flex_attention reaches its operator without compiling itself first."""
    reads = sys.modules.get("torch._dynamo._trace_wrapped_higher_order_op")
    name = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
    return Patches(
        (_flex, name, Shared(ThreadFlag(_flex, name))),
        # torch's own kernel has no backward on the CPU and rejects what requires gradients; ours has one.
        (_flex, "_validate_device", lambda _: lambda *_: None),
        # A mask's function that reads a table: torch would write its own node for that.
        *([(reads, "mod_index", lambda _: torch.ops.aten.index.Tensor)] if reads is not None else []),
    )


@contextlib.contextmanager
def detach_from_dynamo() -> Iterator[None]:
    """Inside, nothing sees that torch.compile is at work: its fake tensors and its symbols are not ours."""
    with torch._guards.tracing(None), unset_fake_temporarily():
        yield


def default_decompositions() -> dict[Any, Callable[..., Any]]:
    """torch's table from operators to functions that compute the same with smaller ones.

    To make it, torch asks the dispatcher for all operators once for each namespace there is; here it is asked once.
    """
    _export_utils._materialize_cpp_cia_ops()
    with Patches((_export_utils, "_materialize_cpp_cia_ops", lambda _: lambda: None)):
        table = dict(torch.export.default_decompositions())
    lstm = torch.ops.aten.lstm.input
    return {**table, lstm: _flatten_states(table[lstm])} if lstm in table else table


def _flatten_states(decompose: Callable[..., Any]) -> Callable[..., Any]:
    """torch's decomposition of lstm, with last states of rank 2: before torch 2.13 those of a larger batch have 3."""

    @functools.wraps(decompose)
    def run(*args: Any, **kwargs: Any) -> Any:
        with Patches((_decompositions, "one_layer_lstm", flat)):
            return decompose(*args, **kwargs)

    def flat(original: Callable[..., Any]) -> Callable[..., Any]:
        def layer(*args: Any, **kwargs: Any) -> Any:
            out, states = original(*args, **kwargs)
            return out, tuple(state if state.dim() == 2 else state.squeeze(0) for state in states)

        return layer

    return run
