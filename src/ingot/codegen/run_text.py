"""The C function that runs a module, for targets whose host text is C: control flow, sizes and their limits, memory.

A target says how an address is declared, how the arena is laid out, and what a step becomes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from ingot.codegen.checked_sizes import MOST_BYTES, SizeLimits
from ingot.codegen.entry_points import run_size
from ingot.errors import UnsupportedOperator, format_error
from ingot.lowering.dependence import all_steps, reads_and_writes
from ingot.lowering.index_expr import Expr, Size, largest
from ingot.lowering.loop_ir import BindSymbol, SourceLocation, Stmt
from ingot.lowering.loop_module import Module
from ingot.scheduling.buffer_planning import MemoryPlan, byte_size


@dataclass
class RunText(ABC):
    """The run as it is written."""

    module: Module
    plan: MemoryPlan
    lines: list[str] = field(default_factory=list, kw_only=True)
    sites: dict[str, int] = field(default_factory=dict, kw_only=True)
    scratch: list[Size] = field(default_factory=list, kw_only=True)
    known: set[str] = field(default_factory=set, kw_only=True)  # sizes that the run has when it begins
    limits: SizeLimits = field(default_factory=SizeLimits, kw_only=True)
    size_names: dict[str, str] = field(default_factory=dict, kw_only=True)  # as the run calls them
    depth: int = field(default=1, kw_only=True)

    @abstractmethod
    def _declare(self, name: str, address: str) -> None:
        """Declares a buffer at an address."""

    @abstractmethod
    def _arena(self) -> set[str]:
        """Declares the temporaries; returns those whose size is not known when the run begins."""

    @abstractmethod
    def _step(self, step: Stmt) -> None:
        """Writes a step."""

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def _write_steps(self, steps: Sequence[Stmt]) -> None:
        """Everything behind the first steps, which only bind sizes and check them: memory, then these steps."""
        module = self.module
        self._limit_buffers()
        for argument in module.outputs:
            for size in argument.shape:
                if isinstance(size, Expr) and {s.name for s in size.symbols} <= self.known:
                    self.limits.add(size, MOST_BYTES, self._site(argument.name))
        place = len(self.lines)
        late = self._arena()
        reserve = len(self.lines)
        bound = set(self.known)
        for step in steps:
            for name in sorted(late & set().union(*reads_and_writes(step))):
                self._check_size(name, bound)
                self._limit(byte_size(module.buffers[name]), step.origin, MOST_BYTES)
                self._declare(name, f"ig_allocate(run, {run_size(byte_size(module.buffers[name]))})")
                self.line("if (run->status) return;")
                late.discard(name)
            self._step(step)
            bound |= {step.symbol} if isinstance(step, BindSymbol) else set()
        total: Size = 0
        for size in self.scratch:
            total = largest(total, size)
        self.lines.insert(reserve, f"    if (!ig_reserve_scratch(run, {run_size(total)})) return;")
        # Sizes that the first steps find out, ahead of the arena.
        self.lines[place:place] = [f"    {line}" for line in self.limits.split(module.symbols)[1].statements()]

    def _emit_nested(self, steps: Sequence[Stmt]) -> None:
        self.depth += 1
        for step in steps:
            self._step(step)
        self.depth -= 1

    def _end_value(self) -> None:
        """Closes the block in which a value was computed."""
        self.depth -= 1
        self.line("}")

    def _site(self, text: str) -> int:
        return self.sites.setdefault(text, len(self.sites))

    # ------------------------------------------------------------------ sizes

    def _limit(self, size: Size, origin: SourceLocation, most: int | None = None) -> None:
        """Has a size checked: before the kernels run if possible, else here."""
        if not isinstance(size, Expr):
            return
        if {s.name for s in size.symbols} <= self.known:
            self.limits.add(size, most, self._site(str(origin)))
        else:
            one = SizeLimits()
            one.add(size, most, self._site(str(origin)))
            self.lines += ["    " * self.depth + line for line in one.statements()]

    def _limit_buffers(self) -> None:
        """Has those checked whose sizes are known when the run begins."""
        for step in all_steps(self.module.steps):
            for name in sorted(set().union(*reads_and_writes(step))):
                size = byte_size(self.module.buffers[name])
                if isinstance(size, Expr) and {s.name for s in size.symbols} <= self.known:
                    self._limit(size, step.origin, MOST_BYTES)

    def _check_size(self, name: str, bound: set[str]) -> None:
        """Memory is taken between steps of the whole run: inside a branch or loop it is too late."""
        size = byte_size(self.module.buffers[name])
        unknown = {s.name for s in size.symbols} - bound if isinstance(size, Expr) else set()
        if unknown:
            raise UnsupportedOperator(
                format_error(
                    "A tensor inside a branch or loop has a size that is computed inside that branch or loop.",
                    fix="compute that size before it, or run the program through torch: program(*args)",
                )
            )
