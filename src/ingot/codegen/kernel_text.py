"""A kernel's text as it is written, for targets whose text is C: lines, and the buffers and sizes that they use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, Protocol, TypeVar

from ingot.codegen.c_expressions import CBodyEmitter, size_text
from ingot.codegen.checked_sizes import is_run_size
from ingot.lowering.index_expr import Expr, RuntimeSize, Size, estimate
from ingot.lowering.loop_ir import Body, Buffer, Store


class FunctionLibrary(Protocol):
    """What a file holds besides its kernels; `functions` are of the math library."""

    functions: set[str]


L = TypeVar("L", bound=FunctionLibrary)


@dataclass
class KernelText(Generic[L]):
    """One kernel being written. A target's own writer says how it begins and ends."""

    # C expressions for the run's seed and for the index of its first random draw.
    seed: ClassVar[str] = "c->run->seed"
    first_draw: ClassVar[str] = "c->run->draw"
    finds_indices: ClassVar[bool] = False

    buffers: Mapping[str, Buffer]
    library: L
    hints: Mapping[str, int]
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    pointers: dict[str, str] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    sizes: set[str] = field(default_factory=set)
    computed: dict[Expr, None] = field(default_factory=dict)  # run-time sizes that the text computes
    locals: dict[str, tuple[str, bool]] = field(default_factory=dict)  # name, and whether it is an array

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text if text else "")

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
        return self.pointers.setdefault(buffer, f"p{len(self.pointers)}")

    def hint(self, size: Size) -> int:
        return estimate(size, self.hints)

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
            accumulator=accumulator, gradient=gradient, beside=beside, seed=self.seed, first_draw=self.first_draw,
            finds_indices=self.finds_indices,
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
