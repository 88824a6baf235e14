"""Operators: what their schemas do not say, and non-public ones."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import _decomp
from torch._library import simple_registry as _simple_registry
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket, _higher_order_ops, _OpNamespace

from ingot.torch_internals.quantized import NAMESPACE, quantized_operators

enter_autocast: Callable[..., Any] = torch.amp.autocast_mode._enter_autocast


exit_autocast: Callable[..., None] = torch.amp.autocast_mode._exit_autocast


set_grad_enabled: Callable[[bool], None] = torch._C._set_grad_enabled


below_autograd: Callable[[], contextlib.AbstractContextManager[None]] = torch._C._AutoDispatchBelowAutograd


without_dispatch: Callable[[], contextlib.AbstractContextManager[None]] = torch._C._DisableTorchDispatch
# Inside, operators run their kernels also where torch has a Python function to trace in their place.
without_python_kernels: Callable[[], contextlib.AbstractContextManager[None]] = torch._C._DisablePythonDispatcher


# The higher-order operator that stands in the graph where a preserved module's call begins and ends.
tracepoint: HigherOrderOperator = torch.ops.higher_order._export_tracepoint


def higher_order_operators() -> dict[str, HigherOrderOperator]:
    return dict(_higher_order_ops)


def has_rule(operator: HigherOrderOperator, mode: type) -> bool:
    return mode in operator.python_key_table


# Norms that write running statistics though their schemas do not say so, and those that keep no layout but
# channels-last on the CPU, where their fakes keep any.
_STATISTICS = frozenset(
    getattr(torch.ops.aten, name).default
    for name in (
        *("batch_norm", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "_batch_norm_impl_index"),
        "instance_norm",
    )
)
_LAID_OUT_ANEW = frozenset(
    (
        torch.ops.aten.batch_norm.default,
        torch.ops.aten.native_batch_norm.default,
        torch.ops.aten._native_batch_norm_legit_no_training.default,
        torch.ops.aten._native_batch_norm_legit_functional.default,
        torch.ops.aten._native_batch_norm_legit.no_stats,
    )
)


def unannotated_mutations(func: Any, args: Sequence[Any]) -> Sequence[Any]:
    """The arguments that an operator writes though its schema does not say so: running statistics, in training."""
    return [a for a in args[3:5] if a is not None] if func in _STATISTICS and args[5] else ()


def may_change_layout(func: Any) -> bool:
    """Whether an operator's results are contiguous or channels-last, whatever its fake says."""
    return func in _LAID_OUT_ANEW


_BY_STRIDES = frozenset(
    (
        torch.ops.aten.contiguous.default,
        torch.ops.aten.reshape.default,
        torch.ops.aten.reshape_as.default,
        torch.ops.aten.flatten.using_ints,
    )
)


def copies_by_strides(func: Any) -> bool:
    """Whether the strides of an operator's argument, at the sizes of a call, decide if it returns a view or a copy."""
    return func in _BY_STRIDES


# Composite operators that always compute a new tensor.
_NEW = frozenset(
    getattr(torch.ops.aten, name).default
    for name in (
        "batch_norm", "conv1d", "conv2d", "conv3d", "linear", "layer_norm", "matmul", "group_norm",
        "scaled_dot_product_attention",
    )
)  # fmt: skip
_COMPUTED = frozenset(("aten::mm", "aten::bmm", "aten::addmm", "aten::convolution", "aten::mean", "aten::sum"))


@functools.cache
def computes_new_tensor(func: Any) -> bool:
    """Whether an operator surely returns memory of its own: no list of views, but of what computes each element."""
    if not isinstance(func, OpOverload) or func._schema.is_mutable or declares_aliases(func):
        return False
    elementwise = torch.Tag.pointwise in func.tags and not is_composite_implicit(func)
    return func in _NEW or func._schema.name in _COMPUTED or elementwise


@functools.cache
def declares_aliases(func: Any) -> bool:
    """Whether an operator's schema says that a result may lie in the memory of an argument."""
    return isinstance(func, OpOverload) and any(r.alias_info is not None for r in func._schema.returns)


def returns_fresh_tensor(func: Any) -> bool:
    """Whether an operator's one result shares its memory with nothing. Composite operators may return what they got
    without their schemas saying so; of those only some are known not to."""
    if not isinstance(func, OpOverload) or len(func._schema.returns) != 1:
        return False
    if func._schema.is_mutable or func._schema.returns[0].alias_info is not None:
        return False
    return func in _NEW or (func.namespace == "aten" and not is_composite_implicit(func))


def is_composite_implicit(func: Any) -> bool:
    """Whether an operator is made of others alone, so that what it returns may be anything that those return."""
    if not isinstance(func, OpOverload) or func.namespace == "prim":  # questions about a tensor, unknown to dispatch
        return False
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"))


def functional_form(func: Any) -> Any:
    """For an operator of ATen that writes to its first argument, the one that returns the result instead, or None."""
    if not isinstance(func, OpOverload) or func.namespace != "aten" or not func._schema.is_mutable:
        return None
    if not func._opname.endswith("_"):
        return None
    packet = getattr(torch.ops.aten, func._opname.removesuffix("_"), None)
    if packet is None:
        return None
    taken = _parameters(func)
    namesake = getattr(packet, func._overloadname, None)
    if namesake is not None and [kind for _, kind in _parameters(namesake)] == [kind for _, kind in taken]:
        return namesake
    # transpose_ has another overload name than transpose.int, and pow.Scalar is another operator than pow_.Scalar.
    found = [getattr(packet, name) for name in packet.overloads()]
    return next((op for op in found if [kind for _, kind in _parameters(op)] == [kind for _, kind in taken]), None)


def _parameters(func: OpOverload) -> list[tuple[str, str]]:
    return [(argument.name, str(argument.type)) for argument in func._schema.arguments]


def pointwise_form(func: Any) -> Any:
    """The functional form of an operator that computes each element by itself and draws nothing, or None."""
    found = functional_form(func)
    if found is None or torch.Tag.nondeterministic_seeded in found.tags:
        return None
    return found if torch.Tag.pointwise in found.tags or found is torch.ops.aten.detach.default else None


wrap_with_autocast: HigherOrderOperator = torch.ops.higher_order.wrap_with_autocast


wrap_with_set_grad_enabled: HigherOrderOperator = torch.ops.higher_order.wrap_with_set_grad_enabled


def is_declared_effectful(op: OpOverload) -> bool:
    """Whether an operator is registered with torch as having an effect."""
    return _simple_registry.singleton.find(op._name).effect.effect is not None


def operator_named(namespace: str, name: str, overload: str) -> OpOverload | None:
    """The operator of that name if it is registered. Only operators are reached: torch.ops has functions too."""
    if namespace == NAMESPACE:
        quantized_operators()
    found: Any = getattr(torch.ops, namespace, None)
    for kind, part in ((_OpNamespace, name), (OpOverloadPacket, overload)):
        if not isinstance(found, kind):
            return None
        found = getattr(found, part, None)
    return found if isinstance(found, OpOverload) else None


def all_decompositions() -> Mapping[Any, Any]:
    """Every decomposition that torch knows, of core operators too."""
    return _decomp.decomposition_table
