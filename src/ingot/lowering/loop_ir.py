"""The loop-level IR: what a program is between its FX graph and its C text.

    module  ::= Module(buffers, steps, inputs, outputs, weights, symbols)   (loop_module.py)
    step    ::= Map(loops, body, stores)                 body at every point of the loops
              | Reduce(loops, over, kinds, body, stores) one accumulator per result, at every point of loops
              | LoopNest(outer, steps, local)            Maps and Reduces that share their outer loops, in order
              | Gemm(batch, m, n, k, a, b, epilogue)     matrix products, with a Map as their epilogue
              | Convolution(…, epilogue)                 the same over windows
              | Attention(…, score, mask, epilogue)      softmax(score(q · k) where mask) · v, never the whole of it
              | ClassifyMaskBlocks(…, mask)              which blocks of a mask hold anything
              | AttentionBackward(…, body)               the same tiles again, for dq, or for dk and dv
              | Scan(loops, over, start, body, stores)   a state carried along one loop
              | ExternKernel(name, reads, writes, …)     a hand-written kernel: sort, cumulative sum, …
              | BindSymbol(symbol, body)                 a data-dependent size
              | Assert(body, message)                    the run fails with the message unless the value is true
              | If(condition, then, otherwise) | While(test, condition, steps) | For(loop, steps)
    loop    ::= Loop(variable, extent)
    store   ::= Store(buffer, index, result, mode)       result: which of the body's results; or accumulates into it
    body    ::= Body(ops, results)                       scalar operations in order; operands are places of earlier
    op      ::= load buffer[index] (if mask)             index is an Expr over loop variables, sizes and earlier values
              | const value | index expr | cast x | check index | draw | <name of a scalar operation> operands …

Its text has a grammar of its own: loop_ir_printer.py.

A buffer is dense memory with a shape in *physical* order; how a tensor's dims lie in it is a matter of strides, which
only indices know. Everything here is immutable; fusion and planning make new steps.

Nothing here is about a machine. What a target adds, it adds in types of its own: steps that derive from `WithEpilogue`
or `StepGroup`, and layouts of weights that derive from `WeightLayout`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self, TypeAlias

from ingot.lowering.index_expr import Size, product


@dataclass(frozen=True, slots=True)
class Buffer:
    """Dense memory. `kind`: "input" and "output" belong to the caller, "weight" to the file, "state" to the model,
    "temporary" to the arena. `shape` is physical, outermost first."""

    name: str
    dtype: str
    shape: tuple[Size, ...]
    kind: str = "temporary"

    @property
    def size(self) -> Size:
        return product(self.shape)

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Loop:
    variable: str
    extent: Size

    def __str__(self) -> str:
        return f"{self.variable} < {self.extent}"


@dataclass(frozen=True, slots=True)
class Load:
    """Where a load reads. `mask` is the place of a bool; where it is false nothing is read and the value is 0."""

    buffer: str
    index: Size
    mask: int | None = None


@dataclass(frozen=True, slots=True)
class Op:
    """One scalar operation. `attribute` is what is not an operand: a Load, a constant, an index, a size."""

    name: str
    operands: tuple[int, ...]
    dtype: str
    attribute: Any = None


@dataclass(frozen=True, slots=True)
class Body:
    """A scalar function: operations in order, and the places of its results."""

    ops: tuple[Op, ...]
    results: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Store:
    """Writes result number `result` of the body; `mode` "set", or add, prod, max or min for a scatter that accumulates.

    In a scatter the index may name values of the body ("v7"), whose operations are then never renumbered.
    """

    buffer: str
    index: Size
    result: int
    mode: str = "set"


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """Where a step comes from: module path and the user's line, for comments, errors and the profiler."""

    module: str = ""
    source: str = ""
    op: str = ""

    def __str__(self) -> str:
        return "  ".join(part for part in (self.op, self.module, self.source) if part)


@dataclass(frozen=True, slots=True)
class Map:
    """`body` at every point of `loops`, outermost first. With `collides`, several points may write the same element (a
    scatter): they do so in row-major order of the points."""

    loops: tuple[Loop, ...]
    body: Body
    stores: tuple[Store, ...]
    origin: SourceLocation = SourceLocation()
    collides: bool = False


@dataclass(frozen=True, slots=True)
class Reduce:
    """For every point of `loops`, each result of `body` over every point of `over`, combined as `kinds` says.

    A kind is sum, prod, max, min, any, all, argmax or argmin (the place in row-major order of `over`).
    """

    loops: tuple[Loop, ...]
    over: tuple[Loop, ...]
    kinds: tuple[str, ...]
    body: Body
    stores: tuple[Store, ...]
    origin: SourceLocation = SourceLocation()


@dataclass(frozen=True, slots=True)
class LoopNest:
    """Steps that run one after another inside shared outer loops. `local` buffers live for one point of `outer`."""

    outer: tuple[Loop, ...]
    steps: tuple[Map | Reduce, ...]
    local: tuple[str, ...]
    origin: SourceLocation = SourceLocation()


class WithEpilogue:
    """A step that computes sums and gives each to its epilogue: a Map over (batch…, rows…, column) that reads the sum
    as the op "accumulator"."""

    __slots__ = ()
    dtype: str
    epilogue: Map
    origin: SourceLocation

    def sums_shape(self) -> tuple[Size, Size]:
        """The rows and columns of the sums at one point of the batch."""
        raise NotImplementedError

    def batch_loops(self) -> tuple[Loop, ...]:
        """The outer loops of the epilogue that no row of the sums crosses."""
        return ()

    def operand_buffers(self) -> set[str]:
        """All that the step reads, but for what its epilogue reads."""
        raise NotImplementedError

    def operand_offsets(self) -> tuple[Size, ...]:
        """Where its operands begin, over the batch loops' variables."""
        return ()

    def replace_epilogue(self, epilogue: Map) -> Self:
        step: Any = self
        made: Self = replace(step, epilogue=epilogue)
        return made


class StepGroup:
    """Steps that a target's schedule has joined to one. They compute the same as one after another."""

    __slots__ = ()
    origin: SourceLocation

    def members(self) -> tuple[Stmt, ...]:
        raise NotImplementedError

    def local_buffers(self) -> tuple[str, ...]:
        """Buffers that live inside the group only."""
        return ()

    def given_values(self) -> dict[str, str]:
        """What the first member's epilogue may read beside its own sums: names of ops, with their dtypes."""
        return {}


@dataclass(frozen=True, slots=True)
class MatrixView:
    """A matrix inside a buffer: element (batch, row, column) is at offset + row·rows + column·columns.

    `offset` is over the batch loops' variables.
    """

    buffer: str
    offset: Size
    rows: Size
    columns: Size


@dataclass(frozen=True, slots=True)
class Gemm(WithEpilogue):
    """out[batch, i, j] = Σ_k a[batch, i, k] · b[batch, k, j], then `epilogue`.

    The epilogue's rows may be several loops whose extents multiply to m. `dtype` is that of the sums, in which the
    elements are multiplied.
    """

    batch: tuple[Loop, ...]
    m: Size
    n: Size
    k: Size
    a: MatrixView
    b: MatrixView
    dtype: str
    epilogue: Map
    origin: SourceLocation = SourceLocation()

    def sums_shape(self) -> tuple[Size, Size]:
        return self.m, self.n

    def batch_loops(self) -> tuple[Loop, ...]:
        return self.batch

    def operand_buffers(self) -> set[str]:
        return {self.a.buffer, self.b.buffer}

    def operand_offsets(self) -> tuple[Size, ...]:
        return self.a.offset, self.b.offset


@dataclass(frozen=True, slots=True)
class StridedView:
    """A tensor inside a buffer: an element is at offset + Σ index·stride."""

    buffer: str
    offset: Size
    strides: tuple[Size, ...]


@dataclass(frozen=True, slots=True)
class Convolution(WithEpilogue):
    """out[n, o, p…] = Σ x[n, g·channels + c, p·stride + tap·dilation - padding…] · weight[o, c, tap…] over channels c
    and taps, where g is the group of o, and x is 0 outside its size.

    `channels` are those of a group. One number per spatial dim. `dtype` is that of the sums. The epilogue's loops are
    (n, p…, o).
    """

    images: Size
    channels: int
    out_channels: int
    groups: int
    size: tuple[Size, ...]
    out_size: tuple[Size, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[Size, ...]
    dilation: tuple[int, ...]
    x: StridedView
    weight: StridedView
    dtype: str
    epilogue: Map
    origin: SourceLocation = SourceLocation()

    def sums_shape(self) -> tuple[Size, Size]:
        return product((self.images, *self.out_size)), self.out_channels

    def operand_buffers(self) -> set[str]:
        return {self.x.buffer, self.weight.buffer}


@dataclass(frozen=True, slots=True)
class BlockMask:
    """Which tiles of a mask hold anything: at offset + (row tile) · columns + (column tile) of a buffer of bytes, 0
    says none of its pairs, 1 some, 2 all. `offset` is over the batch loops' variables."""

    buffer: str
    offset: Size
    columns: Size


@dataclass(frozen=True, slots=True)
class Attention(WithEpilogue):
    """out[batch, i] = Σ_j softmax_j(score(scale · q[i] · k[j]) where mask) · v[j] over `batch` loops.

    q, k and v are matrices of rows; offsets are over the batch loops' variables. `score` and `mask` are bodies over
    those, "i" and "j": `score` reads the product as the op "accumulator" and gives another number, `mask` gives whether
    the pair counts, and needs evaluating where `tiles` says 1 only. `causal` hides keys behind the query.
    `epilogue` is a Map over (batch…, row, column) as for Gemm. `lse` takes log Σ_j exp(score) over (batch…, "i"),
    `top` the largest score.
    """

    batch: tuple[Loop, ...]
    queries: Size
    keys: Size
    depth: int
    values: int
    scale: float
    causal: bool
    q: MatrixView
    k: MatrixView
    v: MatrixView
    score: Body | None
    dtype: str
    epilogue: Map
    origin: SourceLocation = SourceLocation()
    mask: Body | None = None
    tiles: BlockMask | None = None
    lse: Store | None = None
    top: Store | None = None

    def sums_shape(self) -> tuple[Size, Size]:
        return self.queries, self.values

    def batch_loops(self) -> tuple[Loop, ...]:
        return self.batch

    def operand_buffers(self) -> set[str]:
        loads = [op.attribute for body in (self.score, self.mask) if body for op in body.ops]
        read = {load.buffer for load in loads if isinstance(load, Load)}
        return read | {self.q.buffer, self.k.buffer, self.v.buffer} | ({self.tiles.buffer} if self.tiles else set())

    def operand_offsets(self) -> tuple[Size, ...]:
        return self.q.offset, self.k.offset, self.v.offset


@dataclass(frozen=True, slots=True)
class ClassifyMaskBlocks:
    """For each tile of `high` queries by `wide` keys, and each point of `batch`: how much of `mask` holds, as
    `BlockMask` has it. Tiles of a point lie in row-major order, points one after another."""

    batch: tuple[Loop, ...]
    queries: Size
    keys: Size
    high: int
    wide: int
    mask: Body
    buffer: str
    origin: SourceLocation = SourceLocation()


@dataclass(frozen=True, slots=True)
class Scatter:
    """A result of a body that is added to a table: `body` computes where, and the store's index names its values."""

    body: Body
    store: Store


@dataclass(frozen=True, slots=True)
class AttentionBackward:
    """What attention's gradient is in its queries (`side` "queries": dq), or its keys and values ("keys": dk, dv).

    `body` is over the batch loops, "i" and "j"; it reads scale · q[i] · k[j] as the op "accumulator" and
    gradient[i] · v[j] as the op "gradient", and gives the gradient of the first, then the weight of the pair (side
    "keys"), then what `scatter` adds to tables, in float64, each part of the work (symbol "part" < `parts`) into its
    own copy. `masked` is the same for tiles of which the mask hides some pairs. The batch is (image, head) of the
    queries; a key head serves `heads` of them, a key image `images`. `first` and `second` are dense [image, head, row,
    column]: dq, or dk and dv.
    """

    side: str
    batch: tuple[Loop, Loop]
    queries: Size
    keys: Size
    depth: int
    values: int
    scale: float
    heads: Size
    images: Size
    q: MatrixView
    k: MatrixView
    v: MatrixView
    gradient: MatrixView
    body: Body
    dtype: str
    first: str
    second: str = ""
    masked: Body | None = None
    tiles: BlockMask | None = None
    scatter: tuple[Scatter, ...] = ()
    parts: int = 1
    origin: SourceLocation = SourceLocation()


@dataclass(frozen=True, slots=True)
class Scan:
    """A state carried along `over`, for every point of `loops`: a user's combine function, or its gradient.

    `start` gives the state before the first turn. `body` reads the state as ops "input" 0, 1, … and gives the next
    state, then whatever `stores` write: at (loops…, over). With `back` the turns run from the last to the first.
    """

    loops: tuple[Loop, ...]
    over: Loop
    start: Body
    body: Body
    stores: tuple[Store, ...]
    back: bool = False
    origin: SourceLocation = SourceLocation()


@dataclass(frozen=True, slots=True)
class ExternKernel:
    """A hand-written kernel by name; `reads` and `writes` name buffers, `sizes` are passed as numbers."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    sizes: tuple[Size, ...] = ()
    attributes: tuple[tuple[str, Any], ...] = ()
    origin: SourceLocation = SourceLocation()


@dataclass(frozen=True, slots=True)
class BindSymbol:
    """A data-dependent size: the symbol takes the body's value."""

    symbol: str
    body: Body
    origin: SourceLocation = SourceLocation()


@dataclass(frozen=True, slots=True)
class Assert:
    """The run ends with the message unless the body's value is true: the model's assertion, or a limit on its sizes."""

    body: Body
    message: str
    on_sizes: bool = False
    origin: SourceLocation = SourceLocation()


@dataclass(frozen=True, slots=True)
class If:
    condition: Body
    then: tuple[Stmt, ...]
    otherwise: tuple[Stmt, ...]
    origin: SourceLocation = SourceLocation()


@dataclass(frozen=True, slots=True)
class While:
    """Runs `test`, then `steps` as long as `condition` is true."""

    test: tuple[Stmt, ...]
    condition: Body
    steps: tuple[Stmt, ...]
    origin: SourceLocation = SourceLocation()


@dataclass(frozen=True, slots=True)
class For:
    """`steps` once for each value of the loop's variable, in order."""

    loop: Loop
    steps: tuple[Stmt, ...]
    origin: SourceLocation = SourceLocation()


Stmt: TypeAlias = (
    Map
    | Reduce
    | LoopNest
    | WithEpilogue
    | StepGroup
    | ClassifyMaskBlocks
    | AttentionBackward
    | Scan
    | ExternKernel
    | BindSymbol
    | Assert
    | If
    | While
    | For
)
