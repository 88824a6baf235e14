"""One kernel's text as it is written: lines, and the buffers, sizes and library functions that they use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ingot.codegen.c_expressions import STORED, CBodyEmitter, size_text
from ingot.codegen.kernel_text import KernelText
from ingot.lowering.index_expr import Size, size_number
from ingot.targets.cuda.codegen.device_library import DeviceLibrary
from ingot.targets.cuda.codegen.kernel import CudaKernel, Grid, TensorMap

# What an `int` counts.
INT_LIMIT = 2**31


@dataclass
class StepScratch:
    """Global memory that a step has for itself while its kernels run."""

    size: Size = 0

    def reserve(self, bytes_: Size) -> str:
        """Memory of that size, aligned to 256 bytes: the name by which a kernel takes it."""
        name = f"scratch:{self.size}" if isinstance(self.size, int) else f"scratch:{size_text(self.size)}"
        self.offsets[name] = self.size
        self.size = self.size + (bytes_ + 255) // 256 * 256
        return name

    offsets: dict[str, Size] = field(default_factory=dict)


@dataclass
class CudaKernelWriter(KernelText[DeviceLibrary]):
    """One kernel being written. `scratch` is shared by the kernels of one step."""

    seed = "context.seed"
    first_draw = "context.draw"

    scratch: StepScratch = field(default_factory=StepScratch)
    types: dict[str, str] = field(default_factory=dict)  # of scratch, by its name
    maps: list[TensorMap] = field(default_factory=list)
    wait_at: int = 0  # the line before which a small kernel waits for the one before it
    wait_for_block: str = "__syncthreads();"  # by which the threads that share the work wait for each other

    def next_kernel(self) -> CudaKernelWriter:
        """A writer for another kernel of the same step."""
        return CudaKernelWriter(self.buffers, self.library, self.hints, scratch=self.scratch)

    def scratch_pointer(self, name: str, type_: str, *, written: bool = False) -> str:
        """A pointer to memory of the step's scratch, which `self.scratch.reserve` named."""
        self.types[name] = type_
        if written:
            self.written.add(name)
        return self.pointer(name)

    def tensor_map(self, made: TensorMap) -> str:
        """The name of the parameter by which the kernel takes a map."""
        if made not in self.maps:
            self.maps.append(made)
        return f"map{self.maps.index(made)}"

    def index_type(self, names: Sequence[str], extents: Sequence[Size]) -> str:
        """The type of loop variables: int where every place of these buffers and every extent is known to fit."""
        sizes = [*(self.buffers[name].size for name in names), *extents]
        total = 1
        for extent in extents:
            total *= extent if isinstance(extent, int) else INT_LIMIT
        fits = total < INT_LIMIT and all(isinstance(size, int) and size < INT_LIMIT for size in sizes)
        return "int" if fits else "int64_t"

    # ------------------------------------------------------------------ flags

    def declare_flags(self, code: CBodyEmitter) -> None:
        """What statements set where an index or a divisor is bad; `report_flags` goes behind them."""
        if code.checks:
            self.line("int bad = 0;")
        if code.zero_checks:
            self.line("int zero = 0;")

    def report_flags(self, code: CBodyEmitter) -> None:
        if code.checks:
            self.line("if (bad) ig_fail(context, INGOT_INDEX);")
        if code.zero_checks:
            self.line("if (zero) ig_fail(context, INGOT_ZERO_DIVISION);")

    # ------------------------------------------------------------------ the end

    def finish(
        self, grid: Grid, block: int, shared: Size = 0, *, waits: bool = False, is_small: bool = False
    ) -> CudaKernel:
        """The kernel. One that `is_small` takes as long as its launch: it begins, and lets the next one begin, before
        the one before it has ended, and then waits for that one."""
        if is_small and not waits:
            self.lines[self.wait_at : self.wait_at] = ["    ig_wait_for_previous();"]
            self.lines[:0] = ["    ig_start_next();"]
        overlaps = waits or is_small
        signature = [self._declare_pointer(buffer, overlaps) for buffer in self.pointers]
        sizes = tuple(sorted(self.sizes, key=size_number))
        signature += [f"const int64_t {name}" for name in sizes]
        text = "\n".join(self.lines)
        return CudaKernel(
            text, tuple(signature), tuple(self.pointers), sizes, grid, block, shared, tuple(self.computed),
            overlaps, maps=tuple(self.maps),
        )  # fmt: skip

    def _declare_pointer(self, buffer: str, overlaps: bool) -> str:
        """A parameter. `__restrict__` promises that the memory is not written while the kernel runs, so that it may be
        read at any time. Where the kernel before this one may still be running, that is true of weights only: reads of
        other memory would move in front of the wait."""
        type_ = self.types[buffer] if buffer in self.types else STORED[self.buffers[buffer].dtype]
        name = self.pointers[buffer]
        if buffer in self.written:
            return f"{type_} *{name}"
        is_weight = buffer in self.buffers and self.buffers[buffer].kind == "weight"
        return f"const {type_} *{'__restrict__ ' if is_weight or not overlaps else ''}{name}"
