"""Siblings: products that read the same rows become one.

    before                                after
    PackedGemm  x · wq → q                GemmGroup  x · wq → q, x · wk → k, x · wv → v
    PackedGemm  x · wk → k
    PackedGemm  x · wv → v

Queries, keys and values, or the gate of a layer and what it lets through: threads meet once for all of them, and rows
are in the nearest cache for all but the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ingot.lowering.dependence import reads_and_writes
from ingot.lowering.index_expr import Size, substitute, symbol
from ingot.lowering.loop_body import reads
from ingot.lowering.loop_ir import Loop, Stmt
from ingot.lowering.loop_module import Module
from ingot.targets.cpu.schedule.statements import GemmGroup, PackedGemm


def group_sibling_gemms(module: Module) -> Module:
    """Joins products that follow one another; computes the same."""
    done: list[Stmt] = []
    family: list[PackedGemm] = []

    def finish() -> None:
        if len(family) > 1:
            done.append(GemmGroup(tuple(family), family[0].origin))
        else:
            done.extend(family)
        family.clear()

    for step in module.steps:
        if not isinstance(step, PackedGemm) or not (family and _belongs(step, family)):
            finish()
        if isinstance(step, PackedGemm):
            family.append(step)
        else:
            done.append(step)
    finish()
    return replace(module, steps=tuple(done))


def _belongs(step: PackedGemm, family: Sequence[PackedGemm]) -> bool:
    """Whether a product reads the rows that the others read, and nothing that they write but at its own place."""
    first = family[0]
    if _kind(step) != _kind(first):
        return False
    used, written = (set().union(*(reads_and_writes(one)[side] for one in family)) for side in (0, 1))
    if reads_and_writes(step)[1] & (used | written) or {step.a.buffer, step.b.buffer} & written:
        return False
    at = {
        store.buffer: _number_loops(store.index, one.epilogue.loops) for one in family for store in one.epilogue.stores
    }
    loops = [loop.extent for loop in step.epilogue.loops]
    alike = all([loop.extent for loop in one.epilogue.loops] == loops for one in family)
    read = [access for access in reads(step.epilogue.body) if access.buffer in written]
    return all(alike and _number_loops(access.index, step.epilogue.loops) == at[access.buffer] for access in read)


def _kind(step: PackedGemm) -> tuple[object, ...]:
    """What siblings have in common."""
    codes = step.codes and (step.codes.bits, step.codes.group, step.codes.zeros == 0)
    return (step.a, step.batch, step.m, step.n, step.k, step.dtype, step.b.width, step.factors, codes)


def _number_loops(index: Size, loops: Sequence[Loop]) -> Size:
    """An index with loops called by their numbers, so that those of two epilogues can be compared."""
    names: dict[str, Size] = {
        loop.variable: symbol(f"loop{number}", below=loop.extent) for number, loop in enumerate(loops)
    }
    return substitute(index, names)
