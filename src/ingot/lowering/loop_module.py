"""A whole program as loops: buffers and steps, what it takes and gives, its weights and its sizes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from ingot.lowering.index_expr import Size
from ingot.lowering.loop_ir import Buffer, Stmt
from ingot.lowering.loop_ir_printer import print_module

# What float32 products multiply in: float32, or fewer bits. "bfloat16": products with weights, which are stored in it.
# "tf32": on tensor cores, operands rounded to 10 bits of fraction; sums are in float32. Each target has some of them.
Precision: TypeAlias = Literal["float32", "bfloat16", "tf32"]


class WeightLayout:
    """How a target stores a weight; each target has layouts of its own. They are immutable, and equal ones compare
    equal."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """One tensor of the weights blob: the state called `source`, as it is or in a target's layout."""

    buffer: str
    source: str
    layout: WeightLayout | None = None


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
class SymbolSource:
    """A size that inputs bind: the size of a dim, or the value of a number (dim -1), with its range and its name.

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
    """A whole program. `symbols` are the sizes that inputs bind, with the input and dim that binds each.

    `draws` is how many draws of random numbers a run makes. `precision` is what float32 products multiply in.
    """

    buffers: dict[str, Buffer]
    steps: tuple[Stmt, ...]
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    weights: tuple[PackedWeight, ...]
    symbols: dict[str, SymbolSource]
    hints: dict[str, int] = field(default_factory=dict)
    draws: int = 0
    precision: Precision = "float32"

    def __str__(self) -> str:
        return print_module(self)
