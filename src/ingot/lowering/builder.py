"""The builder of loop IR: rules create buffers and steps with it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx

from ingot.ir.metadata import module_path_of, source_of, value_of
from ingot.lowering.dtypes import HALVES
from ingot.lowering.index_expr import BodyValue, Expr, Size, bounds
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.loop_ir import (
    Assert,
    BindSymbol,
    Body,
    Buffer,
    ExternKernel,
    Loop,
    Map,
    Reduce,
    SourceLocation,
    Stmt,
    Store,
)
from ingot.lowering.loop_module import PackedWeight, Precision, WeightLayout
from ingot.lowering.strategy import LoweringStrategy
from ingot.lowering.symbol_table import SymbolTable
from ingot.lowering.tensor_views import (
    Deferred,
    Fit,
    Index,
    Shape,
    Strided,
    TensorValue,
    compare,
    contiguous_strides,
    expand,
    loop_variables,
)
from ingot.lowering.unsupported import dtype_name

# A result is kept in memory if computing it again costs more than this.
CHEAP = 3


class LoopBuilder(SymbolTable):
    """Buffers, weights and steps so far, in the name of the node that is being lowered."""

    def __init__(self, node: fx.Node, strategy: LoweringStrategy, precision: Precision = "float32") -> None:
        super().__init__()
        self.node = node
        self.strategy = strategy
        self.precision = precision
        self.buffers: dict[str, Buffer] = {}
        self.steps: list[Stmt] = []
        self.weights: dict[str, PackedWeight] = {}  # by buffer
        self.draws = 0
        self.turn: Size = 0  # of the loops that are around, counted as one
        self._derived: dict[Any, str] = {}  # weights in layouts of the target
        self._count = 0

    @property
    def out(self) -> torch.Tensor:
        """The type of the node being lowered."""
        value = value_of(self.node)
        made: torch.Tensor = value[0] if isinstance(value, (tuple, list)) else value
        return made

    @property
    def out_dtype(self) -> str:
        return dtype_name(self.out.dtype)

    @property
    def origin(self) -> SourceLocation:
        """The line, module and operator of the node being lowered; of one result of several, those of the call."""
        node: Any = self.node
        while node.target is operator.getitem:
            node = node.args[0]
        source = source_of(node)
        place = f"{'/'.join(source.file.replace(chr(92), '/').split('/')[-2:])}:{source.line}" if source else ""
        return SourceLocation(module_path_of(node), place, str(node.target).removeprefix("aten."))

    @contextmanager
    def attribute_steps(self, node: Any) -> Iterator[None]:
        """Steps that are written inside carry the origin of `node`; where it is a plain number, that of before."""
        outer, self.node = self.node, node if isinstance(node, fx.Node) else self.node
        try:
            yield
        finally:
            self.node = outer

    def buffer(self, kind: str, dtype: str, shape: Sequence[Size]) -> Buffer:
        name = f"{kind[0]}{self._count}"
        self._count += 1
        self.buffers[name] = made = Buffer(name, dtype, tuple(shape), kind)
        return made

    def full(self, shape: Sequence[Size], value: int | float | bool, dtype: str) -> TensorValue:
        return TensorValue(shape, dtype, Deferred(lambda ops, index: ops.const(value, dtype), 0))

    def scalar(self, value: Any) -> TensorValue:
        """A number, symbolic or not, as a tensor of rank 0."""
        if isinstance(value, TensorValue):
            return value
        if isinstance(value, Expr):
            return TensorValue((), "int64", Deferred(lambda ops, index: ops.index(value), 1))
        return self.full(
            (), value, "bool" if isinstance(value, bool) else "int64" if isinstance(value, int) else "float64"
        )

    def lazy_copy(self, tensor: TensorValue) -> TensorValue:
        """The same elements as something yet to be computed."""
        return TensorValue(tensor.shape, tensor.dtype, Deferred(lambda ops, index: tensor.load(ops, index), 1))

    def copy(self, tensor: TensorValue) -> TensorValue:
        return self.realize(self.lazy_copy(tensor))

    def realize(
        self, tensor: TensorValue, *, order: Sequence[int] | None = None, into: str | None = None
    ) -> TensorValue:
        """Puts a tensor into memory, dims in `order` physically, or into a buffer in its own order. Returns it."""
        data = tensor.data
        if isinstance(data, Strided):
            return tensor
        order = tuple(range(tensor.rank)) if into else tuple(order or data.order or range(tensor.rank))
        physical = [tensor.shape[d] for d in order]
        steps = contiguous_strides(physical)
        strides = tuple(steps[order.index(d)] for d in range(tensor.rank))
        name = into or self.buffer("temporary", tensor.dtype, physical).name
        home = Strided(name, 0, strides)
        # Pieces are written by one step, each to its own place, and none has to be chosen from.
        pieces = data.pieces or (tensor,)
        ops = BodyBuilder()
        index, loops = loop_variables(pieces[0].shape, order)
        values = [piece.load(ops, index) for piece in pieces]
        if tensor.dtype in HALVES or data.pieces:
            values = [ops.cast(value, tensor.dtype) for value in values]
        places = [index] if not data.pieces else [(*index[:-1], k) for k in range(len(pieces))]
        self.steps.append(
            Map(
                tuple(Loop(variable, extent) for variable, extent in loops),
                ops.finish(values),
                tuple(Store(name, home.offset_at(place), k) for k, place in enumerate(places)),
                self.origin,
            )
        )
        if into is None:
            tensor.data = home
        return tensor

    def derive_weight(self, buffer: str, dtype: str, shape: Sequence[Size], layout: WeightLayout) -> str:
        """The buffer of a weight as a target stores it, of this dtype and shape. The same layout of the same weight is
        one buffer."""
        key = (buffer, dtype, layout)
        if key not in self._derived:
            origin = self.weights[buffer]
            assert origin.layout is None
            made = self.buffer("weight", dtype, shape)
            self.weights[made.name] = PackedWeight(made.name, origin.source, layout)
            self._derived[key] = made.name
        return self._derived[key]

    def materialize_if_expensive(self, tensor: TensorValue) -> TensorValue:
        """The tensor, in memory if it costs something: for rules that read each element more than once."""
        return self.realize(tensor) if tensor.cost > CHEAP else tensor

    def make_contiguous(self, tensor: TensorValue) -> TensorValue:
        """The tensor in memory, in row-major order of its own dims, with the strides of that order."""
        data = tensor.data
        if isinstance(data, Deferred):
            return self.realize(tensor, order=range(tensor.rank))
        strides = contiguous_strides(tensor.shape)
        whole = all(a == b or size == 1 for a, b, size in zip(data.strides, strides, tensor.shape, strict=True))
        if whole:  # a dim of size 1 has any stride in memory, but readers expect that of the order
            return TensorValue(tensor.shape, tensor.dtype, Strided(data.buffer, data.offset, strides))
        return self.realize(self.lazy_copy(tensor), order=range(tensor.rank))

    def check_fit(self, size: Size, full: Size) -> None:
        """Ends the run where a dim of an operand is neither as large as the result's nor 1, unless that is known."""
        if compare(size, full) is not Fit.UNKNOWN:
            return
        ops = BodyBuilder()
        found = ops.index(size)
        holds = ops.call("or", ops.call("eq", found, ops.index(full)), ops.call("eq", found, ops.const(1, "int64")))
        where = f"\n  where: {source}" if (source := source_of(self.node)) else ""
        message = f"A dim must be as large as the one that it is combined with, or 1.{where}"
        check = Assert(ops.finish([holds]), message, on_sizes=True)
        if check not in self.steps:
            self.steps.append(check)

    def check_divisor(self, divisor: Any) -> None:
        """Ends the run where integers are divided by a size that is 0."""
        if not isinstance(divisor, Expr) or (bounds(divisor)[0] or 0) > 0:
            return
        ops = BodyBuilder()
        holds = ops.call("ne", ops.index(divisor), ops.const(0, "int64"))
        where = f"\n  where: {source}" if (source := source_of(self.node)) else ""
        self.steps.append(
            Assert(ops.finish([holds]), f"Integers are divided by a size that is 0.{where}", on_sizes=True)
        )

    def align(self, tensor: TensorValue, shape: Shape) -> TensorValue:
        """The tensor, broadcast to `shape` where it is known only at run time which of its dims are broadcast."""
        lead = len(shape) - tensor.rank
        for size, full in zip(tensor.shape, shape[lead:], strict=True):
            self.check_fit(size, full)
        unknown = any(compare(*pair) is Fit.UNKNOWN for pair in zip(tensor.shape, shape[lead:], strict=True))
        return expand(tensor, shape) if unknown else tensor

    def expand(self, tensor: TensorValue, shape: Shape) -> TensorValue:
        """The tensor broadcast to `shape`."""
        return expand(self.align(tensor, shape), shape)

    def write(self, target: TensorValue, source: TensorValue) -> None:
        """Writes a tensor into a part of another's memory."""
        assert isinstance(target.data, Strided)
        index, loops = loop_variables(target.shape, range(target.rank))
        ops = BodyBuilder()
        value = ops.cast(source.load(ops, index), target.dtype)
        store = Store(target.data.buffer, target.data.offset_at(index), 0)
        self.steps.append(Map(tuple(Loop(v, e) for v, e in loops), ops.finish([value]), (store,), self.origin))

    def scatter(
        self,
        target: TensorValue,
        shape: Shape,
        body: Callable[[BodyBuilder, Index], tuple[Index, int]],
        mode: str = "set",
    ) -> None:
        """For each point of `shape`, in row-major order, writes the value of `body` to the index of `body`."""
        assert isinstance(target.data, Strided)
        index, loops = loop_variables(shape, range(len(shape)))
        ops = BodyBuilder()
        place, value = body(ops, index)
        store = Store(target.data.buffer, target.data.offset_at(place), 0, mode)
        # The store names values of the body: they are results too, and the body is kept as it was written.
        named = store.index.symbols if isinstance(store.index, Expr) else ()
        written = Body(tuple(ops.ops), (value, *sorted({s.place for s in named if isinstance(s, BodyValue)})))
        self.steps.append(Map(tuple(Loop(v, e) for v, e in loops), written, (store,), self.origin, collides=True))

    def routine(
        self,
        name: str,
        reads: Sequence[TensorValue],
        results: Sequence[tuple[Shape, str]],
        sizes: Sequence[Size],
        **attributes: Any,
    ) -> list[TensorValue]:
        """Calls a hand-written kernel on dense tensors; its results are dense as well."""
        dense = [self.make_contiguous(tensor) for tensor in reads]
        made = []
        for shape, dtype in results:
            home = Strided(self.buffer("temporary", dtype, shape).name, 0, contiguous_strides(shape))
            made.append(TensorValue(shape, dtype, home))
        names = [self._whole(tensor) for tensor in dense]
        self.steps.append(
            ExternKernel(
                name,
                tuple(names),
                tuple(tensor.data.buffer for tensor in made if isinstance(tensor.data, Strided)),
                tuple(sizes),
                tuple(sorted(attributes.items())),
                self.origin,
            )
        )
        return made

    def _whole(self, tensor: TensorValue) -> str:
        """The buffer of a dense tensor that begins where its buffer does."""
        assert isinstance(tensor.data, Strided)
        if tensor.data.offset != 0:
            tensor = self.copy(tensor)
        assert isinstance(tensor.data, Strided)
        return tensor.data.buffer

    def draw(self) -> int:
        """The number of a new draw of random numbers."""
        self.draws += 1
        return self.draws - 1

    def bind(self, name: str, tensor: TensorValue) -> None:
        """The symbol becomes the tensor's one element, when the run comes here."""
        ops = BodyBuilder()
        value = ops.cast(self.realize(tensor).load(ops, (0,) * tensor.rank), "int64")
        self.steps.append(BindSymbol(name, ops.finish([value]), self.origin))

    def reduce(
        self,
        x: TensorValue,
        dims_: Sequence[int],
        kinds: Sequence[str],
        transform: Callable[[BodyBuilder, int, Index], Sequence[int]],
        dtypes: Sequence[str],
    ) -> list[TensorValue]:
        """Reductions of `transform(x[index])` over dims, each result without those dims."""
        kept = [d for d in range(x.rank) if d not in dims_]
        order = self.order_of(x)
        outer = [d for d in order if d in kept]
        index_outer, loops = loop_variables(x.shape, outer)
        index_inner, over = loop_variables(
            x.shape, [d for d in order if d in dims_] if kinds[0][:3] != "arg" else sorted(dims_), "r"
        )
        index = tuple(index_inner[d] if d in dims_ else index_outer[d] for d in range(x.rank))
        ops = BodyBuilder()
        values = list(transform(ops, x.load(ops, index), index))
        physical = [x.shape[d] for d in outer]
        steps = contiguous_strides(physical)
        results, stores = [], []
        for number, dtype in enumerate(dtypes):
            home = Strided(
                self.buffer("temporary", dtype, physical).name, 0, tuple(steps[outer.index(d)] for d in kept)
            )
            stores.append(Store(home.buffer, home.offset_at(tuple(index[d] for d in kept)), number))
            results.append(TensorValue(tuple(x.shape[d] for d in kept), dtype, home))
        self.steps.append(
            Reduce(
                tuple(Loop(v, e) for v, e in loops),
                tuple(Loop(v, e) for v, e in over),
                tuple(kinds),
                ops.finish(values),
                tuple(stores),
                self.origin,
            )
        )
        return results

    def bind_size(self, size: Size, value: Size) -> None:
        """A size of the graph that is a symbol of its own takes this value."""
        ops = BodyBuilder()
        self.steps.append(BindSymbol(self.bind_symbol(size), ops.finish([ops.index(value)]), self.origin))
