"""The loop-level IR: what a program is between its FX graph and its C text.

    module  ::= Module(buffers, steps, inputs, outputs, symbols)
    step    ::= Map(loops, body, stores)                 body at every point of the loops
              | Reduce(loops, over, kinds, body, stores) one accumulator a result of the body, at every point of loops
              | Nest(outer, steps)                       Maps and Reduces that share their outer loops, in order
              | Product(batch, m, n, k, a, b, epilogue)  matrix products, with a Map as their epilogue
              | Siblings(steps)                          products of the same rows and sizes, task by task
              | Convolution(…, epilogue)                 the same over windows
              | Pair(steps)                              two of those, both of whose sums one epilogue reads
              | Strips(images, steps, …)                 products and convolutions, a strip of lines at a time
              | Attention(…, score, mask, epilogue)      softmax(score(q · k) where mask) · v, never the whole of it
              | MaskTiles(…, mask)                       which tiles of a mask hold anything
              | AttentionGradient(…, joint)              the same tiles again, for dq, or for dk and dv
              | Scan(loops, over, start, body, stores)   a state carried along one loop
              | Routine(name, operands, attributes)      a hand-written kernel: sort, scan, …
              | Bind(symbol, body)                       a size that only the run itself tells
              | Check(body, message)                     the run fails with the message unless the value is true
              | If(condition, then, otherwise) | While(condition steps, condition, steps) | Repeat(loop, steps)
    loop    ::= Loop(variable, extent)
    store   ::= Store(buffer, index, result)             result: which of the body's results; or accumulates into it
    body    ::= Body(ops, results)                       scalar operations in order; operands are places of earlier
    op      ::= load buffer[index] (if mask)             index is an Expr over loop variables, sizes and earlier values
              | const value | index expr | cast x | check index | draw | <name of a scalar operation> operands …

A buffer is dense memory with a shape in *physical* order; how a tensor's dims lie in it is a matter of strides, which
only indices know. Everything here is immutable; fusion and planning make new steps.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from ingot.lowering.expr import Size, product

FLOATS = ("float16", "bfloat16", "float32", "float64")
HALVES = ("float16", "bfloat16")
INTEGERS = ("uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64")
BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
}


def wide(dtype: str) -> str:
    """What a value of this dtype is computed in: the halves are stored narrow and computed in float32."""
    return "float32" if dtype in HALVES else dtype


def round_number(value: float, dtype: str) -> float:
    """The number nearest to `value` that a half dtype has, by way of float32 as torch rounds it."""
    if not math.isfinite(value):
        return value
    try:
        if dtype == "float16":
            return _stored_as("<e", _stored_as("<f", value))
        (bits,) = struct.unpack("<I", struct.pack("<f", value))
    except OverflowError:
        return math.copysign(math.inf, value)
    (rounded,) = struct.unpack("<f", struct.pack("<I", (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000))
    return float(rounded)


def _stored_as(layout: str, value: float) -> float:
    (stored,) = struct.unpack(layout, struct.pack(layout, value))
    return float(stored)


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
class Access:
    """Where a load reads. `mask` is the place of a bool; where it is false nothing is read and the value is 0."""

    buffer: str
    index: Size
    mask: int | None = None

    def __str__(self) -> str:
        return f"{self.buffer}[{self.index}]" + (f" if %{self.mask}" if self.mask is not None else "")


@dataclass(frozen=True, slots=True)
class Op:
    """One scalar operation. `attribute` is what is no operand: an Access, a constant, an index, a size."""

    name: str
    operands: tuple[int, ...]
    dtype: str
    attribute: Any = None

    def __str__(self) -> str:
        parts = [f"%{operand}" for operand in self.operands]
        if self.attribute is not None:
            parts.append(str(self.attribute))
        return f"{self.name}({', '.join(parts)}): {self.dtype}"


@dataclass(frozen=True, slots=True)
class Body:
    """A scalar function: operations in order, and the places of its results."""

    ops: tuple[Op, ...]
    results: tuple[int, ...]

    def __str__(self) -> str:
        lines = [f"%{place} = {op}" for place, op in enumerate(self.ops)]
        return "\n".join([*lines, "return " + ", ".join(f"%{r}" for r in self.results)])


@dataclass(frozen=True, slots=True)
class Store:
    """Writes result number `result` of the body; `mode` "set", or add, prod, max or min for a scatter that accumulates.

    In a scatter the index may name values of the body ("v7"), whose operations are then never renumbered.
    """

    buffer: str
    index: Size
    result: int
    mode: str = "set"

    def __str__(self) -> str:
        sign = "=" if self.mode == "set" else f"{self.mode}="
        return f"{self.buffer}[{self.index}] {sign} result {self.result}"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a step comes from: module path and the user's line, for comments, errors and the profiler."""

    module: str = ""
    source: str = ""
    op: str = ""

    def __str__(self) -> str:
        return "  ".join(part for part in (self.op, self.module, self.source) if part)


@dataclass(frozen=True, slots=True)
class Map:
    """`body` at every point of `loops`, outermost first. `serial` where the order of points matters (a scatter)."""

    loops: tuple[Loop, ...]
    body: Body
    stores: tuple[Store, ...]
    origin: Origin = Origin()
    serial: bool = False


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
    origin: Origin = Origin()


@dataclass(frozen=True, slots=True)
class Nest:
    """Steps that run one after another inside shared outer loops. `local` buffers live for one point of `outer`."""

    outer: tuple[Loop, ...]
    steps: tuple[Map | Reduce, ...]
    local: tuple[str, ...]
    origin: Origin = Origin()


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix inside a buffer: element (batch, row, column) is at offset + row·rows + column·columns.

    `offset` is over the batch loops' variables. `packed` is the width of the column panels of a packed weight.
    """

    buffer: str
    offset: Size
    rows: Size
    columns: Size
    packed: int | None = None


@dataclass(frozen=True, slots=True)
class Codes:
    """What a packed weight's whole numbers of `bits` bits stand for: (code - zero) · scale, both those of the column
    and of the `group` terms that the code is one of: buffers [panels][groups][width], or one number for all."""

    bits: int
    group: int
    scales: str | float
    zeros: str | float = 0.0

    @property
    def buffers(self) -> set[str]:
        return {name for name in (self.scales, self.zeros) if isinstance(name, str)}


# What a product multiplies: numbers as the sums are, bfloat16 with bfloat16 summed in float32, or uint8 with int8
# summed in int32.
Factors: TypeAlias = Literal["same", "bfloat16", "int8"]
# How many terms of a packed weight lie side by side: [terms / so many][columns][so many], zeros behind the last.
TOGETHER: dict[Factors, int] = {"same": 1, "bfloat16": 2, "int8": 4}
# What the rows are stored as, and what the packed weight is, where that is not the type of the sums.
_ROWS: dict[Factors, str] = {"bfloat16": "bfloat16", "int8": "uint8"}


@dataclass(frozen=True, slots=True)
class Product:
    """out[batch, i, j] = Σ_k a[batch, i, k] · b[batch, k, j], then `epilogue`.

    The epilogue is a Map over (batch…, rows…, j) that reads the product as the op "accumulator"; rows may be several
    loops whose extents multiply to m. `dtype` is that of the sums; `factors` says what is multiplied, and how b is
    packed. With `codes`, b is whole numbers, packed in words of 32 bits: [groups][words of a group][columns].
    """

    batch: tuple[Loop, ...]
    m: Size
    n: Size
    k: Size
    a: Matrix
    b: Matrix
    dtype: str
    epilogue: Map
    origin: Origin = Origin()
    factors: Factors = "same"
    codes: Codes | None = None


Way: TypeAlias = Literal["windows", "depthwise", "winograd"]
# What products with weights multiply in: the tensors' own type, or bfloat16.
Precision: TypeAlias = Literal["float32", "bfloat16"]


@dataclass(frozen=True, slots=True)
class Siblings:
    """Products of the same rows, of the same size, done as one: at each place one after another, so that a later one's
    epilogue may read there what an earlier one wrote there."""

    steps: tuple[Product, ...]
    origin: Origin = Origin()


@dataclass(frozen=True, slots=True)
class Convolution:
    """out[n, y, x, o] = Σ in[n, y·s + a·d - p, x·s + b·d - p, c] · w[o, a, b, c] over taps (a, b) and channels c.

    `epilogue` is a Map over (n, y, x, o) that reads the sum as the op "accumulator". `way` says what x and weight are:

        windows    x is dense with channels last: [images, size…, width of a pixel]. A tap reads `channels` neighbours
                   from there on, which may reach into the next pixels. weight: panels of `panel` output channels, each
                   within a group. `factors` as in Product, a tap's channels side by side.
        depthwise  every channel is a group of its own. x as above, weight [tap][channel]. Factors "int8": x is uint8,
                   less `outside`; the weight is whole numbers in float32, in which the sums are exact.
        winograd   x is what the routine of that name makes of the image: [16, tiles of 2×2 outputs, channels]. weight:
                   16 matrices of panels.

    What a window reads outside the image is `outside`: 0, or what stands for 0 among integers.
    """

    images: Size
    size: tuple[Size, Size]
    pixel: int
    channels: int
    out_size: tuple[Size, Size]
    out_channels: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    x: str
    weight: str
    panel: int
    dtype: str
    epilogue: Map
    origin: Origin = Origin()
    way: Way = "windows"
    factors: Factors = "same"
    outside: int = 0


@dataclass(frozen=True, slots=True)
class Pair:
    """Two products or convolutions by windows, of as many rows and columns and panels of the same width, tile by tile.
    The first one's epilogue is that of both, and reads the second one's sums as the op "beside"; the second one's own
    stores nothing."""

    steps: tuple[Product | Convolution, Product | Convolution]
    origin: Origin = Origin()


def rows_dtype(step: Product | Convolution) -> str:
    """What the rows of a product, or the pixels of a convolution, must be stored as to be read where they lie."""
    return _ROWS.get(step.factors, step.dtype)


@dataclass(frozen=True, slots=True)
class Strips:
    """Products whose rows are pixels, and convolutions, a strip of lines of an image at a time: each step reads what
    the one before it has just written, while that is in cache.

    Step i writes the buffer `local[i]`, which step i + 1 alone reads; the last one writes what it likes. `grids` are
    the lines and columns of what each step writes of an image. A strip is `lines` lines of the last one, and whatever
    the others must compute for it.
    """

    images: Size
    steps: tuple[Product | Convolution, ...]
    local: tuple[str, ...]
    grids: tuple[tuple[Size, Size], ...]
    lines: int
    origin: Origin = Origin()


@dataclass(frozen=True, slots=True)
class Tiles:
    """Which tiles of a mask hold anything: at offset + (row tile) · columns + (column tile) of a buffer of bytes, 0
    says none of its pairs, 1 some, 2 all. `offset` is over the batch loops' variables."""

    buffer: str
    offset: Size
    columns: Size


@dataclass(frozen=True, slots=True)
class Attention:
    """out[batch, i] = Σ_j softmax_j(score(scale · q[i] · k[j]) where mask) · v[j] over `batch` loops.

    q, k and v are matrices of rows; offsets are over the batch loops' variables. `score` and `mask` are bodies over
    those, "i" and "j": `score` reads the product as the op "accumulator" and gives another number, `mask` gives whether
    the pair counts, and needs evaluating where `tiles` says 1 only. `causal` hides keys behind the query.
    `epilogue` is a Map over (batch…, row, column) as for Product. `lse` takes log Σ_j exp(score) over (batch…, "i"),
    `top` the largest score.
    """

    batch: tuple[Loop, ...]
    queries: Size
    keys: Size
    depth: int
    values: int
    scale: float
    causal: bool
    q: Matrix
    k: Matrix
    v: Matrix
    score: Body | None
    dtype: str
    epilogue: Map
    origin: Origin = Origin()
    mask: Body | None = None
    tiles: Tiles | None = None
    lse: Store | None = None
    top: Store | None = None


@dataclass(frozen=True, slots=True)
class MaskTiles:
    """For each tile of `high` queries by `wide` keys, and each point of `batch`: how much of `mask` holds, as `Tiles`
    has it. Tiles of a point lie in row-major order, points one after another."""

    batch: tuple[Loop, ...]
    queries: Size
    keys: Size
    high: int
    wide: int
    mask: Body
    buffer: str
    origin: Origin = Origin()


@dataclass(frozen=True, slots=True)
class Scatter:
    """A result of a body that is added to a table: `body` computes where, and the store's index names its values."""

    body: Body
    store: Store


@dataclass(frozen=True, slots=True)
class AttentionGradient:
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
    q: Matrix
    k: Matrix
    v: Matrix
    gradient: Matrix
    body: Body
    dtype: str
    first: str
    second: str = ""
    masked: Body | None = None
    tiles: Tiles | None = None
    scatter: tuple[Scatter, ...] = ()
    parts: int = 1
    origin: Origin = Origin()


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
    origin: Origin = Origin()


@dataclass(frozen=True, slots=True)
class Routine:
    """A hand-written kernel by name; `reads` and `writes` name buffers, `sizes` are passed as numbers."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    sizes: tuple[Size, ...] = ()
    attributes: tuple[tuple[str, Any], ...] = ()
    origin: Origin = Origin()


@dataclass(frozen=True, slots=True)
class Bind:
    """A size that only the run tells: the symbol takes the body's value."""

    symbol: str
    body: Body
    origin: Origin = Origin()


@dataclass(frozen=True, slots=True)
class Check:
    """The run ends with the message unless the body's value is true: the model's assertion, or a limit on its sizes."""

    body: Body
    message: str
    on_sizes: bool = False
    origin: Origin = Origin()


@dataclass(frozen=True, slots=True)
class If:
    condition: Body
    then: tuple[Step, ...]
    otherwise: tuple[Step, ...]
    origin: Origin = Origin()


@dataclass(frozen=True, slots=True)
class While:
    """Runs `test`, then `steps` as long as `condition` is true."""

    test: tuple[Step, ...]
    condition: Body
    steps: tuple[Step, ...]
    origin: Origin = Origin()


@dataclass(frozen=True, slots=True)
class Repeat:
    """`steps` once for each value of the loop's variable, in order."""

    loop: Loop
    steps: tuple[Step, ...]
    origin: Origin = Origin()


Step: TypeAlias = (
    Map
    | Reduce
    | Nest
    | Product
    | Siblings
    | Convolution
    | Pair
    | Strips
    | Attention
    | MaskTiles
    | AttentionGradient
    | Scan
    | Routine
    | Bind
    | Check
    | If
    | While
    | Repeat
)


@dataclass(frozen=True, slots=True)
class Weight:
    """One tensor of the weights blob, and how it is made from the state's row-major elements: (offset, shape, strides,
    columns): a strided view. With `columns`, shape is [groups, panels, …, width] and a panel's places behind the last
    column are zeros. () is as it is. With `winograd` the elements are those of [16, in, out], which the 3×3 taps of
    [out, in, 3, 3] become. With `run` that many dims before the last are one run of terms, of which `together` lie side
    by side: […, terms / together, width, together], zeros behind the last. With `sums` it is what all dims of the view
    but the first add up to, as int32; `times` is a factor of every element, `minus` is taken off. With `bits` the
    elements are whole numbers of so many bits, and those of the dim before the last lie in words of 32 bits, the first
    one lowest; each `group` of them begins with a word of its own: […, groups · words, width]."""

    buffer: str
    source: str
    packing: tuple[Any, ...] = ()
    winograd: bool = False
    run: int = 0
    together: int = 1
    sums: bool = False
    times: float = 1
    bits: int = 0
    group: int = 0
    minus: int = 0


@dataclass(frozen=True, slots=True)
class Argument:
    """An input or output of the module, in the order of the program's signature. `scalar`: a number, no tensor."""

    buffer: str
    name: str
    dtype: str
    shape: tuple[Size, ...]
    mutated: bool = False
    scalar: bool = False


@dataclass(frozen=True, slots=True)
class SizeSymbol:
    """A size that inputs tell: the size of a dim, or the value of a number (dim -1), with its range and its name.

    The dim, or the number, is slope · size + offset.
    """

    place: int
    dim: int
    name: str
    low: int = 0
    high: int | None = None
    slope: int = 1
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Module:
    """A whole program. `symbols` are the sizes that inputs tell, with the input and dim that tells each.

    `draws` is how many draws of random numbers a run makes. `precision` is what products with weights multiply in.
    """

    buffers: dict[str, Buffer]
    steps: tuple[Step, ...]
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    weights: tuple[Weight, ...]
    symbols: dict[str, SizeSymbol]
    hints: dict[str, int] = field(default_factory=dict)
    draws: int = 0
    precision: Precision = "float32"
