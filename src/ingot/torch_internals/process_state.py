"""Process-wide and thread-wide settings that a model's code may change, and how they are restored.

Of what belongs to the process, other threads may set it meanwhile, and draw random numbers. So where there are other
threads, only those settings are put back that the capturing thread itself has touched: functions that set something,
and those that draw, are watched on that thread, by the names of their modules: a draw through another name, as after
`from random import random`, is then not undone. Where there are no other threads, whatever has changed is put back.
"""

from __future__ import annotations

import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch

from ingot.torch_internals.isolation import Patches, Region
from ingot.torch_internals.modes import save_modes


class _Setting(NamedTuple):
    """How a setting is read, how it is restored, and which functions set it."""

    ask: Callable[[], Any]
    put: Callable[[Any], Any]
    setters: tuple[tuple[Any, str], ...]


def _put_filters(filters: list[Any]) -> None:
    warnings.filters[:] = filters  # type: ignore[index]
    warnings._filters_mutated() if hasattr(warnings, "_filters_mutated") else None


def _methods_of(module: Any, generator: Any) -> tuple[tuple[Any, str], ...]:
    """The functions of a module that are methods of its hidden generator."""
    return tuple(
        (module, name) for name, found in vars(module).items() if getattr(found, "__self__", None) is generator
    )


_SETTINGS = (
    _Setting(torch.get_default_dtype, torch.set_default_dtype, ((torch._C, "_set_default_dtype"),)),
    _Setting(
        torch.get_deterministic_debug_mode,
        torch.set_deterministic_debug_mode,
        ((torch._C, "_set_deterministic_algorithms"),),
    ),
    _Setting(
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
        ((torch._C, "_set_float32_matmul_precision"),),
    ),
    _Setting(torch.get_num_threads, torch.set_num_threads, ((torch, "set_num_threads"),)),
    _Setting(torch.is_warn_always_enabled, torch.set_warn_always, ((torch._C, "_set_warnAlways"),)),
    _Setting(torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly, ((torch, "set_anomaly_enabled"),)),
    _Setting(torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled, ((torch._C, "_set_mkldnn_enabled"),)),
    _Setting(random.getstate, random.setstate, _methods_of(random, random._inst)),
    _Setting(
        lambda: list(warnings.filters),
        _put_filters,
        tuple((warnings, name) for name in ("simplefilter", "filterwarnings", "resetwarnings")),
    ),
)
_SEEDERS = ("manual_seed", "seed", "set_rng_state")


def keep_process_state(region: Region) -> None:
    """When the region ends, what code in it set for the process or the thread is as it is now, as if nothing had run.

    That is grad mode, autocast, default dtype and device, determinism, the state of random generators, torch's function
    and dispatch modes, warning filters, and switches of torch that change what an operator does.
    """
    alone = threading.active_count() == 1
    region.defer(save_modes(), shared=False)
    region.defer(_keep_device(), shared=False)
    _close_inference_modes(region)
    settings = [*_SETTINGS, *_numpy_settings()]
    touched: set[int] = set()
    region.defer(_keep_settings(settings, None if alone else touched))
    if not alone:
        region.enter(Patches(*_watchers(settings, touched)))


def _keep_settings(settings: list[_Setting], touched: set[int] | None) -> Callable[[], None]:
    before = [setting.ask() for setting in settings]
    seeds: Any = torch.get_rng_state()

    def restore() -> None:
        nonlocal seeds
        if seeds is None:
            return
        for number, (setting, value) in enumerate(zip(settings, before, strict=True)):
            if (touched is None or number in touched) and setting.ask() != value:
                setting.put(value)
        if touched is None or len(settings) in touched:
            torch.set_rng_state(seeds)
        seeds = None

    return restore


def _watchers(settings: list[_Setting], touched: set[int]) -> Iterator[tuple[Any, str, Callable[[Any], Any]]]:
    seeders = tuple((owner, name) for owner in (torch, torch.random) for name in _SEEDERS)
    for number, setters in enumerate((*(setting.setters for setting in settings), seeders)):
        for owner, name in setters:
            yield owner, name, partial(_wrap_watcher, partial(touched.add, number))


def _wrap_watcher(touch: Callable[[], None], original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        touch()
        return original(*args, **kwargs)

    return call


def _numpy_settings() -> Iterable[_Setting]:
    numpy = sys.modules.get("numpy")
    if numpy is None or not hasattr(numpy, "random"):
        return ()
    draws: Any = numpy.random

    def ask() -> Any:  # a state holds an array, which == would compare element by element
        kind, keys, *rest = draws.get_state()
        return kind, keys.tobytes(), *rest

    def put(state: Any) -> None:
        kind, keys, *rest = state
        draws.set_state((kind, numpy.frombuffer(keys, dtype=numpy.uint32), *rest))

    return (_Setting(ask, put, _methods_of(draws, draws.mtrand._rand)),)


def _keep_device() -> Callable[[], None]:
    threads = torch.autograd.is_multithreading_enabled()
    device = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)

    def restore() -> None:
        torch._GLOBAL_DEVICE_CONTEXT.device_context = device
        if torch.autograd.is_multithreading_enabled() != threads:
            torch._C._set_multithreading_enabled(threads)

    return restore


def _close_inference_modes(region: Region) -> None:
    """No inference mode that begins in the region outlives it. Ended later, it would bring back modes of a capture."""
    opened: list[Any] = []

    def wrap_enter(enter: Callable[..., None]) -> Callable[..., None]:
        def watched_enter(self: Any) -> None:
            opened.append(self)
            enter(self)

        return watched_enter

    def close() -> None:
        for mode in reversed(opened):
            mode.__exit__(None, None, None)  # a second time does nothing

    region.enter(Patches((torch.inference_mode, "__enter__", wrap_enter)))
    region.defer(close, shared=False)
