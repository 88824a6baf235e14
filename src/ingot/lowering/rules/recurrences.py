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
from ingot.lowering import values
from ingot.lowering.body import Recorder
from ingot.lowering.expr import Size, symbol
from ingot.lowering.ir import Body, Loop, Repeat, Scan, Store, wide
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.refusing import Unsupported
from ingot.lowering.rules.control import inside, like, memory, settled, written
from ingot.lowering.subgraph import lower_results
from ingot.lowering.values import Index, Lazy, Strided, Tensor, loop_variables
from ingot.program.metadata import value_of

hop = torch.ops.higher_order


class _NotOfElements(Exception):
    """The function does more than read its state where it writes it."""


@lowers(hop.scan)
def scan(
    low: Lowering, combine: fx.GraphModule, init: Sequence[Any], xs: Sequence[Tensor], additional: Sequence[Any] = ()
) -> Any:
    outs = value_of(low.node)
    try:
        return _Elements(low, combine, [low.scalar(i) for i in init], xs, additional).scan(outs)
    except (_NotOfElements, UnsupportedOperator, Unsupported):
        pass
    start, inputs, more = settled(low, init), settled(low, xs), settled(low, additional)
    homes = []
    for tensor in start:
        home = memory(low, tensor.shape, tensor.dtype)
        low.write(home, tensor)
        homes.append(home)
    stacked = [like(low, out) for out in outs[len(homes) :]]
    length = inputs[0].shape[0]
    name = low.new_symbol()
    at = symbol(name, below=length)
    slices = [values.select(x, 0, at) for x in inputs]
    steps, results = inside(low, combine, [*homes, *slices, *more], (at, length))
    targets = [*(memory(low, h.shape, h.dtype) for h in homes), *(values.select(s, 0, at) for s in stacked if s)]
    steps = written(low, steps, results, targets)
    outer, low.steps = low.steps, steps
    for home, fresh in zip(homes, targets, strict=False):
        low.write(home, fresh)
    low.steps = outer
    low.steps.append(Repeat(Loop(name, length), tuple(steps), low.origin))
    return [*homes, *stacked]


@lowers(hop.associative_scan)
def associative_scan(
    low: Lowering, combine: fx.GraphModule, xs: Sequence[Tensor], additional: Sequence[Any] = ()
) -> Any:
    """One place after another: each is the last one combined with the next input."""
    try:
        return _Elements(low, combine, [values.select(x, 0, 0) for x in xs], xs, additional).associative_scan()
    except (_NotOfElements, UnsupportedOperator, Unsupported):
        pass
    inputs, more = settled(low, xs), settled(low, additional)
    results_ = [memory(low, x.shape, x.dtype) for x in inputs]
    for x, made in zip(inputs, results_, strict=True):
        low.write(values.select(made, 0, 0), values.select(x, 0, 0))
    length = inputs[0].shape[0]
    name = low.new_symbol()
    at = symbol(name, below=length)
    before = [values.select(made, 0, at) for made in results_]
    now = [values.select(x, 0, at + 1) for x in inputs]
    steps, results = inside(low, combine, [*before, *now, *more], (at, length - 1))
    steps = written(low, steps, results, [values.select(made, 0, at + 1) for made in results_])
    low.steps.append(Repeat(Loop(name, length - 1), tuple(steps), low.origin))
    return results_


class _Elements:
    """A scan whose function is one of elements: loops over the points of the state, the turns inside them."""

    def __init__(
        self,
        low: Lowering,
        combine: fx.GraphModule,
        start: Sequence[Tensor],
        xs: Sequence[Tensor],
        additional: Sequence[Any],
    ) -> None:
        self.low, self.combine, self.start = low, combine, start
        self.xs = [self._kept(x) for x in xs]
        self.additional = [self._kept(a) if isinstance(a, Tensor) else a for a in additional]
        shapes = {tensor.shape for tensor in start}
        if len(shapes) != 1 or not xs:
            raise _NotOfElements
        (self.shape,) = shapes
        self.length = xs[0].shape[0]
        self.index, named = loop_variables(self.shape, range(len(self.shape)))
        self.loops = tuple(Loop(*pair) for pair in named)

    def _kept(self, tensor: Tensor) -> Tensor:
        return self.low.keep(tensor)

    def scan(self, outs: Sequence[Any]) -> list[Tensor]:
        """The last state, and what each turn gave beside it."""
        low, count = self.low, len(self.start)
        at = symbol("t", below=self.length)
        results = self._results([values.select(x, 0, at) for x in self.xs])
        stacked = [like(low, out) for out in outs[count:]]
        if any(s is None or s.shape[1:] != self.shape for s in stacked):
            raise _NotOfElements
        last = [memory(low, self.shape, tensor.dtype) for tensor in self.start]
        targets: list[tuple[Tensor, Index]] = [(t, self.index) for t in last]
        targets += [(s, (at, *self.index)) for s in stacked if s is not None]
        # The last state is written at every turn: it stays in the cache, and the last one counts.
        self._append(results, [*range(count), *range(count, len(results))], targets, self.length, self.start)
        return [*last, *(s for s in stacked if s is not None)]

    def associative_scan(self) -> list[Tensor]:
        low, count = self.low, len(self.xs)
        at = symbol("t", below=self.length)
        # As they lie: torch moves the dim that is scanned to the front, and back again afterwards.
        made = [memory(low, x.shape, x.dtype, low.order_of(x)) for x in self.xs]
        # The first place is the first input itself; the others follow it.
        for x, y in zip(self.xs, made, strict=True):
            low.write(values.select(y, 0, 0), values.select(x, 0, 0))
        results = self._results([values.select(x, 0, at + 1) for x in self.xs])
        targets: list[tuple[Tensor, Index]] = [(y, (at + 1, *self.index)) for y in made]
        if self.length != 1:
            self._append(results, list(range(count)), targets, self.length - 1, self.start)
        return made

    def _results(self, slices: Sequence[Tensor]) -> list[Any]:
        state = [self._state(number, tensor) for number, tensor in enumerate(self.start)]
        results = lower_results(self.combine, [*state, *slices, *self.additional], around=self.low)
        return [self.low.scalar(result) for result in results]

    def _state(self, number: int, tensor: Tensor) -> Tensor:
        def load(ops: Recorder, index: Index) -> int:
            if index != self.index:
                raise _NotOfElements
            return ops.emit("input", (), wide(tensor.dtype), number)

        return Tensor(self.shape, tensor.dtype, Lazy(load, 1))

    def _append(
        self,
        results: Sequence[Tensor],
        stored: Sequence[int],
        targets: Sequence[tuple[Tensor, Index]],
        length: Size,
        start: Sequence[Tensor],
    ) -> None:
        ops = Recorder()
        count = len(start)
        found = []
        for number, result in enumerate(results):
            if result.rank and result.shape != self.shape:
                raise _NotOfElements
            value = result.load(ops, self.index if result.rank else ())
            dtype = start[number].dtype if number < count else targets[stored.index(number)][0].dtype
            # What is carried narrow is rounded at each turn, as torch does.
            found.append(ops.cast(ops.cast(value, dtype), wide(dtype)))
        stores = []
        for number, (tensor, index) in zip(stored, targets, strict=True):
            assert isinstance(tensor.data, Strided)
            stores.append(Store(tensor.data.buffer, tensor.data.at(index), number))
        first = Recorder()
        begin = first.finish([tensor.load(first, self.index) for tensor in start])
        body: Body = ops.finish(found)
        self.low.steps.append(Scan(self.loops, Loop("t", length), begin, body, tuple(stores), origin=self.low.origin))
