"""What a target is: a machine, as data and a few functions from a Program to a library with the C ABI of `ingot.h`.

    module = target.lower(program)        loops, with the target's own choices of algorithm and layout
    module = target.schedule(module)      steps of the target's own, in the order in which they run
    source = target.emit(module)          text
    libraries = target.build(source)      bytes, by the name of the machine that they are for

A target is stateless: one object serves every compilation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import torch
from numpy.typing import NDArray

from ingot.codegen.build.page_prefault import Pages
from ingot.codegen.native_source import NativeSource
from ingot.codegen.weight_blob import WeightBlob
from ingot.ir.program import Program
from ingot.lowering.index_expr import Size
from ingot.lowering.loop_ir import Buffer, Loop, Map, MatrixView, Stmt
from ingot.lowering.loop_module import Module, PackedWeight, Precision, WeightLayout
from ingot.lowering.lower import lower, whole_operators
from ingot.lowering.strategy import LoweringStrategy
from ingot_runtime.container.manifest import Spec
from ingot_runtime.model import Model
from ingot_runtime.native.native_library import Blob, NativeLibrary

S = TypeVar("S")
N = TypeVar("N", bound=NativeSource)
# Called for each scheduling pass with its name, and the modules before and after it.
ScheduleObserver: TypeAlias = Callable[[str, Module, Module], None]


def ignore_pass(name: str, before: Module, after: Module) -> None:
    """The observer that looks at nothing."""


class Fault(Exception):
    """A step does what no step may: the interpreter adds which step it is."""


class StepRunner(Protocol):
    """What the interpreter of the loop IR gives to a rule that explains a target's own step.

    Values are arrays in the dtype that they are computed in: float32 for the halves.
    """

    def size(self, size: Size) -> int:
        """A size of this run."""

    def values(self, name: str) -> NDArray[Any]:
        """All elements of a buffer, flat."""

    def write(self, name: str, values: NDArray[Any]) -> None:
        """Writes all elements of a buffer."""

    def poison(self, name: str) -> None:
        """Makes a buffer one that nothing wrote."""

    def matrices(self, view: MatrixView, batch: Sequence[Loop], rows: int, columns: int) -> list[NDArray[Any]]:
        """The matrix of each point of the batch loops, in order."""

    def place(self, offset: Size, batch: Sequence[Loop]) -> list[int]:
        """An offset at each point of the batch loops, in order."""

    def halve(self, count: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Points that must not depend on each other, in two parts to be evaluated one after another."""

    def run_epilogue(
        self,
        epilogue: Map,
        sums: NDArray[Any],
        beside: NDArray[Any] | None = None,
        points: NDArray[Any] | None = None,
    ) -> None:
        """An epilogue on sums in the order of its points: all of them, or those at `points`."""


# Interprets one of a target's own steps.
ReferenceRule: TypeAlias = Callable[[Any, Any], None]


class Target(ABC, Generic[S]):
    """A machine that programs are compiled for. `S` is the type of its sources."""

    # What users call it.
    name: str
    # Choices of kernels and scheduling passes, in order; each may be left out, and the result computes the same.
    optional_passes: tuple[str, ...] = ()
    # What float32 products may multiply in.
    precisions: tuple[Precision, ...] = ("float32",)
    # Layouts of weights that its strategy and its schedule use, besides the model's own.
    layouts: tuple[type[WeightLayout], ...] = ()
    # What the interpreter of the loop IR does with its own types of steps, and with its extern kernels by name.
    reference_rules: Mapping[type[Stmt] | str, ReferenceRule] = {}
    # Operators that are preserved only where the optional pass of this name is not disabled.
    optional_operators: Mapping[str, Collection[Any]] = {}

    def preserved_ops(self, disabled: Collection[str] = ()) -> tuple[Any, ...]:
        """Operators that decompositions leave whole, since there is a better rule for them: of the table of rules,
        without those of passes that are disabled."""
        left_out = {op for name in disabled for op in self.optional_operators.get(name, ())}
        return tuple(op for op in whole_operators() if op not in left_out)

    @abstractmethod
    def strategy(self, disabled: Collection[str] = ()) -> LoweringStrategy:
        """What is chosen while one program is lowered, without the kernels that are disabled."""

    def lower(self, program: Program, precision: Precision = "float32", disabled: Collection[str] = ()) -> Module:
        """The program's loops. Raises UnsupportedOperator."""
        return lower(program, self.strategy(disabled), precision)

    @abstractmethod
    def schedule(
        self,
        module: Module,
        disabled: Collection[str] = (),
        *,
        verify: bool = False,
        observe: ScheduleObserver = ignore_pass,
    ) -> Module:
        """The module in fewer or faster steps, without the passes that are disabled; computes the same. `verify`: every
        rule of the loop IR's verifier holds after each pass, not only those that cost little. `observe` is called after
        each pass."""

    def pack_weight(self, weight: PackedWeight, buffer: Buffer, state: torch.Tensor) -> torch.Tensor:
        """A tensor of the program's state as the module's steps read it. This target stores all as they are."""
        assert weight.layout is None, f"{type(weight.layout).__name__} is not a layout of this target"
        return state

    @abstractmethod
    def emit(self, module: Module, *, title: str = "model") -> S:
        """The text of a scheduled module."""

    @abstractmethod
    def build(
        self, source: S, machines: str | Sequence[str] | None = None, *, cache: bool = True
    ) -> Mapping[str, bytes]:
        """A library for this machine, and for each other one that is named."""


class NativeTarget(Target[N]):
    """A machine whose code this process can load and call."""

    # Operations and bytes in a second that it can do at most; None: those of this machine's processor, measured.
    peak_rates: tuple[float, float] | None = None

    @abstractmethod
    def pack_weights(self, program: Program, module: Module, source: N, pages: Pages | None = None) -> WeightBlob:
        """The program's state as the module's kernels read it."""

    def choose_machines(self, device: int | None) -> tuple[str, ...]:
        """What to build for where no machine is named, for a model that runs in this process on the GPU of that
        number: names for `build`, none for all that it builds by default."""
        return ()

    def build_rest(self, source: N, libraries: Mapping[str, bytes], *, cache: bool = True) -> Mapping[str, bytes]:
        """All that `build` gives by default, of which some is there."""
        return libraries

    @abstractmethod
    def host_library(self) -> str:
        """The name of the library, among those that `build` gives, that this process loads."""

    def load_library(self, data: bytes, member: str) -> NativeLibrary:
        """That library, loaded. `member` is its name in messages. Raises DamagedFile."""
        return NativeLibrary(memoryview(data), path="<memory>", member=member)

    @abstractmethod
    def open_model(
        self,
        spec: Spec,
        library: NativeLibrary,
        weights: Blob,
        images: Mapping[str, bytes],
        threads: int | None,
        device: int,
    ) -> Model:
        """The model of a library that was just built, and of what `build` gave for GPUs: on the one of that number."""
