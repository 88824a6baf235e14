"""Lists whose length is data-dependent: `for t in range(x.size(0)): out.append(h)`, `x.unbind(0)`.

Such items are the rows of one tensor, and the list holds them as one `DynamicList` among its items. What needs them
all, for how many there are, or for one of them is answered with the tensor; what else a script may do to a list needs
its length, and is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ingot import torch_internals as internals
from ingot.frontend.torchscript.interpreter import TorchScriptInterpreter, UnsupportedControlFlow
from ingot.frontend.torchscript.runtime_values import DynamicList, RuntimeScalar, as_tensor, number
from ingot.frontend.torchscript.scalar_ops import RULES as PLAIN
from ingot.registry import Registry
from ingot.torch_internals import torchscript as ts

aten = torch.ops.aten
Rule = Callable[..., Any]
_RULES: Registry[str, Rule] = Registry("rule")

# They hand a list on, or add items at its end.
_PASSING = frozenset(
    (
        *("prim::TupleConstruct", "prim::ListConstruct", "prim::DictConstruct", "prim::TupleUnpack"),
        *("prim::TupleIndex", "prim::unchecked_cast", "prim::unchecked_unwrap_optional"),
        *("prim::CallFunction", "prim::CallMethod"),
        *("prim::fork", "prim::isinstance", "aten::wait", "aten::append", "aten::extend", "aten::add_", "aten::add"),
        *("aten::copy", "aten::list", "aten::clear", "aten::__is__", "aten::__isnot__"),
    )
)


def handles(kind: str, inputs: list[Any]) -> bool:
    """Whether a node is one of this file's."""
    if kind == "aten::unbind":
        tensor, dim = inputs
        return isinstance(tensor, torch.Tensor) and tensor.dim() > 0 and internals.is_symbolic(tensor.shape[dim])
    return any(type(value) is list and any(type(item) is DynamicList for item in value) for value in inputs)


def run(machine: TorchScriptInterpreter, kind: str, inputs: list[Any], general: Callable[[], Any]) -> Any:
    """The value of a node; `general` is what the node is where it makes no difference how long the list is."""
    found = _RULES.get(kind)
    if found is not None:
        return found(machine, *inputs)
    if kind in _PASSING:
        return general()
    raise UnsupportedControlFlow(f"{kind} needs the length of a list that a data-dependent loop fills", machine.place)


def fill(machine: TorchScriptInterpreter, rows: DynamicList, item: torch.Tensor) -> torch.Tensor:
    """The tensor with one row more."""
    at = as_tensor(rows.count).reshape(1)
    new = machine.localize(item).unsqueeze(0)
    return _tensor(machine, aten.index_put.default, rows.tensor, [at], new)


def _tensor(machine: TorchScriptInterpreter, func: internals.OpOverload, *args: Any) -> torch.Tensor:
    made: torch.Tensor = machine.operate(func, args, {})
    return made


def _all(machine: TorchScriptInterpreter, rows: DynamicList) -> torch.Tensor:
    """The rows that there are."""
    if isinstance(rows.count, RuntimeScalar):
        return _tensor(machine, aten.slice.Tensor, rows.tensor, 0, 0, number(rows.count))
    tensor: torch.Tensor = machine.localize(rows.tensor)
    return tensor


# ---------------------------------------------------------------------- rules


@_RULES.register("aten::unbind")
def _unbind(machine: TorchScriptInterpreter, tensor: torch.Tensor, dim: int) -> Any:
    moved = _tensor(machine, aten.movedim.int, tensor, dim, 0)
    return [DynamicList(moved, moved.shape[0])]


@_RULES.register("aten::len")
def _len(machine: TorchScriptInterpreter, whole: list[Any]) -> Any:
    total: Any = 0
    for item in whole:
        total = PLAIN["add"](machine, total, item.count if isinstance(item, DynamicList) else 1)
    return total


@_RULES.register("aten::stack")
def _stack(machine: TorchScriptInterpreter, whole: list[Any], dim: int = 0) -> Any:
    parts = [
        _all(machine, item) if isinstance(item, DynamicList) else _tensor(machine, aten.unsqueeze.default, item, 0)
        for item in whole
    ]
    stacked = parts[0] if len(parts) == 1 else _tensor(machine, aten.cat.default, parts, 0)
    # A tensor of its own, as stack returns one: the rows may be views of an argument.
    return _tensor(machine, aten.movedim.int, stacked, 0, dim).clone(memory_format=torch.contiguous_format)


@_RULES.register("aten::cat")
def _cat(machine: TorchScriptInterpreter, whole: list[Any], dim: int = 0) -> Any:
    parts = []
    for item in whole:
        if isinstance(item, DynamicList):
            place = dim if dim >= 0 else dim + item.tensor.dim() - 1
            moved = _tensor(machine, aten.movedim.int, _all(machine, item), 0, place)
            item = _tensor(machine, aten.flatten.using_ints, moved, place, place + 1)
        parts.append(item)
    return _tensor(machine, aten.cat.default, parts, dim)


@_RULES.register("aten::reverse")
def _reverse(machine: TorchScriptInterpreter, whole: list[Any]) -> Any:
    whole[:] = [
        DynamicList(_tensor(machine, aten.flip.default, _all(machine, item), [0]), item.count)
        if isinstance(item, DynamicList)
        else item
        for item in reversed(whole)
    ]
    return ()


@_RULES.register("aten::slice")
def _slice(machine: TorchScriptInterpreter, whole: list[Any], start: Any, end: Any, step: Any) -> Any:
    """What keeps the rows whole, and any part of rows that stand alone."""
    places = [place for place, item in enumerate(whole) if isinstance(item, DynamicList)]
    start, end = start or 0, None if end is None or (type(end) is int and end >= ts.FOREVER) else end
    keeps_end = end is None or (type(end) is int and places[-1] + 1 - len(whole) <= end < 0)
    if step == 1 and type(start) is int and 0 <= start <= places[0] and keeps_end:
        return whole[start:end]
    if len(whole) == 1:
        part = _tensor(machine, aten.slice.Tensor, _all(machine, whole[0]), 0, *map(number, (start, end, step)))
        return [DynamicList(part, part.shape[0])]
    raise UnsupportedControlFlow("the list indices depend on a data-dependent loop count", machine.place)


@_RULES.register("aten::__getitem__")
def _getitem(machine: TorchScriptInterpreter, whole: list[Any], key: Any) -> Any:
    places = [place for place, item in enumerate(whole) if isinstance(item, DynamicList)]
    after = len(whole) - 1 - places[-1]
    if type(key) is int and (0 <= key < places[0] or -after <= key < 0):
        return whole[key]
    if whole == [whole[places[0]]]:
        return _row(machine, whole[0], PLAIN["add"](machine, whole[0].count, key) if _is_negative(key) else key)
    if key == -1 and len(places) == 1 and after == 0 and isinstance(whole[-2], torch.Tensor):
        return _last(machine, whole[-1], whole[-2])
    raise UnsupportedControlFlow("the list index depends on a data-dependent loop count", machine.place)


def _is_negative(key: Any) -> bool:
    return type(key) is int and key < 0


def _row(machine: TorchScriptInterpreter, rows: DynamicList, place: Any) -> torch.Tensor:
    return _tensor(machine, aten.select.int, rows.tensor, 0, number(place))


def _last(machine: TorchScriptInterpreter, rows: DynamicList, before: torch.Tensor) -> torch.Tensor:
    """The newest row, and what stood before the rows while there is none."""
    if before.dtype is not rows.tensor.dtype or before.dim() != rows.tensor.dim() - 1:
        raise UnsupportedControlFlow("the items of a list differ, and a data-dependent loop fills it", machine.place)
    place = torch.clamp(as_tensor(rows.count) - 1, min=0).reshape(1)
    row = _tensor(machine, aten.index_select.default, rows.tensor, 0, place).squeeze(0)
    return _tensor(machine, aten.where.self, as_tensor(rows.count) > 0, row, before)
