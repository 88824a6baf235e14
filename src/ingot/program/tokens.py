"""The operators of an effect's functional form: each takes a token and returns the next.

    ingot::make_token() -> Tensor                              the first token of a program
    ingot::pass_token(Tensor token) -> Tensor                  the next token, though nothing happened
    ingot::after(Tensor token, Tensor value) -> Tensor         a value that is there once all before the token happened
    ingot_aten::_assert_async.msg(Tensor token, Tensor self, str assert_msg) -> Tensor
    ingot_aten::bernoulli(Tensor token, Tensor self, *, Generator? generator=None) -> (Tensor, Tensor)

An operator `ns::name` becomes `ingot_ns::name`, which is defined when it is first asked for. A token is an empty
tensor: it goes through branches and loops like any other, and depending on it is what keeps effects in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from ingot import torch_internals as internals

_PREFIX = "ingot_"
_LIBRARIES: dict[str, torch.library.Library] = {}
_WITH: dict[internals.OpOverload, internals.OpOverload] = {}
_WITHOUT: dict[internals.OpOverload, internals.OpOverload] = {}


def new_token(*_: Any) -> torch.Tensor:
    return torch.empty(0, dtype=torch.bool)


def _define(namespace: str, schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> internals.OpOverload:
    library = _LIBRARIES.setdefault(namespace, torch.library.Library(namespace, "FRAGMENT"))
    library.define(schema)
    name, _, overload = schema.partition("(")[0].partition(".")
    full = f"{name}.{overload}" if overload else name
    library.impl(full, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{namespace}::{full}", fake, lib=library)
    made = internals.operator_named(namespace, name, overload or "default")
    assert made is not None
    return made


def _after(token: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return value.clone()


make_token = _define("ingot", "make_token() -> Tensor", new_token, new_token)
pass_token = _define("ingot", "pass_token(Tensor token) -> Tensor", new_token, new_token)
after = _define("ingot", "after(Tensor token, Tensor value) -> Tensor", _after, _after)


def with_token(op: internals.OpOverload) -> internals.OpOverload:
    """The operator that takes a token, does what `op` does, and returns a token and then what `op` returns."""
    if op not in _WITH:
        made = _define(_PREFIX + op.namespace, _schema_of(op), *_kernels_of(op))
        _differentiable(op, made)
        _WITH[op], _WITHOUT[made] = made, op
    return _WITH[op]


def without_token(target: Any) -> internals.OpOverload | None:
    """The operator that `with_token` made this one of; None for any other."""
    return _WITHOUT.get(target) if isinstance(target, internals.OpOverload) else None


def operator_named(namespace: str, name: str, overload: str) -> internals.OpOverload | None:
    """The operator of that name, if it is registered or is the token form of one that is."""
    if namespace.startswith(_PREFIX):
        op = internals.operator_named(namespace.removeprefix(_PREFIX), name, overload)
        if op is not None and internals.operator_named(namespace, name, overload) is None:
            return with_token(op)
    return internals.operator_named(namespace, name, overload)


def plain_target(node: fx.Node) -> Any:
    """What a node calls, token or not."""
    return without_token(node.target) or node.target


def _schema_of(op: internals.OpOverload) -> str:
    head, _, returns = str(op._schema).rpartition(" -> ")
    name, _, arguments = head.partition("::")[2].partition("(")
    token = "token" if all(a.name != "token" for a in op._schema.arguments) else "token_"
    taken = f"Tensor {token}" + (f", {arguments}" if arguments != ")" else ")")
    results = [part for part in (returns[1:-1] if returns.startswith("(") else returns,) if part]
    return f"{name}({taken} -> " + (f"(Tensor, {results[0]})" if results else "Tensor")


def _kernels_of(op: internals.OpOverload) -> tuple[Callable[..., Any], Callable[..., Any]]:
    count = len(op._schema.returns)

    def run(token: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        results = op(*args, **kwargs)
        return (new_token(), *((results,) if count == 1 else results)) if count else new_token()

    return run, run


def _differentiable(op: internals.OpOverload, made: internals.OpOverload) -> None:
    """Where a gradient is asked for, the operator's own derivative is the token form's."""
    run, _ = _kernels_of(op)

    def call(token: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor | list | tuple)]
        if torch.is_grad_enabled() and any(t.requires_grad for group in tensors for t in _tensors(group)):
            return run(token, *args, **kwargs)
        with internals.below_autograd():
            return made(token, *args, **kwargs)

    name = made._schema.name.partition("::")[2]
    full = f"{name}.{made._schema.overload_name}" if made._schema.overload_name else name
    _LIBRARIES[made.namespace].impl(full, call, "Autograd")


def _tensors(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else [t for t in value if isinstance(t, torch.Tensor)]
