"""One kernel's C text as it is written: lines, and the buffers, sizes and library functions that they use."""

from __future__ import annotations

from dataclasses import dataclass

from ingot.codegen.c_expressions import STORED
from ingot.codegen.kernel_text import KernelText
from ingot.lowering.index_expr import Expr, Size, size_number
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
class CKernelWriter(KernelText[RuntimeLibrary]):
    """One kernel being written. `scratch` is what a worker needs of memory of its own."""

    finds_indices = True

    scratch: Size = 0

    def directive(self, text: str) -> None:
        """A line of the preprocessor's."""
        self.lines.append(text)

    def own(self, name: str, type_: str, bytes_: Size) -> None:
        """Declares memory that belongs to the worker while a task runs."""
        self.line(f"{type_} *const {name} = ({type_} *)(ig_scratch(c, worker) + {self.size(self.scratch)});")
        self.scratch = self.scratch + (bytes_ + 63) // 64 * 64

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
