"""Dispatch modes, and the state that torch keeps for a thread."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    unset_fake_temporarily,
)
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode, disable_proxy_modes_tracing
from torch.utils._python_dispatch import TorchDispatchMode

from ingot.torch_internals.operators import set_grad_enabled


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
def modes_restored() -> Iterator[None]:
    """Afterwards grad mode and autocast are as they were, even if a graph's switches were left half done."""
    grad = torch.is_grad_enabled()
    devices = ("cpu", "cuda")
    casts = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in devices]
    cache, nesting = torch.is_autocast_cache_enabled(), _autocast_nesting()
    try:
        yield
    finally:
        while _autocast_nesting() > nesting:  # a region that ended in an exception: casts of weights would stay cached
            if torch.autocast_decrement_nesting() == 0:
                torch.clear_autocast_cache()
        torch._C._set_grad_enabled(grad)
        for device, enabled, dtype in casts:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(cache)


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


def inside_transform() -> bool:
    """Whether a functorch transform (vmap, grad, jvp) is active."""
    return torch._C._functorch.maybe_current_level() is not None


def real_tensors() -> contextlib.AbstractContextManager[Any]:
    """Inside, no fake mode: calls compute on real tensors."""
    return unset_fake_temporarily()
