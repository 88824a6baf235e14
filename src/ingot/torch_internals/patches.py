"""Attributes of torch that are others while something runs."""

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

from ingot.torch_internals.modes import recording_paused

# The package has a function of the module's name.
_associative_scan = importlib.import_module("torch._higher_order_ops.associative_scan")
_one_layer_lstm: Callable[..., Any] = _decompositions.one_layer_lstm
TORCH_FOLDER: str = torch.__path__[0]


@contextlib.contextmanager
def mkldnn_off() -> Iterator[None]:
    """Inside, torch does not choose operators that only oneDNN has."""
    old = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(old)


@contextlib.contextmanager
def patched(owner: Any, **replacements: Any) -> Iterator[None]:
    """Inside, attributes of a class or module are others. Afterwards what was inherited is inherited again."""
    own = {name: vars(owner)[name] for name in replacements if name in vars(owner)}
    for name, value in replacements.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name in replacements:
            setattr(owner, name, own[name]) if name in own else delattr(owner, name)


@contextlib.contextmanager
def exporting() -> Iterator[None]:
    """Inside, models that ask whether they are being exported hear yes, as under torch.export."""
    with patched(torch.compiler, _is_compiling_flag=True, _is_exporting_flag=True):
        yield


@contextlib.contextmanager
def failures_unlogged() -> Iterator[None]:
    """Inside, torch logs no traceback when a fake kernel fails; the exception says as much."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True  # another level would make every logger forget what it knows
    try:
        yield
    finally:
        log.disabled = before


@contextlib.contextmanager
def compilation_off() -> Iterator[None]:
    """Inside, functions under torch.compile run as they were written; compiled code would touch the memory of fakes."""

    def leave(model: Any = None, **options: Any) -> Any:
        return model if model is not None else lambda function: function

    # Where torch._dynamo is not imported, nothing is compiled yet, and importing it takes a while.
    eager = "torch._dynamo" in sys.modules
    with (
        patched(torch, compile=leave),
        torch.compiler.set_stance("force_eager") if eager else contextlib.nullcontext(),
    ):
        yield


class MemoryHidden(Exception):
    """A fake tensor was asked where its memory is."""


@contextlib.contextmanager
def memory_hidden() -> Iterator[None]:
    """Inside, asking a fake where its memory is raises MemoryHidden; torch would answer 0, which C code may follow."""
    tensor, storage = torch.Tensor.data_ptr, torch.UntypedStorage.data_ptr

    def tensor_pointer(self: torch.Tensor) -> int:
        if isinstance(self, FakeTensor):
            raise MemoryHidden("data_ptr() of a tensor that has no memory while the model is captured")
        return tensor(self)

    def storage_pointer(self: torch.UntypedStorage) -> int:
        if self.device.type == "meta":
            raise MemoryHidden("data_ptr() of a storage that has no memory while the model is captured")
        return storage(self)

    with patched(torch.Tensor, data_ptr=tensor_pointer), patched(torch.UntypedStorage, data_ptr=storage_pointer):
        yield


@contextlib.contextmanager
def attributes_watched(on_set: Callable[[torch.nn.Module, str], None]) -> Iterator[None]:
    """Inside, every assignment to a module's attribute is reported."""
    original = torch.nn.Module.__setattr__

    def setattr_(self: torch.nn.Module, name: str, value: Any) -> None:
        original(self, name, value)
        on_set(self, name)

    with patched(torch.nn.Module, __setattr__=setattr_):
        yield


@contextlib.contextmanager
def control_flow_called_directly(call: Callable[..., Any]) -> Iterator[None]:
    """Inside, torch.cond, while_loop, scan and map reach their operator through `call(fn, args, kwargs)`.

    Outside a trace torch compiles them first, which loses the user's lines and takes seconds.
    """
    if hasattr(_hop_utils, "_hop_compile_and_call"):
        with patched(_hop_utils, _hop_compile_and_call=call):
            yield
        return
    # Before torch 2.12 every operator calls torch.compile itself, with a backend that this function yields.
    ours, compile_ = object(), torch.compile

    def compile_or_call(model: Any = None, *, backend: Any = None, **options: Any) -> Any:
        if backend is ours:
            return lambda *args, **kwargs: call(model, args, kwargs)
        return compile_(model, **options) if backend is None else compile_(model, backend=backend, **options)

    with (
        patched(_hop_utils, setup_compilation_env=lambda: contextlib.nullcontext(ours)),
        patched(torch, compile=compile_or_call),
    ):
        yield


@contextlib.contextmanager
def associative_scans_called(call: Callable[..., Any]) -> Iterator[None]:
    """Inside, an associative scan that torch would write out as a tree of slices is `call(original, function, xs)`.

    `function` takes the leaves of two places and gives those of one; `original()` is what torch would do.
    """
    original = _associative_scan.generic_associative_scan

    def run(operator: Any, leaves: Any, dim: int = 0, additional_inputs: Any = ()) -> Any:
        mapped = operator.keywords.get("combine_fn") if isinstance(operator, functools.partial) else None
        # While torch exports, vmap leaves no other trace of what it maps.
        function = inspect.getclosurevars(mapped).nonlocals.get("func") if mapped is not None else None
        if function is None or dim or additional_inputs:
            return original(operator, leaves, dim, additional_inputs)
        single = functools.partial(operator.func, **{**operator.keywords, "combine_fn": function})
        return call(lambda: original(operator, leaves, dim, additional_inputs), single, leaves)

    with patched(_associative_scan, generic_associative_scan=run):
        yield


@contextlib.contextmanager
def kernels_chosen_quietly(env: ShapeEnv) -> Iterator[None]:
    """Inside, a convolution that picks its kernel by batch size does not make that size part of the trace.

    The choice decides about strides, which a program leaves to the kernels, and never about shapes.
    """
    choose = torch._C._select_conv_backend

    def choose_quietly(*args: Any, **kwargs: Any) -> Any:
        with env.suppress_guards():
            return choose(*args, **kwargs)

    with patched(torch._C, _select_conv_backend=choose_quietly):
        yield


@contextlib.contextmanager
def autocast_watched(on_enter: Callable[..., None], on_exit: Callable[[], None]) -> Iterator[None]:
    """Inside, every autocast context, the user's or a graph's own, reports its settings when it opens and closes."""
    cls = torch.amp.autocast_mode.autocast
    enter, leave = cls.__enter__, cls.__exit__

    def watched_enter(self: Any) -> Any:
        out = enter(self)
        on_enter(self.device, self.fast_dtype, self._enabled, self._cache_enabled)
        return out

    def watched_exit(self: Any, *exception: Any) -> Any:
        out = leave(self, *exception)
        on_exit()
        return out

    with patched(cls, __enter__=watched_enter, __exit__=watched_exit):
        yield


@contextlib.contextmanager
def checks_watched(
    with_message: Callable[[Callable[[], Any] | None], contextlib.AbstractContextManager[None]],
) -> Iterator[None]:
    """Inside, torch._check and its variants run in `with_message(message)` where the run decides about the condition.

    torch._assert is one of them: as written, it would ask for the condition's value.
    """
    check_with: Callable[..., None] = torch._check_with
    assert_: Callable[..., None] = torch._assert

    def check(error: type[Exception], condition: Any, message: Callable[[], Any] | None) -> None:
        if not isinstance(condition, torch.SymBool):
            return check_with(error, condition, message)
        with with_message(message):
            return check_with(error, condition, message)

    def check_assertion(condition: Any, message: Any) -> None:
        value = condition.item() if isinstance(condition, torch.Tensor) else condition
        if isinstance(value, torch.SymInt | torch.SymFloat):
            value = value != 0
        if isinstance(value, torch.SymBool):
            return check(AssertionError, value, lambda: message)
        return assert_(value, message)

    with patched(torch, _check_with=check, _assert=check_assertion):
        yield


@contextlib.contextmanager
def idle_conversions_skipped() -> Iterator[None]:
    """Inside, `module.to(dtype)` that changes nothing does nothing; torch would swap fakes, which it cannot."""
    original = torch.nn.Module._apply

    def apply(self: torch.nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        tensors = [*self.parameters(recurse), *self.buffers(recurse)]
        with recording_paused():
            idle = all(fn(tensor) is tensor for tensor in tensors)
        return self if idle else original(self, fn, recurse)

    with patched(torch.nn.Module, _apply=apply):
        yield


@contextlib.contextmanager
def flex_attention_called_directly() -> Iterator[None]:
    """Inside, flex_attention reaches its operator without compiling itself first."""
    reads = sys.modules.get("torch._dynamo._trace_wrapped_higher_order_op")
    with contextlib.ExitStack() as stack:
        # torch's own kernel has no backward on the CPU and refuses what asks for gradients; ours has one.
        named = {"_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG": True, "_validate_device": lambda *_: None}
        stack.enter_context(patched(_flex, **named))
        if reads is not None:  # a mask's function that reads a table; torch would write its own node for that
            stack.enter_context(patched(reads, mod_index=torch.ops.aten.index.Tensor))
        yield


@contextlib.contextmanager
def outside_of_compilation() -> Iterator[None]:
    """Inside, nothing sees that torch.compile is at work: its fake tensors and its symbols are not ours."""
    with torch._guards.tracing(None), unset_fake_temporarily():
        yield


def default_decompositions() -> dict[Any, Callable[..., Any]]:
    """torch's table from operators to functions that compute the same with smaller ones.

    To make it, torch asks the dispatcher for all operators once for each namespace there is; here it is asked once.
    """
    _export_utils._materialize_cpp_cia_ops()
    with patched(_export_utils, _materialize_cpp_cia_ops=lambda: None):
        table = dict(torch.export.default_decompositions())
    lstm = torch.ops.aten.lstm.input
    return {**table, lstm: _with_flat_states(table[lstm])} if lstm in table else table


def _with_flat_states(decompose: Callable[..., Any]) -> Callable[..., Any]:
    """torch's decomposition of lstm, with last states of rank 2: before torch 2.13 those of a larger batch have 3."""

    @functools.wraps(decompose)
    def run(*args: Any, **kwargs: Any) -> Any:
        with patched(_decompositions, one_layer_lstm=layer):
            return decompose(*args, **kwargs)

    def layer(*args: Any, **kwargs: Any) -> Any:
        out, states = _one_layer_lstm(*args, **kwargs)
        return out, tuple(state if state.dim() == 2 else state.squeeze(0) for state in states)

    return run
