"""FX graphs as JSON.

    graph    := {"nodes": [node, …], "modules": [[name, graph], …]}
    node     := {"op", "name", "target", "args", "kwargs"}, and "value", "source", "stack", "bindings" where it has them
    target   := {"operator": "aten::add.Tensor"} | {"higher_order": "cond"} | {"function": "operator.getitem"} | name
    argument := plain | {"node": name}

Sources and module stacks are the same for many nodes: a node holds an index into a table of the file.

A graph becomes Python code when it runs, so every name that could get into that code is checked to be one. Operators
must be on the list of those that a file may call (allowed_operators.py) and are looked up among those that are
registered, functions in a table; nothing is imported, nothing evaluated.
"""

from __future__ import annotations

import keyword
import math
import operator
import re
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NoReturn

import torch
from torch import fx, nn

from ingot import torch_internals as internals
from ingot.errors import ForbiddenOperator, MissingOperator, SaveError, format_error
from ingot.ir import effect_tokens, metadata, symbolic_dims
from ingot.ir.metadata import ModuleFrame, Source
from ingot.serialization.allowed_operators import HIGHER_ORDER, is_allowed
from ingot.serialization.values import (
    Cursor,
    Json,
    Unwritable,
    ValueReader,
    ValueWriter,
    build_guarded,
    identifiers,
    read_plain,
    write_plain,
)

_OPERATOR = re.compile(r"([A-Za-z_]\w*)::([A-Za-z_]\w*)\.([A-Za-z_]\w*)", re.ASCII)
_OPS = ("placeholder", "get_attr", "call_function", "output")


def _functions() -> dict[str, Callable[..., Any]]:
    """The Python functions that a node may call, by the name that a file has for them."""
    table: dict[str, Callable[..., Any]] = {
        "round": round,
        "abs": abs,
        "max": max,
        "min": min,
        "enter_autocast": internals.enter_autocast,
        "exit_autocast": internals.exit_autocast,
        "set_grad_enabled": internals.set_grad_enabled,
    }
    known = {
        operator: "getitem add sub mul truediv floordiv mod pow neg pos abs eq ne lt le gt ge and_ or_ xor not_ invert "
        "lshift rshift",
        math: "floor ceil trunc sqrt",
        torch: "sym_int sym_float sym_max sym_min sym_not sym_ite sym_sqrt sym_sum",
    }
    for module, names in known.items():
        table |= {f"{module.__name__}.{name}": getattr(module, name) for name in names.split()}
    for name, operation in symbolic_dims.OPERATIONS.items():
        if operation.function not in table.values():
            table[f"size.{name}"] = operation.function
    return table


FUNCTIONS = _functions()
# Two small numbers in, a number with as many digits as a file likes out: by the second, which is at most this.
_GROWING = (operator.pow, operator.lshift)
_EXPONENT_LIMIT = 64
_FUNCTION_NAMES = {function: name for name, function in reversed(FUNCTIONS.items())}


class Table:
    """Values that are the same in many places, each written once."""

    def __init__(self) -> None:
        self._index: dict[Hashable, int] = {}

    def index(self, value: Hashable) -> int:
        return self._index.setdefault(value, len(self._index))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._index)


# ---------------------------------------------------------------------- writing


class GraphWriter:
    """Writes a graph and those inside it. Raises SaveError for a node that a file cannot hold."""

    def __init__(self) -> None:
        self.values = ValueWriter()
        self._sources, self._stacks = Table(), Table()

    def write(self, module: fx.GraphModule) -> Json:
        nodes = [self._node(node) for node in module.graph.nodes]
        inner = {str(node.target): node for node in module.graph.nodes if node.op == "get_attr"}
        return {"nodes": nodes, "modules": [[name, self._module(module, node)] for name, node in inner.items()]}

    def tables(self) -> dict[str, Json]:
        """What the nodes refer to; complete once every graph is written."""
        return {
            "sources": [[source.file, source.line, source.function] for source in self._sources],
            "stacks": [[[frame.call, frame.path, frame.type] for frame in stack] for stack in self._stacks],
        }

    def _module(self, module: fx.GraphModule, node: fx.Node) -> Json:
        found = getattr(module, str(node.target), None)
        if not isinstance(found, fx.GraphModule):
            raise _unwritable(node, f"an attribute that is a {type(found).__name__}, not a graph")
        return self.write(found)

    def _node(self, node: fx.Node) -> Json:
        try:
            written = {
                "op": node.op,
                "name": node.name,
                "target": _write_target(node),
                "args": [write_plain(argument, _write_node) for argument in node.args],
                "kwargs": [[key, write_plain(argument, _write_node)] for key, argument in node.kwargs.items()],
            }
            if metadata.has_value(node):
                written["value"] = self.values.write(metadata.value_of(node))
            if bindings := metadata.bindings_of(node):
                self.values.meet(*bindings)
                written["bindings"] = _write_bindings(bindings)
        except Unwritable as failure:
            raise _unwritable(node, str(failure)) from None
        source, stack = metadata.source_of(node), metadata.module_stack_of(node)
        if source is not None and _is_one_line(source):
            written["source"] = self._sources.index(source)
        if stack:
            written["stack"] = self._stacks.index(stack)
        return written


def _unwritable(node: fx.Node, what: str) -> SaveError:
    return SaveError(
        format_error(
            f"A file cannot hold {what}.",
            where=metadata.where(node),
            fix="pass it to the model as plain values (numbers, text, dtypes, lists, dicts) or as tensors",
        )
    )


def _is_one_line(source: Source) -> bool:
    return source.file.isprintable() and source.function.isprintable()


def _write_node(value: Any) -> Json:
    if isinstance(value, fx.Node):
        return {"node": value.name}
    raise Unwritable(f"a {type(value).__module__}.{type(value).__qualname__} as an argument of an operation")


def _write_target(node: fx.Node) -> Json:
    target = node.target
    if node.op in ("placeholder", "get_attr", "output"):
        return target
    if isinstance(target, internals.OpOverload):
        if not is_allowed(target.namespace, target._schema.name.partition("::")[2], target._overloadname):
            raise Unwritable(f"a call of {operator_text(target)}, which a file may not call")
        return {"operator": operator_text(target)}
    if isinstance(target, internals.HigherOrderOperator):
        if target.name() not in HIGHER_ORDER:
            raise Unwritable(f"a call of {target.name()}, which a file may not call")
        return {"higher_order": target.name()}
    name = None if isinstance(target, str) else _FUNCTION_NAMES.get(target)
    if name is None:
        raise Unwritable(f"a {node.op} of {getattr(target, '__qualname__', target)}")
    return {"function": name}


def operator_text(target: internals.OpOverload) -> str:
    """aten::add.Tensor"""
    return f"{target._schema.name}.{target._overloadname}"


def _write_bindings(bindings: Any) -> Json:
    written = []
    for symbol, path in bindings.items():
        steps = internals.binding_steps(path)
        if steps is None:
            raise Unwritable(f"the number {symbol} found in a value by {path}")
        written.append([symbol.name, [list(step) for step in steps]])
    return sorted(written)


# ---------------------------------------------------------------------- reading


class GraphReader:
    """Builds the graphs of a file. Raises Malformed, ForbiddenOperator, and MissingOperator for one that is not
    registered. Without `custom` operators are of torch and Ingot only."""

    def __init__(self, symbols: Cursor, sources: Cursor, stacks: Cursor, path: str, *, custom: bool = True) -> None:
        self.values = ValueReader(symbols)
        self._path = path
        self._custom = custom
        self._sources = [_read_source(source) for source in sources.items()]
        self._stacks = [metadata.stack_entry(_read_frame(frame) for frame in stack.items()) for stack in stacks.items()]
        self._operators: dict[str, internals.OpOverload] = {}

    def read(self, cursor: Cursor) -> fx.GraphModule:
        nodes_at, modules_at = cursor.fields("nodes", "modules")
        root = nn.Module()
        for pair in modules_at.items():
            name, module = pair.items(2)
            if hasattr(root, identifiers(name, "a graph inside this one")):
                name.wrong("a name that is free")
            root.add_module(name.value, self.read(module))
        graph = fx.Graph()
        nodes: dict[str, fx.Node] = {}
        for node_at in nodes_at.items():
            if nodes and next(reversed(nodes.values())).op == "output":
                node_at.wrong("in a graph that has returned")
            self._node(node_at, graph, nodes, root)
        if not nodes or next(reversed(nodes.values())).op != "output":
            nodes_at.wrong("a graph that returns")
        arguments = [node.target for node in graph.nodes if node.op == "placeholder"]
        if len(set(arguments)) != len(arguments):
            nodes_at.wrong("a graph whose arguments have names of their own")
        return build_guarded(cursor, lambda: internals.LazyGraphModule(root, graph))

    def _node(self, cursor: Cursor, graph: fx.Graph, nodes: dict[str, fx.Node], root: nn.Module) -> None:
        op_at, name_at, target_at, args_at, kwargs_at, value_at, source_at, stack_at, bindings_at = cursor.fields(
            "op", "name", "target", "args", "kwargs", "value?", "source?", "stack?", "bindings?"
        )
        op = op_at.one_of(dict(zip(_OPS, _OPS, strict=True)), "an operation of a node")
        name = identifiers(name_at, "a node")
        if keyword.iskeyword(name) or name in nodes:
            name_at.wrong("a name that is free")

        def argument(tag: str, inner: Cursor) -> fx.Node:
            return inner.one_of(nodes, "a node before this one") if tag == "node" else inner.wrong("an argument")

        target = self._target(op, target_at, root)
        args = tuple(read_plain(item, argument) for item in args_at.items())
        pairs = [pair.items(2) for pair in kwargs_at.items()]
        kwargs = {identifiers(key, "an argument"): read_plain(item, argument) for key, item in pairs}
        if target in _GROWING and not all(_is_small(value) for value in (*args[1:], *kwargs.values())):
            args_at.wrong(f"an exponent of at most {_EXPONENT_LIMIT}")
        if op in ("placeholder", "get_attr") and (args or kwargs):
            args_at.wrong("empty")
        if op == "output" and (len(args) != 1 or kwargs):
            args_at.wrong("what the graph returns")
        node = graph.create_node(op, target, args, kwargs, name=name)
        node.name = name
        nodes[name] = node
        if "value" in cursor.value:
            metadata.set_value(node, self.values.read(value_at))
        if source_at.value is not None:
            metadata.set_source(node, self._sources[source_at.integer(0, len(self._sources) - 1)])
        if stack_at.value is not None:
            metadata.share_module_stack(node, self._stacks[stack_at.integer(0, len(self._stacks) - 1)])
        if bindings_at.value is not None:
            metadata.set_bindings(node, dict(self._binding(pair) for pair in bindings_at.items()))

    def _target(self, op: str, cursor: Cursor, root: nn.Module) -> Any:
        if op == "get_attr":
            children = {name: name for name, _ in root.named_children()}
            return cursor.one_of(children, "a graph inside this one")
        if op != "call_function":
            name = identifiers(cursor, "an argument")
            return cursor.wrong("a name") if keyword.iskeyword(name) else name
        tag, inner = cursor.read_tag()
        if tag == "function":
            return inner.one_of(FUNCTIONS, "a function that a program may call")
        if tag == "higher_order":
            found = internals.higher_order_operators().get(inner.text()) or self._missing(inner.value)
            return found if inner.value in HIGHER_ORDER else self._forbidden(inner.value)
        if tag != "operator":
            cursor.wrong("an operator")
        return self._operators.get(inner.text()) or self._operator(inner)

    def _operator(self, cursor: Cursor) -> internals.OpOverload:
        match = _OPERATOR.fullmatch(cursor.value)
        if match is None:
            cursor.wrong("the name of an operator")
        if not is_allowed(*match.groups(), custom=self._custom):
            is_there = internals.operator_named(*match.groups()) is not None or effect_tokens.is_derived(match[1])
            (self._forbidden if is_there else self._missing)(cursor.value)
        found = effect_tokens.operator_named(*match.groups())
        if found is None or operator_text(found) != cursor.value:
            self._missing(cursor.value)
        self._operators[cursor.value] = found
        return found

    def _forbidden(self, name: str) -> NoReturn:
        raise ForbiddenOperator(
            f"a file may not call the operator {name!r}",
            why="it is not on the list of operators that only compute: it may touch files, processes or memory; with "
            "trust=False, operators of other libraries may not be called either",
            fix="do not use a file that you did not expect this of; capture the model again without the operator",
            path=self._path,
            member="graph.json",
        )

    def _missing(self, name: str) -> NoReturn:
        raise MissingOperator(
            f"the operator {name!r} is not registered in this process",
            why="the program calls it, and a file does not hold the code of operators",
            fix="import the module that registers it before loading; an operator of torch's own needs the torch "
            "release that the file's manifest names, or a newer one",
            path=self._path,
            member="graph.json",
        )

    def _binding(self, pair: Cursor) -> tuple[Any, Any]:
        symbol, steps = pair.items(2)
        path = [self._step(step) for step in steps.items()]
        return symbol.one_of(self.values.symbols, "a number of this program"), internals.binding_path(path)

    def _step(self, cursor: Cursor) -> tuple[str, Any]:
        kind_at, value_at = cursor.items(2)
        kind = kind_at.text()
        if kind == "call":
            methods = {name: name for name in ("size", "stride", "storage_offset")}
            return kind, value_at.one_of(methods, "a question about a tensor")
        if kind not in ("item", "divide", "int"):
            kind_at.wrong("a step into a value")
        return kind, value_at.integer(1 if kind == "divide" else 0)


def _is_small(exponent: Any) -> bool:
    value = metadata.value_of(exponent) if isinstance(exponent, fx.Node) else exponent
    if internals.is_symbolic(value):
        value = value.node.hint  # what torch computes with, next to the symbol
    return not isinstance(value, int | float) or value <= _EXPONENT_LIMIT


def _read_source(cursor: Cursor) -> Source:
    file, line, function = cursor.items(3)
    source = Source(file.text(), line.integer(0), function.text())
    # A newline in it would end the comment that it becomes in generated code.
    return source if _is_one_line(source) and '"' not in source.file else cursor.wrong("a line of code")


def _read_frame(cursor: Cursor) -> ModuleFrame:
    return ModuleFrame(*(part.text() for part in cursor.items(3)))
