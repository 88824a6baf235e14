"""What the CUDA target's own steps must hold, beside what every module must. One rule per type of step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ingot.lowering.dependence import reads_and_writes
from ingot.lowering.loop_ir import Stmt
from ingot.lowering.loop_ir_verifier import verify_module
from ingot.lowering.loop_module import Module
from ingot.lowering.verification.access_rules import Facts
from ingot.lowering.verification.step_rules import extents
from ingot.registry import Registry
from ingot.targets.cuda.schedule.bulk.paired_columns import find_gate_fault
from ingot.targets.cuda.schedule.bulk.products import rows_fit
from ingot.targets.cuda.schedule.bulk.tiles import BULK_TERMS, find_bulk_fault
from ingot.targets.cuda.schedule.bulk.windows import count_window_terms, find_window_fault
from ingot.targets.cuda.schedule.layers.layer_loops import find_loop_fault
from ingot.targets.cuda.schedule.quantized.gates import GatedCodes, find_coded_gate_fault
from ingot.targets.cuda.schedule.quantized.products import CodedGemm, find_coded_fault
from ingot.targets.cuda.schedule.statements import (
    GatedGemm,
    GemmTile,
    ImplicitGemm,
    LayerLoop,
    MapGroup,
    SiblingGemms,
    StreamedChain,
    StreamedGemm,
    TiledGemm,
)
from ingot.targets.cuda.schedule.streamed_chains import find_chain_fault
from ingot.targets.cuda.schedule.streamed_groups import find_group_fault
from ingot.targets.cuda.schedule.streams import find_stream_fault
from ingot.targets.cuda.schedule.tiles import count_threads, is_warpgroup_tile

# Bytes of a line of a tile in shared memory, at least: a piece that one copy moves.
_PIECE = 16
# Threads of a block, at most.
_MOST_THREADS = 1024


def verify_schedule(module: Module, after: str, *, full: bool = True) -> None:
    """Raises ScheduleError, which names the scheduling pass `after`, where the module is not well formed."""

    def find_fault(step: Stmt, facts: Facts) -> str | None:
        rule = _RULES.get(type(step)) if full or _RULES.has_tag(type(step), "structure") else None
        fault = None if rule is None else rule(step, facts)
        return fault or _find_precision_fault(step, module)

    verify_module(module, after, find_fault, full=full)


def _find_precision_fault(step: Stmt, module: Module) -> str | None:
    """Tensor cores multiply floats with fewer bits than they have."""
    if not isinstance(step, (TiledGemm, ImplicitGemm)) or step.algorithm != "tensor" or module.precision == "tf32":
        return None
    if any(module.buffers[name].dtype == "float32" for name in step.operand_buffers()):
        return f"float32 is multiplied on tensor cores, and the module's precision is {module.precision}"
    return None


# Those with the tag "structure" look at the steps alone.
_RULES: Registry[type, Callable[[Any, Facts], str | None]] = Registry("verifier rule")


@_RULES.register(TiledGemm)
def _check_tiled_gemm(step: TiledGemm, facts: Facts) -> str | None:
    around = extents(step.batch)
    if step.algorithm == "bulk":
        return _check_bulk(step, facts)
    if step.pairs:
        return "only tiles of a weight hold columns in pairs"
    fault = facts.find_matrix_fault("a", step.a, step.m, step.k, around) or facts.find_matrix_fault(
        "b", step.b, step.k, step.n, around
    )
    if fault is None and step.algorithm == "stream":
        return find_stream_fault(step, facts.buffers)
    if fault is None and step.algorithm == "rows":
        return None if step.split_k == 1 else "a product that is read once has all its terms in one block"
    return fault or _check_tile(step.algorithm, step.tile, step.split_k)


def _check_bulk(step: TiledGemm, facts: Facts) -> str | None:
    fault = facts.find_matrix_fault("a", step.a, step.m, step.k, {}) or find_bulk_fault(step.tile, step.split_k)
    if fault is not None:
        return fault
    if step.batch or not isinstance(step.n, int) or not isinstance(step.k, int) or not rows_fit(step):
        return "a product by tiles of a weight is one, of known columns and terms, with rows that are aligned"
    if step.n % 8 or not step.k or step.k % (BULK_TERMS * step.split_k):
        return f"{step.n} columns of {step.k} terms are not whole runs of 8 and stages of {BULK_TERMS} for each part"
    if step.pairs and (step.pairs % 8 or step.n % (2 * step.pairs)):
        return f"halves of {step.pairs} of {step.n} columns are not whole runs of 8, of whole groups"
    columns = -(-step.n // step.tile.columns) * step.tile.columns
    return facts.find_size_fault(step.b.buffer, (columns, step.k))


@_RULES.register(ImplicitGemm)
def _check_implicit_gemm(step: ImplicitGemm, facts: Facts) -> str | None:
    if step.out_channels % step.groups:
        return f"{step.out_channels} output channels are not {step.groups} groups"
    shape = (step.images, step.channels * step.groups, *step.size)
    if step.algorithm == "bulk":
        return facts.find_strided_fault("x", step.x, shape, {}) or _check_bulk_window(step, facts)
    fault = facts.find_strided_fault("x", step.x, shape, {}) or facts.find_strided_fault(
        "weight", step.weight, (step.out_channels, step.channels, *step.kernel), {}
    )
    if fault is None and step.algorithm == "channels":
        return None if step.channels == 1 else f"a group has {step.channels} channels, and not one"
    return fault or _check_tile(step.algorithm, step.tile, step.split_k)


def _check_bulk_window(step: ImplicitGemm, facts: Facts) -> str | None:
    fault = find_window_fault(step) or find_bulk_fault(step.tile, step.split_k)
    if fault is not None:
        return fault
    terms = count_window_terms(step)
    if terms % (BULK_TERMS * step.split_k):
        return f"{terms} terms are not whole stages of {BULK_TERMS} for each part"
    if len(step.box) != 1 + len(step.kernel) or min(step.box) < 1 or math.prod(step.box) > step.tile.rows:
        return f"a box of {step.box} pixels is not the rows of a tile of {step.tile}"
    columns = -(-step.out_channels // step.tile.columns) * step.tile.columns
    return facts.find_size_fault(step.weight.buffer, (columns, terms))


@_RULES.register(SiblingGemms, tags=["structure"])
def _check_siblings(group: SiblingGemms, facts: Facts) -> str | None:
    steps = group.steps
    is_bulk = any(step.algorithm == "bulk" for step in steps)
    if len(steps) < 2 or any((step.split_k > 1 and not is_bulk) or step.algorithm == "channels" for step in steps):
        return "siblings are two or more, and each has all terms of its tiles"
    if is_bulk:
        kinds = {
            (step.algorithm, step.split_k, step.a, step.m, step.k) if isinstance(step, TiledGemm) else None
            for step in steps
        }
        if len(kinds) > 1 or (group.in_turn and (steps[0].split_k > 1 or steps[0].tile.turns > 1)):
            return "siblings by tiles of their weights have other rows, terms or parts, or cannot be computed in turn"
    if len({None if step.algorithm == "rows" else step.tile for step in steps}) > 1:
        return "siblings have different tiles"
    if not is_bulk and len({count_threads(step.algorithm, step.tile) for step in steps}) > 1:
        return "siblings have blocks of different sizes"
    if group.in_turn:
        shapes = {(step.sums_shape(), step.batch_loops()) for step in steps}
        depths = {step.k for step in steps if isinstance(step, TiledGemm) and step.algorithm == "rows"}
        alike = len(shapes) == 1 and len(depths) < 2
        return None if alike else "products in turn have different rows, columns or, of few rows, terms"
    return _check_apart(steps)


@_RULES.register(MapGroup, tags=["structure"])
def _check_map_group(group: MapGroup, facts: Facts) -> str | None:
    return _check_apart(group.steps) if len(group.steps) > 1 else "a group is two or more"


@_RULES.register(StreamedGemm, tags=["structure"])
def _check_streamed(group: StreamedGemm, facts: Facts) -> str | None:
    return find_group_fault(group, facts.buffers)


@_RULES.register(StreamedChain, tags=["structure"])
def _check_chain(chain: StreamedChain, facts: Facts) -> str | None:
    return find_chain_fault(chain, facts.buffers)


@_RULES.register(LayerLoop, tags=["structure"])
def _check_layers(loop: LayerLoop, facts: Facts) -> str | None:
    return find_loop_fault(loop, facts.buffers)


@_RULES.register(GatedGemm, tags=["structure"])
def _check_gated(group: GatedGemm, facts: Facts) -> str | None:
    return find_gate_fault(group, facts.buffers)


def _check_apart(steps: Sequence[Stmt]) -> str | None:
    for place, step in enumerate(steps):
        read, written = reads_and_writes(step)
        for other in steps[:place]:
            other_read, other_written = reads_and_writes(other)
            if read & other_written or written & (other_read | other_written):
                return "a member uses what another one writes"
    return None


def _check_tile(algorithm: str, tile: GemmTile, parts: int) -> str | None:
    if parts < 1 or tile.stages < 2:
        return f"{tile.stages} stages and {parts} parts, and there must be two and one at least"
    if tile.depth % _PIECE:
        return f"{tile.depth} bytes of depth are not whole pieces of {_PIECE}"
    if tile.rows % tile.down or tile.columns % tile.along:
        return f"a tile of {tile} cannot be shared out as {tile.down} × {tile.along}"
    if algorithm in ("tensor", "warpgroup") and (tile.rows // tile.down % 16 or tile.columns // tile.along % 16):
        return f"a warp's part of {tile}, of {tile.down} × {tile.along}, is not whole fragments of 16"
    if algorithm == "warpgroup" and not is_warpgroup_tile(tile):
        return f"a tile of {tile} is not one of groups of four warps"
    threads = count_threads(algorithm, tile)
    return None if threads % 32 == 0 and threads <= _MOST_THREADS else f"a tile of {tile} needs {threads} threads"


_RULES.register(GatedCodes, tags=["structure"])(lambda group, facts: find_coded_gate_fault(group))
_RULES.register(CodedGemm)(find_coded_fault)
