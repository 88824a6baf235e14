"""The operators of an effect's functional form: each takes a token and returns the next.

    ingot::make_token() -> Tensor                              the first token of a program
    ingot::pass_token(Tensor token) -> Tensor                  the next token, though nothing happened
    ingot::after(Tensor token, Tensor value) -> Tensor         a value that is there once all before the token happened
    ingot_aten::_assert_async.msg(Tensor token, Tensor self, str assert_msg) -> Tensor
    ingot_aten::bernoulli(Tensor token, Tensor self, *, Generator? generator=None) -> (Tensor, Tensor)

An operator `ns::name` becomes `ingot_ns::name`, which is defined at first use. A token is an empty
tensor: it goes through branches and loops like any other, and depending on it is what keeps effects in order.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.ir import functional_custom_ops
from ingot.torch_internals.custom_ops import define, defining, differentiate

PREFIX = "ingot_"
_WITH: dict[internals.OpOverload, internals.OpOverload] = {}
_WITHOUT: dict[internals.OpOverload, internals.OpOverload] = {}


def new_token(*_: Any) -> torch.Tensor:
    return torch.empty(0, dtype=torch.bool)


def _order_after(token: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return value.clone()


make_token = define("ingot", "make_token() -> Tensor", new_token, new_token)
pass_token = define("ingot", "pass_token(Tensor token) -> Tensor", new_token, new_token)
after = define("ingot", "after(Tensor token, Tensor value) -> Tensor", _order_after, _order_after)


def add_token(op: internals.OpOverload) -> internals.OpOverload:
    """The operator that takes a token, does what `op` does, and returns a token and then what `op` returns."""
    with defining:
        if op not in _WITH:
            run = _kernel_of(op)
            made = define(PREFIX + op.namespace, _schema_of(op), run, run)
            differentiate(made, run)
            _WITH[op], _WITHOUT[made] = made, op
        return _WITH[op]


def remove_token(target: Any) -> internals.OpOverload | None:
    """The operator that `add_token` made this one of; None for any other."""
    return _WITHOUT.get(target) if isinstance(target, internals.OpOverload) else None


def operator_named(namespace: str, name: str, overload: str) -> internals.OpOverload | None:
    """The operator of that name, if it is registered or is a form of one that is."""
    found = internals.operator_named(namespace, name, overload)
    for prefix, form in ((PREFIX, add_token), (functional_custom_ops.PREFIX, functional_custom_ops.make_functional)):
        if found is None and namespace.startswith(prefix):
            op = operator_named(namespace.removeprefix(prefix), name, overload)
            found = form(op) if op is not None else None
    return found


def is_derived(namespace: str) -> bool:
    """Whether the operators of a namespace are forms of others, which `operator_named` defines."""
    return namespace.startswith((PREFIX, functional_custom_ops.PREFIX))


def is_token(node: Any) -> bool:
    """Whether a node's value is a token."""
    if not isinstance(node, fx.Node):
        return False
    if node.target is operator.getitem and node.args[1] == 0:
        source: Any = node.args[0]
        op = remove_token(source.target)
        return op is not None and bool(op._schema.returns)
    op = remove_token(node.target)
    return node.target in (make_token, pass_token) or (op is not None and not op._schema.returns)


def plain_target(node: fx.Node) -> Any:
    """What a node calls, token or not."""
    return remove_token(node.target) or node.target


def _schema_of(op: internals.OpOverload) -> str:
    head, _, returns = str(op._schema).rpartition(" -> ")
    name, _, arguments = head.partition("::")[2].partition("(")
    token = "token_" if "token" in internals.argument_names(op) else "token"
    taken = f"Tensor {token}" + (f", {arguments}" if arguments != ")" else ")")
    results = [part for part in (returns[1:-1] if returns.startswith("(") else returns,) if part]
    return f"{name}({taken} -> " + (f"(Tensor, {results[0]})" if results else "Tensor")


def _kernel_of(op: internals.OpOverload) -> Callable[..., Any]:
    count = len(op._schema.returns)

    def run(token: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        results = op(*args, **kwargs)
        return (new_token(), *((results,) if count == 1 else results)) if count else new_token()

    return run
