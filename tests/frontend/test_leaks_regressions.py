"""What forward sets in the process is, after a capture, as it was before."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

import ingot
from ingot.errors import AssertionFailed, UntraceableError

X = torch.ones(2, 4)


class Setting(nn.Module):
    """Sets something, works, and fails if asked to."""

    def __init__(self, put: Callable[[], Any], fails: bool = False) -> None:
        super().__init__()
        self.put, self.fails = put, fails

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.put()
        if self.fails:
            raise ValueError("on purpose")
        return x * 2


class Passing(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class PassingDispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def state() -> dict[str, Any]:
    return {
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "autocast cache": torch.is_autocast_cache_enabled(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "deterministic": torch.get_deterministic_debug_mode(),
        "matmul": torch.get_float32_matmul_precision(),
        "threads": torch.get_num_threads(),
        "warn always": torch.is_warn_always_enabled(),
        "anomaly": torch.is_anomaly_enabled(),
        "torch's generator": torch.get_rng_state().tolist(),
        "Python's generator": random.getstate(),
        "NumPy's generator": np.random.get_state()[1].tolist(),
        "filters": list(warnings.filters),
        "function modes": len(torch.overrides._get_current_function_mode_stack()),
        "dispatch modes": len(_get_current_dispatch_mode_stack()),
    }


SETTERS: dict[str, Callable[[], Any]] = {
    "_set_grad_enabled": lambda: torch._C._set_grad_enabled(False),
    "set_grad_enabled": lambda: torch.set_grad_enabled(False),
    "no_grad, left open": lambda: torch.no_grad().__enter__(),
    "autocast, left open": lambda: torch.autocast("cpu").__enter__(),
    "autocast switch": lambda: torch.set_autocast_enabled("cpu", True),
    "autocast dtype": lambda: torch.set_autocast_dtype("cpu", torch.float16),
    "autocast cache": lambda: torch.set_autocast_cache_enabled(False),
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "default device": lambda: torch.set_default_device("meta"),
    "deterministic": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "matmul precision": lambda: torch.set_float32_matmul_precision("medium"),
    "threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "warn always": lambda: torch.set_warn_always(True),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "manual_seed": lambda: torch.manual_seed(3),
    "random.random": lambda: random.random(),
    "numpy.random": lambda: np.random.rand(2),
    "warning filters": lambda: warnings.simplefilter("ignore"),
    "function mode": lambda: Passing().__enter__(),
    "dispatch mode": lambda: PassingDispatch().__enter__(),
}


@pytest.mark.parametrize("name", SETTERS)
@pytest.mark.parametrize("fails", [False, True], ids=["", "fails"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_forward_sets_does_not_outlive_the_capture(name: str, fails: bool) -> None:
    ingot.capture(Setting(lambda: None), (X,))  # the first one imports parts of torch, which set filters
    before = state()
    try:
        program = ingot.capture(Setting(SETTERS[name], fails), (X,))
        assert torch.equal(program(X), X * 2)
    except ingot.errors.CaptureError:
        assert fails
    after = state()
    assert {key for key in before if before[key] != after[key]} == set()


def test_a_default_device_that_was_set_before_is_set_again() -> None:
    torch.set_default_device("cpu")
    try:
        ingot.capture(Setting(lambda: torch.set_default_device("meta")), (X,))
        assert torch.get_default_device() == torch.device("cpu")
        assert torch.ones(2).device.type == "cpu"
    finally:
        torch.set_default_device(None)
    assert not torch.overrides._get_current_function_mode_stack()


def test_inference_mode_that_is_left_open_is_closed() -> None:
    held = []

    def enter() -> None:
        held.append(torch.inference_mode())
        held[-1].__enter__()

    ingot.capture(Setting(enter), (X,))
    assert not torch.is_inference_mode_enabled()
    for guard in reversed(held):
        guard.__exit__(None, None, None)
    assert not torch.is_inference_mode_enabled()
    assert torch.equal(torch.ones(2) + 1, torch.full((2,), 2.0))


class Doubles(nn.Module):
    def __init__(self, compute: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.set_default_dtype(torch.float64)
        y = self.compute(x)
        torch.set_default_dtype(torch.float32)
        return y


def test_a_default_dtype_of_forward_reaches_what_it_makes() -> None:
    model = Doubles(lambda x: x + torch.zeros(4))
    program = ingot.capture(model, (X,))
    assert program(X).dtype is model(X).dtype is torch.float64


def test_a_default_dtype_of_forward_that_only_torch_knows_is_refused() -> None:
    with pytest.raises(UntraceableError, match="default dtype"):
        ingot.capture(Doubles(torch.sqrt), (torch.ones(3, dtype=torch.int64),))


class ChecksUnderAutocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.layer(x)
            torch._check(x.sum().item() > 0, lambda: "above 0")
        return y


@pytest.mark.parametrize("form", ["program", "module", "unflatten"])
def test_a_check_that_fails_leaves_no_autocast_region_open(form: str) -> None:
    """Casts of weights are cached until the outermost region ends: the next dtype would meet those of this one."""
    program = ingot.capture(ChecksUnderAutocast(), (torch.ones(2, 3),))
    call = program if form == "program" else getattr(program, form)()
    with pytest.raises(AssertionFailed, match="above 0"):
        call(-torch.ones(2, 3))
    torch.autocast_increment_nesting()
    assert torch.autocast_decrement_nesting() == 0
