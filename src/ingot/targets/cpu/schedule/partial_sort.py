"""Sorts of which only the first few of each row are read: top-k, the smallest, a quantile near one end.

    before   extern sort(x, 500, 5000, descending=true) -> v, p             map … load v[5000*i0 + i1], i1 < 5
    after    extern sort(x, 500, 5000, descending=true, first=5) -> v, p    the same

The buffers keep their shapes; what is beyond the first ones of a row is not written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ingot.lowering.dependence import all_steps, is_temporary, map_steps, reads_and_writes
from ingot.lowering.index_expr import Expr, Mod, Size, bounds, never_negative, remainder
from ingot.lowering.loop_ir import Body, ExternKernel, Load, LoopNest, Map, Reduce, Stmt
from ingot.lowering.loop_module import Module


def sort_what_is_read(module: Module) -> Module:
    """The module with each sort cut down to what the steps after it read of every row."""
    steps = list(all_steps(module.steps))

    def change(step: Stmt) -> Stmt:
        if not (isinstance(step, ExternKernel) and step.name == "sort"):
            return step
        length = step.sizes[1]
        if length == 0 or not all(is_temporary(name, module.buffers) for name in step.writes):
            return step
        counts = [_count_read(name, length, steps) for name in step.writes]
        if None in counts or not any(counts):
            return step
        first = max(count or 0 for count in counts)
        if isinstance(length, int) and first >= length:
            return step
        return replace(step, attributes=(*step.attributes, ("first", first)))

    return replace(module, steps=map_steps(module.steps, change))


def _count_read(name: str, length: Size, steps: Sequence[Stmt]) -> int | None:
    """How many numbers at the start of each row any step reads of a buffer; None where that is not known."""
    most = 0
    for step in steps:
        if name not in reads_and_writes(step)[0]:
            continue
        bodies = list(_bodies(step))
        if not bodies:
            return None
        for body in bodies:
            for op in body.ops:
                if isinstance(op.attribute, Load) and op.attribute.buffer == name:
                    last = _last_place(op.attribute.index, length)
                    if last is None:
                        return None
                    most = max(most, last + 1)
    return most


def _last_place(index: Size, length: Size) -> int | None:
    """The last place of its row that an index may be; None where no number bounds it."""
    rest = remainder(index, length)
    if isinstance(rest, Expr) and len(rest.terms) == 1:
        ((term, coefficient),) = rest.terms.items()
        if coefficient == 1 and len(term) == 1 and isinstance(term[0], Mod) and never_negative(term[0].left):
            rest = term[0].left  # a remainder is never more than what it is of
    low, high = bounds(rest)
    return high if low is not None and low >= 0 else None


def _bodies(step: Stmt) -> Iterator[Body]:
    """The bodies of a step that reads by loads alone; none of another step."""
    if isinstance(step, (Map, Reduce)):
        yield step.body
    elif isinstance(step, LoopNest):
        for inner in step.steps:
            yield from _bodies(inner)
