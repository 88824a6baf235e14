"""Sizes of a call, checked before anything is allocated: none overflows unnoticed.

    Limits().add(n0 * n0 * 4, MOST_BYTES, site)
    →  if (ig_checked_mul(ig_checked_mul(n[0], n[0], &over), 4, &over) > IG_MOST_BYTES || over) return site;

Sizes that inputs bind are checked by one function, `ig_sizes_fit`, when a call begins. Those that a step finds out
are checked where they are used. Static sizes are checked when the model is compiled.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ingot.errors import CompileError, format_error
from ingot.lowering.index_expr import Div, Expr, MinMax, Mod, RuntimeSize, Size, Symbol, size_number
from ingot.lowering.loop_module import Module
from ingot.scheduling.buffer_planning import byte_size

# As IG_MOST_BYTES in checked_sizes.h: more than any machine addresses, and small enough for sums of a few such sizes.
MOST_BYTES = 1 << 56


def checked_text(size: Size) -> str:
    """A run-time size as C; `over`, an int, becomes 1 where any part of it cannot be computed in int64_t."""
    if isinstance(size, int):
        return str(size)
    total = ""
    for term, coefficient in sorted(size.terms.items(), key=lambda item: (-len(item[0]), [str(a) for a in item[0]])):
        factors = [_atom_text(atom) for atom in term]
        if coefficient != 1 or not factors:
            factors.append(f"INT64_C({coefficient})")
        product = factors[0]
        for factor in factors[1:]:
            product = f"ig_checked_mul({product}, {factor}, &over)"
        total = f"ig_checked_add({total}, {product}, &over)" if total else product
    return total or "0"


def _atom_text(atom: Symbol | Div | Mod | MinMax) -> str:
    if isinstance(atom, Symbol):
        return f"n[{size_number(atom.name)}]"
    left, right = checked_text(atom.left), checked_text(atom.right)
    if isinstance(atom, MinMax):
        return f"ig_{atom.which}({left}, {right})"
    return f"ig_checked_{'div' if isinstance(atom, Div) else 'mod'}({left}, {right}, &over)"


def is_run_size(size: Size) -> bool:
    """Whether a size depends on run-time sizes only, not on a loop variable or value."""
    return isinstance(size, Expr) and all(isinstance(s, RuntimeSize) for s in size.symbols)


@dataclass
class SizeLimits:
    """Sizes to check: what each may be at most, or None where it need only be computable, and whose size it is."""

    sizes: dict[Expr, tuple[int | None, int]] = field(default_factory=dict)

    def add(self, size: Size, most: int | None, site: int) -> None:
        if isinstance(size, Expr) and (self.sizes.get(size) or (None,))[0] is None:
            self.sizes[size] = (most, site)

    def split(self, known: Iterable[str]) -> tuple[SizeLimits, SizeLimits]:
        """Those that follow from these symbols, and the others."""
        names = set(known)
        early, late = SizeLimits(), SizeLimits()
        for size, limit in self.sizes.items():
            (early if {s.name for s in size.symbols} <= names else late).sizes[size] = limit
        return early, late

    def function(self) -> list[str]:
        """`ig_sizes_fit`: whose size does not fit, or -1."""
        head = ["static int ig_sizes_fit(const int64_t *n)", "{", "    int over = 0;", "    (void)n, (void)over;"]
        tests = [f"    if ({test}) return {site};" for test, site in self._tests()]
        return [*head, *tests, "    return -1;", "}", ""]

    def statements(self) -> list[str]:
        """The same in the middle of a run, which fails."""
        tests = [
            f"    if ({test}) {{ ig_fail_run(run, INGOT_MEMORY, {site}); return; }}" for test, site in self._tests()
        ]
        return ["{", "    int over = 0;", *tests, "}"] if tests else []

    def _tests(self) -> Iterable[tuple[str, int]]:
        for size, (most, site) in self.sizes.items():
            most_text = "INT64_MAX" if most is None else "IG_MOST_BYTES"
            yield f"{checked_text(size)} > {most_text} || over", site


def check_static_sizes(module: Module, names: Iterable[str]) -> None:
    """Raises CompileError for a buffer that no machine could hold."""
    for name in sorted(names):
        size = byte_size(module.buffers[name])
        if isinstance(size, int) and size > MOST_BYTES:
            buffer = module.buffers[name]
            raise CompileError(
                format_error(
                    f"A tensor of the model has {size:,} bytes, which no machine can hold.",
                    why=f"its shape is {tuple(map(str, buffer.shape))}, of {buffer.dtype}",
                    fix="compile for smaller sizes, or compute it in parts",
                )
            )
