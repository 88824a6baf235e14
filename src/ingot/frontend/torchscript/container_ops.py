"""The TorchScript interpreter's own operators on lists, dicts and text.

They change what the script holds, so each is done here on the very object: torch's own would change a copy of it.
"""

from __future__ import annotations

from typing import Any

import torch

from ingot import torch_internals as internals
from ingot.frontend.torchscript.interpreter import TorchScriptInterpreter
from ingot.frontend.torchscript.runtime_values import (
    DTYPES,
    RuntimeScalar,
    RuntimeString,
    as_tensor,
    is_number,
    kind_of,
    number,
)
from ingot.frontend.torchscript.scalar_ops import RULES, index, leaves, rule, truth

# They change the list or dict that they are given.
WRITING = frozenset(
    (
        *("append", "extend", "insert", "pop", "clear", "reverse", "sort", "remove", "add_", "mul_", "Delete"),
        *("__delitem__", "_set_item", "update", "setdefault", "popitem"),
    )
)


@rule("len")
def _len(machine: TorchScriptInterpreter, value: Any) -> Any:
    return value.shape[0] if isinstance(value, torch.Tensor) else len(value)


@rule("__getitem__")
def _getitem(machine: TorchScriptInterpreter, whole: Any, key: Any) -> Any:
    if isinstance(whole, dict):
        return whole[number(key)]
    return whole[index(machine, key)]


@rule("_set_item")
def _setitem(machine: TorchScriptInterpreter, whole: Any, key: Any, value: Any) -> Any:
    whole[key if isinstance(whole, dict) else index(machine, key)] = value
    return whole if isinstance(whole, list) else ()


@rule("append")
def _append(machine: TorchScriptInterpreter, whole: list[Any], item: Any) -> Any:
    whole.append(item)
    return whole


@rule("extend")
def _extend(machine: TorchScriptInterpreter, whole: list[Any], items: list[Any]) -> Any:
    whole.extend(items)
    return ()


@rule("add_")
def _extend_in_place(machine: TorchScriptInterpreter, whole: list[Any], items: list[Any]) -> Any:
    whole.extend(items)
    return whole


@rule("mul_")
def _repeat(machine: TorchScriptInterpreter, whole: list[Any], times: Any) -> Any:
    whole *= index(machine, times)
    return whole


@rule("insert")
def _insert(machine: TorchScriptInterpreter, whole: list[Any], at: Any, item: Any) -> Any:
    whole.insert(index(machine, at), item)
    return ()


@rule("pop")
def _pop(machine: TorchScriptInterpreter, whole: Any, *key: Any) -> Any:
    return whole.pop(*key) if isinstance(whole, dict) else whole.pop(*(index(machine, k) for k in key))


@rule("clear")
def _clear(machine: TorchScriptInterpreter, whole: Any) -> Any:
    whole.clear()
    return ()


@rule("reverse")
def _reverse(machine: TorchScriptInterpreter, whole: list[Any]) -> Any:
    whole.reverse()
    return ()


@rule("sort")
def _sort(machine: TorchScriptInterpreter, whole: list[Any], reverse: bool = False) -> Any:
    whole[:] = _order_items(machine, whole, reverse)
    return ()


@rule("sorted")
def _sort_copy(machine: TorchScriptInterpreter, whole: list[Any]) -> Any:
    return _order_items(machine, whole, False)


def _order_items(machine: TorchScriptInterpreter, items: list[Any], reverse: bool) -> list[Any]:
    if all(isinstance(item, int | float | bool | str) for item in items):
        return sorted(items, reverse=reverse)
    if not all(is_number(item) for item in items):
        raise machine.unsupported_error(
            "A list is sorted by data-dependent values.", fix="stack it and use torch.sort, which sorts a tensor"
        )
    kind = kind_of(items[0])
    ordered, _ = torch.sort(torch.stack([as_tensor(item, DTYPES[kind]) for item in items]), descending=reverse)
    return [RuntimeScalar.from_tensor(kind, ordered.select(0, position).clone()) for position in range(len(items))]


@rule("remove")
def _remove(machine: TorchScriptInterpreter, whole: list[Any], item: Any) -> Any:
    del whole[_position(machine, whole, item)]
    return ()


@rule("index")
def _position(machine: TorchScriptInterpreter, whole: Any, item: Any, *rest: Any) -> Any:
    if isinstance(whole, str):
        return whole.index(item, *rest)
    for position, one in enumerate(whole):
        if truth(machine, RULES["eq"](machine, one, item)):
            return position
    raise ValueError(f"{item!r} is not in the list")


@rule("count")
def _count(machine: TorchScriptInterpreter, whole: Any, item: Any, *rest: Any) -> Any:
    if isinstance(whole, str):
        start, end = rest or (0, -1)
        return whole[start:].count(item) if end == -1 else whole[start:end].count(item)
    return _total(machine, [RULES["Int"](machine, RULES["eq"](machine, one, item)) for one in whole])


@rule("sum")
def _total(machine: TorchScriptInterpreter, items: list[Any]) -> Any:
    found: Any = 0
    for item in items:
        found = RULES["add"](machine, found, item)
    return found


def _make_reduction(combine: str, start: bool) -> Any:
    def compute(machine: TorchScriptInterpreter, items: list[Any]) -> Any:
        found: Any = start
        for item in items:
            found = RULES[combine](machine, found, RULES["Bool"](machine, item))
        return found

    return compute


rule("any")(_make_reduction("__or__", False))
rule("all")(_make_reduction("__and__", True))


@rule("popitem")
def _pop_item(machine: TorchScriptInterpreter, whole: dict[Any, Any]) -> Any:
    return whole.popitem()


@rule("Delete", "__delitem__")
def _delete(machine: TorchScriptInterpreter, whole: Any, key: Any) -> Any:
    del whole[key]
    return ()


@rule("update")
def _update(machine: TorchScriptInterpreter, whole: dict[Any, Any], other: dict[Any, Any]) -> Any:
    whole.update(other)
    return ()


@rule("slice")
def _slice(machine: TorchScriptInterpreter, whole: Any, start: Any, end: Any, step: Any) -> Any:
    return whole[slice(*(None if k is None else index(machine, k) for k in (start, end, step)))]


@rule("copy", "list")
def _copy(machine: TorchScriptInterpreter, whole: Any) -> Any:
    return whole.copy() if isinstance(whole, list | dict) else list(whole)


@rule("__contains__")
def _contains(machine: TorchScriptInterpreter, whole: Any, item: Any) -> Any:
    if isinstance(whole, dict | str):
        return item in whole
    found: Any = False
    for one in whole:
        found = RULES["__or__"](machine, found, RULES["eq"](machine, one, item))
    return found


@rule("keys")
def _keys(machine: TorchScriptInterpreter, whole: dict[Any, Any]) -> Any:
    return list(whole)


@rule("values")
def _values(machine: TorchScriptInterpreter, whole: dict[Any, Any]) -> Any:
    return list(whole.values())


@rule("items")
def _items(machine: TorchScriptInterpreter, whole: dict[Any, Any]) -> Any:
    return list(whole.items())


@rule("get")
def _get(machine: TorchScriptInterpreter, whole: dict[Any, Any], key: Any, default: Any = None) -> Any:
    return whole.get(key, default)


@rule("setdefault")
def _setdefault(machine: TorchScriptInterpreter, whole: dict[Any, Any], key: Any, default: Any) -> Any:
    return whole.setdefault(key, default)


@rule("dict")
def _dict(machine: TorchScriptInterpreter, items: Any = ()) -> Any:
    return dict(items)


@rule("__is__")
def _is(machine: TorchScriptInterpreter, a: Any, b: Any) -> Any:
    return a is b


@rule("__isnot__")
def _is_not(machine: TorchScriptInterpreter, a: Any, b: Any) -> Any:
    return a is not b


def _make_text(text: str, *values: Any) -> str:
    """Text with values in it: of a type of its own where a value is data-dependent."""
    return RuntimeString(text) if any(map(_is_unsure, leaves([*values]))) else text


def _is_unsure(value: Any) -> bool:
    return isinstance(value, RuntimeScalar | torch.Tensor | RuntimeString) or internals.is_symbolic(value)


@rule("format")
def _format(machine: TorchScriptInterpreter, text: str, *values: Any) -> Any:
    return _make_text(text.format(*map(number, values)), text, *values)


@rule("percentFormat")
def _percent(machine: TorchScriptInterpreter, text: str, *values: Any) -> Any:
    given = values[0] if len(values) == 1 and isinstance(values[0], tuple) else values
    return RuntimeString(text) if any(map(_is_unsure, [text, *given])) else text % given


@rule("str")
def _str(machine: TorchScriptInterpreter, value: Any) -> Any:
    return _make_text(str(number(value)), value)


@rule("join")
def _join(machine: TorchScriptInterpreter, text: str, parts: list[str]) -> Any:
    return _make_text(text.join(parts), parts)


@rule("list_with_default")
def _list_with_default(machine: TorchScriptInterpreter, given: list[int], default: list[int]) -> Any:
    return given or default
