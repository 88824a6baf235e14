"""What goes into one kernel with a streamed product: the row that it multiplies, and what its two halves become.

    before                                     after
    LoopNest   x / rms(x) · w → y              StreamedGemm  LoopNest → y, TiledGemm y · up → z, Map z → silu(…) · …
    TiledGemm  y · up → z
    Map        silu(z[i]) · z[i + n / 2]

A row of a few thousand elements is computed in less time than a kernel's launch takes: every block does it for itself,
while its first weights are on their way. A gate reads columns i and i + n / 2, a rotation those of one head, and one
block has them both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ingot.lowering.dependence import can_hoist_over, reads_and_writes
from ingot.lowering.loop_ir import Buffer, LoopNest, Map, Stmt
from ingot.lowering.loop_module import Module
from ingot.targets.cuda.schedule.column_pairs import find_pairs
from ingot.targets.cuda.schedule.statements import MapGroup, StreamedGemm, TiledGemm
from ingot.targets.cuda.schedule.streams import MOST_SHARED, StreamPlan, plan_ring, plan_stream

# Terms of a row that every block computes: more of them take longer than a launch.
MOST_ROW_TERMS = 8192
# The members of a group.
_ORDERS = {(*row, TiledGemm, *gate) for row in ((), (LoopNest,)) for gate in ((), (Map,), (MapGroup,)) if row or gate}
# Steps between a product and what joins it, at most.
REACH = 4


def fold_gates(module: Module) -> Module:
    """Puts Maps of pairs of a streamed product's columns into its kernel; computes the same."""
    done: list[Stmt] = []
    for step in module.steps:
        found = _find_product(step, done, module) if isinstance(step, (Map, MapGroup)) else None
        if found is None:
            done.append(step)
        else:
            place, made = found
            done[place] = made
    return replace(module, steps=tuple(done))


def _find_product(gate: Map | MapGroup, done: Sequence[Stmt], module: Module) -> tuple[int, StreamedGemm] | None:
    """The product whose one result a Map, or a group of them, alone reads, and what the two become."""
    read = reads_and_writes(gate)[0]
    for place in range(len(done) - 1, max(len(done) - 2 - REACH, -1), -1):
        group = as_group(done[place])
        if group is None or group.gate is not None or not can_join(gate, done[place + 1 :]):
            continue
        buffer = group.product.epilogue.stores[0].buffer
        if buffer not in read or module.buffers[buffer].kind != "temporary" or count_users(module, buffer) != 2:
            continue
        made = replace(group, steps=(*group.steps, gate), local=(*group.local, buffer))
        return (place, made) if find_group_fault(made, module.buffers) is None else None
    return None


def fold_rows(module: Module) -> Module:
    """Puts the computation of a streamed product's one row into its kernel; computes the same."""
    done: list[Stmt] = []
    for number, step in enumerate(module.steps):
        group = as_group(step)
        found = None if group is None else _find_row(group, done, module.steps[number + 1 :], module)
        if found is None:
            done.append(step)
        else:
            place, made = found
            del done[place]
            done.append(made)
    return replace(module, steps=tuple(done))


def _find_row(
    group: StreamedGemm, done: Sequence[Stmt], later: Sequence[Stmt], module: Module
) -> tuple[int, StreamedGemm] | None:
    """What computes the row of a product, and what the two become."""
    buffer = group.product.a.buffer
    for place in range(len(done) - 1, max(len(done) - 2 - REACH, -1), -1):
        row = done[place]
        if buffer not in reads_and_writes(row)[1]:
            continue
        if not isinstance(row, LoopNest) or not all(_are_apart(row, one) for one in done[place + 1 :]):
            return None
        alone = module.buffers[buffer].kind == "temporary" and all(
            buffer not in reads_and_writes(one)[0] for one in later
        )
        made = replace(group, steps=(row, *group.steps), local=(*group.local, *([buffer] if alone else [])))
        return (place, made) if find_group_fault(made, module.buffers) is None else None
    return None


def plan_group(group: StreamedGemm) -> StreamPlan:
    """How blocks share a group's product."""
    product = group.product
    assert isinstance(product.m, int) and isinstance(product.n, int) and isinstance(product.k, int)
    return plan_stream(product.m, product.n, product.k, pairs=group.gate is not None)


def as_group(step: Stmt) -> StreamedGemm | None:
    """A streamed product as a group, which others may join."""
    if isinstance(step, StreamedGemm):
        return step
    if isinstance(step, TiledGemm) and step.algorithm == "stream":
        return StreamedGemm((step,), (), step.origin)
    return None


def can_join(gate: Map | MapGroup, over: Sequence[Stmt]) -> bool:
    """Whether Maps may run before these steps instead of after them."""
    return all(can_hoist_over(one, over) for one in (gate.steps if isinstance(gate, MapGroup) else (gate,)))


def count_users(module: Module, buffer: str) -> int:
    return sum(buffer in set().union(*reads_and_writes(step)) for step in module.steps)


def _are_apart(step: Stmt, other: Stmt) -> bool:
    (read, written), (other_read, other_written) = reads_and_writes(step), reads_and_writes(other)
    return not (read & other_written or written & (other_read | other_written))


# ---------------------------------------------------------------------- what a group must hold


def find_group_fault(group: StreamedGemm, buffers: Mapping[str, Buffer]) -> str | None:
    """Why these steps cannot be one kernel; None where they can."""
    kinds = tuple(type(step) for step in group.steps)
    if kinds not in _ORDERS:
        return "it is a product with a row before it, Maps behind it, or both"
    product = group.product
    if product.algorithm != "stream" or product.batch:
        return "its product is not streamed"
    row, gate = group.row, group.gate
    fault = None if row is None else _find_row_fault(row, product, buffers)
    if fault is None and gate is not None:
        found = find_pairs(group.gate_maps, product)
        fault = found if isinstance(found, str) else None
        if fault is None and plan_ring([plan_group(group)]).shared > MOST_SHARED:
            fault = "its rows and sums lie in shared memory"
    return fault or _find_conflict(group)


def _find_conflict(group: StreamedGemm) -> str | None:
    """Blocks run at the same time: none may write what another one reads."""
    inside = set(group.local)
    for place, step in enumerate(group.steps):
        for later in group.steps[place + 1 :]:
            if reads_and_writes(step)[0] & reads_and_writes(later)[1] - inside:
                return "a member writes what an earlier one reads, in other blocks too"
    return None


def _find_row_fault(row: LoopNest, product: TiledGemm, buffers: Mapping[str, Buffer]) -> str | None:
    """The row's own buffers are registers, and it writes all of what the product reads, and nothing else."""
    view, terms = product.a, product.k
    written = {store.buffer for step in row.steps for store in step.stores} - set(row.local)
    if row.outer or product.m != 1 or written != {view.buffer}:
        return "the steps before its product do not compute its one row"
    dense = view.offset == 0 and view.columns == 1 and buffers[view.buffer].size == terms
    if not dense or not isinstance(terms, int) or terms > MOST_ROW_TERMS:
        return f"its row is not dense, or has more than {MOST_ROW_TERMS} terms"
    if any(buffers[name].size != 1 for name in row.local):
        return "its row needs other rows"
    read = set().union(*(reads_and_writes(step)[0] for step in row.steps))
    collides = any(isinstance(step, Map) and step.collides for step in row.steps)
    return "its row depends on itself" if view.buffer in read or collides else None
