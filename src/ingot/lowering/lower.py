"""A Program becomes a Module: one rule an operator, from tensors to loops.

    @lowers(aten.relu.default)
    def relu(low, x): return low.pointwise("relu", x)

A rule is given the Lowering and the node's arguments as TensorValues, Sizes and plain Python values; it returns
TensorValues. The node being lowered is `low.node`, its type `low.out`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.errors import CompileError
from ingot.ir import symbolic_dims
from ingot.ir.metadata import source_of, value_of
from ingot.ir.program import Program
from ingot.ir.unsupported import explain_missing_values
from ingot.lowering.builder import CHEAP, LoopBuilder
from ingot.lowering.dtypes import HALVES
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.loop_ir import Assert
from ingot.lowering.loop_module import Module, Precision
from ingot.lowering.module_signature import Interface
from ingot.lowering.strategy import LoweringStrategy
from ingot.lowering.tensor_views import Deferred, Strided, TensorValue
from ingot.lowering.unsupported import SUPPORTED, LoweringUnsupported, dtype_name, unsupported_error

_log = logging.getLogger("ingot.lowering")

Rule = Callable[..., Any]
R = TypeVar("R", bound=Rule)
RULES: dict[Any, Rule] = {}
# Operators of RULES whose rule gives better code than those of the operators that they are made of.
_WHOLE: set[Any] = set()

# An expression longer than this is cut: its parts are then computed once, and by shorter loops.
LONG = 48


def lowers(*targets: Any, whole: Sequence[Any] = ()) -> Callable[[R], R]:
    """Registers the rule for these operators, and for those that are `whole`: decompositions leave them as they are. A
    second registration is a bug."""

    def register(rule: R) -> R:
        for target in (*targets, *whole):
            assert target not in RULES, f"{target} has two rules"
            RULES[target] = rule
        _WHOLE.update(whole)
        return rule

    return register


def rule_of(target: Any) -> Rule | None:
    """The rule of an operator; that of a library which may not be installed is registered by the operator's name."""
    return RULES.get(target) or RULES.get(str(target))


def whole_operators() -> tuple[Any, ...]:
    """The operators that a program should still have when it is lowered."""
    import ingot.lowering.rules  # noqa: F401  fills RULES

    return tuple(sorted(_WHOLE, key=str))


def lower(program: Program, strategy: LoweringStrategy | None = None, precision: Precision = "float32") -> Module:
    """The program's loops. Every operator that cannot be lowered is named in one UnsupportedOperator.

    The strategy is the target's; without one, nothing is chosen for any machine. With `precision` "bfloat16", products
    and convolutions with weights may multiply in it.
    """
    import ingot.lowering.rules  # noqa: F401  fills RULES

    valueless = explain_missing_values(program)
    if valueless is not None:
        raise CompileError(valueless)
    lowering = Lowering(program, strategy, precision)
    missing = lowering.missing()
    if missing:
        raise unsupported_error(missing)
    module = lowering.module()
    _log.info(
        "%d nodes → %d steps, %d buffers, %d weights",
        len(program.graph.nodes),
        len(module.steps),
        len(module.buffers),
        len(module.weights),
    )
    return module


def _round(tensor: TensorValue) -> None:
    """A result of a half dtype is rounded to it before another operator reads it, as in eager, though both are
    computed in float32 by one loop."""
    data = tensor.data
    if isinstance(data, Deferred) and tensor.dtype in HALVES:
        exact, dtype = data, tensor.dtype
        tensor.data = replace(
            exact, load=lambda ops, index: ops.cast(ops.once((exact, index), lambda: exact.load(ops, index)), dtype)
        )


class Lowering(LoopBuilder):
    """One lowering: what rules are given. `values` has the value of every node so far."""

    def __init__(
        self, program: Program, strategy: LoweringStrategy | None = None, precision: Precision = "float32"
    ) -> None:
        super().__init__(next(iter(program.graph.nodes)), strategy or LoweringStrategy(), precision)
        self.program = program
        self.values: dict[fx.Node, Any] = {}

    def missing(self) -> list[tuple[fx.Node, str]]:
        """Nodes that no rule can take, with why."""
        from ingot.ir.outlining import graph_modules

        found = []
        for graph_module in graph_modules(self.program.graph_module):
            for node in graph_module.graph.nodes:
                given = node.op == "placeholder" and node.users and node.graph is self.program.graph
                if node.op == "call_function" or given:
                    reason = self._complaint(node)
                    if reason is not None:
                        found.append((node, reason))
        return found

    def _complaint(self, node: fx.Node) -> str | None:
        value = value_of(node)
        if isinstance(value, (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)):
            return None
        if node.op == "call_function" and rule_of(node.target) is None:
            return "there is no rule for it"
        for part in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(part, torch.Tensor):
                if dtype_name(part.dtype) not in SUPPORTED:
                    return f"dtype {dtype_name(part.dtype)} is not supported"
                if part.layout is not torch.strided or part.device.type not in self.strategy.devices:
                    return f"a {part.layout} tensor on {part.device} is not supported"
        return None

    def module(self) -> Module:
        interface = Interface(self, self.program, self.values)
        inputs = interface.inputs()
        self._constraints()
        outputs = interface.outputs(self.run(self.program.graph))
        return Module(
            buffers=self.buffers,
            steps=tuple(self.steps),
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            weights=tuple(self.weights.values()),
            symbols=interface.symbols,
            hints=self.hints,
            draws=self.draws,
            precision=self.precision,
        )

    def run(self, graph: fx.Graph) -> Any:
        """Lowers every node of a graph whose placeholders have values; returns the value of its output."""
        failed: list[tuple[fx.Node, str]] = []
        for node in graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                continue
            if node.op == "output":
                if failed:
                    raise unsupported_error(failed)
                return self.argument(node.args[0])
            outer, self.node = self.node, node
            try:
                self.values[node] = self._lowered(node)
            except LoweringUnsupported as error:
                failed.append((node, str(error)))
                self._told |= self._graphs  # one complaint about a size is enough
                self.values[node] = self._poison_value(node)
            finally:
                self.node = outer
        raise AssertionError("a graph has an output")

    def _lowered(self, node: fx.Node) -> Any:
        value = value_of(node)
        if isinstance(value, (int, float, bool)):
            return value
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            rule = rule_of(node.target)
            if rule is not None:
                rule(self, *map(self.argument, node.args))
            self._check_symbols_bound(node)
            return self.symbolic(value)
        rule = rule_of(node.target)
        assert rule is not None
        result = rule(self, *map(self.argument, node.args), **{k: self.argument(v) for k, v in node.kwargs.items()})
        self._check_symbols_bound(node)
        several = isinstance(value, (tuple, list)) and isinstance(result, (tuple, list)) and len(value) == len(result)
        if not several and isinstance(result, TensorValue) and isinstance(value, torch.Tensor):
            self._check_shape(result, value)  # one of several is checked where it is taken: others may be stand-ins
        types = value if several else (value,)
        parts = [
            self._cast_result(part, kind) for part, kind in zip(result if several else (result,), types, strict=True)
        ]
        for part in parts:
            if isinstance(part, TensorValue):
                _round(part)
                self._materialize_if_shared(part, len(node.users))
        return parts if several else parts[0]

    def _cast_result(self, part: Any, value: Any) -> Any:
        """A result in the dtype that torch gives it: a rule may have computed it in a wider one."""
        if not isinstance(part, TensorValue) or not isinstance(value, torch.Tensor):
            return part
        if part.dtype == dtype_name(value.dtype):
            return part
        dtype = dtype_name(value.dtype)
        return TensorValue(
            part.shape, dtype, Deferred(lambda ops, index: ops.cast(part.load(ops, index), dtype), part.cost)
        )

    def _check_shape(self, part: TensorValue, value: torch.Tensor) -> None:
        """A rule that gives another shape than torch would have its readers go through memory in another way."""
        expected = self.shape_of(value)
        pairs = zip(part.shape, expected, strict=False)
        if part.rank != len(expected) or any(
            isinstance(found, int) and isinstance(size, int) and found != size for found, size in pairs
        ):
            raise LoweringUnsupported(f"its rule gives the shape {[*part.shape]}, where torch gives {[*expected]}")

    def _check_symbols_bound(self, node: fx.Node) -> None:
        """A size that the rule left without a value would be whatever lies in memory."""
        value = value_of(node)
        for part in value if isinstance(value, (tuple, list)) else (value,):
            sizes = part.shape if isinstance(part, torch.Tensor) else (part,) if isinstance(part, torch.SymInt) else ()
            told = all(self.is_bound(self.size(size)) for size in sizes)
            if isinstance(part, (torch.SymFloat, torch.SymBool)):
                expr = internals.expr_to_check(part)
                told = all(s in self.numbers or self._name(s) in self._told for s in expr.free_symbols)
            if not told:
                what = f"of shape {[*part.shape]}" if isinstance(part, torch.Tensor) else str(part)
                raise LoweringUnsupported(
                    f"its output {what} is data-dependent and its lowering rule does not bind the symbol"
                )

    def _materialize_if_shared(self, tensor: TensorValue, users: int) -> None:
        """Keeps in memory what is used often or has become long."""
        cost = tensor.cost
        if isinstance(tensor.data, Deferred) and ((users > 1 and cost > CHEAP) or cost > LONG):
            self.realize(tensor)

    def _poison_value(self, node: fx.Node) -> Any:
        """Something of the right type, so that lowering goes on and finds every other complaint."""
        value = value_of(node)
        parts = value if isinstance(value, (tuple, list)) else (value,)
        made = [self._zeros(v) if isinstance(v, torch.Tensor) else v for v in parts]
        return made if isinstance(value, (tuple, list)) else made[0]

    def _zeros(self, value: torch.Tensor) -> TensorValue:
        try:
            shape = self.shape_of(value)
        except LoweringUnsupported:  # it is a size that was complained of
            shape = (1,) * value.dim()
        return self.full(shape, 0, dtype_name(value.dtype))

    def argument(self, value: Any) -> Any:
        """An argument of a node, with nodes replaced by their values and symbolic numbers by Sizes."""
        if isinstance(value, fx.Node):
            if value.op == "get_attr":
                return getattr(value.graph.owning_module, str(value.target))
            return self.values[value]
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self.symbolic(value)
        if isinstance(value, (list, tuple)):
            return (
                type(value)(self.argument(v) for v in value)
                if type(value) in (list, tuple)
                else [*map(self.argument, value)]
            )
        if isinstance(value, dict):
            return {k: self.argument(v) for k, v in value.items()}
        return value

    def constant(self, tensor: TensorValue) -> torch.Tensor | None:
        """The elements of state that is never written, in their own order; None of anything else."""
        if not isinstance(tensor.data, Strided) or self.buffers[tensor.data.buffer].kind != "weight":
            return None
        source = self.weights[tensor.data.buffer].source
        state = self.program.state_dict.get(source)
        return (self.program.constants[source] if state is None else state).detach()

    def check_place(self, place: int, dim: int) -> None:
        """Ends the run where a dim of the first argument has no such place, unless the ranges exclude that.

        A program captured here has a constraint that says so. One that torch exported may not: before 2.13 torch does
        not ask. Neither has one whose operators, not the graph, look at the size first.
        """
        tensor = self.node.args[0]
        assert isinstance(tensor, fx.Node)
        size = value_of(tensor).shape[dim]
        if not isinstance(size, torch.SymInt):
            return
        expr = size.node.expr
        ranges = {
            d.name: internals.ValueRanges(d.low, internals.int_oo if d.high is None else d.high)
            for d in self.program.dims
        }
        symbols = {s: symbolic_dims.name_of(s) for s in expr.free_symbols}
        if not all(name in ranges for name in symbols.values()):
            return  # a size that only the run tells: the graph asserts what is asked of it
        need = place + 1 if place >= 0 else -place
        least = internals.bounds(internals.bound_sympy(expr, {s: ranges[name] for s, name in symbols.items()}))[0]
        if least >= need:
            return
        ops = BodyBuilder()
        holds = ops.call("ge", ops.index(self.symbolic(size)), ops.const(need, "int64"))
        where = f"\n  where: {source}" if (source := source_of(self.node)) else ""
        message = f"The index {place} is out of range of a dim that has fewer than {need} elements.{where}"
        check = Assert(ops.finish([holds]), message, on_sizes=True)
        if check not in self.steps:
            self.steps.append(check)

    def _constraints(self) -> None:
        """What the program asks of its sizes beyond their ranges, checked before anything runs."""
        for constraint in self.program.constraints:
            ops = BodyBuilder()
            value = self._compute(ops, constraint.condition, "bool")
            self.steps.append(Assert(ops.finish([value]), f"The sizes do not satisfy {constraint}", True))
