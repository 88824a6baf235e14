"""How far fusion goes on a CPU."""

from __future__ import annotations

from ingot.scheduling.fusion_limits import FusionLimits
from ingot.targets.cpu.schedule.loop_order import is_outer_reduction

FUSION_LIMITS = FusionLimits(
    body_length=160,  # longer bodies are left alone: C compilers spill
    outer_points=8,  # threads share the outer points, and fewer than these leave some of them idle
    row_length=1 << 16,
    reduces_across=is_outer_reduction,
)
