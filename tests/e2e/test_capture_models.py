"""The hand-written models of the capture tests, compiled: those tests again, with native code in the program's place.

A test of tests/frontend calls `check(model, args)`, which captures the model and compares call after call with eager,
state included. Here `check` compiles as well. What native code refuses by a named error is skipped, with the reason.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.errors import UnsupportedOperator
from tests.frontend import test_layers, test_module_stack, test_module_state, test_operations
from tests.support.oracle import EPSILON, quick_compiler, worst_ratio

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"),
]
MODULES: tuple[ModuleType, ...] = (test_module_stack, test_operations, test_layers, test_module_state)
Call = tuple[tuple[Any, ...], dict[str, Any]]
Model = nn.Module | Callable[..., Any]


def check(model: Model, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None, **options: Any) -> Any:
    return check_calls(model, [(tuple(args), kwargs or {})] * 3, **options)


def check_calls(model: Model, calls: Sequence[Call], **options: Any) -> Any:
    """The program, after its native code did what a copy of the eager model does, call after call."""
    eager = copy.deepcopy(model) if isinstance(model, nn.Module) else model
    args, kwargs = copy.deepcopy(calls[0])
    program = ingot.capture(model, args, kwargs, **options)
    try:
        with quick_compiler():
            compiled = ingot.compile(program)
    except UnsupportedOperator as error:
        pytest.skip(str(error).splitlines()[1].strip())
    # What autocast rounds to less than float32 is rounded at other places here.
    epsilon = EPSILON[torch.bfloat16] if "_bf16" in compiled.source else 0.0
    for number, call in enumerate(calls):
        mine, theirs = copy.deepcopy(call), copy.deepcopy(call)
        with torch.no_grad():
            want, got = eager(*theirs[0], **theirs[1]), compiled(*mine[0], **mine[1])
        if not compiled.draws:
            worst_ratio(got, want, None, f"call {number}", epsilon)
            worst_ratio(mine, theirs, None, f"arguments after call {number}", epsilon)
    return program


@pytest.fixture(autouse=True)
def native(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in MODULES:
        monkeypatch.setattr(module, "check", check)
        monkeypatch.setattr(module, "check_calls", check_calls)
    yield


for _module in MODULES:
    for _name, _test in vars(_module).items():
        if (
            _name.startswith("test_")
            and callable(_test)
            and "check" in _test.__code__.co_names + _test.__code__.co_freevars
        ):
            globals()[_name] = _test
