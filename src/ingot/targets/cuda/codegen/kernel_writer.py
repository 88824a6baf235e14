"""One kernel's text as it is written: lines, and the buffers, sizes and library functions that they use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ingot.codegen.c_expressions import STORED, CBodyEmitter, size_text
from ingot.codegen.checked_sizes import is_run_size
from ingot.lowering.index_expr import Expr, RuntimeSize, Size, estimate, size_number
from ingot.lowering.loop_ir import Body, Buffer, Store
from ingot.targets.cuda.codegen.device_library import DeviceLibrary
from ingot.targets.cuda.codegen.kernel import CudaKernel, Grid

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
class CudaKernelWriter:
    """One kernel being written. `scratch` is shared by the kernels of one step."""

    buffers: Mapping[str, Buffer]
    library: DeviceLibrary
    hints: Mapping[str, int]
    scratch: StepScratch = field(default_factory=StepScratch)
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    pointers: dict[str, str] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)  # of scratch, by its name
    written: set[str] = field(default_factory=set)
    sizes: set[str] = field(default_factory=set)
    computed: dict[Expr, None] = field(default_factory=dict)
    locals: dict[str, tuple[str, bool]] = field(default_factory=dict)  # name, and whether it is an array

    def next_kernel(self) -> CudaKernelWriter:
        """A writer for another kernel of the same step."""
        return CudaKernelWriter(self.buffers, self.library, self.hints, self.scratch)

    # ------------------------------------------------------------------ lines

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text if text else "")

    def open(self, text: str) -> None:
        self.line(text + " {" if text else "{")
        self.depth += 1

    def close(self) -> None:
        self.depth -= 1
        self.line("}")

    # ------------------------------------------------------------------ names

    def size(self, size: Size) -> str:
        """A size as text; the symbols in it become parameters of the kernel."""
        if isinstance(size, Expr):
            self.sizes.update(s.name for s in size.symbols if isinstance(s, RuntimeSize))
            if is_run_size(size):
                self.computed[size] = None
        return size_text(size)

    def place(self, buffer: str, index: Size) -> str:
        if buffer in self.locals:
            name, array = self.locals[buffer]
            return f"{name}[{self.size(index)}]" if array else name
        return f"{self.pointer(buffer)}[{self.size(index)}]"

    def pointer(self, buffer: str) -> str:
        if buffer in self.locals:
            return self.locals[buffer][0]
        return self.pointers.setdefault(buffer, f"p{len(self.pointers)}")

    def scratch_pointer(self, name: str, type_: str, *, written: bool = False) -> str:
        """A pointer to memory of the step's scratch, which `self.scratch.reserve` named."""
        self.types[name] = type_
        if written:
            self.written.add(name)
        return self.pointer(name)

    def index_type(self, names: Sequence[str], extents: Sequence[Size]) -> str:
        """The type of loop variables: int where every place of these buffers and every extent is known to fit."""
        sizes = [*(self.buffers[name].size for name in names), *extents]
        total = 1
        for extent in extents:
            total *= extent if isinstance(extent, int) else INT_LIMIT
        fits = total < INT_LIMIT and all(isinstance(size, int) and size < INT_LIMIT for size in sizes)
        return "int" if fits else "int64_t"

    def hint(self, size: Size) -> int:
        return estimate(size, dict(self.hints))

    # ------------------------------------------------------------------ bodies

    def statements(
        self,
        body: Body,
        inner: Sequence[str],
        accumulator: str = "acc",
        middle: Sequence[str] = (),
        gradient: str = "gradient",
        beside: str = "beside",
        prefix: str = "v",
        place: Callable[[str, Size], str] | None = None,
    ) -> CBodyEmitter:
        """The body as statements; `place` spells the elements of buffers where they are not in memory."""
        made = CBodyEmitter(
            body, place or self.place, self.buffers, self.library.functions, inner=inner, middle=middle, prefix=prefix,
            accumulator=accumulator, gradient=gradient, beside=beside, seed="context.seed", first_draw="context.draw",
        )  # fmt: skip
        for op in body.ops:
            if isinstance(op.attribute, Expr):
                self.size(op.attribute)
        return made

    def store(self, store: Store, value: str) -> str:
        """The statement that writes a value; the modes but "set" are not atomic."""
        self.written.add(store.buffer)
        dtype = self.buffers[store.buffer].dtype
        value = self.stored_value(dtype, value)
        place = self.place(store.buffer, store.index)
        match store.mode:
            case "set":
                return f"{place} = {value};"
            case "add" | "prod":
                sign = "+" if store.mode == "add" else "*"
                if dtype == "bool":
                    sign = "|" if sign == "+" else "&"
                return f"{place} {sign}= {value};"
            case mode:
                sign = ">" if mode == "max" else "<"
                nan = f" || {value} != {value}" if dtype in ("float32", "float64") else ""
                return f"if ({value} {sign} {place}{nan}) {place} = {value};"

    def stored_value(self, dtype: str, value: str) -> str:
        """A computed value as it is stored in memory of a dtype."""
        if dtype in ("bfloat16", "float16"):
            name = "ig_f32_to_bf16" if dtype == "bfloat16" else "ig_f32_to_f16"
            self.library.functions.add(name)
            return f"{name}({value})"
        return f"(({value}) != 0)" if dtype == "bool" else value

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
            self.lines[:0] = self._wait_first()
        signature = []
        for buffer, name in self.pointers.items():
            type_ = self.types[buffer] if buffer in self.types else STORED[self.buffers[buffer].dtype]
            is_written = buffer in self.written
            signature.append(f"{type_} *{name}" if is_written else f"const {type_} *__restrict__ {name}")
        sizes = tuple(sorted(self.sizes, key=size_number))
        signature += [f"const int64_t {name}" for name in sizes]
        text = "\n".join(self.lines)
        return CudaKernel(
            text, tuple(signature), tuple(self.pointers), sizes, grid, block, shared, tuple(self.computed),
            waits or is_small,
        )  # fmt: skip

    def _wait_first(self) -> list[str]:
        """Reads through pointers that promise constant memory would not stay behind the wait: only weights are."""
        lines = ["ig_start_next();", "ig_wait_for_previous();"]
        for buffer, name in self.pointers.items():
            is_weight = buffer in self.buffers and self.buffers[buffer].kind == "weight"
            if buffer not in self.written and not is_weight:
                lines.append(f"{name} = ig_pointer_after({name});")
        return ["    " + line for line in lines]
