"""Dispatch modes, and the state that torch keeps for a thread."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import _ops
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager, unset_fake_temporarily
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode, disable_proxy_modes_tracing
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
)

from ingot.torch_internals import isolation
from ingot.torch_internals.isolation import Patches, Region, is_patched_here
from ingot.torch_internals.operator_schemas import argument_names
from ingot.torch_internals.operators import set_grad_enabled

T = TypeVar("T")


class DispatchMode(TorchDispatchMode):
    """torch's own, with annotations."""

    def __init__(self) -> None:
        super().__init__()


class _OwnDraws(TorchDispatchMode):
    """Draws come from a generator of its own. An operator that takes none is an error."""

    def __init__(self) -> None:
        super().__init__()
        self._generator = torch.Generator()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        if torch.Tag.nondeterministic_seeded in func.tags:
            if "generator" not in argument_names(func):
                raise NotImplementedError(f"{func} takes no generator")
            given["generator"] = self._generator
        return func(*args, **given)


@contextlib.contextmanager
def own_draws() -> Iterator[None]:
    """Inside, no mode sees a call, and none touches torch's generator, which belongs to the process."""
    with _disable_current_modes(), _OwnDraws():
        yield


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


def pause_recording() -> contextlib.AbstractContextManager[Any]:
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
def restore_modes() -> Iterator[None]:
    """Afterwards grad mode and autocast are as they were, even if a graph's switches were left half done."""
    restore = save_switches()
    try:
        yield
    finally:
        restore()


def save_switches() -> Callable[[], None]:
    """A function that puts this thread's grad mode and autocast back to what they are now."""
    grad = torch.is_grad_enabled()
    devices = ("cpu", "cuda")
    casts = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in devices]
    cache, nesting = torch.is_autocast_cache_enabled(), _autocast_nesting()

    def restore() -> None:
        while _autocast_nesting() > nesting:  # a region that ended in an exception: casts of weights would stay cached
            if torch.autocast_decrement_nesting() == 0:
                torch.clear_autocast_cache()
        torch._C._set_grad_enabled(grad)
        for device, enabled, dtype in casts:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(cache)

    return restore


def save_modes() -> Callable[[], None]:
    """A function that puts this thread's modes back to what they are now: of functions, of dispatch, of functorch, and
    those of `save_switches`. The stack of early modes is put back only where it belongs to this thread."""
    switches = save_switches()
    functions, dispatch = _get_current_function_mode_stack(), _get_current_dispatch_mode_stack()
    early, layers = _get_early_modes(), torch._C._functorch.get_dynamic_layer_stack_depth()
    own, lifting = is_patched_here(*_EARLY_MODES), torch._C._only_lift_cpu_tensors()

    def restore() -> None:
        if torch._C._functorch.get_dynamic_layer_stack_depth() > layers:
            torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(layers)
        _restore_dispatch_modes(dispatch)
        _restore_early_modes(own, *early)
        restore_function_modes(functions)
        torch._C._set_only_lift_cpu_tensors(lifting)
        switches()

    return restore


def _restore_dispatch_modes(before: list[Any]) -> None:
    now = _get_current_dispatch_mode_stack()
    if len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True)):
        return
    for _ in now:
        _pop_mode()
    for mode in before:
        _push_mode(mode)


def restore_function_modes(before: list[Any]) -> None:
    now = _get_current_function_mode_stack()
    shared = next(
        (i for i, (a, b) in enumerate(zip(now, before, strict=False)) if a is not b), min(len(now), len(before))
    )
    for _ in now[shared:]:
        torch._C._pop_torch_function_stack()
    for mode in before[shared:]:
        torch._C._push_on_torch_function_stack(mode)


# Modes that see calls before autocast and autograd do. torch keeps one such stack for the whole process, though whether
# a thread asks it is up to the thread.
_EARLY_MODES = (_ops, "mode_stack_state_for_pre_dispatch")


def _get_early_modes() -> tuple[Any, Any, bool]:
    stack = _ops.mode_stack_state_for_pre_dispatch()
    key = torch._C.DispatchKey.PreDispatch
    return stack.get(0), stack.get(1), torch._C._dispatch_tls_is_dispatch_key_included(key)


def _restore_early_modes(own: bool, proxy: Any, functional: Any, asked: bool) -> None:
    stack = _ops.mode_stack_state_for_pre_dispatch()
    for place, mode in enumerate((proxy, functional)):
        if own and stack.get(place) is not mode:
            stack.set(place, mode)
    key = torch._C.DispatchKey.PreDispatch
    if torch._C._dispatch_tls_is_dispatch_key_included(key) != asked:
        torch._C._dispatch_tls_set_dispatch_key_included(key, asked)


def run_isolated(body: Callable[[Region], T]) -> T:
    """What `body` returns; it runs alone among the functions that are run so, and may enter modes that see calls early.

    Afterwards, whatever happened, all that it entered is left and the modes of this thread are as they were.
    """

    def run(region: Region) -> T:
        if not is_patched_here(*_EARLY_MODES):
            own = _ops._ModeStackStateForPreDispatch()
            region.enter(Patches((*_EARLY_MODES, lambda _: lambda: own)))
        return body(region)

    return isolation.run_isolated(run, save_modes)


def _autocast_nesting() -> int:
    """How many autocast regions this thread is in."""
    torch.autocast_increment_nesting()
    return int(torch.autocast_decrement_nesting())


class Functionalization:
    """torch's functionalization above a RecordingMode: inside, calls on wrapped tensors write nothing.

    Without `pre_dispatch` it works below autograd and autocast.
    """

    def __init__(self, pre_dispatch: bool = True) -> None:
        self._mode = FunctionalTensorMode(pre_dispatch=pre_dispatch, export=True)

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

    def __enter__(self) -> None:
        self._mode.__enter__()

    def __exit__(self, *exception: Any) -> None:
        self._mode.__exit__(*exception)


def fake_alias(fake: torch.Tensor) -> FakeTensor:
    """Another fake over the memory of one, without its gradient."""
    assert isinstance(fake, FakeTensor)
    with in_kernel_invocation_manager(fake.fake_mode):
        alias = torch.ops.aten.detach.default(fake)
    return FakeTensor(fake.fake_mode, alias, fake.fake_device)


def is_fixed(value: Any) -> bool:
    """Whether a value is a plain fake tensor whose sizes and strides are numbers."""
    return (
        isinstance(value, FakeTensor)
        and value.layout is torch.strided
        and not value._has_symbolic_sizes_strides
        and not value.is_neg()
        and not value.is_conj()
    )


def same_fixed_type(one: Any, other: Any) -> bool:
    """Whether two plain fakes have the same sizes, strides, dtype and device, all of them known."""
    return (
        is_fixed(one)
        and is_fixed(other)
        and one.dtype is other.dtype
        and one.shape == other.shape
        and one.stride() == other.stride()
        and one.device == other.device
    )


def is_inside_transform() -> bool:
    """Whether a functorch transform (vmap, grad, jvp) is active."""
    return torch._C._functorch.maybe_current_level() is not None


def real_tensors() -> contextlib.AbstractContextManager[Any]:
    """Inside, no fake mode: calls compute on real tensors."""
    return unset_fake_temporarily()


def raw_cuda_stream(device: int) -> int:
    """The driver's handle of torch's current stream on a CUDA device."""
    found: int = torch._C._cuda_getCurrentRawStream(device)
    return found


def current_cuda_device() -> int:
    """The number of the CUDA device that is current in this thread."""
    found: int = torch._C._cuda_getDevice()
    return found


def short_empty_strided(device: str) -> Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor] | None:
    """torch.empty_strided(sizes, steps, dtype) on the current device of this type, without the way through torch's
    dispatcher, as the code of torch.compile allocates; None in a release of torch that does not have it."""
    found: Any = getattr(torch._C._dynamo.guards, f"_empty_strided_{device}", None)
    return found
