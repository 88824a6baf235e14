"""A subgraph of scalars becomes a body: a user's score function, a combine function, anything that goes into a kernel.

    body = lower_body(graph_module, [Given("float32"), Given("int32"), table], around=lowering)

Inputs by position: `Given(dtype)` is a value that the kernel hands in (the op "input"), an int or a Size is a number,
and a TensorValue is something that the function closes over and may read at computed places. The rules are the ones
that kernels are made with; there is one table. What a body cannot do is memory of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from ingot.analysis.graph_interpreter import NUMBERS
from ingot.analysis.side_effects import asserts
from ingot.errors import UnsupportedOperator, format_error
from ingot.ir.metadata import module_path_of, source_of, value_of
from ingot.lowering.dtypes import wide
from ingot.lowering.index_expr import Size
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.loop_ir import Body, Buffer
from ingot.lowering.lower import Lowering, Rule, rule_of
from ingot.lowering.tensor_views import Deferred, TensorValue
from ingot.lowering.unsupported import LoweringUnsupported
from ingot.registry import Registry


@dataclass(frozen=True, slots=True)
class Given:
    """A rank-0 value of this dtype that the kernel hands in."""

    dtype: str


def lower_body(
    graph_module: fx.GraphModule,
    inputs: Sequence[Given | Size | TensorValue],
    *,
    around: Lowering,
    extra: Registry[Any, Rule] | None = None,
    writers: Collection[Any] = (),
) -> Body:
    """The subgraph's results, scalars all of them, as one body; equal subexpressions of all of them are shared.

    `extra` has rules that win over the general ones. `writers` are operators that may make or write memory, which
    the surrounding lowering, `around`, then owns. Raises UnsupportedOperator, naming the operator itself and the
    user's line, for one that has no rule, that needs memory, or whose result is not a scalar.
    """
    results = lower_results(graph_module, inputs, around=around, extra=extra, writers=writers)
    ops = BodyBuilder()
    values = []
    for result in results:
        tensor = around.scalar(result)
        if tensor.rank:
            output = next(node for node in graph_module.graph.nodes if node.op == "output")
            raise raise_unsupported(
                output, f"a result has the shape [{', '.join(map(str, tensor.shape))}]: a body returns scalars"
            )
        values.append(tensor.load(ops, ()))
    return ops.finish(values)


def lower_results(
    graph_module: fx.GraphModule,
    inputs: Sequence[Given | Size | TensorValue],
    *,
    around: Lowering,
    extra: Registry[Any, Rule] | None = None,
    writers: Collection[Any] = (),
) -> list[Any]:
    """The results of the subgraph, each as rules return it: nothing of it is computed yet."""
    import ingot.lowering.rules  # noqa: F401  fills the table of rules; some of them lower bodies themselves

    inside = _BodyLowering(around, extra, frozenset(writers))
    placeholders = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
    for number, (node, given) in enumerate(zip(placeholders, inputs, strict=True)):
        inside.values[node] = _input(number, given) if isinstance(given, Given) else given
    results = inside.run(graph_module.graph)
    return list(results) if isinstance(results, (tuple, list)) else [results]


def _input(number: int, given: Given) -> TensorValue:
    def load(ops: BodyBuilder, index: tuple[Size, ...]) -> int:
        return ops.emit("input", (), wide(given.dtype), number)

    return TensorValue((), given.dtype, Deferred(load, 1))


class _BodyLowering(Lowering):
    """A lowering that has no memory: sizes, symbols and buffers are those of the lowering around it."""

    def __init__(self, around: Lowering, extra: Registry[Any, Rule] | None, writers: frozenset[Any]) -> None:
        self.__dict__.update(around.__dict__)
        self.around = around
        self.extra = extra
        self.storing = writers
        self.values = dict(around.values)

    def evaluate(self, node: fx.Node) -> Any:
        rule = None if self.extra is None else self.extra.find(node.target)
        sizes = isinstance(value_of(node), NUMBERS)  # arithmetic on sizes needs no rule
        if rule is None and rule_of(node.target) is None and not sizes:
            raise raise_unsupported(node, "it is not supported in a body: there is no rule for it")
        if asserts(node):
            raise raise_unsupported(node, "it is not supported in a body: an assertion is a step of its own")
        try:
            if rule is None:
                return super().evaluate(node)
            arguments = {name: self.argument(value) for name, value in node.kwargs.items()}
            return rule(self, *map(self.argument, node.args), **arguments)
        except LoweringUnsupported as failure:
            raise raise_unsupported(node, f"it is not supported in a body: {failure}") from None

    def _materialize_if_shared(self, tensor: TensorValue, users: int) -> None:
        """Nothing is kept in memory: a body is computed once for every element, and shares what is equal."""

    def realize(self, tensor: TensorValue, **options: Any) -> TensorValue:
        return (
            self._memory(lambda: self.around.realize(tensor, **options))
            if isinstance(tensor.data, Deferred)
            else tensor
        )

    def buffer(self, kind: str, dtype: str, shape: Sequence[Size]) -> Buffer:
        made: Buffer = self._memory(lambda: self.around.buffer(kind, dtype, shape))
        return made

    def write(self, target: TensorValue, source: TensorValue) -> None:
        self._memory(lambda: self.around.write(target, source))

    def _memory(self, make: Callable[[], Any]) -> Any:
        if self.node.target not in self.storing:
            raise raise_unsupported(self.node, "it is not supported in a body: it needs memory of its own")
        return make()


def raise_unsupported(node: fx.Node, why: str) -> UnsupportedOperator:
    """The error for a node that cannot stand in a body, at the user's line."""
    source, path = source_of(node), module_path_of(node)
    where = ", ".join(part for part in (str(source) if source else "", f"in {path}" if path else "") if part)
    return UnsupportedOperator(
        format_error(
            f"{node.target} cannot be part of a function that runs inside a kernel.",
            where=where or None,
            why=why,
            fix="use operators on scalars only, and read what the function closes over by index",
        )
    )
