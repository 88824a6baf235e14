"""What threads share with a capture: the attributes that it replaces, and the state of the thread that it runs in."""

from __future__ import annotations

import builtins
import importlib
import logging
import math
import random
import warnings
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

_MODULES = (
    "torch._meta_registrations",
    "torch._decomp.decompositions",
    "torch._export.utils",
    "torch._higher_order_ops.associative_scan",
    "torch._higher_order_ops.flex_attention",
    "torch._higher_order_ops.utils",
    "torch._functorch._aot_autograd.graph_compile",
    "torch._dynamo.eval_frame",
    "torch._ops",
    "torch.nn.attention.flex_attention",
)
# Names whose values change in any program that uses torch. The first is left behind by two threads that call what
# torch.compile made at the same time, without Ingot too.
_RESTLESS = {
    "_in_optimized_module",
    "_EXAMPLE_INPUTS",
    "__warningregistry__",
    "_filters_version",
    "_onceregistry",
    "onceregistry",
}
_MISSING = object()


def _namespaces() -> dict[str, Any]:
    from ingot.torch_internals import symbolic_indexing

    owners: list[Any] = [math, builtins, random, np.random, warnings, torch, torch._C, torch.compiler, torch.random]
    owners += [torch.Tensor, torch.UntypedStorage, nn.Module, torch.amp.autocast_mode.autocast, torch.inference_mode]
    owners += [importlib.import_module(name) for name in _MODULES]
    owners += [symbolic_indexing.TracedTensor, logging.getLogger("torch._subclasses.fake_tensor")]
    return {f"{getattr(owner, '__name__', owner)}": owner for owner in owners}


def identities() -> dict[tuple[str, str], Any]:
    """Every attribute of what a capture patches something in. Modules are left out: imports put them there."""
    found = {
        (space, name): value
        for space, owner in _namespaces().items()
        for name, value in list(vars(owner).items())
        if name not in _RESTLESS and not isinstance(value, ModuleType)
    }
    for function in (torch.compiler.is_compiling, torch.compiler.is_exporting):
        found[function.__name__, "__code__"] = function.__code__
    return found


def changed(before: dict[tuple[str, str], Any]) -> list[str]:
    """The attributes that are others now, and those of ours that are there now."""
    now = identities()
    others = [f"{'.'.join(key)}" for key, value in before.items() if now.get(key, _MISSING) is not value]
    ours = [
        f"{'.'.join(key)} (new)"
        for key, value in now.items()
        if key not in before and str(getattr(value, "__module__", "")).startswith("ingot")
    ]
    return others + ours


def thread_state() -> dict[str, Any]:
    """What a capture changes on its thread, and settings of the process that a model may change."""
    return {
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "autocast cache": torch.is_autocast_cache_enabled(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "threads": torch.get_num_threads(),
        "exporting": (torch.compiler.is_exporting(), torch.compiler.is_compiling()),
        "filters": list(warnings.filters),
        "function modes": _get_current_function_mode_stack(),
        "dispatch modes": _get_current_dispatch_mode_stack(),
        "early modes": torch._ops._len_torch_dispatch_stack_pre_dispatch(),
        "early": torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.PreDispatch),
        "Python dispatcher": torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.PythonDispatcher),
        "hooks": (
            dict(nn.modules.module._global_forward_pre_hooks),
            dict(nn.modules.module._global_forward_hooks),
            dict(nn.modules.module._global_forward_hooks_always_called),
        ),
    }


def module_state(model: nn.Module) -> list[tuple[str, int]]:
    """Which objects a module holds, by their ids."""
    return [
        (f"{path}.{name}", id(value))
        for path, module in model.named_modules()
        for table in (vars(module), module._parameters, module._buffers, module._modules)
        for name, value in table.items()
    ]
