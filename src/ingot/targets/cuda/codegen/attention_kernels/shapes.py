"""The shapes of attention's kernels: instances of the templates in cu/attention*.cuh."""

from __future__ import annotations

from collections.abc import Sequence

from ingot.targets.cuda.schedule.attention_tiles import (
    GROUP_WARPS,
    TOKEN_WARPS,
    BulkTile,
    GroupTile,
    MmaTile,
    TokenTile,
)


def shape_text(tile: MmaTile | GroupTile | BulkTile, half: str, depth: int, values: int, modes: Sequence[str]) -> str:
    """What every GPU has instructions for, or has another shape for."""
    brain = _text(half == "bfloat16")
    if isinstance(tile, GroupTile):
        return f"ig_group_shape<{brain}, {tile.warps}, {depth}, {values}, {tile.elsewhere}>"
    if isinstance(tile, BulkTile):
        numbers = f"{tile.groups * GROUP_WARPS}, 1, {tile.elsewhere}, {depth}, {values}"
        return f"ig_attention_shape<{brain}, {numbers}, true, {', '.join(modes)}, {GROUP_WARPS}>"
    numbers = f"{tile.warps}, {tile.tiles}, {tile.keys}, {depth}, {values}"
    return f"ig_attention_shape<{brain}, {numbers}, {_text(tile.keeps_own)}, {', '.join(modes)}>"


def bulk_shape_text(tile: BulkTile, half: str, depth: int) -> str:
    numbers = f"{tile.groups}, {tile.keys}, {depth}, {tile.stages}, {_text(tile.overlaps)}, {_text(tile.turns)}"
    return f"ig_bulk_shape<{_text(half == 'bfloat16')}, {numbers}, {tile.more}, {tile.fewer}>"


def token_shape_text(tile: TokenTile, half: str, depth: int, shape: str = "ig_token_shape") -> str:
    numbers = f"{depth}, {tile.queries}, {TOKEN_WARPS}, {tile.parts}, {tile.rounds}, {_text(tile.once)}"
    return f"{shape}<{_text(half == 'bfloat16')}, {numbers}>"


def _text(value: bool) -> str:
    return "true" if value else "false"
