"""What a target is: a machine, as data and a few functions from a Program to a library with the C ABI of `ingot.h`.

    module = target.lower(program)        loops, with the target's own choices of algorithm and layout
    module = target.schedule(module)      steps of the target's own, in the order in which they run
    source = target.emit(module)          text
    libraries = target.build(source)      bytes, by the name of the machine that they are for

A target is stateless: one object serves every compilation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Generic, TypeVar

from ingot.ir.program import Program
from ingot.lowering.loop_module import Module, Precision, WeightLayout
from ingot.lowering.lower import lower, whole_operators
from ingot.lowering.strategy import LoweringStrategy

S = TypeVar("S")


class Target(ABC, Generic[S]):
    """A machine that programs are compiled for. `S` is the type of its sources."""

    # What users call it.
    name: str
    # Choices of kernels and scheduling passes, in order; each may be left out, and the result computes the same.
    optional_passes: tuple[str, ...] = ()
    # Layouts of weights that its strategy and its schedule use, besides the model's own.
    layouts: tuple[type[WeightLayout], ...] = ()

    @property
    def preserved_ops(self) -> tuple[Any, ...]:
        """Operators that decompositions leave whole, since there is a better rule for them: of the table of rules."""
        return whole_operators()

    @abstractmethod
    def strategy(self, disabled: Collection[str] = ()) -> LoweringStrategy:
        """What is chosen while one program is lowered, without the kernels that are disabled."""

    def lower(self, program: Program, precision: Precision = "float32", disabled: Collection[str] = ()) -> Module:
        """The program's loops. Raises UnsupportedOperator."""
        return lower(program, self.strategy(disabled), precision)

    @abstractmethod
    def schedule(self, module: Module, disabled: Collection[str] = ()) -> Module:
        """The module in fewer or faster steps, without the passes that are disabled; computes the same."""

    @abstractmethod
    def emit(self, module: Module, *, title: str = "model") -> S:
        """The text of a scheduled module."""

    @abstractmethod
    def build(
        self, source: S, machines: str | Sequence[str] | None = None, *, cache: bool = True
    ) -> Mapping[str, bytes]:
        """A library for this machine, and for each other one that is named."""
