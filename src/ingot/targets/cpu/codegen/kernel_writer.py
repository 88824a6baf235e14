"""One kernel's C text as it is written: lines, and the buffers, sizes and library functions that they use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ingot.codegen.c_expressions import STORED, CBodyEmitter, size_text
from ingot.codegen.checked_sizes import is_run_size
from ingot.lowering.index_expr import Expr, RuntimeSize, Size, estimate, size_number
from ingot.lowering.loop_ir import Body, Buffer, Store
from ingot.targets.cpu.codegen.runtime_library import RuntimeLibrary


@dataclass
class Kernel:
    """The text of a function without its name, the buffers it takes in order, and how its work is counted."""

    text: str
    buffers: list[str]
    total: Size
    grain: Size
    scratch: Size = 0
    sizes: tuple[Expr, ...] = ()  # run-time sizes that the text computes


@dataclass
class CKernelWriter:
    """One kernel being written: lines, indentation, the buffers, sizes and library functions that it uses."""

    buffers: dict[str, Buffer]
    library: RuntimeLibrary
    hints: dict[str, int]
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    pointers: dict[str, str] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    sizes: set[str] = field(default_factory=set)
    computed: dict[Expr, None] = field(default_factory=dict)  # run-time sizes that the text computes
    locals: dict[str, tuple[str, bool]] = field(default_factory=dict)  # name, and whether it is an array
    scratch: Size = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text if text else "")

    def directive(self, text: str) -> None:
        """A line of the preprocessor's."""
        self.lines.append(text)

    def open(self, text: str) -> None:
        self.line(text + " {" if text else "{")
        self.depth += 1

    def close(self) -> None:
        self.depth -= 1
        self.line("}")

    def size(self, size: Size) -> str:
        """A size as text; the symbols in it become known to the kernel."""
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
        if buffer not in self.pointers:
            self.pointers[buffer] = f"p{len(self.pointers)}"
        return self.pointers[buffer]

    def statements(
        self,
        body: Body,
        inner: Sequence[str],
        accumulator: str = "acc",
        middle: Sequence[str] = (),
        gradient: str = "gradient",
        beside: str = "beside",
    ) -> CBodyEmitter:
        made = CBodyEmitter(
            body,
            self.place,
            self.buffers,
            self.library.functions,
            inner=inner,
            middle=middle,
            accumulator=accumulator,
            gradient=gradient,
            beside=beside,
        )
        for op in body.ops:
            if isinstance(op.attribute, Expr):
                self.size(op.attribute)
        return made

    def store(self, store: Store, value: str) -> str:
        self.written.add(store.buffer)
        dtype = self.buffers[store.buffer].dtype
        if dtype in ("bfloat16", "float16"):
            name = "ig_f32_to_bf16" if dtype == "bfloat16" else "ig_f32_to_f16"
            self.library.functions.add(name)
            value = f"{name}({value})"
        elif dtype == "bool":
            value = f"(({value}) != 0)"
        place = self.place(store.buffer, store.index)
        match store.mode:
            case "set":
                return f"{place} = {value};"
            case "add" | "prod":
                sign = "+" if store.mode == "add" else "*"
                return (
                    f"{place} {sign}= {value};"
                    if dtype != "bool"
                    else f"{place} {'|' if sign == '+' else '&'}= {value};"
                )
            case mode:
                sign = ">" if mode == "max" else "<"
                nan = f" || {value} != {value}" if dtype in ("float32", "float64") else ""
                return f"if ({value} {sign} {place}{nan}) {place} = {value};"

    def own(self, name: str, type_: str, bytes_: Size) -> None:
        """Declares memory that belongs to the worker while a task runs."""
        self.line(f"{type_} *const {name} = ({type_} *)(ig_scratch(c, worker) + {self.size(self.scratch)});")
        self.scratch = self.scratch + (bytes_ + 63) // 64 * 64

    def hint(self, size: Size) -> int:
        return estimate(size, self.hints)

    def finish(self, total: Size, grain: Size) -> Kernel:
        head: list[str] = []
        for buffer, name in self.pointers.items():
            stored = STORED[self.buffers[buffer].dtype]
            const = "" if buffer in self.written else "const "
            head.append(f"    {const}{stored} *const {name} = c->p[{len(head)}];")
        head += [
            f"    const int64_t {name} = c->n[{size_number(name)}];" for name in sorted(self.sizes, key=size_number)
        ]
        text = "\n".join([*head, *self.lines])
        return Kernel(text, list(self.pointers), total, grain, self.scratch, tuple(self.computed))
