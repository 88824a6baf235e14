"""scan and associative_scan with a user's combine function.

A function of elements becomes the body of one kernel that carries its state along the scan, every other point at the
same time. One that mixes elements (a product of matrices, a sum) becomes steps that run once for each place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from ingot.errors import UnsupportedOperator
from ingot.ir.metadata import value_of
from ingot.lowering import tensor_views
from ingot.lowering.dtypes import wide
from ingot.lowering.index_expr import Size, size_symbol, symbol
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.loop_ir import Body, For, Loop, Scan, Store
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.rules.control_flow import allocate_like, append_writes, finalize_result, lower_inside, memory
from ingot.lowering.subgraph_lowering import lower_results
from ingot.lowering.tensor_views import Deferred, Index, Strided, TensorValue, loop_variables
from ingot.lowering.unsupported import LoweringUnsupported

hop = torch.ops.higher_order


class _NotOfElements(Exception):
    """The function does more than read its state where it writes it."""


@lowers(hop.scan)
def scan(
    low: Lowering,
    combine: fx.GraphModule,
    init: Sequence[Any],
    xs: Sequence[TensorValue],
    additional: Sequence[Any] = (),
) -> Any:
    outs = value_of(low.node)
    try:
        return _Elements(low, combine, [low.scalar(i) for i in init], xs, additional).scan(outs)
    except (_NotOfElements, UnsupportedOperator, LoweringUnsupported):
        pass
    start, inputs, more = finalize_result(low, init), finalize_result(low, xs), finalize_result(low, additional)
    homes = []
    for tensor in start:
        home = memory(low, tensor.shape, tensor.dtype)
        low.write(home, tensor)
        homes.append(home)
    stacked = [allocate_like(low, out) for out in outs[len(homes) :]]
    length = inputs[0].shape[0]
    name = low.new_symbol()
    at = size_symbol(name, below=length)
    slices = [tensor_views.select(x, 0, at) for x in inputs]
    steps, results = lower_inside(low, combine, [*homes, *slices, *more], (at, length))
    targets = [*(memory(low, h.shape, h.dtype) for h in homes), *(tensor_views.select(s, 0, at) for s in stacked if s)]
    steps = append_writes(low, steps, results, targets)
    outer, low.steps = low.steps, steps
    for home, fresh in zip(homes, targets, strict=False):
        low.write(home, fresh)
    low.steps = outer
    low.steps.append(For(Loop(name, length), tuple(steps), low.origin))
    return [*homes, *stacked]


@lowers(hop.associative_scan)
def associative_scan(
    low: Lowering, combine: fx.GraphModule, xs: Sequence[TensorValue], additional: Sequence[Any] = ()
) -> Any:
    """One place after another: each is the last one combined with the next input."""
    try:
        return _Elements(low, combine, [tensor_views.select(x, 0, 0) for x in xs], xs, additional).associative_scan()
    except (_NotOfElements, UnsupportedOperator, LoweringUnsupported):
        pass
    inputs, more = finalize_result(low, xs), finalize_result(low, additional)
    results_ = [memory(low, x.shape, x.dtype) for x in inputs]
    for x, made in zip(inputs, results_, strict=True):
        low.write(tensor_views.select(made, 0, 0), tensor_views.select(x, 0, 0))
    length = inputs[0].shape[0]
    name = low.new_symbol()
    at = size_symbol(name, below=length)
    before = [tensor_views.select(made, 0, at) for made in results_]
    now = [tensor_views.select(x, 0, at + 1) for x in inputs]
    steps, results = lower_inside(low, combine, [*before, *now, *more], (at, length - 1))
    steps = append_writes(low, steps, results, [tensor_views.select(made, 0, at + 1) for made in results_])
    low.steps.append(For(Loop(name, length - 1), tuple(steps), low.origin))
    return results_


class _Elements:
    """A scan whose function is one of elements: loops over the points of the state, the iterations inside them."""

    def __init__(
        self,
        low: Lowering,
        combine: fx.GraphModule,
        start: Sequence[TensorValue],
        xs: Sequence[TensorValue],
        additional: Sequence[Any],
    ) -> None:
        self.low, self.combine, self.start = low, combine, start
        self.xs = [self._materialize(x) for x in xs]
        self.additional = [self._materialize(a) if isinstance(a, TensorValue) else a for a in additional]
        shapes = {tensor.shape for tensor in start}
        if len(shapes) != 1 or not xs:
            raise _NotOfElements
        (self.shape,) = shapes
        self.length = xs[0].shape[0]
        self.index, named = loop_variables(self.shape, range(len(self.shape)))
        self.loops = tuple(Loop(*pair) for pair in named)

    def _materialize(self, tensor: TensorValue) -> TensorValue:
        return self.low.materialize_if_expensive(tensor)

    def scan(self, outs: Sequence[Any]) -> list[TensorValue]:
        """The last state, and what each iteration returned besides it."""
        low, count = self.low, len(self.start)
        at = symbol("t", below=self.length)
        results = self._results([tensor_views.select(x, 0, at) for x in self.xs])
        stacked = [allocate_like(low, out) for out in outs[count:]]
        if any(s is None or s.shape[1:] != self.shape for s in stacked):
            raise _NotOfElements
        last = [memory(low, self.shape, tensor.dtype) for tensor in self.start]
        targets: list[tuple[TensorValue, Index]] = [(t, self.index) for t in last]
        targets += [(s, (at, *self.index)) for s in stacked if s is not None]
        # The last state is written in every iteration: the last one counts.
        self._append(results, [*range(count), *range(count, len(results))], targets, self.length, self.start)
        return [*last, *(s for s in stacked if s is not None)]

    def associative_scan(self) -> list[TensorValue]:
        low, count = self.low, len(self.xs)
        at = symbol("t", below=self.length)
        # As they lie: torch moves the dim that is scanned to the front, and back again afterwards.
        made = [memory(low, x.shape, x.dtype, low.order_of(x)) for x in self.xs]
        # The first place is the first input itself; the others follow it.
        for x, y in zip(self.xs, made, strict=True):
            low.write(tensor_views.select(y, 0, 0), tensor_views.select(x, 0, 0))
        results = self._results([tensor_views.select(x, 0, at + 1) for x in self.xs])
        targets: list[tuple[TensorValue, Index]] = [(y, (at + 1, *self.index)) for y in made]
        if self.length != 1:
            self._append(results, list(range(count)), targets, self.length - 1, self.start)
        return made

    def _results(self, slices: Sequence[TensorValue]) -> list[Any]:
        state = [self._state(number, tensor) for number, tensor in enumerate(self.start)]
        results = lower_results(self.combine, [*state, *slices, *self.additional], around=self.low)
        return [self.low.scalar(result) for result in results]

    def _state(self, number: int, tensor: TensorValue) -> TensorValue:
        def load(ops: BodyBuilder, index: Index) -> int:
            if index != self.index:
                raise _NotOfElements
            return ops.emit("input", (), wide(tensor.dtype), number)

        return TensorValue(self.shape, tensor.dtype, Deferred(load, 1))

    def _append(
        self,
        results: Sequence[TensorValue],
        stored: Sequence[int],
        targets: Sequence[tuple[TensorValue, Index]],
        length: Size,
        start: Sequence[TensorValue],
    ) -> None:
        ops = BodyBuilder()
        count = len(start)
        found = []
        for number, result in enumerate(results):
            if result.rank and result.shape != self.shape:
                raise _NotOfElements
            value = result.load(ops, self.index if result.rank else ())
            dtype = start[number].dtype if number < count else targets[stored.index(number)][0].dtype
            # What is carried in a narrow dtype is rounded in each iteration, as torch does.
            found.append(ops.cast(ops.cast(value, dtype), wide(dtype)))
        stores = []
        for number, (tensor, index) in zip(stored, targets, strict=True):
            assert isinstance(tensor.data, Strided)
            stores.append(Store(tensor.data.buffer, tensor.data.offset_at(index), number))
        first = BodyBuilder()
        begin = first.finish([tensor.load(first, self.index) for tensor in start])
        body: Body = ops.finish(found)
        self.low.steps.append(Scan(self.loops, Loop("t", length), begin, body, tuple(stores), origin=self.low.origin))
