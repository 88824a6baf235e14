"""Steps of the CPU schedule: what it adds to the loop IR, in types of its own.

    PackedGemm(…, b, factors, codes)    a product with a weight that is packed in panels of columns
    TiledConvolution(…, algorithm)      a convolution with a packed weight, by one of three algorithms
    GemmGroup(steps)                    packed products of the same rows and sizes, task by task
    DualGemm(steps)                     two products or convolutions, both of whose sums one epilogue reads
    AmxAttention(…)                     an Attention whose products are of bfloat16 where the machine has AMX
    StripMined(images, steps, …)        products and convolutions, a strip of lines at a time

The loop IR's printer prints them by their fields, `packed_gemm m=… { … }`; verifier.py has their rules. How a packed
weight is made of the model's own is its layout: see weight_layouts.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ingot.lowering.index_expr import Size, product
from ingot.lowering.loop_ir import Attention, Gemm, Loop, Map, MatrixView, SourceLocation, StepGroup, Stmt, WithEpilogue

# What a product multiplies: numbers as the sums are, bfloat16 with bfloat16 summed in float32, or uint8 with int8
# summed in int32.
OperandFormat: TypeAlias = Literal["same", "bfloat16", "int8"]
# How many terms of a packed weight lie side by side: [terms / so many][columns][so many], zeros behind the last.
K_INTERLEAVE: dict[OperandFormat, int] = {"same": 1, "bfloat16": 2, "int8": 4}
# What the rows are stored as, and what the packed weight is, where that is not the type of the sums.
LHS_STORAGE: dict[OperandFormat, str] = {"bfloat16": "bfloat16", "int8": "uint8"}
_NOWHERE = SourceLocation()
ConvAlgorithm: TypeAlias = Literal["windows", "depthwise", "winograd"]


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A weight in panels of `width` columns: [panels][terms][width], from `offset` on, which is over the batch loops'
    variables."""

    buffer: str
    offset: Size
    width: int


@dataclass(frozen=True, slots=True)
class QuantizedLayout:
    """What a packed weight's integers of `bits` bits stand for: (code - zero) · scale, both those of the column
    and of the `group` terms that the code is one of: buffers [panels][groups][width], or one number for all."""

    bits: int
    group: int
    scales: str | float
    zeros: str | float = 0.0

    @property
    def buffers(self) -> set[str]:
        return {name for name in (self.scales, self.zeros) if isinstance(name, str)}


@dataclass(frozen=True, slots=True)
class PackedGemm(WithEpilogue):
    """A Gemm whose right side is a packed weight.

    `factors` says what is multiplied, and how b is packed; `amx`, that a machine with AMX uses it. With `codes`, b is
    integers, packed in words of 32 bits: [groups][words of a group][columns].
    """

    batch: tuple[Loop, ...]
    m: Size
    n: Size
    k: Size
    a: MatrixView
    b: PackedMatrix
    dtype: str
    epilogue: Map
    origin: SourceLocation = _NOWHERE
    factors: OperandFormat = "same"
    codes: QuantizedLayout | None = None
    amx: bool = False

    def sums_shape(self) -> tuple[Size, Size]:
        return self.m, self.n

    def batch_loops(self) -> tuple[Loop, ...]:
        return self.batch

    def operand_buffers(self) -> set[str]:
        return {self.a.buffer, self.b.buffer} | (self.codes.buffers if self.codes else set())

    def operand_offsets(self) -> tuple[Size, ...]:
        return self.a.offset, self.b.offset


@dataclass(frozen=True, slots=True)
class TiledConvolution(WithEpilogue):
    """out[n, y, x, o] = Σ in[n, y·s + a·d - p, x·s + b·d - p, c] · w[o, a, b, c] over taps (a, b) and channels c.

    The epilogue's loops are (n, y, x, o). `algorithm` says what x and weight are:

        windows    x is dense with channels last: [images, size…, width of a pixel]. A tap reads `channels` neighbours
                   from there on, which may reach into the next pixels. weight: panels of `panel` output channels, each
                   within a group. `factors` as in PackedGemm, a tap's channels side by side; so `amx`.
        depthwise  every channel is a group of its own. x as above, weight [tap][channel]. Factors "int8": x is uint8,
                   less `outside`; the weight is integers in float32, in which the sums are exact.
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
    origin: SourceLocation = _NOWHERE
    algorithm: ConvAlgorithm = "windows"
    factors: OperandFormat = "same"
    outside: int = 0
    amx: bool = False

    def sums_shape(self) -> tuple[Size, Size]:
        return product((self.images, *self.out_size)), self.out_channels

    def operand_buffers(self) -> set[str]:
        return {self.x, self.weight}


@dataclass(frozen=True, slots=True)
class AmxAttention(Attention):
    """Attention that a machine with AMX multiplies in bfloat16, its sums, scores and weights in float32; others compute
    it as it is."""


# What a tile of sums is computed by.
Tiled: TypeAlias = PackedGemm | TiledConvolution


@dataclass(frozen=True, slots=True)
class GemmGroup(StepGroup):
    """Products of the same rows, of the same size, done as one: at each place one after another, so that a later one's
    epilogue may read there what an earlier one wrote there."""

    steps: tuple[PackedGemm, ...]
    origin: SourceLocation = _NOWHERE

    def members(self) -> tuple[Stmt, ...]:
        return self.steps


@dataclass(frozen=True, slots=True)
class DualGemm(StepGroup):
    """Two products or convolutions by windows, of as many rows and columns and panels of the same width, tile by tile.
    The first one's epilogue is that of both, and reads the second one's sums as the op "second_accumulator"; the second
    one's own stores nothing."""

    steps: tuple[Tiled, Tiled]
    origin: SourceLocation = _NOWHERE

    def members(self) -> tuple[Stmt, ...]:
        return self.steps

    def given_values(self) -> dict[str, str]:
        return {"second_accumulator": self.steps[1].dtype}


@dataclass(frozen=True, slots=True)
class StripMined(StepGroup):
    """Products whose rows are pixels, and convolutions, a strip of lines of an image at a time: each step reads what
    the one before it has just written, while that is in cache.

    Step i writes the buffer `local[i]`, which step i + 1 alone reads; the last one writes what it likes. `grids` are
    the lines and columns of what each step writes of an image. A strip is `lines` lines of the last one, and whatever
    the others must compute for it.
    """

    images: Size
    steps: tuple[Tiled, ...]
    local: tuple[str, ...]
    grids: tuple[tuple[Size, Size], ...]
    lines: int
    origin: SourceLocation = _NOWHERE

    def members(self) -> tuple[Stmt, ...]:
        return self.steps

    def local_buffers(self) -> tuple[str, ...]:
        return self.local


def factors_of(step: Gemm | Tiled) -> OperandFormat:
    """What a step multiplies. A product whose right side is packed while it runs multiplies numbers as its sums are."""
    return "same" if isinstance(step, Gemm) else step.factors


def rows_dtype(step: Gemm | Tiled) -> str:
    """What the rows of a product, or the pixels of a convolution, must be stored as to be read where they lie."""
    return LHS_STORAGE.get(factors_of(step), step.dtype)
