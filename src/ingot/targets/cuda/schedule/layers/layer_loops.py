"""Chains that follow one another, and differ in their buffers only, as one kernel that loops over them.

    before                                    after
    StreamedChain  attention(q0) · out0 …     LayerLoop  StreamedChain  attention(q0) · out0 …
    StreamedChain  attention(q1) · out1 …                StreamedChain  attention(q1) · out1 …

Between two kernels memory is idle: the next one's blocks have no shared memory before the ones of this one have ended,
and then must ask for their first weights. In a loop the warps that copy never stop. The kernel takes a table of the
buffers of each layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from ingot.lowering.dependence import reads_and_writes
from ingot.lowering.index_expr import Expr
from ingot.lowering.loop_ir import Buffer, SourceLocation
from ingot.lowering.loop_module import Module
from ingot.targets.cuda.schedule.statements import LayerLoop, StreamedChain
from ingot.targets.cuda.schedule.streamed_chains import list_groups

# Where steps name buffers.
_BUFFER_FIELDS = ("buffer", "local")
# Bytes of a kernel's arguments that a table may take: a driver takes 4,096 at least.
TABLE_BYTES = 3 << 10


def loop_layers(module: Module) -> Module:
    """Puts chains that follow one another, and are alike, into one kernel; computes the same."""
    done: list[Any] = []
    run: list[StreamedChain] = []

    def end_run() -> None:
        done.extend([LayerLoop(tuple(run), run[0].origin)] if len(run) > 1 else run)
        run.clear()

    for step in module.steps:
        if not isinstance(step, StreamedChain):
            end_run()
            done.append(step)
            continue
        if run and find_loop_fault(LayerLoop((*run, step)), module.buffers) is not None:
            end_run()
        run.append(step)
    end_run()
    return replace(module, steps=tuple(done))


def match_layers(loop: LayerLoop, buffers: Mapping[str, Buffer]) -> list[Mapping[str, str]]:
    """What each layer calls the buffers of the first one."""
    first = loop.steps[0]
    found = [_match_buffers(first, step, buffers) for step in loop.steps]
    return [{} if names is None else names for names in found]


def find_loop_fault(loop: LayerLoop, buffers: Mapping[str, Buffer]) -> str | None:
    """Why these chains cannot be one kernel; None where they can. The members have rules of their own."""
    if len(loop.steps) < 2:
        return "a loop is over two layers or more"
    first = loop.steps[0]
    found = [names for step in loop.steps if (names := _match_buffers(first, step, buffers)) is not None]
    if len(found) < len(loop.steps):
        return "the layers of a loop differ in more than their buffers"
    rows = [group.row for group in list_groups(first.products) if group.row is not None]
    local = {*first.local_buffers(), *(name for row in rows for name in row.local)}
    differ = [name for name in found[0] if name not in local and any(names[name] != name for names in found)]
    if 8 * len(differ) * len(found) > TABLE_BYTES:
        return f"the table of its buffers has more than {TABLE_BYTES} bytes"
    return None


def _match_buffers(first: StreamedChain, other: StreamedChain, buffers: Mapping[str, Buffer]) -> dict[str, str] | None:
    """The other chain's name of each buffer of the first one; None where the two differ in more."""
    names: dict[str, str] = {}
    if not _match(first, other, buffers, names) or len(set(names.values())) < len(names):
        return None
    # What the steps name besides: nothing that is not matched.
    inside = set().union(*reads_and_writes(first))
    return names if inside <= names.keys() else None


def _match(one: Any, other: Any, buffers: Mapping[str, Buffer], names: dict[str, str], *, named: bool = False) -> bool:
    """Whether two parts of chains are the same, but for buffers, which `names` takes. `named`: strings are buffers."""
    if type(one) is not type(other):
        return False
    if isinstance(one, SourceLocation):
        return True
    if isinstance(one, str) and named:
        mine, theirs = buffers[one], buffers[other]
        # Kernels care for weights only: these are read before earlier steps have ended.
        are_weights = {mine.kind == "weight", theirs.kind == "weight"}
        alike = (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape) and len(are_weights) == 1
        return alike and names.setdefault(one, other) == other
    if isinstance(one, tuple):
        pairs = zip(one, other, strict=False)
        return len(one) == len(other) and all(_match(*pair, buffers, names, named=named) for pair in pairs)
    if isinstance(one, Expr) or not is_dataclass(one):
        return bool(one == other)
    return all(
        _match(getattr(one, key.name), getattr(other, key.name), buffers, names, named=key.name in _BUFFER_FIELDS)
        for key in fields(one)
    )
