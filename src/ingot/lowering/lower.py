"""A Program becomes a Module: one rule per operator, from tensors to loops.

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
from ingot.analysis.graph_interpreter import SYMBOLIC, GraphInterpreter
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
from ingot.registry import Registry

_log = logging.getLogger("ingot.lowering")

Rule = Callable[..., Any]
R = TypeVar("R", bound=Rule)
RULES: Registry[Any, Rule] = Registry("lowering rule")

# An expression longer than this is cut: its parts are then computed once, and by shorter loops.
LONG = 48


def lowers(*targets: Any, whole: Sequence[Any] = ()) -> Callable[[R], R]:
    """Registers the rule for these operators, and for those that are `whole`: decompositions leave them as they are,
    since this rule gives better code than those of the operators that they are made of."""

    def register(rule: R) -> R:
        RULES.register(*targets)(rule)
        return RULES.register(*whole, tags=("whole",))(rule)

    return register


rule_of = RULES.find


def whole_operators() -> tuple[Any, ...]:
    """The operators that a program should still have when it is lowered."""
    import ingot.lowering.rules  # noqa: F401  fills RULES

    return tuple(sorted(RULES.list_tagged("whole"), key=str))


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
    lowering.check_supported()
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


class Lowering(LoopBuilder, GraphInterpreter):
    """One lowering: what rules are given."""

    refusals = (LoweringUnsupported,)

    def __init__(
        self, program: Program, strategy: LoweringStrategy | None = None, precision: Precision = "float32"
    ) -> None:
        LoopBuilder.__init__(self, next(iter(program.graph.nodes)), strategy or LoweringStrategy(), precision)
        GraphInterpreter.__init__(self, program)

    def explain(self, node: fx.Node) -> str | None:
        inner = node.op == "placeholder" and node.graph is not self.program.graph  # as the operand was explained
        return None if inner else super().explain(node)

    def explain_rule(self, node: fx.Node) -> str | None:
        return "there is no rule for it" if rule_of(node.target) is None else None

    def explain_tensor(self, tensor: torch.Tensor) -> str | None:
        if dtype_name(tensor.dtype) not in SUPPORTED:
            return f"dtype {dtype_name(tensor.dtype)} is not supported"
        if tensor.layout is not torch.strided or tensor.device.type not in self.strategy.devices:
            return f"a {tensor.layout} tensor on {tensor.device} is not supported"
        return None

    def unsupported_error(self, found: Sequence[tuple[fx.Node, str]]) -> Exception:
        return unsupported_error(found)

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

    def evaluate(self, node: fx.Node) -> Any:
        value = value_of(node)
        if isinstance(value, (int, float, bool)):
            return value
        if isinstance(value, SYMBOLIC):
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
            raise LoweringUnsupported(f"its rule returns the shape {[*part.shape]}, where torch returns {[*expected]}")

    def _check_symbols_bound(self, node: fx.Node) -> None:
        """A size that the rule left without a value would be whatever lies in memory."""
        value = value_of(node)
        for part in value if isinstance(value, (tuple, list)) else (value,):
            sizes = part.shape if isinstance(part, torch.Tensor) else (part,) if isinstance(part, torch.SymInt) else ()
            is_known = all(self.is_bound(self.size(size)) for size in sizes)
            if isinstance(part, (torch.SymFloat, torch.SymBool)):
                expr = internals.expr_to_check(part)
                is_known = all(s in self.numbers or self._name(s) in self._bound for s in expr.free_symbols)
            if not is_known:
                what = f"of shape {[*part.shape]}" if isinstance(part, torch.Tensor) else str(part)
                raise LoweringUnsupported(
                    f"its output {what} is data-dependent and its lowering rule does not bind the symbol"
                )

    def _materialize_if_shared(self, tensor: TensorValue, users: int) -> None:
        """Keeps in memory what is used often or has become long."""
        cost = tensor.cost
        if isinstance(tensor.data, Deferred) and ((users > 1 and cost > CHEAP) or cost > LONG):
            self.realize(tensor)

    def stand_in(self, value: Any) -> Any:
        self._bound |= self._graphs  # one complaint about a size is enough
        if not isinstance(value, torch.Tensor):
            return value
        try:
            shape = self.shape_of(value)
        except LoweringUnsupported:  # it is a size that was complained of
            shape = (1,) * value.dim()
        return self.full(shape, 0, dtype_name(value.dtype))

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
            return  # a data-dependent size: the graph asserts what is asked of it
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
