"""Every non-public torch name that Ingot leans on enters here, so that a new torch release is one file's work.

Public names (torch.fx, torch.ops, torch.export, FX graphs, ATen) are imported where they are used.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import _decomp
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import Source as GuardSource
from torch._higher_order_ops import utils as _hop_utils
from torch._library import simple_registry as _simple_registry
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket, _higher_order_ops, _OpNamespace
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
    unset_fake_temporarily,
)
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.fx._lazy_graph_module import _LazyGraphModule as LazyGraphModule
from torch.fx.experimental import symbolic_shapes as _symbolic_shapes
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode, disable_proxy_modes_tracing
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import (
    CallMethodKey,
    ConvertIntKey,
    DimDynamic,
    DivideByKey,
    GuardOnDataDependentSymNode,
    ShapeEnv,
    ShapeGuard,
    SLoc,
    StrictMinMaxConstraint,
    compute_unbacked_bindings,
    free_unbacked_symbols,
)
from torch.nn.attention import flex_attention as _flex
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._sympy import functions as sympy_functions
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.symbol import SymT, symbol_is_type
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy
from torch.utils._traceback import CapturedTraceback

TORCH_FOLDER: str = torch.__path__[0]

enter_autocast: Callable[..., Any] = torch.amp.autocast_mode._enter_autocast
exit_autocast: Callable[..., None] = torch.amp.autocast_mode._exit_autocast
set_grad_enabled: Callable[[bool], None] = torch._C._set_grad_enabled
below_autograd: Callable[[], contextlib.AbstractContextManager[None]] = torch._C._AutoDispatchBelowAutograd
without_dispatch: Callable[[], contextlib.AbstractContextManager[None]] = torch._C._DisableTorchDispatch

sym_sqrt: Callable[..., Any] = torch._sym_sqrt  # type: ignore[attr-defined]
sym_log2: Callable[..., Any] = torch._sym_log2  # type: ignore[attr-defined]

# The higher-order operator that stands in the graph where a preserved module's call begins and ends.
tracepoint: HigherOrderOperator = torch.ops.higher_order._export_tracepoint


class DispatchMode(TorchDispatchMode):
    """torch's own, with annotations."""

    def __init__(self) -> None:
        super().__init__()


class RecordingMode(ProxyTorchDispatchMode):
    """A dispatch mode that sees every ATen call before autocast and autograd do.

    torch lets only its own proxy mode sit at that place, so ours is one; none of the proxy's machinery is used.
    """

    def __init__(self) -> None:
        super().__init__(None, "fake", pre_dispatch=True)  # type: ignore[arg-type]
        # torch wraps a mode's __torch_dispatch__ in a guard against being compiled, which costs more than our own work.
        bare = getattr(type(self).__torch_dispatch__, "__wrapped__", None)
        if bare is not None:
            self.__torch_dispatch__ = bare.__get__(self)  # type: ignore[method-assign]

    def __sym_dispatch__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return func(*args, **kwargs)  # arithmetic on sizes is written down where a size is used


class WatchedShapeEnv(ShapeEnv):
    """A shape environment that reports every symbolic expression whose value is asked for.

    Where `may_be_idle()`, `is_idle(expr, value)` says of a question whether the trace does not hang on the answer: then
    it is answered, and nothing is made of it. Callbacks return before torch evaluates, so that none of their frames
    stands between torch and the user's.
    """

    def __init__(
        self,
        on_evaluate: Callable[[sympy.Basic, sympy.Basic], None],
        may_be_idle: Callable[[], bool],
        is_idle: Callable[[sympy.Basic, sympy.Basic], bool],
    ) -> None:
        # trace_asserts: an assert statement on a value known only at run time becomes an assertion in the graph.
        super().__init__(duck_shape=False, specialize_zero_one=False, trace_asserts=True)
        self._on_evaluate = on_evaluate
        self._may_be_idle = may_be_idle
        self._is_idle = is_idle
        self.idle_answers: dict[sympy.Basic, sympy.Basic] = {}

    def evaluate_expr(self, orig_expr: sympy.Basic, *args: Any, **kwargs: Any) -> sympy.Basic:
        symbols = orig_expr.free_symbols
        if not symbols:
            return ShapeEnv.evaluate_expr(self, orig_expr, *args, **kwargs)
        if self._may_be_idle() and not any(is_unbacked(symbol) for symbol in symbols):
            if orig_expr in self.idle_answers:
                return self.idle_answers[orig_expr]
            with self.suppress_guards():
                value = ShapeEnv.evaluate_expr(self, orig_expr, *args, **kwargs)
            if self._is_idle(orig_expr, value):
                return value
        value = ShapeEnv.evaluate_expr(self, orig_expr, *args, **kwargs)
        self._on_evaluate(orig_expr, value)
        return value

    # torch looks for the user's frame by file name, to see whether it stands at an assert: this is not that frame.
    evaluate_expr.__code__ = evaluate_expr.__code__.replace(co_filename=_symbolic_shapes.__file__)

    def _generate_unique_id(self, source_name: str) -> Any:
        # torch numbers its symbols by a hash of where they come from; ours carry the dim's name, so that they can be
        # read and are the same in every process.
        return f"_{source_name}"


class NamedSource(GuardSource):
    """Where a symbol comes from, for torch's own messages: the user's argument and dim."""

    def __init__(self, text: str) -> None:
        object.__setattr__(self, "text", text)

    @property
    def _name_template(self) -> str:
        return str(self.text)  # type: ignore[attr-defined]

    @property
    def name(self) -> str:
        return str(self.text)  # type: ignore[attr-defined]

    @property
    def guard_source(self) -> Any:
        from torch._guards import GuardSource as Kind

        return Kind.CONSTANT

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NamedSource) and self.name == other.name


def new_symbol(env: ShapeEnv, name: str, hint: int, low: int, high: int | None) -> sympy.Symbol:
    """A size symbol with its range; `high` None is no bound."""
    ranged = ValueRanges(low, int_oo if high is None else high)
    symbol = env.create_symbol(
        hint,
        NamedSource(name),
        dynamic_dim=DimDynamic.DYNAMIC,
        constraint_dim=StrictMinMaxConstraint(vr=ranged, warn_only=False),
        positive=True if low > 0 else None,
        do_not_specialize_zero_one=True,
    )
    assert isinstance(symbol, sympy.Symbol)
    return symbol


def symint(env: ShapeEnv, expr: sympy.Expr) -> int | torch.SymInt:
    """The SymInt of an expression, or the int where it is one."""
    if expr.is_number:
        return int(expr)
    out: int | torch.SymInt = env.create_symintnode(expr, hint=None)
    return out


def may_be_negative(value: torch.SymInt, symbol: sympy.Symbol) -> bool:
    """Whether a symbol of this number is one that only the run tells, and nothing says that it is 0 or more."""
    if not symbol_is_type(symbol, SymT.UNBACKED_INT):
        return False
    known = value.node.shape_env.var_to_range.get(symbol)
    return known is None or bool(known.lower < 0)


def symbolic_value(env: ShapeEnv, expr: sympy.Basic) -> Any:
    """The SymInt, SymFloat or SymBool of an expression."""
    if expr.is_number or expr in (sympy.true, sympy.false):
        return bool(expr) if expr in (sympy.true, sympy.false) else (int(expr) if expr.is_integer else float(expr))
    if isinstance(expr, sympy.logic.boolalg.Boolean) and not isinstance(expr, sympy.Symbol):  # which is one too
        return env.create_symboolnode(expr)
    if expr.is_integer:
        return env.create_symintnode(expr, hint=None)
    return env.create_symfloatnode(expr, hint=None)


def expr_of(value: Any) -> sympy.Expr:
    """The expression behind a SymInt, SymFloat or SymBool, or of a plain number."""
    if is_symbolic(value):
        return value.node.expr
    if isinstance(value, bool):
        return sympy.true if value else sympy.false
    return sympy.sympify(value)


def is_symbolic(value: Any) -> bool:
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def is_unbacked(symbol: sympy.Symbol) -> bool:
    return bool(free_unbacked_symbols(symbol))


def fake_dense(mode: FakeTensorMode, like: torch.Tensor, requires_grad: bool) -> FakeTensor:
    """The fake of a plain strided tensor, without the general converter's checks (ten times faster)."""
    with without_dispatch():
        meta = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="meta")
    fake = FakeTensor(mode, meta, like.device)
    if requires_grad:
        fake.requires_grad_(True)
    return fake


def fake_sized(mode: FakeTensorMode, like: torch.Tensor, sizes: Sequence[Any], strides: Sequence[Any]) -> FakeTensor:
    """A fake like `like`, with symbolic sizes and strides."""
    with mode:
        fake = torch.empty_strided(list(sizes), list(strides), dtype=like.dtype, device=like.device)
    assert isinstance(fake, FakeTensor)
    if like.requires_grad:
        fake.requires_grad_(True)
    return fake


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether `fake_dense` may stand for it: strided, no subclass, no conjugate or negative bit."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        and tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor.is_nested
    )


def registered_container(cls: type) -> Any:
    """torch's pytree rule for a class, or None."""
    return None if cls in _dataclasses_registered_here else _pytree.SUPPORTED_NODES.get(cls)


def container_dumps(cls: type, context: Any) -> Any:
    """A registered container's context as JSON text, or None where its class registered no way to write it."""
    rule = _pytree.SUPPORTED_SERIALIZED_TYPES.get(_pytree.SUPPORTED_NODES[cls] and cls)
    if rule is None or rule.to_dumpable_context is None:
        return None
    return rule.to_dumpable_context(context)


def container_loads(cls: type, dumped: Any) -> Any:
    rule = _pytree.SUPPORTED_SERIALIZED_TYPES.get(cls)
    return dumped if rule is None or rule.from_dumpable_context is None else rule.from_dumpable_context(dumped)


def higher_order_operators() -> dict[str, HigherOrderOperator]:
    return dict(_higher_order_ops)


def has_rule(operator: HigherOrderOperator, mode: type) -> bool:
    return mode in operator.python_key_table


def ignore_fresh_symbols(env: ShapeEnv) -> contextlib.AbstractContextManager[None]:
    return env.ignore_fresh_unbacked_symbols()


def pending_symbols(env: ShapeEnv) -> list[sympy.Symbol]:
    return env.pending_fresh_unbacked_symbols


@contextlib.contextmanager
def mkldnn_off() -> Iterator[None]:
    """Inside, torch does not choose operators that only oneDNN has."""
    old = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(old)


def rename_symbol(env: ShapeEnv, fresh: sympy.Symbol, known: sympy.Symbol) -> None:
    """From now on a symbol that a run just made is another name of a known one, with all that is known of that."""
    env._rename_unbacked_to(fresh, known)


@contextlib.contextmanager
def nothing_learned(env: ShapeEnv | None) -> Iterator[None]:
    """Inside, calls on fakes add no guard, no assertion and no pending symbol to the environment."""
    if env is None:
        yield
        return
    with env.suppress_guards(), env.ignore_fresh_unbacked_symbols():
        yield


def surely_equal(env: ShapeEnv | None, a: sympy.Basic, b: sympy.Basic) -> bool:
    """Whether two sizes are the same number, by all that the environment knows of their symbols."""
    if env is None or a == b:
        return bool(a == b)
    a, b = env.simplify(a), env.simplify(b)
    if isinstance(a, sympy.logic.boolalg.Boolean) or isinstance(b, sympy.logic.boolalg.Boolean):
        # 2 <= n and n >= 2 are two expressions to sympy.
        return bool(_with_canonical_relations(a) == _with_canonical_relations(b))
    return bool(a == b or env._maybe_evaluate_static(sympy.Eq(a, b)) == sympy.true)


def _with_canonical_relations(expr: sympy.Basic) -> sympy.Basic:
    return expr.replace(lambda e: isinstance(e, sympy.core.relational.Relational), lambda e: e.canonical)


@contextlib.contextmanager
def _patched(owner: Any, **replacements: Any) -> Iterator[None]:
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
    with _patched(torch.compiler, _is_compiling_flag=True, _is_exporting_flag=True):
        yield


@contextlib.contextmanager
def failures_unlogged() -> Iterator[None]:
    """Inside, torch logs no traceback when a fake kernel fails; the exception says as much."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


@contextlib.contextmanager
def compilation_off() -> Iterator[None]:
    """Inside, functions under torch.compile run as they were written; compiled code would touch the memory of fakes."""

    def leave(model: Any = None, **options: Any) -> Any:
        return model if model is not None else lambda function: function

    # Where torch._dynamo is not imported, nothing is compiled yet, and importing it takes a while.
    eager = "torch._dynamo" in sys.modules
    with (
        _patched(torch, compile=leave),
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

    with _patched(torch.Tensor, data_ptr=tensor_pointer), _patched(torch.UntypedStorage, data_ptr=storage_pointer):
        yield


@contextlib.contextmanager
def attributes_watched(on_set: Callable[[torch.nn.Module, str], None]) -> Iterator[None]:
    """Inside, every assignment to a module's attribute is reported."""
    original = torch.nn.Module.__setattr__

    def setattr_(self: torch.nn.Module, name: str, value: Any) -> None:
        original(self, name, value)
        on_set(self, name)

    with _patched(torch.nn.Module, __setattr__=setattr_):
        yield


@contextlib.contextmanager
def control_flow_called_directly(call: Callable[..., Any]) -> Iterator[None]:
    """Inside, torch.cond, while_loop, scan and map reach their operator through `call(fn, args, kwargs)`.

    Outside of a trace torch compiles them first, which loses the user's lines and takes seconds.
    """
    with _patched(_hop_utils, _hop_compile_and_call=call):
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

    with _patched(torch._C, _select_conv_backend=choose_quietly):
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

    with _patched(cls, __enter__=watched_enter, __exit__=watched_exit):
        yield


@contextlib.contextmanager
def python_calls_dispatched() -> Iterator[None]:
    """Inside, calls that torch would answer without its dispatcher reach it all the same.

    torch.tensor takes symbolic numbers and tensors, which torch's own parser would ask for their values; so would
    torch._assert of a tensor. x.contiguous() is a call even where the fake x is contiguous already: the real one need
    not be, since kernels choose strides of their own.
    """
    original, original_assert = torch.tensor, torch._assert

    def tensor(data: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not _holds_symbol(data):
            return original(data, *args, **kwargs)
        dtype = kwargs.get("dtype") or _dtype_of(data)
        made = _stack(data, dtype, kwargs.get("device"))
        return made.detach().requires_grad_() if kwargs.get("requires_grad") else made

    def contiguous(self: torch.Tensor, memory_format: torch.memory_format = torch.contiguous_format) -> torch.Tensor:
        return torch.ops.aten.contiguous.default(self, memory_format=memory_format)

    def assert_(condition: Any, message: str) -> None:
        if isinstance(condition, torch.Tensor):
            torch.ops.aten._assert_async.msg(condition, message)
        else:
            original_assert(condition, message)

    with _patched(torch, tensor=tensor, _assert=assert_), _patched(torch.Tensor, contiguous=contiguous):
        yield


class TracedTensor(FakeTensor):
    """A fake whose indices may be symbolic numbers and 0-d tensors, which torch's own indexing asks for their values.

    Only a class of its own can have an indexing of its own: put into torch.Tensor for a while, a __getitem__ leaves a
    slot behind that makes every 0-d tensor pass for a sequence from then on.
    """

    def __getitem__(self, index: Any) -> Any:
        tensor: torch.Tensor = self
        if _index_is_mapped(index):
            return torch.ops.aten.index.Tensor(self, list(index) if isinstance(index, tuple) else [index])
        if _index_is_symbolic(index):
            tensor, index = _index_symbols(self, index)
        return torch.Tensor.__getitem__(tensor, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        tensor: torch.Tensor = self
        if _index_is_symbolic(index):
            tensor, index = _index_symbols(self, index)
        torch.Tensor.__setitem__(tensor, index, value)


@contextlib.contextmanager
def read_by(read: Callable[[torch.Tensor, Any], Any]) -> Iterator[None]:
    """Inside, `read` answers for the indexing of traced tensors."""
    with _patched(TracedTensor, __getitem__=read):
        yield


def traced(tensor: torch.Tensor) -> None:
    """From now on a fake takes symbolic indices."""
    if type(tensor) is FakeTensor:
        tensor.__class__ = TracedTensor


def untraced(tensor: torch.Tensor) -> None:
    """From now on a fake is like any other again."""
    if type(tensor) is TracedTensor:
        object.__setattr__(tensor, "__class__", FakeTensor)


def _index_is_symbolic(index: Any) -> bool:
    """Whether an index holds a number that torch's own indexing would turn into a constant."""
    for item in index if isinstance(index, tuple) else (index,):
        if isinstance(item, list | tuple) and _holds_symbol(item):
            return True
        parts = (item.start, item.stop, item.step) if isinstance(item, slice) else (item,)
        for part in parts:
            if is_symbolic(part):
                return True
            if isinstance(part, FakeTensor) and part.dim() == 0 and _is_integer(part):
                return True
    return False


def _index_is_mapped(index: Any) -> bool:
    """Whether an index is made of tensors, one of which vmap runs over: nobody can be asked for its value."""
    items = index if isinstance(index, tuple) else (index,)
    return all(isinstance(item, torch.Tensor) for item in items) and any(
        map(torch._C._functorch.is_batchedtensor, items)
    )


def _is_integer(tensor: torch.Tensor) -> bool:
    return tensor.dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def _index_symbols(tensor: torch.Tensor, index: Any) -> tuple[torch.Tensor, tuple[Any, ...]]:
    """A view of `tensor` in which the symbolic parts of `index` are done, and the index that is left to do."""
    items = list(index) if isinstance(index, tuple) else [index]
    taken = sum(0 if item is None or item is Ellipsis else item.dim() if _is_mask(item) else 1 for item in items)
    rest: list[Any] = []
    dim = 0
    for item in items:
        if item is Ellipsis:
            rest.extend([slice(None)] * (tensor.dim() - taken))
            dim += tensor.dim() - taken
            continue
        if item is None:
            rest.append(None)
            continue
        if isinstance(item, slice) and _index_is_symbolic(item):
            start, stop, step = (_number(part) for part in (item.start, item.stop, item.step))
            tensor = torch.ops.aten.slice.Tensor(tensor, dim, start, stop, 1 if step is None else step)
            item = slice(None)
        elif isinstance(item, list | tuple):
            item = torch.tensor(item)
        elif not isinstance(item, slice) and _index_is_symbolic(item):
            tensor = torch.ops.aten.select.int(tensor, dim, _number(item)).unsqueeze(dim)
            item = 0
        rest.append(item)
        dim += item.dim() if _is_mask(item) else 1
    return tensor, tuple(rest)


def _is_mask(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and item.dtype is torch.bool


def _number(part: Any) -> Any:
    return part.item() if isinstance(part, torch.Tensor) else part


def _holds_symbol(data: Any) -> bool:
    if isinstance(data, list | tuple):
        return any(map(_holds_symbol, data)) or any(isinstance(item, FakeTensor) for item in data)
    return is_symbolic(data)


def _dtype_of(data: Any) -> torch.dtype:
    def kind(leaf: Any) -> torch.dtype:
        if isinstance(leaf, torch.Tensor):
            return leaf.dtype
        if isinstance(leaf, bool | torch.SymBool):
            return torch.bool
        return torch.get_default_dtype() if isinstance(leaf, float | torch.SymFloat) else torch.int64

    return functools.reduce(torch.promote_types, map(kind, _pytree.tree_leaves(data)))


def _stack(data: Any, dtype: torch.dtype, device: Any) -> torch.Tensor:
    if isinstance(data, list | tuple):
        return torch.stack([_stack(item, dtype, device) for item in data])
    if isinstance(data, torch.Tensor):
        return data.detach().to(device, dtype)
    return torch.scalar_tensor(data, dtype=dtype, device=device)


@contextlib.contextmanager
def idle_conversions_skipped() -> Iterator[None]:
    """Inside, `module.to(dtype)` that changes nothing does nothing; torch would swap fakes, which it cannot."""
    original = torch.nn.Module._apply

    def apply(self: torch.nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        tensors = [*self.parameters(recurse), *self.buffers(recurse)]
        with recording_paused():
            idle = all(fn(tensor) is tensor for tensor in tensors)
        return self if idle else original(self, fn, recurse)

    with _patched(torch.nn.Module, _apply=apply):
        yield


def recording_paused() -> contextlib.AbstractContextManager[Any]:
    """Inside, the RecordingMode that is active sees nothing."""
    return disable_proxy_modes_tracing()


def autocasts_in_force() -> list[tuple[str, torch.dtype, bool, bool]]:
    """The settings of the autocast contexts around the caller, as `enter_autocast` takes them."""
    cache = torch.is_autocast_cache_enabled()
    devices = [device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)]
    return [(device, torch.get_autocast_dtype(device), True, cache) for device in devices]


class grad_mode:
    """torch.set_grad_enabled that takes effect on entering, not on being made."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled

    def __enter__(self) -> None:
        self._saved = torch.is_grad_enabled()
        set_grad_enabled(self._enabled)

    def __exit__(self, *exception: object) -> None:
        set_grad_enabled(self._saved)


@contextlib.contextmanager
def flex_attention_called_directly() -> Iterator[None]:
    """Inside, flex_attention reaches its operator without compiling itself first."""
    reads = sys.modules.get("torch._dynamo._trace_wrapped_higher_order_op")
    with contextlib.ExitStack() as stack:
        stack.enter_context(_patched(_flex, _FLEX_ATTENTION_DISABLE_COMPILE_DEBUG=True))
        if reads is not None:  # a mask's function that reads a table; torch would write its own node for that
            stack.enter_context(_patched(reads, mod_index=torch.ops.aten.index.Tensor))
        yield


@contextlib.contextmanager
def modes_restored() -> Iterator[None]:
    """Afterwards grad mode and autocast are as they were, even if a graph's switches were left half done."""
    grad = torch.is_grad_enabled()
    devices = ("cpu", "cuda")
    casts = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in devices]
    cache = torch.is_autocast_cache_enabled()
    try:
        yield
    finally:
        torch._C._set_grad_enabled(grad)
        for device, enabled, dtype in casts:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(cache)


_STATISTICS = frozenset(
    {
        torch.ops.aten.batch_norm.default,
        torch.ops.aten.native_batch_norm.default,
        torch.ops.aten.cudnn_batch_norm.default,
        torch.ops.aten.miopen_batch_norm.default,
        torch.ops.aten._batch_norm_impl_index.default,
        torch.ops.aten.instance_norm.default,
    }
)


def hidden_writes(func: Any, args: Sequence[Any]) -> Sequence[Any]:
    """The arguments that an operator writes though its schema does not say so: running statistics, in training."""
    return [a for a in args[3:5] if a is not None] if func in _STATISTICS and args[5] else ()


# Composite operators that always compute a new tensor.
_NEW = frozenset(
    getattr(torch.ops.aten, name).default
    for name in ("batch_norm", "conv1d", "conv2d", "conv3d", "linear", "layer_norm")
)


def gives_new_memory(func: Any) -> bool:
    """Whether an operator's one result shares its memory with nothing. Composite operators may return what they got
    without their schemas saying so; of those only some are known not to."""
    if not isinstance(func, OpOverload) or len(func._schema.returns) != 1:
        return False
    if func._schema.is_mutable or func._schema.returns[0].alias_info is not None:
        return False
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
    return func in _NEW or (func.namespace == "aten" and not composite)


def functional_variant(func: Any) -> Any:
    """The operator that computes what this pointwise one writes, or None."""
    if not isinstance(func, OpOverload) or func.namespace != "aten":
        return None
    name, _, overload = func.__name__.partition(".")
    packet = getattr(torch.ops.aten, name[:-1], None) if name.endswith("_") else None
    found = getattr(packet, overload, None) if packet is not None else None
    if found is None or torch.Tag.nondeterministic_seeded in found.tags:
        return None
    return found if torch.Tag.pointwise in found.tags or found is torch.ops.aten.detach.default else None


class Functionalization:
    """torch's functionalization above a RecordingMode: inside, calls on wrapped tensors write nothing."""

    def __init__(self) -> None:
        self._mode = FunctionalTensorMode(pre_dispatch=True, export=True)

    def wrap(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        with self._mode:
            return FunctionalTensor.to_functional(value)

    def unwrap(self, value: Any) -> Any:
        """The plain tensor behind a wrapped one, with every pending write applied."""
        if not isinstance(value, FunctionalTensor):
            return value
        torch._sync(value)
        return torch._from_functional_tensor(value.elem)

    @contextlib.contextmanager
    def off(self) -> Iterator[None]:
        """Inside, calls are on plain tensors again."""
        self._mode.__exit__(None, None, None)
        try:
            yield
        finally:
            self._mode.__enter__()

    def __enter__(self) -> None:
        self._mode.__enter__()

    def __exit__(self, *exception: Any) -> None:
        self._mode.__exit__(*exception)


def inside_transform() -> bool:
    """Whether a functorch transform (vmap, grad, jvp) is active."""
    return torch._C._functorch.maybe_current_level() is not None


def real_tensors() -> contextlib.AbstractContextManager[Any]:
    """Inside, no fake mode: calls compute on real tensors."""
    return unset_fake_temporarily()


def storage_id(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def same_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two fakes are the same view of the same storage."""
    return (
        a.dtype == b.dtype
        and a.dim() == b.dim()
        and storage_id(a) == storage_id(b)
        and [expr_of(s) for s in (*a.shape, *a.stride(), a.storage_offset())]
        == [expr_of(s) for s in (*b.shape, *b.stride(), b.storage_offset())]
    )


# ---------------------------------------------------------------------- torch.export

# Dataclasses that only torch.export's form needs to be containers for torch: to our own trees they stay dataclasses.
_dataclasses_registered_here: set[type] = set()

TreeSpec = _pytree.TreeSpec
namedtuple_kind: Any = namedtuple  # what torch's pytree calls the type of every named tuple


def register_dataclass(cls: type) -> None:
    """Makes a dataclass a container for torch, in its saved files too, and nothing new for our trees."""
    if _pytree.SUPPORTED_NODES.get(cls) is None:
        _pytree.register_dataclass(cls, serialized_type_name=f"{cls.__module__}.{cls.__qualname__}")
        _dataclasses_registered_here.add(cls)


def registered_here(cls: type) -> bool:
    return cls in _dataclasses_registered_here


def leaf_spec() -> TreeSpec:
    return _pytree.treespec_leaf()


def branch_spec(cls: Any, context: Any, children: Sequence[TreeSpec]) -> TreeSpec:
    return TreeSpec(cls, context, list(children))


def branch_parts(spec: TreeSpec) -> tuple[Any, Any, list[TreeSpec]] | None:
    """The type, context and children of a branch, or None for a leaf."""
    return None if spec.is_leaf() else (spec.type, spec.context, spec.children())


def flatten_rule(cls: type) -> Callable[[Any], tuple[Iterable[Any], Any]]:
    return _pytree.SUPPORTED_NODES[cls].flatten_fn


def leaf_spellings(value: Mapping[str, Any]) -> list[str]:
    """How torch spells the way to each leaf of the arguments: ['x'], ['cache'][0], ['batch'].ids"""
    return [_pytree.keystr(path) for path, _ in _pytree.tree_leaves_with_path(value)]


def new_fake_mode() -> tuple[FakeTensorMode, ShapeEnv]:
    """A fake mode with an empty environment of its own."""
    env = ShapeEnv()
    return FakeTensorMode(allow_non_fake_inputs=True, shape_env=env), env


def fake_mode_of(tensor: torch.Tensor) -> FakeTensorMode | None:
    """The fake mode that a tensor belongs to, or None for a real one."""
    return tensor.fake_mode if isinstance(tensor, FakeTensor) else None


def portable_expr_of(value: Any) -> sympy.Expr:
    """The expression of a symbolic value, in symbols that another environment may adopt.

    A size that was found to be equal to something is that. A number known only at run time stays its own symbol, since
    a node makes it known by that name.
    """
    expr, env = value.node._expr, value.node.shape_env
    return expr.xreplace({s: env._find(s) for s in expr.free_symbols if not is_unbacked(s)})


def adopt_symbol(env: ShapeEnv, symbol: sympy.Symbol, origin: ShapeEnv) -> sympy.Basic | None:
    """Makes a symbol of one environment, with its range and example value, known to another.

    Returns what the symbol was found to be equal to, if it was.
    """
    hint = origin.backed_var_to_val.get(symbol)
    if hint is not None:
        env.backed_var_to_val[symbol] = hint
    elif symbol.name[-1:].isdigit():
        # A symbol that only a run makes known: the next one that is made must not get its name.
        number = int("".join(filter(str.isdigit, symbol.name))) + 1
        env.unbacked_symint_counter = max(env.unbacked_symint_counter, number)
        env.unbacked_symfloat_counter = max(env.unbacked_symfloat_counter, number)
    found = origin.var_to_range.get(symbol, ValueRanges.unknown_int())
    env.var_to_stack[symbol] = CapturedTraceback.extract()
    env.constrain_symbol_range(symbol, found.lower, found.upper)
    equal = origin._find(symbol)
    if equal == symbol:
        return None
    env.replacements[symbol] = equal
    env._replacements_version_counter += 1
    env._update_version_counter()
    return equal


def is_replaced(env: ShapeEnv, symbol: sympy.Symbol) -> bool:
    return symbol in env.replacements


def guards_suppressed(env: ShapeEnv) -> contextlib.AbstractContextManager[None]:
    """Inside, questions about sizes are answered by the example and leave no trace."""
    return env.suppress_guards()


def bounds(found: ValueRanges[Any]) -> tuple[int, int | None]:
    """The least and greatest number of a range; None is no bound above."""
    low = int(found.lower) if found.lower.is_Integer else -(2**63)
    return low, int(found.upper) if found.upper.is_Integer else None


def range_of(size: torch.SymInt) -> tuple[int, int | None]:
    """The least and greatest number that a symbol may be; None is no bound above."""
    return bounds(size.node.shape_env.var_to_range[size.node.expr])


def is_static_input(tensor: torch.Tensor) -> bool:
    """Whether torch.compile takes a graph's argument for a parameter or buffer: the same tensor in every call."""
    return isinstance(tensor, torch.nn.Parameter) or hasattr(tensor, "_dynamo_static_input_type")


@contextlib.contextmanager
def outside_of_compilation() -> Iterator[None]:
    """Inside, nothing sees that torch.compile is at work: its fake tensors and its symbols are not ours."""
    with torch._guards.tracing(None), unset_fake_temporarily():
        yield


def narrow(env: ShapeEnv, symbol: sympy.Symbol, low: int, high: int | None) -> None:
    env.var_to_range[symbol] = ValueRanges(low, int_oo if high is None else high)


def declare_guards(env: ShapeEnv, sources: Mapping[sympy.Symbol, str], guards: Iterable[sympy.Basic]) -> None:
    """The conditions, and no others, that torch.export checks at each call; `sources` is where it finds a symbol."""
    for symbol, text in sources.items():
        env.var_to_sources[symbol] = [NamedSource(text)]
    env.guards = [ShapeGuard(guard, SLoc("", ""), size_oblivious=False) for guard in guards]


def guards_of(exported: torch.export.ExportedProgram) -> list[str]:
    """What torch.export checks of the inputs at each call, as Python text."""
    return list(exported._guards_code)


def export_verifier(dialect: str) -> type:
    from torch._export.verifier import load_verifier

    return load_verifier(dialect)


def export_violation() -> type[Exception]:
    from torch._export.verifier import SpecViolationError

    return SpecViolationError


wrap_with_autocast: HigherOrderOperator = torch.ops.higher_order.wrap_with_autocast
wrap_with_set_grad_enabled: HigherOrderOperator = torch.ops.higher_order.wrap_with_set_grad_enabled


# ---------------------------------------------------------------------- what a file keeps of torch's own objects


class RestoredShapeEnv(ShapeEnv):
    """A shape environment for symbols that come from a file, under the names they had."""

    def __init__(self) -> None:
        super().__init__(duck_shape=False, specialize_zero_one=False)

    def _generate_unique_id(self, source_name: str) -> Any:
        return source_name


@dataclass(frozen=True, slots=True)
class SymbolFacts:
    """What a shape environment knows of a symbol; None is no bound, and no hint for a symbol known only at run time."""

    name: str
    hint: int | None
    low: int | None
    high: int | None
    positive: bool = False
    size_like: bool = False


def symbol_facts(env: ShapeEnv, symbol: sympy.Symbol) -> SymbolFacts:
    hints = env.backed_var_to_val if hasattr(env, "backed_var_to_val") else env.var_to_val
    ranged = env.var_to_range.get(symbol)
    bounds = (None, None) if ranged is None else (ranged.lower, ranged.upper)
    low, high = (int(b) if isinstance(b, int | sympy.Integer) else None for b in bounds)
    hint = hints.get(symbol)
    return SymbolFacts(
        symbol.name, None if hint is None else int(hint), low, high, bool(symbol.is_positive), symbol in env.size_like
    )


def restore_symbol(env: RestoredShapeEnv, facts: SymbolFacts) -> sympy.Symbol:
    """The symbol that `symbol_facts` described, anew. Symbols known only at run time come in the order of their names.

    Raises ValueError for a name that torch would not give, or a range that the hint is not in.
    """
    kind, number = facts.name.rstrip("0123456789"), facts.name.lstrip("abcdefghijklmnopqrstuvwxyz")
    ranged = ValueRanges(-int_oo if facts.low is None else facts.low, int_oo if facts.high is None else facts.high)
    if facts.hint is None:
        if kind not in ("u", "zuf") or len(number) > 9:
            raise ValueError(f"{facts.name} is no name of a number that is known only at run time")
        with ignore_fresh_symbols(env):
            if kind == "zuf":
                env.unbacked_symfloat_counter = int(number)
                return env.create_unbacked_symfloat().node.expr
            env.unbacked_symint_counter = int(number)
            symbol = env.create_unbacked_symint().node.expr
        env.var_to_range[symbol] = ranged
        if facts.size_like:
            env.size_like.add(symbol)
        return symbol
    if not facts.name.startswith("s") or facts.hint not in ranged or facts.low == facts.high:
        raise ValueError(f"{facts.name} = {facts.hint} in {ranged} is no dynamic size")
    return env.create_symbol(
        facts.hint,
        NamedSource(facts.name[1:]),
        dynamic_dim=DimDynamic.DYNAMIC,
        constraint_dim=StrictMinMaxConstraint(vr=ranged, warn_only=False),
        positive=True if facts.positive else None,
        do_not_specialize_zero_one=True,
    )


def symbolic_of_kind(env: ShapeEnv, expr: sympy.Basic, kind: type) -> Any:
    """The SymInt, SymFloat or SymBool of an expression, also where it is a number by now."""
    wrap = {int: torch.SymInt, float: torch.SymFloat, bool: torch.SymBool}[kind]
    return wrap(SymNode(expr, env, kind, None))


def binding_steps(path: Sequence[Any]) -> list[tuple[str, str | int]] | None:
    """Where in a node's value a symbol becomes known, as plain data; None where a step is of a kind we do not know."""
    steps: list[tuple[str, str | int]] = []
    for key in path:
        match key:
            case CallMethodKey(name=("size" | "stride" | "storage_offset") as name):
                steps.append(("call", name))
            case _pytree.SequenceKey(idx=int(index)):
                steps.append(("item", index))
            case DivideByKey(divisor=int(divisor)):
                steps.append(("divide", divisor))
            case ConvertIntKey():
                steps.append(("int", 0))
            case _:
                return None
    return steps


def binding_path(steps: Sequence[tuple[str, Any]]) -> tuple[Any, ...]:
    """The reverse of `binding_steps`, for steps that are of its kinds."""
    makers: dict[str, Callable[[Any], Any]] = {
        "call": CallMethodKey,
        "item": _pytree.SequenceKey,
        "divide": DivideByKey,
        "int": lambda _: ConvertIntKey(),
    }
    return tuple(makers[kind](value) for kind, value in steps)


def is_declared_effectful(op: OpOverload) -> bool:
    """Whether somebody told torch that an operator has an effect."""
    return _simple_registry.singleton.find(op._name).effect.effect is not None


def operator_named(namespace: str, name: str, overload: str) -> OpOverload | None:
    """The operator of that name if it is registered. Only operators are reached: torch.ops has functions too."""
    found: Any = getattr(torch.ops, namespace, None)
    for kind, part in ((_OpNamespace, name), (OpOverloadPacket, overload)):
        if not isinstance(found, kind):
            return None
        found = getattr(found, part, None)
    return found if isinstance(found, OpOverload) else None


__all__ = [
    "TORCH_FOLDER",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "GuardOnDataDependentSymNode",
    "HigherOrderOperator",
    "LazyGraphModule",
    "NamedSource",
    "OpOverload",
    "RecordingMode",
    "ShapeEnv",
    "UnsupportedOperatorException",
    "ValueRanges",
    "WatchedShapeEnv",
    "bound_sympy",
    "compute_unbacked_bindings",
    "enable_python_dispatcher",
    "int_oo",
    "sympy_functions",
]


def all_decompositions() -> Mapping[Any, Any]:
    """Every decomposition that torch knows, of core operators too."""
    return _decomp.decomposition_table
