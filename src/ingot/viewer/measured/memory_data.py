"""The memory plan as data: where each temporary lies in the arena, and between which steps it lives."""

from __future__ import annotations

from ingot.lowering.dependence import local_buffers, reads_and_writes
from ingot.lowering.index_expr import estimate
from ingot.lowering.loop_ir_printer import format_size
from ingot.lowering.loop_module import Module
from ingot.scheduling.buffer_planning import byte_size, live_ranges, plan
from ingot.viewer.view_data import NOWHERE, Json


def describe_memory(module: Module, weight_bytes: int, step_origins: list[int]) -> Json:
    """The plan of a scheduled module. Dynamic sizes count as in the example. `step_origins` has each step's origin."""
    made = plan(module)
    slots = {name: number for number, slot in enumerate(made.slots) for name in slot}
    spans = live_ranges(module)
    local = {name for step in module.steps for name in local_buffers(step)}
    writers: dict[str, int] = {}
    for number, step in enumerate(module.steps):
        for name in reads_and_writes(step)[1]:
            writers.setdefault(name, number)
    buffers = []
    for name, (first, last) in spans.items():
        if name in local or (name not in made.offsets and name not in slots):
            continue
        buffer = module.buffers[name]
        writer = writers.get(name)
        buffers.append(
            {
                "name": name,
                "offset": made.offsets.get(name),
                "slot": slots.get(name),
                "bytes": estimate(byte_size(buffer), module.hints),
                "shape": f"[{', '.join(map(format_size, buffer.shape))}]",
                "dtype": buffer.dtype,
                "first": first,
                "last": last,
                "origin": NOWHERE if writer is None else step_origins[writer],
            }
        )
    return {
        "dynamic": made.dynamic,
        "size": None if made.dynamic else made.size,
        "weights": weight_bytes,
        "steps": len(module.steps),
        "buffers": buffers,
        "step_origins": step_origins,
    }
