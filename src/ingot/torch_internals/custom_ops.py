"""Definition and differentiation of custom operators that stand for others in a graph."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from ingot.torch_internals.operators import OpOverload, below_autograd, operator_named

_LIBRARIES: dict[str, torch.library.Library] = {}
# Held while an operator that is not there yet is defined: a second definition is an error.
defining = threading.RLock()


def define(namespace: str, schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> OpOverload:
    """A new operator with this schema, computed by `run` and on fakes by `fake`."""
    library = _LIBRARIES.setdefault(namespace, torch.library.Library(namespace, "FRAGMENT"))
    library.define(schema)
    full = schema.partition("(")[0]
    name, _, overload = full.partition(".")
    library.impl(full, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{namespace}::{full}", fake, lib=library)
    made = operator_named(namespace, name, overload or "default")
    assert made is not None
    return made


def differentiate(made: OpOverload, run: Callable[..., Any]) -> None:
    """Where a gradient is needed, the operator has the derivative of what `run` calls."""

    def call(*args: Any, **kwargs: Any) -> Any:
        tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor | list | tuple)]
        if torch.is_grad_enabled() and any(t.requires_grad for group in tensors for t in _tensors(group)):
            return run(*args, **kwargs)
        with below_autograd():
            return made(*args, **kwargs)

    name = made._schema.name.partition("::")[2]
    full = f"{name}.{made._schema.overload_name}" if made._schema.overload_name else name
    _LIBRARIES[made.namespace].impl(full, call, "Autograd")


def _tensors(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else [t for t in value if isinstance(t, torch.Tensor)]


def register_gradient(made: OpOverload, gradient: Callable[..., Any], saved: Callable[..., tuple[Any, ...]]) -> None:
    """The operator's derivative: `gradient(saved(*args), *gradients of the results)` returns one for each argument.
    None for an argument that has none."""

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        values = saved(*inputs)
        ctx.save_for_backward(*(value for value in values if isinstance(value, torch.Tensor)))
        ctx.values = [None if isinstance(value, torch.Tensor) else value for value in values]

    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        tensors = iter(ctx.saved_tensors)
        return gradient([next(tensors) if value is None else value for value in ctx.values], *gradients)

    torch.library.register_autograd(made._schema.name, backward, setup_context=setup, lib=_LIBRARIES[made.namespace])
