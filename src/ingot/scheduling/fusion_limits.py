"""A target's limits of fusion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ingot.lowering.loop_ir import Reduce


@dataclass(frozen=True, slots=True)
class FusionLimits:
    """`body_length`: operations that one fused body may have. `outer_points`: steps become a nest only where their
    shared outer loops have that many points, or where what a point computes is at most `row_length` elements.
    `reduces_across`: whether a Reduce runs along its last output loop and not along the reduction; a nest then shares
    one loop less. `lone_row_length`: steps that share no loop, of which none has more points than that, become a nest
    with one outer point."""

    body_length: int
    outer_points: int
    row_length: int
    reduces_across: Callable[[Reduce], bool]
    lone_row_length: int = 0
