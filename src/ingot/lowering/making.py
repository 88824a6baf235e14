"""Making memory and steps: what rules build a program's loops with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import fx

from ingot.lowering.body import Recorder
from ingot.lowering.expr import Expr, Size, bounds, product
from ingot.lowering.ir import (
    HALVES,
    TOGETHER,
    Bind,
    Body,
    Buffer,
    Check,
    Factors,
    Loop,
    Map,
    Origin,
    Precision,
    Reduce,
    Routine,
    Step,
    Store,
    Weight,
)
from ingot.lowering.refusing import dtype_name
from ingot.lowering.sizes import Sizes
from ingot.lowering.values import (
    Fit,
    Index,
    Lazy,
    Shape,
    Strided,
    Tensor,
    compare,
    contiguous_strides,
    expand,
    loop_variables,
)
from ingot.program.metadata import module_path_of, source_of, value_of

# Columns that a packed weight's panel may have, the best first where none wastes less.
PANELS = (48, 64, 32, 16)
# Rows of the tile that goes with each of them, on a machine with 32 vector registers.
HEIGHTS = (8, 6, 12, 12)
# Kernels that a rule may choose where another one computes the same; each can be switched off.
KERNELS = ("int8", "packed_codes", "depthwise", "winograd")
# A result is kept in memory if computing it again costs more than this.
CHEAP = 3


def panel_width(columns: int, rows: Size | None = None) -> int:
    """The panel that leaves the least of its columns empty. For few rows it is one of which all rows fit in the tile
    at once: such a product is as fast as its weights are read, and they are then read once."""
    fitting = [w for w, high in zip(PANELS, HEIGHTS, strict=True) if isinstance(rows, int) and rows <= high]
    if fitting and rows != 1:
        return fitting[0]
    return min(PANELS, key=lambda width: -(-columns // width) * width)


class Making(Sizes):
    """Buffers, weights and steps so far, in the name of the node that is being lowered."""

    def __init__(self, node: fx.Node, precision: Precision = "float32", disabled: Collection[str] = ()) -> None:
        super().__init__()
        self.node = node
        self.precision = precision
        self._disabled = frozenset(disabled)
        self.buffers: dict[str, Buffer] = {}
        self.steps: list[Step] = []
        self.weights: dict[str, Weight] = {}  # by buffer
        self.draws = 0
        self.turn: Size = 0  # of the loops that are around, counted as one
        self._packed: dict[Any, str] = {}
        self.narrow_copies: dict[int, tuple[list[Step], dict[Any, Strided]]] = {}  # see narrowing.py
        self.step_writers: dict[int, tuple[list[Step], dict[str, list[Step]], int]] = {}  # see narrowing.py
        self._count = 0

    def may_use(self, kernel: str) -> bool:
        """Whether a kernel of KERNELS is not switched off."""
        assert kernel in KERNELS, kernel
        return kernel not in self._disabled

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
    def origin(self) -> Origin:
        source = source_of(self.node)
        place = f"{'/'.join(source.file.replace(chr(92), '/').split('/')[-2:])}:{source.line}" if source else ""
        return Origin(module_path_of(self.node), place, str(self.node.target).removeprefix("aten."))

    def buffer(self, kind: str, dtype: str, shape: Sequence[Size]) -> Buffer:
        name = f"{kind[0]}{self._count}"
        self._count += 1
        self.buffers[name] = made = Buffer(name, dtype, tuple(shape), kind)
        return made

    def full(self, shape: Sequence[Size], value: int | float | bool, dtype: str) -> Tensor:
        return Tensor(shape, dtype, Lazy(lambda ops, index: ops.const(value, dtype), 0))

    def scalar(self, value: Any) -> Tensor:
        """A number, symbolic or not, as a tensor of rank 0."""
        if isinstance(value, Tensor):
            return value
        if isinstance(value, Expr):
            return Tensor((), "int64", Lazy(lambda ops, index: ops.index(value), 1))
        return self.full(
            (), value, "bool" if isinstance(value, bool) else "int64" if isinstance(value, int) else "float64"
        )

    def lazy_copy(self, tensor: Tensor) -> Tensor:
        """The same elements as something yet to be computed."""
        return Tensor(tensor.shape, tensor.dtype, Lazy(lambda ops, index: tensor.load(ops, index), 1))

    def copy(self, tensor: Tensor) -> Tensor:
        return self.realize(self.lazy_copy(tensor))

    def realize(self, tensor: Tensor, *, order: Sequence[int] | None = None, into: str | None = None) -> Tensor:
        """Puts a tensor into memory, dims in `order` physically, or into a buffer in its own order. Returns it."""
        data = tensor.data
        if isinstance(data, Strided):
            return tensor
        order = tuple(range(tensor.rank)) if into else tuple(order or data.order or range(tensor.rank))
        ops = Recorder()
        index, loops = loop_variables(tensor.shape, order)
        value = tensor.load(ops, index)
        physical = [tensor.shape[d] for d in order]
        steps = contiguous_strides(physical)
        strides = tuple(steps[order.index(d)] for d in range(tensor.rank))
        name = into or self.buffer("temporary", tensor.dtype, physical).name
        home = Strided(name, 0, strides)
        self.steps.append(
            Map(
                tuple(Loop(variable, extent) for variable, extent in loops),
                ops.finish([ops.cast(value, tensor.dtype)] if tensor.dtype in HALVES else [value]),
                (Store(name, home.at(index), 0),),
                self.origin,
            )
        )
        if into is None:
            tensor.data = home
        return tensor

    def pack(
        self, buffer: str, dtype: str, offset: Size, depth: Sequence[Size], steps: Sequence[Size], columns: Size,
        column_step: Size, groups: int = 1, group_step: Size | None = None, winograd: bool = False,
        width: int | None = None, factors: Factors = "same", run: int = 1
    ) -> str:  # fmt: skip
        """A weight as [groups · panels][depth…][columns of a panel]: the order in which a product reads it.

        Groups lie `group_step` apart, or one after another as columns do. `factors` says how terms lie side by side:
        those of the last `run` dims of `depth`."""
        assert isinstance(columns, int) and isinstance(column_step, int)
        width = width or panel_width(columns)
        shape = (groups, -(-columns // width), *depth, width)
        between = columns * column_step if group_step is None else group_step
        strides = (between, width * column_step, *steps, column_step)
        packing = (offset, shape, strides, columns)
        if factors == "same":
            return self._weight(buffer, dtype, packing, winograd=winograd)
        return self._weight(buffer, factors, packing, run=run, together=TOGETHER[factors])

    def summed(self, buffer: str, offset: Size, shape: Sequence[Size], strides: Sequence[Size], times: int) -> Tensor:
        """For each place of the first dim what a weight's integers add up to, `times` that."""
        name = self._weight(buffer, "int32", (offset, tuple(shape), tuple(strides), None), sums=True, times=times)
        return Tensor(shape[:1], "int32", Strided(name, 0, (1,)))

    def scaled(self, tensor: Tensor, times: float) -> Tensor:
        """A vector, `times` each element: computed ahead of time where it is a weight."""
        data = tensor.data
        if isinstance(data, Strided) and self.buffers[data.buffer].kind == "weight" and tensor.dtype == "float32":
            name = self._weight(data.buffer, "float32", (data.offset, tensor.shape, data.strides, None), times=times)
            return Tensor(tensor.shape, "float32", Strided(name, 0, contiguous_strides(tensor.shape)))

        def load(ops: Recorder, index: Index) -> int:
            return ops.call("mul", ops.cast(tensor.load(ops, index), "float32"), ops.const(times, "float32"))

        return Tensor(tensor.shape, "float32", Lazy(load, tensor.cost + 1))

    def pack_scales(self, tensor: Tensor, width: int, minus: int = 0) -> str:
        """Weights [columns, groups], each less `minus`, as float32 [panels][groups][columns of a panel]."""
        return self._panels(tensor, "float32", width, minus=minus)

    def pack_codes(self, codes: Tensor, width: int, bits: int, group: int, minus: int) -> str:
        """A weight [columns, terms] of whole numbers, each less `minus`, as panels of words: see `Weight`."""
        return self._panels(codes, "uint32", width, bits=bits, group=group, minus=minus)

    def pack_rows(self, codes: Tensor, bits: int, minus: int) -> str:
        """A weight [rows, columns] of whole numbers, each less `minus`, as words, each row from a new one on."""
        assert isinstance(codes.data, Strided)
        packing = (codes.data.offset, (*codes.shape, 1), (*codes.data.strides, 1), None)
        return self._weight(codes.data.buffer, "uint32", packing, bits=bits, group=codes.shape[1], minus=minus)

    def _panels(self, tensor: Tensor, dtype: str, width: int, **how: Any) -> str:
        assert isinstance(tensor.data, Strided) and isinstance(tensor.shape[0], int)
        columns, depth = tensor.shape
        column_step, step = tensor.data.strides
        shape, strides = (1, -(-columns // width), depth, width), (0, width * column_step, step, column_step)
        return self._weight(tensor.data.buffer, dtype, (tensor.data.offset, shape, strides, columns), **how)

    def repacked(self, buffer: str, dtype: str, offset: Size, shape: Sequence[Size], strides: Sequence[Size]) -> Tensor:
        """A weight in another order of its dims."""
        name = self._weight(buffer, dtype, (offset, tuple(shape), tuple(strides), None))
        return Tensor(shape, dtype, Strided(name, 0, contiguous_strides(shape)))

    def _weight(self, buffer: str, dtype: str, packing: tuple[Any, ...], **how: Any) -> str:
        """A weight made of another: (offset, shape, strides, columns). `columns` limits panels: the rest is zeros.
        `how` is the rest of `Weight`."""
        key = (buffer, dtype, packing, tuple(sorted(how.items())))
        if key not in self._packed:
            origin = self.weights[buffer]
            assert not origin.packing
            shape = packing[1]
            if run := how.get("run", 0):
                *depth, width = shape
                each, terms = how["together"], product(depth[-run:])
                shape = (*depth[:-run], (terms + each - 1) // each, width, each)
            if bits := how.get("bits", 0):
                *outer, terms, width = shape
                shape = (*outer, terms // how["group"] * -(-how["group"] * bits // 32), width)
            made = self.buffer("weight", dtype, shape[:1] if how.get("sums") else shape)
            self.weights[made.name] = Weight(made.name, origin.source, packing, **how)
            self._packed[key] = made.name
        return self._packed[key]

    def keep(self, tensor: Tensor) -> Tensor:
        """The tensor, in memory if it costs something: for rules that read each element more than once."""
        return self.realize(tensor) if tensor.cost > CHEAP else tensor

    def dense(self, tensor: Tensor) -> Tensor:
        """The tensor in memory, in row-major order of its own dims, with the strides of that order."""
        data = tensor.data
        if isinstance(data, Lazy):
            return self.realize(tensor, order=range(tensor.rank))
        strides = contiguous_strides(tensor.shape)
        whole = all(a == b or size == 1 for a, b, size in zip(data.strides, strides, tensor.shape, strict=True))
        if whole:  # a dim of size 1 has any stride in memory, but readers ask for that of the order
            return Tensor(tensor.shape, tensor.dtype, Strided(data.buffer, data.offset, strides))
        return self.realize(self.lazy_copy(tensor), order=range(tensor.rank))

    def check_fit(self, size: Size, full: Size) -> None:
        """Ends the run where a dim of an operand is neither as large as the result's nor 1, unless that is known."""
        if compare(size, full) is not Fit.UNKNOWN:
            return
        ops = Recorder()
        found = ops.index(size)
        holds = ops.call("or", ops.call("eq", found, ops.index(full)), ops.call("eq", found, ops.const(1, "int64")))
        where = f"\n  where: {source}" if (source := source_of(self.node)) else ""
        message = f"A dim must be as large as the one that it is combined with, or 1.{where}"
        check = Check(ops.finish([holds]), message, on_sizes=True)
        if check not in self.steps:
            self.steps.append(check)

    def check_divisor(self, divisor: Any) -> None:
        """Ends the run where integers are divided by a size that is 0."""
        if not isinstance(divisor, Expr) or (bounds(divisor)[0] or 0) > 0:
            return
        ops = Recorder()
        holds = ops.call("ne", ops.index(divisor), ops.const(0, "int64"))
        where = f"\n  where: {source}" if (source := source_of(self.node)) else ""
        self.steps.append(
            Check(ops.finish([holds]), f"Integers are divided by a size that is 0.{where}", on_sizes=True)
        )

    def align(self, tensor: Tensor, shape: Shape) -> Tensor:
        """The tensor, broadcast to `shape` where only the run tells which of its dims are broadcast."""
        lead = len(shape) - tensor.rank
        for size, full in zip(tensor.shape, shape[lead:], strict=True):
            self.check_fit(size, full)
        unknown = any(compare(*pair) is Fit.UNKNOWN for pair in zip(tensor.shape, shape[lead:], strict=True))
        return expand(tensor, shape) if unknown else tensor

    def expand(self, tensor: Tensor, shape: Shape) -> Tensor:
        """The tensor broadcast to `shape`."""
        return expand(self.align(tensor, shape), shape)

    def write(self, target: Tensor, source: Tensor) -> None:
        """Writes a tensor into a part of another's memory."""
        assert isinstance(target.data, Strided)
        index, loops = loop_variables(target.shape, range(target.rank))
        ops = Recorder()
        value = ops.cast(source.load(ops, index), target.dtype)
        store = Store(target.data.buffer, target.data.at(index), 0)
        self.steps.append(Map(tuple(Loop(v, e) for v, e in loops), ops.finish([value]), (store,), self.origin))

    def scatter(
        self, target: Tensor, shape: Shape, body: Callable[[Recorder, Index], tuple[Index, int]], mode: str = "set"
    ) -> None:
        """At every point of `shape`, in row-major order, writes the value that `body` gives to the place it gives."""
        assert isinstance(target.data, Strided)
        index, loops = loop_variables(shape, range(len(shape)))
        ops = Recorder()
        place, value = body(ops, index)
        store = Store(target.data.buffer, target.data.at(place), 0, mode)
        # The store names values of the body: they are results too, and the body is kept as it was written.
        named = {s.name for s in store.index.symbols} if isinstance(store.index, Expr) else set()
        written = Body(tuple(ops.ops), (value, *sorted(int(name[1:]) for name in named if name[0] == "v")))
        self.steps.append(Map(tuple(Loop(v, e) for v, e in loops), written, (store,), self.origin, serial=True))

    def routine(
        self,
        name: str,
        reads: Sequence[Tensor],
        results: Sequence[tuple[Shape, str]],
        sizes: Sequence[Size],
        **attributes: Any,
    ) -> list[Tensor]:
        """Calls a hand-written kernel on dense tensors; its results are dense as well."""
        dense = [self.dense(tensor) for tensor in reads]
        made = []
        for shape, dtype in results:
            home = Strided(self.buffer("temporary", dtype, shape).name, 0, contiguous_strides(shape))
            made.append(Tensor(shape, dtype, home))
        names = [self._whole(tensor) for tensor in dense]
        self.steps.append(
            Routine(
                name,
                tuple(names),
                tuple(tensor.data.buffer for tensor in made if isinstance(tensor.data, Strided)),
                tuple(sizes),
                tuple(sorted(attributes.items())),
                self.origin,
            )
        )
        return made

    def _whole(self, tensor: Tensor) -> str:
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

    def bind(self, name: str, tensor: Tensor) -> None:
        """The symbol becomes the tensor's one element, when the run comes here."""
        ops = Recorder()
        value = ops.cast(self.realize(tensor).load(ops, (0,) * tensor.rank), "int64")
        self.steps.append(Bind(name, ops.finish([value]), self.origin))

    def reduce(
        self,
        x: Tensor,
        dims_: Sequence[int],
        kinds: Sequence[str],
        transform: Callable[[Recorder, int, Index], Sequence[int]],
        dtypes: Sequence[str],
    ) -> list[Tensor]:
        """Reductions of `transform(x[index])` over dims, each result without those dims."""
        kept = [d for d in range(x.rank) if d not in dims_]
        order = self.order_of(x)
        outer = [d for d in order if d in kept]
        index_outer, loops = loop_variables(x.shape, outer)
        index_inner, over = loop_variables(
            x.shape, [d for d in order if d in dims_] if kinds[0][:3] != "arg" else sorted(dims_), "r"
        )
        index = tuple(index_inner[d] if d in dims_ else index_outer[d] for d in range(x.rank))
        ops = Recorder()
        values = list(transform(ops, x.load(ops, index), index))
        physical = [x.shape[d] for d in outer]
        steps = contiguous_strides(physical)
        results, stores = [], []
        for number, dtype in enumerate(dtypes):
            home = Strided(
                self.buffer("temporary", dtype, physical).name, 0, tuple(steps[outer.index(d)] for d in kept)
            )
            stores.append(Store(home.buffer, home.at(tuple(index[d] for d in kept)), number))
            results.append(Tensor(tuple(x.shape[d] for d in kept), dtype, home))
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

    def tell(self, size: Size, value: Size) -> None:
        """A size of the graph that is a symbol of its own takes this value."""
        ops = Recorder()
        self.steps.append(Bind(self.told_here(size), ops.finish([ops.index(value)]), self.origin))
