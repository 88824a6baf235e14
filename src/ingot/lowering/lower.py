"""A Program becomes a Module: one rule an operator, from tensors to loops.

    @lowers(aten.relu.default)
    def relu(low, x): return low.pointwise("relu", x)

A rule is given the Lowering and the node's arguments as Tensors, Sizes and plain Python values; it returns Tensors. The
node being lowered is `low.node`, its type `low.out`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.errors import CompileError
from ingot.lowering.body import Recorder
from ingot.lowering.interface import Interface
from ingot.lowering.ir import HALVES, Check, Module, Precision
from ingot.lowering.making import CHEAP, Making
from ingot.lowering.refusing import SUPPORTED, Unsupported, dtype_name, refusal
from ingot.lowering.values import Lazy, Strided, Tensor
from ingot.program.metadata import value_of
from ingot.program.program import Program
from ingot.program.refusals import explain_missing_values

Rule = Callable[..., Any]
R = TypeVar("R", bound=Rule)
RULES: dict[Any, Rule] = {}

# An expression longer than this is cut: C compilers and caches both prefer it.
LONG = 48


def lowers(*targets: Any) -> Callable[[R], R]:
    """Registers the rule for these operators; a second registration is a bug."""

    def register(rule: R) -> R:
        for target in targets:
            assert target not in RULES, f"{target} has two rules"
            RULES[target] = rule
        return rule

    return register


def rule_of(target: Any) -> Rule | None:
    """The rule of an operator; that of a library which may not be installed is registered by the operator's name."""
    return RULES.get(target) or RULES.get(str(target))


def lower(program: Program, precision: Precision = "float32", disabled: Collection[str] = ()) -> Module:
    """The program's loops. Every operator that cannot be lowered is named in one UnsupportedOperator.

    With `precision` "bfloat16", products and convolutions with weights multiply in it. Kernels of `KERNELS` that are
    `disabled` are not used: others compute the same.
    """
    import ingot.lowering.rules  # noqa: F401  fills RULES

    valueless = explain_missing_values(program)
    if valueless is not None:
        raise CompileError(valueless)
    lowering = Lowering(program, precision, disabled)
    missing = lowering.missing()
    if missing:
        raise refusal(missing)
    return lowering.module()


def _round(tensor: Tensor) -> None:
    """A result of a half dtype is rounded to it before another operator reads it, as in eager, though both are
    computed in float32 by one loop."""
    data = tensor.data
    if isinstance(data, Lazy) and tensor.dtype in HALVES:
        exact, dtype = data, tensor.dtype
        tensor.data = replace(
            exact, load=lambda ops, index: ops.cast(ops.once((exact, index), lambda: exact.load(ops, index)), dtype)
        )


class Lowering(Making):
    """One lowering: what rules are given. `values` has the value of every node so far."""

    def __init__(self, program: Program, precision: Precision = "float32", disabled: Collection[str] = ()) -> None:
        super().__init__(next(iter(program.graph.nodes)), precision, disabled)
        self.program = program
        self.values: dict[fx.Node, Any] = {}

    def missing(self) -> list[tuple[fx.Node, str]]:
        """Nodes that no rule can take, with why."""
        from ingot.program.cutting import graph_modules

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
                if part.layout is not torch.strided or part.device.type != "cpu":
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
                    raise refusal(failed)
                return self.argument(node.args[0])
            outer, self.node = self.node, node
            try:
                self.values[node] = self._lowered(node)
            except Unsupported as error:
                failed.append((node, str(error)))
                self._told |= self._graphs  # one complaint about a size is enough
                self.values[node] = self._stand_in(node)
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
            self._check_told(node)
            return self.symbolic(value)
        rule = rule_of(node.target)
        assert rule is not None
        result = rule(self, *map(self.argument, node.args), **{k: self.argument(v) for k, v in node.kwargs.items()})
        self._check_told(node)
        several = isinstance(value, (tuple, list)) and isinstance(result, (tuple, list)) and len(value) == len(result)
        types = value if several else (value,)
        parts = [self._typed(part, kind) for part, kind in zip(result if several else (result,), types, strict=True)]
        for part in parts:
            if isinstance(part, Tensor):
                _round(part)
                self._settle(part, len(node.users))
        return parts if several else parts[0]

    def _typed(self, part: Any, value: Any) -> Any:
        """A result in the dtype that torch gives it: a rule may have computed it in a wider one."""
        if not isinstance(part, Tensor) or not isinstance(value, torch.Tensor) or part.dtype == dtype_name(value.dtype):
            return part
        dtype = dtype_name(value.dtype)
        return Tensor(part.shape, dtype, Lazy(lambda ops, index: ops.cast(part.load(ops, index), dtype), part.cost))

    def _check_told(self, node: fx.Node) -> None:
        """A size that the rule left without a value would be whatever lies in memory."""
        value = value_of(node)
        for part in value if isinstance(value, (tuple, list)) else (value,):
            sizes = part.shape if isinstance(part, torch.Tensor) else (part,) if isinstance(part, torch.SymInt) else ()
            told = all(self.is_told(self.size(size)) for size in sizes)
            if isinstance(part, (torch.SymFloat, torch.SymBool)):
                expr = internals.expr_to_check(part)
                told = all(s in self.numbers or self._name(s) in self._told for s in expr.free_symbols)
            if not told:
                what = f"of shape {[*part.shape]}" if isinstance(part, torch.Tensor) else str(part)
                raise Unsupported(f"it gives something {what}, known only when it runs, and its rule does not tell it")

    def _settle(self, tensor: Tensor, users: int) -> None:
        """Keeps in memory what is used often or has become long."""
        cost = tensor.cost
        if isinstance(tensor.data, Lazy) and ((users > 1 and cost > CHEAP) or cost > LONG):
            self.realize(tensor)

    def _stand_in(self, node: fx.Node) -> Any:
        """Something of the right type, so that lowering goes on and finds every other complaint."""
        value = value_of(node)
        parts = value if isinstance(value, (tuple, list)) else (value,)
        made = [self._zeros(v) if isinstance(v, torch.Tensor) else v for v in parts]
        return made if isinstance(value, (tuple, list)) else made[0]

    def _zeros(self, value: torch.Tensor) -> Tensor:
        try:
            shape = self.shape_of(value)
        except Unsupported:  # it is a size that was complained of
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

    def constant(self, tensor: Tensor) -> torch.Tensor | None:
        """The elements of state that is never written, in their own order; None of anything else."""
        if not isinstance(tensor.data, Strided) or self.buffers[tensor.data.buffer].kind != "weight":
            return None
        source = self.weights[tensor.data.buffer].source
        state = self.program.state_dict.get(source)
        return (self.program.constants[source] if state is None else state).detach()

    def _constraints(self) -> None:
        """What the program asks of its sizes beyond their ranges, checked before anything runs."""
        for constraint in self.program.constraints:
            ops = Recorder()
            value = self._compute(ops, constraint.condition, "bool")
            self.steps.append(Check(ops.finish([value]), f"The sizes do not satisfy {constraint}", True))
