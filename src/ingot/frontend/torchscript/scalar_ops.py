"""The TorchScript interpreter's own operators: numbers, and queries of tensors.

A number may be data-dependent; then arithmetic on it is arithmetic on 0-d tensors (int64 and
float64, as Python's own numbers), and on symbols too where it is an int, so that sizes computed from it stay related.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from ingot import torch_internals as internals
from ingot.frontend.torchscript.interpreter import TorchScriptInterpreter, UnsupportedControlFlow
from ingot.frontend.torchscript.runtime_values import (
    DTYPES,
    RuntimeScalar,
    RuntimeString,
    as_tensor,
    flatten,
    is_number,
    kind_of,
    number,
)
from ingot.registry import Registry
from ingot.torch_internals import torchscript as ts

Rule = Callable[..., Any]
# `(machine, *inputs) -> value` for aten::name, by the name.
RULES: Registry[str, Rule] = Registry("rule")
rule = RULES.register


def leaves(values: list[Any], kind: Any = object) -> list[Any]:
    return [leaf for leaf in flatten(values)[0] if isinstance(leaf, kind)]


def wins(name: str, inputs: list[Any]) -> bool:
    """Whether an operator of the dispatcher is better asked here: a size, or what a traced graph computes of sizes."""
    return name in _ASKED or (
        name in _TRACED
        and any(internals.is_symbolic(value) for value in inputs)
        and all(is_number(value) or value is None or isinstance(value, str) or _is_count(value) for value in inputs)
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not isinstance(value, internals.FakeTensor) and value.dim() == 0


def index(machine: TorchScriptInterpreter, value: Any) -> int:
    """An int that Python itself needs: how many, or which one of a list."""
    if isinstance(value, RuntimeScalar) or (
        internals.is_symbolic(value) and any(map(internals.is_unbacked, _symbols(value)))
    ):
        raise UnsupportedControlFlow("a list index or length is data-dependent", machine.place)
    return int(value)


def _symbols(value: Any) -> Any:
    return internals.expr_of(value).free_symbols


def truth(machine: TorchScriptInterpreter, value: Any) -> bool:
    """A bool that Python itself needs."""
    if isinstance(value, RuntimeScalar) or (
        internals.is_symbolic(value) and any(map(internals.is_unbacked, _symbols(value)))
    ):
        raise UnsupportedControlFlow("the contents of a list or a dict are data-dependent", machine.place)
    return bool(value)


# ---------------------------------------------------------------------- arithmetic


def _arithmetic(
    name: str,
    on_numbers: Callable[..., Any],
    on_tensors: Callable[..., Any],
    result: type | None = None,
    *,
    symbolic: bool = True,
) -> Rule:
    """`result` is the kind of what comes out, where it is not that of what goes in; `symbolic` says whether
    `on_numbers` takes sizes that stay open, which are tensors otherwise."""

    def compute(machine: TorchScriptInterpreter, *inputs: Any) -> Any:
        if name in _TRACED:
            inputs = tuple(_count(value) for value in inputs)
        if name in ("add", "sub") and len(inputs) == 3:
            inputs = inputs[:2]  # a traced sum's alpha, which sizes leave at 1
        if not any(
            isinstance(value, RuntimeScalar) or (not symbolic and internals.is_symbolic(value)) for value in inputs
        ):
            return on_numbers(*inputs)
        kinds = [kind_of(value) for value in inputs]
        inner = float if float in kinds or result is float else int if int in kinds else bool
        kind = result or inner
        tensor = on_tensors(*(as_tensor(value, DTYPES[inner]) for value in inputs))
        if kind is not int:
            return RuntimeScalar(kind, tensor.to(DTYPES[kind]))
        symbol = on_numbers(*map(number, inputs)) if inner is int and symbolic else None
        return (
            RuntimeScalar(int, tensor, symbol)
            if internals.is_symbolic(symbol)
            else RuntimeScalar.from_tensor(int, tensor.to(torch.int64))
        )

    return compute


def _count(value: Any) -> Any:
    return value.item() if _is_count(value) else value


def _either(on_numbers: Callable[..., Any], on_others: Callable[..., Any]) -> Rule:
    """Numbers one way; lists and text another."""

    def compute(machine: TorchScriptInterpreter, *inputs: Any) -> Any:
        numeric = all(is_number(value) or _is_count(value) for value in inputs)
        return on_numbers(machine, *inputs) if numeric else on_others(machine, *inputs)

    return compute


def _logical(on_bools: Callable[..., Any], on_tensors: Callable[..., Any], on_symbols: Callable[..., Any]) -> Rule:
    def compute(machine: TorchScriptInterpreter, *inputs: Any) -> Any:
        if any(isinstance(value, RuntimeScalar) for value in inputs):
            if all(kind_of(value) is bool for value in inputs):
                return RuntimeScalar(bool, on_tensors(*map(as_tensor, inputs)))
            return RuntimeScalar.from_tensor(int, on_tensors(*(as_tensor(value, torch.int64) for value in inputs)))
        if any(internals.is_symbolic(value) for value in inputs):
            return on_symbols(*inputs)
        return on_bools(*inputs)

    return compute


def _round(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: function(tensor.to(torch.float64)).to(torch.int64)


def _floor_divide(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.div(a, b, rounding_mode="floor")


def _power(a: Any, b: Any) -> Any:
    return a**b


def _magnitude(a: Any) -> Any:
    return torch.sym_max(a, -a) if internals.is_symbolic(a) else abs(a)


def _root(a: Any) -> Any:
    return internals.sym_sqrt(a) if internals.is_symbolic(a) else math.sqrt(a)


def _round_half_even(a: Any) -> Any:
    """The interpreter's round() returns a float."""
    return torch.sym_float(round(a)) if internals.is_symbolic(a) else float(round(a))


_BINARY: dict[str, tuple[Callable[..., Any], Callable[..., Any], type | None]] = {
    "add": (operator.add, torch.add, None),
    "sub": (operator.sub, torch.sub, None),
    "mul": (operator.mul, torch.mul, None),
    "div": (lambda a, b, *mode: _divide(a, b, *mode), torch.div, float),
    "floordiv": (operator.floordiv, _floor_divide, None),
    "floor_divide": (operator.floordiv, _floor_divide, None),
    "remainder": (operator.mod, torch.remainder, None),
    "fmod": (math.fmod, torch.fmod, float),
    "pow": (_power, torch.pow, float),
    "lt": (operator.lt, torch.lt, bool),
    "le": (operator.le, torch.le, bool),
    "gt": (operator.gt, torch.gt, bool),
    "ge": (operator.ge, torch.ge, bool),
}
_UNARY: dict[str, tuple[Callable[..., Any], Callable[..., Any], type | None]] = {
    "neg": (operator.neg, torch.neg, None),
    "abs": (_magnitude, torch.abs, None),
    "fabs": (_magnitude, torch.abs, float),
    "sqrt": (_root, torch.sqrt, float),
    "round": (_round_half_even, torch.round, float),
    "ceil": (math.ceil, _round(torch.ceil), int),
    "floor": (math.floor, _round(torch.floor), int),
}
# Functions that no size is computed with: an open one becomes a tensor first.
_FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any], type]] = {
    **{
        name: (getattr(math, name), getattr(torch, name), float)
        for name in (
            *("exp", "expm1", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh"),
            *("asinh", "acosh", "atanh", "atan2", "copysign", "erf", "erfc", "lgamma"),
        )
    },
    **{name: (getattr(math, name), getattr(torch, name), bool) for name in ("isnan", "isinf", "isfinite")},
    "degrees": (math.degrees, torch.rad2deg, float),
    "radians": (math.radians, torch.deg2rad, float),
    "log": (math.log, lambda a, *base: torch.log(a) / torch.log(base[0]) if base else torch.log(a), float),
    "gcd": (math.gcd, torch.gcd, int),
}
# Questions whose answers stay symbols here; the operators of these names return plain numbers.
_ASKED = frozenset({"size", "stride", "numel", "dim", "storage_offset", "item"})
# What a traced graph computes sizes with.
_TRACED = frozenset({"add", "sub", "mul", "div", "floor_divide", "remainder", "neg", "Int", "rsub"})


def _divide(a: Any, b: Any, mode: str | None = None) -> Any:
    if mode == "floor":
        return a // b
    if mode == "trunc":
        return torch.sym_int(a / b) if internals.is_symbolic(a) or internals.is_symbolic(b) else int(a / b)
    return a / b


def _join(machine: TorchScriptInterpreter, a: Any, b: Any) -> Any:
    return RuntimeString(a + b) if isinstance(a, RuntimeString) or isinstance(b, RuntimeString) else a + b


def _repeat(machine: TorchScriptInterpreter, a: Any, b: Any) -> Any:
    return a * index(machine, b) if not is_number(a) else index(machine, a) * b


_OTHERS: dict[str, Rule] = {"add": _join, "mul": _repeat, "lt": lambda m, a, b: a < b, "gt": lambda m, a, b: a > b}


for _name, (_plain, _tensor, _result) in (_BINARY | _UNARY).items():
    _compute = _arithmetic(_name, _plain, _tensor, _result)
    rule(_name)(_either(_compute, _OTHERS[_name]) if _name in _OTHERS else _compute)

for _name, (_plain, _tensor, _result) in _FUNCTIONS.items():
    rule(_name)(_arithmetic(_name, _plain, _tensor, _result, symbolic=False))


@rule("divmod")
def _divmod(machine: TorchScriptInterpreter, a: Any, b: Any) -> Any:
    return RULES["floordiv"](machine, a, b), RULES["remainder"](machine, a, b)


rule("rsub")(lambda machine, a, b, *_: RULES["sub"](machine, b, a))
rule("__and__")(_logical(operator.and_, torch.bitwise_and, operator.and_))
rule("__or__")(_logical(operator.or_, torch.bitwise_or, operator.or_))
rule("__xor__")(_logical(operator.xor, torch.bitwise_xor, lambda a, b: (a & torch.sym_not(b)) | (torch.sym_not(a) & b)))
rule("__not__")(_logical(operator.not_, torch.logical_not, torch.sym_not))
rule("__lshift__")(_arithmetic("__lshift__", operator.lshift, torch.bitwise_left_shift, symbolic=False))
rule("__rshift__")(_arithmetic("__rshift__", operator.rshift, torch.bitwise_right_shift, symbolic=False))


@rule("eq", "__eq__")
def _equal(machine: TorchScriptInterpreter, a: Any, b: Any) -> Any:
    if is_number(a) and is_number(b):
        return _EQUAL(machine, a, b)
    if isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            return False
        found: Any = True
        for one, other in zip(a, b, strict=True):
            if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
                one, other = RuntimeScalar.read(bool, torch.eq(one, other).all()), True
            found = RULES["__and__"](machine, found, _equal(machine, one, other))
        return found
    return a == b


@rule("ne")
def _differ(machine: TorchScriptInterpreter, a: Any, b: Any) -> Any:
    if is_number(a) and is_number(b):
        return _DIFFER(machine, a, b)
    return RULES["__not__"](machine, _equal(machine, a, b))


_EQUAL = _arithmetic("eq", operator.eq, torch.eq, bool)
_DIFFER = _arithmetic("ne", operator.ne, torch.ne, bool)


def extreme(largest: bool, a: Any, b: Any) -> Any:
    """max or min of two numbers."""
    if isinstance(a, RuntimeScalar) or isinstance(b, RuntimeScalar):
        kind = float if float in (kind_of(a), kind_of(b)) else int
        choose = torch.maximum if largest else torch.minimum
        return RuntimeScalar.from_tensor(kind, choose(as_tensor(a, DTYPES[kind]), as_tensor(b, DTYPES[kind])))
    if internals.is_symbolic(a) or internals.is_symbolic(b):
        return torch.sym_max(a, b) if largest else torch.sym_min(a, b)
    return max(a, b) if largest else min(a, b)


# ---------------------------------------------------------------------- conversions


def _conversion(kind: type) -> Rule:
    def convert(machine: TorchScriptInterpreter, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return RuntimeScalar.read(kind, machine.localize(value), private=machine.reads_last(value))
        if isinstance(value, RuntimeScalar):
            if kind is value.kind:
                return value
            return (
                RuntimeScalar(bool, value.tensor != 0)
                if kind is bool
                else RuntimeScalar.from_tensor(kind, value.tensor.to(DTYPES[kind]))
            )
        if internals.is_symbolic(value):
            if kind is bool:
                return value if isinstance(value, torch.SymBool) else value != 0
            return torch.sym_int(value) if kind is int else torch.sym_float(value)
        return kind(value)

    return convert


def cast_to_kind(machine: TorchScriptInterpreter, value: Any, kind: str) -> Any:
    """A number as the kind that a graph says it is: the interpreter's power of two ints is a float, Python's is not."""
    wanted = _KINDS.get(kind)
    if wanted is None or not is_number(value) or kind_of(value) is wanted:
        return value
    return RULES[wanted.__name__.capitalize()](machine, value)


_KINDS: dict[str, type] = {"int": int, "float": float, "bool": bool}


for _kind, _names in ((int, ("Int", "IntImplicit")), (float, ("Float", "FloatImplicit")), (bool, ("Bool",))):
    rule(*_names)(_conversion(_kind))


@rule("ScalarImplicit", "item", "Scalar")
def _scalar(machine: TorchScriptInterpreter, tensor: Any) -> Any:
    if not isinstance(tensor, torch.Tensor):
        return tensor
    kind = bool if tensor.dtype is torch.bool else float if tensor.dtype.is_floating_point else int
    return RULES[{int: "Int", float: "Float", bool: "Bool"}[kind]](machine, tensor)


@rule("tensor")
def _tensor_of(machine: TorchScriptInterpreter, data: Any, dtype: Any, device: Any, requires_grad: bool = False) -> Any:
    wanted = None if dtype is None else ts.dtype_of_number(dtype)
    if isinstance(data, list):
        parts = [_tensor_of(machine, item, dtype, device) for item in data]
        if any(isinstance(leaf, RuntimeScalar | torch.Tensor) or internals.is_symbolic(leaf) for leaf in leaves(data)):
            return torch.stack(parts)
        return torch.tensor(data, dtype=wanted, device=device)
    if is_number(data):
        natural = {int: torch.int64, float: torch.get_default_dtype(), bool: torch.bool}[kind_of(data)]
        return (
            as_tensor(data, wanted or natural).clone()
            if isinstance(data, RuntimeScalar)
            else as_tensor(data, wanted or natural)
        )
    return data.clone() if wanted is None else data.to(wanted, copy=True)


@rule("as_tensor")
def _as_tensor(machine: TorchScriptInterpreter, data: Any, dtype: Any, device: Any) -> Any:
    if isinstance(data, torch.Tensor):
        return data if dtype is None else data.to(ts.dtype_of_number(dtype))
    return _tensor_of(machine, data, dtype, device)


@rule("to")
def _convert_tensor(machine: TorchScriptInterpreter, tensor: torch.Tensor, *rest: Any) -> Any:
    """aten::to as the interpreter has it: to a device, a dtype, both, or to what another tensor is."""
    *targets, _, copy = rest
    kwargs: dict[str, Any] = {}
    for target in targets:
        if isinstance(target, torch.Tensor):
            kwargs.update(dtype=target.dtype, device=target.device)
        elif isinstance(target, int):
            kwargs["dtype"] = ts.dtype_of_number(target)
        elif target is not None:
            kwargs["device"] = target
    return machine.localize(tensor).to(**kwargs, copy=copy)


# ---------------------------------------------------------------------- iterations of a loop


@rule("__range_length")
def _range_length(machine: TorchScriptInterpreter, low: Any, high: Any, step: Any) -> Any:
    if not any(isinstance(value, RuntimeScalar) or internals.is_symbolic(value) for value in (low, high, step)):
        return len(range(low, high, step))
    if step != 1:
        spread = RULES["sub"](machine, high, low) if step > 0 else RULES["sub"](machine, low, high)
        whole = RULES["floordiv"](machine, RULES["add"](machine, spread, abs(step) - 1), abs(step))
        return extreme(True, whole, 0)
    return extreme(True, RULES["sub"](machine, high, low), 0)


@rule("__derive_index")
def _derive_index(machine: TorchScriptInterpreter, count: Any, low: Any, step: Any) -> Any:
    return RULES["add"](machine, low, RULES["mul"](machine, count, step))


# ---------------------------------------------------------------------- questions about a tensor, modes


@rule("size")
def _size(machine: TorchScriptInterpreter, tensor: torch.Tensor, *dim: Any) -> Any:
    return tensor.size(*dim) if dim else list(tensor.size())


def _question(name: str) -> None:
    def answer(machine: TorchScriptInterpreter, tensor: torch.Tensor, *rest: Any) -> Any:
        found = getattr(tensor, name)(*rest)
        return list(found) if isinstance(found, tuple) else found

    rule(name)(answer)


for _name in (
    "dim",
    "numel",
    "is_floating_point",
    "is_complex",
    "element_size",
    "stride",
    "storage_offset",
    "get_device",
):
    _question(_name)


@rule("is_contiguous")
def _is_contiguous(machine: TorchScriptInterpreter, tensor: torch.Tensor, *rest: Any) -> Any:
    return tensor.is_contiguous()


@rule("cpu")
def _cpu(machine: TorchScriptInterpreter, tensor: torch.Tensor) -> Any:
    return machine.localize(tensor).to("cpu")


@rule("device")
def _device(machine: TorchScriptInterpreter, text: str) -> Any:
    return torch.device(text)


@rule("is_grad_enabled")
def _is_grad_enabled(machine: TorchScriptInterpreter) -> Any:
    return torch.is_grad_enabled()


@rule("set_grad_enabled")
def _set_grad_enabled(machine: TorchScriptInterpreter, enabled: bool) -> Any:
    torch.set_grad_enabled(enabled)
    return ()


@rule("_get_tracing_state", "is_scripting", "is_autocast_enabled", "is_autocast_cpu_enabled")
def _no(machine: TorchScriptInterpreter, *inputs: Any) -> Any:
    return False


@rule("backward", "save", "manual_seed", "set_data")
def _reject_side_effect(machine: TorchScriptInterpreter, *inputs: Any) -> Any:
    raise machine.unsupported_error("The script has a side effect: it seeds, saves or differentiates.")


def is_of_type(value: Any, kind: str) -> bool:
    """What prim::isinstance asks, of values as we hold them."""
    if kind in _KINDS:
        return is_number(value) and kind_of(value) is _KINDS[kind]
    if kind == "NoneType":
        return value is None
    return isinstance(value, {"Tensor": torch.Tensor, "str": str}.get(kind.partition("(")[0], list | tuple | dict))
