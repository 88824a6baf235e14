"""What every capture test asserts: the program equals eager, call after call, and the model is as it was."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

import ingot
from ingot import torch_internals as internals
from ingot.ir import pytree
from ingot.ir.program import Program

HAS_VERIFIER = importlib.util.find_spec("ingot.ir.verifier") is not None
PATCHED = {"contiguous", "data_ptr", "__getitem__", "__setitem__", "__setattr__", "_apply"}
Call = tuple[tuple[Any, ...], dict[str, Any]]


def assert_same(got: Any, want: Any, label: str = "result") -> None:
    """Same nesting, same classes, same literals, bit-equal tensors of the same dtype."""
    got_leaves, got_tree = pytree.flatten(got)
    want_leaves, want_tree = pytree.flatten(want)
    assert got_tree == want_tree, f"{label}: {got_tree} instead of {want_tree}"
    assert type(got) is type(want), f"{label}: {type(got)} instead of {type(want)}"
    for index, (mine, theirs) in enumerate(zip(got_leaves, want_leaves, strict=True)):
        if not isinstance(theirs, torch.Tensor):
            same = mine == theirs or (mine != mine and theirs != theirs)
            assert type(mine) is type(theirs) and same, f"{label}[{index}]: {mine!r} instead of {theirs!r}"
            continue
        assert isinstance(mine, torch.Tensor), f"{label}[{index}]: {mine!r} instead of a tensor"
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape, f"{label}[{index}]: {mine} vs {theirs}"
        assert mine.requires_grad == theirs.requires_grad, f"{label}[{index}]: requires_grad is {mine.requires_grad}"
        same = torch.equal(mine.detach(), theirs.detach()) or torch.allclose(
            mine.detach(), theirs.detach(), rtol=0, atol=0, equal_nan=True
        )
        assert same, f"{label}[{index}] differs by {(mine - theirs).abs().max()}"


def check(
    model: nn.Module | Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    **options: Any,
) -> Program:
    """Captures, and compares three calls in a row with a copy of the eager model, what they write included."""
    return check_calls(model, [(tuple(args), kwargs or {})] * 3, **options)


def check_calls(model: nn.Module | Callable[..., Any], calls: Sequence[Call], **options: Any) -> Program:
    """The same for calls that differ; the first is the example."""
    eager = copy.deepcopy(model) if isinstance(model, nn.Module) else model
    args, kwargs = copy_of(calls[0])
    with unchanged(model, args, kwargs):
        program = ingot.capture(model, args, kwargs, **options)
    if HAS_VERIFIER:
        program.verify()
    with unchanged(model):
        for number, call in enumerate(calls):
            mine, theirs = copy_of(call), copy_of(call)
            torch.manual_seed(number)
            want = eager(*theirs[0], **theirs[1])
            torch.manual_seed(number)
            got = program(*mine[0], **mine[1])
            assert_same(got, want, f"call {number}")
            assert_same(mine, theirs, f"arguments after call {number}")
    if isinstance(eager, nn.Module):
        assert_same(dict(sorted(program.state_dict.items())), dict(sorted(eager.state_dict(keep_vars=True).items())))
    return program


def copy_of(call: Call) -> Call:
    """A deep copy that keeps aliases between arguments, and leaves that are not graph leaves as they are."""
    return copy.deepcopy(call)


@contextmanager
def unchanged(model: Any, *more: Any) -> Iterator[None]:
    """Asserts that what runs inside leaves the model, other values, and torch itself as they were."""
    before = [_state(value) for value in (model, *more)]
    torch_before = torch_state()
    try:
        yield
    finally:
        torch_now = torch_state()
        assert torch_now == torch_before, f"leaks: {[key for key in torch_now if torch_now[key] != torch_before[key]]}"
        for old, value in zip(before, (model, *more), strict=True):
            now = _state(value)
            assert [key for key, *_ in now] == [key for key, *_ in old]
            for (key, mine, held, copied), (_, mine_now, held_now, _) in zip(old, now, strict=True):
                assert mine == mine_now, f"{key} is another object"
                if copied is not None:
                    assert torch.equal(held_now, copied), f"{key} has other values"
                elif not isinstance(held, torch.Tensor):
                    assert held == held_now, f"{key} was {held}, is {held_now}"


def torch_state() -> dict[str, Any]:
    """What a capture switches or patches while it runs."""
    cls, registry = torch.Tensor, nn.modules.module
    return {
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "cache": torch.is_autocast_cache_enabled(),
        "compiling": (torch.compiler.is_compiling(), torch.compiler.is_exporting()),
        "functions": (torch.compile, torch.tensor, torch._assert, cls.contiguous),
        "0-d tensors are not sequences": float(torch.tensor([torch.tensor(1.0)])),
        "module": (nn.Module._apply, nn.Module.__setattr__, nn.Module.__call__),
        "memory": (cls.data_ptr, torch.UntypedStorage.data_ptr),
        "convolution": torch._C._select_conv_backend,
        "autocast class": (torch.autocast.__enter__, torch.autocast.__exit__),
        "control flow": (torch.cond, dict(vars(internals.monkeypatches._hop_utils))),
        "flex": internals.monkeypatches._flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG,
        "hooks": (len(registry._global_forward_hooks), len(registry._global_forward_pre_hooks)),
        "modes": torch._C._len_torch_dispatch_stack(),
        "python dispatcher": torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.Python),
        "own attributes": [
            (c, name) for c in (cls, nn.Module, torch.UntypedStorage) for name in PATCHED & vars(c).keys()
        ],
        "default dtype": torch.get_default_dtype(),
    }


def _state(value: Any) -> list[tuple[str, int, Any, torch.Tensor | None]]:
    """Every attribute of every module below `value`, by identity, with a copy of each tensor's values."""
    rows: list[tuple[str, int, Any, torch.Tensor | None]] = []
    seen: set[int] = set()

    def visit(item: Any, path: str) -> None:
        if isinstance(item, torch.Tensor):
            assert not isinstance(item, internals.FakeTensor), f"{path} is fake"
            rows.append((path, id(item), item, item.detach().clone()))
            rows.append((f"{path}.grad", id(item.grad), None, None))
            return
        if id(item) in seen:
            return
        if isinstance(item, nn.Module):
            seen.add(id(item))
            for key, inner in vars(item).items():
                rows.append((f"{path}.{key}", id(inner), None, None))
                visit(inner, f"{path}.{key}")
        elif isinstance(item, dict):
            seen.add(id(item))
            rows.append((f"{path} keys", 0, [str(key) for key in item], None))
            for key, inner in item.items():
                visit(inner, f"{path}[{key!r}]")
        elif isinstance(item, list | tuple):
            seen.add(id(item))
            rows.append((f"{path} length", 0, len(item), None))
            for index, inner in enumerate(item):
                visit(inner, f"{path}[{index}]")
        elif type(item).__module__.startswith("tests") and hasattr(item, "__dict__"):
            seen.add(id(item))
            visit(vars(item), path)

    visit(value, "model")
    return rows
