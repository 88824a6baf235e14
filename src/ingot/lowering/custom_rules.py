"""Lowering rules and C kernels that users register for operators of their own.

    @ingot.register_lowering(torch.ops.mine.squared_relu.default)
    def lower_squared_relu(low, x): …

    ingot.register_c_kernel(torch.ops.mine.swiglu.default, C_TEXT, function="mine_swiglu")

A rule says what an operator computes in loops, and every target compiles it. A C kernel is text that becomes part of
the compiled model, for the CPU. To register again replaces what was registered before.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from ingot.errors import RegistrationError, format_error
from ingot.ir.metadata import value_of
from ingot.lowering.index_expr import Expr, Size
from ingot.lowering.lower import RULES, Lowering, Rule, lowers
from ingot.lowering.tensor_views import TensorValue
from ingot.lowering.unsupported import LoweringUnsupported, dtype_name

R = TypeVar("R", bound=Rule)

# The extern kernel of the loop IR that all C kernels are.
C_KERNEL = "c_kernel"
_NAME = re.compile(r"[A-Za-z_]\w*")
_OURS = ("ig_", "IG_", "ingot_", "INGOT_")


@dataclass(frozen=True, slots=True)
class CKernel:
    """The text that defines a C function, and its name."""

    function: str
    source: str


_RULES: dict[Any, Rule] = {}
_C_KERNELS: dict[Any, CKernel] = {}


def register_lowering(operator: Any) -> Callable[[R], R]:
    """Registers the rule by which `ingot.compile` lowers a custom operator: a function of the lowering and of the
    node's arguments, which returns tensors. See "Adding an operator" in the documentation. Raises RegistrationError."""
    _check_operator(operator)

    def enter(rule: R) -> R:
        _enter(operator, rule)
        _C_KERNELS.pop(operator, None)
        return rule

    return enter


def register_c_kernel(operator: Any, source: str, *, function: str) -> None:
    """Registers C text that computes a custom operator on the CPU. It becomes part of each compiled model, and runs
    without torch. `source` defines

        int function(const ingot_tensor *inputs, const ingot_tensor *outputs, const ingot_number *numbers)

    `inputs` are the tensors among the operator's arguments, and `outputs` its results, all dense and in order: `data`,
    `dtype`, `rank` and `shape`. `numbers` are the other arguments, `.i` of an int or bool, `.f` of a float. It returns
    0, or something else where the call is to fail. Raises RegistrationError.
    """
    _check_operator(operator)
    if not isinstance(function, str) or _NAME.fullmatch(function) is None or function.startswith(_OURS):
        raise _error(
            f"{function!r} cannot be the name of a C kernel",
            f"a name in C that does not begin with {', '.join(_OURS)} is needed",
            "name the function after the operator: mine_swiglu",
        )
    if re.search(rf"\b{function}\s*\(", source) is None:
        raise _error(
            f"the C text for {operator} does not define {function}",
            f"it has no function of that name, {len(source.splitlines())} lines were read",
            f"write int {function}(const ingot_tensor *inputs, const ingot_tensor *outputs,"
            " const ingot_number *numbers)",
        )
    made = CKernel(function, source)
    other = next((key for key, one in _C_KERNELS.items() if key != operator and one.function == function), None)
    if other is not None and _C_KERNELS[other] != made:
        raise _error(
            f"two C kernels are called {function}",
            f"the one of {other} has another text",
            "give them different names: both may be part of one model",
        )
    _C_KERNELS[operator] = made
    _enter(operator, _lower_to_c)


def c_kernel_of(operator: str) -> CKernel:
    """What was registered for an operator, by its name."""
    return next(kernel for key, kernel in _C_KERNELS.items() if str(key) == operator)


def _check_operator(operator: Any) -> None:
    import ingot.lowering.rules  # noqa: F401  fills RULES

    if not isinstance(operator, torch._ops.OpOverload):
        raise _error(
            f"{operator} is not an operator",
            f"it is a {type(operator).__name__}",
            "give an overload: torch.ops.mine.swiglu.default",
        )
    if operator in RULES and operator not in _RULES:
        raise _error(
            f"{operator} has a lowering rule of Ingot's own",
            "a rule of Ingot's cannot be replaced",
            "register a custom operator, and use ingot.rewrite to put it in this one's place",
        )


def _enter(operator: Any, rule: Rule) -> None:
    is_new = operator not in _RULES
    _RULES[operator] = rule
    if is_new:
        lowers(operator)(lambda low, *args, **kwargs: _RULES[operator](low, *args, **kwargs))


def _lower_to_c(low: Lowering, *args: Any, **kwargs: Any) -> Any:
    """The rule of every operator with a C kernel: its tensors are dense, and all numbers are passed as they are."""
    if not low.strategy.calls_c:
        raise LoweringUnsupported("it has a C kernel, which runs on the CPU only")
    operator: Any = low.node.target
    tensors: list[TensorValue] = []
    numbers: list[Size] = []
    kinds: list[str | float] = []
    given = dict(zip((one.name for one in operator._schema.arguments), args, strict=False)) | kwargs
    for one in operator._schema.arguments:
        value = given.get(one.name, one.default_value if one.has_default_value() else None)
        if isinstance(value, TensorValue):
            tensors.append(value)
        elif type(value) is float:
            kinds.append(value)
        elif isinstance(value, (int, Expr)):
            numbers.append(int(value) if type(value) is bool else value)
            kinds.append("int")
        else:
            kind = "None" if value is None else type(value).__name__
            raise LoweringUnsupported(f"its C kernel cannot take {one.name}, which is {kind}: tensors and numbers only")
    values = value_of(low.node)
    results = [(low.shape_of(one), dtype_name(one.dtype)) for one in _list_tensors(values)]
    shapes = [*(tensor.shape for tensor in tensors), *(shape for shape, _ in results)]
    if any(isinstance(size, int) and size == 0 for shape, _ in results for size in shape):
        made = [low.full(shape, 0, dtype) for shape, dtype in results]
    else:
        made = low.routine(
            C_KERNEL,
            tensors,
            results,
            [size for shape in shapes for size in shape] + numbers,
            operator=str(operator),
            ranks=tuple(map(len, shapes)),
            numbers=tuple(kinds),
        )
    return tuple(made) if isinstance(values, (tuple, list)) else made[0]


def _list_tensors(values: Any) -> list[torch.Tensor]:
    return list(values) if isinstance(values, (tuple, list)) else [values]


def _error(what: str, why: str, fix: str) -> RegistrationError:
    return RegistrationError(format_error(f"{what}.", why=why, fix=fix))
