"""The values that a graph's nodes carry, moved into an environment of symbols of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import sympy
import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.ir import metadata


def graph_modules(module: fx.GraphModule) -> Iterator[fx.GraphModule]:
    """A GraphModule and every GraphModule inside it, the outer ones first."""
    for inner in module.modules():
        if isinstance(inner, fx.GraphModule):
            yield inner


class Environment:
    """A new fake mode, and the symbols that were moved into it, in the order in which nodes show them."""

    def __init__(self) -> None:
        self.env = internals.ProgramShapeEnv()
        self.mode = internals.fake_mode(self.env)
        self.symbols: dict[sympy.Symbol, None] = {}
        self._moved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def move(self, module: fx.GraphModule) -> None:
        """Replaces the value of every node of the graph, regions included, by one of this environment."""
        for inner in graph_modules(module):
            for node in inner.graph.nodes:
                if metadata.has_value(node):
                    metadata.set_value(node, self.move_value(metadata.value_of(node)))

    @property
    def free_symbols(self) -> list[sympy.Symbol]:
        """The symbols that are not known to be equal to something else."""
        return [symbol for symbol in self.symbols if not internals.is_replaced(self.env, symbol)]

    def move_value(self, value: Any) -> Any:
        """The same value in this environment."""
        if isinstance(value, torch.Tensor):
            found = self._moved.get(id(value))
            if found is None:
                found = self._moved[id(value)] = (value, self._fake(value))
            return found[1]
        if internals.is_symbolic(value):
            return self._symbolic(value)
        if isinstance(value, list | tuple):
            items = [self.move_value(item) for item in value]
            return items if isinstance(value, list) else tuple(items)
        return value

    def _fake(self, value: torch.Tensor) -> torch.Tensor:
        sizes, strides = [self.move_value(s) for s in value.shape], [self.move_value(s) for s in value.stride()]
        if all(isinstance(number, int) for number in (*sizes, *strides)):
            return internals.fake_dense(self.mode, value, value.requires_grad)
        with internals.suppress_size_guards(self.env):
            return internals.fake_sized(self.mode, value, sizes, strides)

    def _symbolic(self, value: Any) -> Any:
        expr = internals.portable_expr_of(value)
        self._adopt(expr, value.node.shape_env)
        return internals.symbolic_value(self.env, expr)

    def _adopt(self, expr: sympy.Basic, origin: internals.ShapeEnv) -> None:
        for symbol in sorted(expr.free_symbols, key=lambda s: str(s.name)):
            if symbol not in self.symbols:
                self.symbols[symbol] = None
                equal = internals.adopt_symbol(self.env, symbol, origin)
                if equal is not None:
                    self._adopt(equal, origin)


def correct_autocast(module: fx.GraphModule, mode: internals.FakeTensorMode) -> None:
    """Corrects the dtypes of values in and after autocast regions.

    A strict torch.export writes them down as if there were no autocast: it computes them when the region's switches
    are gone already. Shapes are right, so only dtypes are taken from a second run.
    """
    if any(node.target is internals.wrap_with_autocast for m in graph_modules(module) for node in m.graph.nodes):
        arguments = [metadata.value_of(n) for n in module.graph.nodes if n.op == "placeholder"]
        _Autocast(mode).run(module, arguments, inside=False)


class _Autocast:
    """Runs a graph on fakes, as far as autocast can have changed it."""

    def __init__(self, mode: internals.FakeTensorMode) -> None:
        self.mode = mode

    def run(self, module: fx.GraphModule, arguments: Iterable[Any], inside: bool) -> Any:
        given = iter(arguments)
        values: dict[fx.Node, Any] = {}
        changed: set[fx.Node] = set()
        for node in module.graph.nodes:
            args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
            known = metadata.value_of(node)
            if node.op == "get_attr":
                values[node] = getattr(module, str(node.target))
                continue
            if node.op == "output":
                return args[0]
            if node.op == "placeholder":
                value = next(given)
            elif node.target is internals.wrap_with_autocast:
                device, dtype, enabled, _, region, *operands = args
                with torch.autocast(device, dtype, enabled, cache_enabled=False):
                    value = self.run(region, operands, inside=True)
            elif node.target is internals.wrap_with_set_grad_enabled:
                enabled, region, *operands = args
                with torch.set_grad_enabled(enabled):
                    value = self.run(region, operands, inside)
            elif isinstance(node.target, internals.HigherOrderOperator) or not (
                inside or changed.intersection(node.all_input_nodes)
            ):
                value = known
            else:
                if node.target is torch.ops.aten._assert_tensor_metadata.default and "dtype" in kwargs:
                    # It asserts the wrong dtype, so torch's own program would not even run.
                    kwargs = {**kwargs, "dtype": args[0].dtype}
                    node.kwargs = kwargs
                with self.mode:
                    value = node.target(*args, **kwargs)
            values[node] = _recast(known, value)
            if values[node] is not known:
                changed.add(node)
                metadata.set_value(node, values[node])
        raise AssertionError("a graph without an output")


def _recast(known: Any, value: Any) -> Any:
    """What was known of a value, with the dtype that it turned out to have."""
    if isinstance(known, torch.Tensor) and isinstance(value, torch.Tensor):
        return known if known.dtype == value.dtype else known.to(value.dtype)
    if isinstance(known, list | tuple) and isinstance(value, list | tuple):
        items = [_recast(*pair) for pair in zip(known, value, strict=True)]
        if all(new is old for new, old in zip(items, known, strict=True)):
            return known
        return items if isinstance(known, list) else tuple(items)
    return known
