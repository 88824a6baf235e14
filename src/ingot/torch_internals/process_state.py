"""What a model's code may set for the whole process or thread, and how it is put back after a capture."""

from __future__ import annotations

import contextlib
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode

from ingot.torch_internals.modes import modes_restored
from ingot.torch_internals.patches import patched

# How each setting is asked for, and how it is set to what was answered.
_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.is_warn_always_enabled, torch.set_warn_always),
    (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    (torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled),
    (torch.autograd.is_multithreading_enabled, torch._C._set_multithreading_enabled),
    (random.getstate, random.setstate),
)


@contextlib.contextmanager
def process_state_restored() -> Iterator[None]:
    """Afterwards what code inside set for the process or the thread is as it was, as if nothing had run.

    That is grad mode, autocast, default dtype and device, determinism, the state of random generators, torch's function
    and dispatch modes, warning filters, and switches of torch that change what an operator does.
    """
    settings = [(ask(), ask, put) for ask, put in _SETTINGS]
    seeds = torch.get_rng_state()
    numpy = sys.modules.get("numpy")
    numpy_seeds = numpy.random.get_state() if numpy is not None else None
    functions, dispatchers = _get_current_function_mode_stack(), _dispatch_modes()
    device = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    with modes_restored(), _filters_restored(), _inference_modes_closed():
        try:
            yield
        finally:
            while _dispatch_modes() > dispatchers:
                _pop_mode()
            _put_back_function_modes(functions)
            torch._GLOBAL_DEVICE_CONTEXT.device_context = device
            for before, ask, put in settings:
                if ask() != before:
                    put(before)
            torch.set_rng_state(seeds)
            if numpy is not None and numpy_seeds is not None:
                numpy.random.set_state(numpy_seeds)


def _put_back_function_modes(before: list[Any]) -> None:
    now = _get_current_function_mode_stack()
    shared = next(
        (i for i, (a, b) in enumerate(zip(now, before, strict=False)) if a is not b), min(len(now), len(before))
    )
    for _ in now[shared:]:
        torch._C._pop_torch_function_stack()
    for mode in before[shared:]:
        torch._C._push_on_torch_function_stack(mode)


def _dispatch_modes() -> int:
    return len(_get_current_dispatch_mode_stack())


@contextlib.contextmanager
def _inference_modes_closed() -> Iterator[None]:
    """Afterwards no inference mode that began inside is on. Ended later, it would bring back the modes of a capture."""
    opened: list[Any] = []
    enter = torch.inference_mode.__enter__

    def watched_enter(self: Any) -> None:
        opened.append(self)
        enter(self)

    with patched(torch.inference_mode, __enter__=watched_enter):
        try:
            yield
        finally:
            for mode in reversed(opened):
                mode.__exit__(None, None, None)  # a second time does nothing


@contextlib.contextmanager
def _filters_restored() -> Iterator[None]:
    filters = list(warnings.filters)
    try:
        yield
    finally:
        if warnings.filters != filters:
            warnings.filters[:] = filters  # type: ignore[index]
            warnings._filters_mutated() if hasattr(warnings, "_filters_mutated") else None
