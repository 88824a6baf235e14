"""Scheduling for a GPU: the passes over loops, by name and in order, each of which may be switched off."""

from __future__ import annotations

from collections.abc import Collection

from ingot.lowering.loop_module import Module
from ingot.scheduling.fusion import fusion_passes
from ingot.scheduling.pass_runner import SchedulePass, run_schedule
from ingot.scheduling.state_updates import update_state_in_place
from ingot.targets.base import ScheduleObserver, ignore_pass
from ingot.targets.cuda.schedule.bulk.gates import fold_bulk_gates
from ingot.targets.cuda.schedule.bulk.products import pack_products
from ingot.targets.cuda.schedule.bulk.rotations import fold_rotations
from ingot.targets.cuda.schedule.bulk.windows import pack_windows
from ingot.targets.cuda.schedule.layers.layer_loops import loop_layers
from ingot.targets.cuda.schedule.limits import FUSION_LIMITS
from ingot.targets.cuda.schedule.map_groups import group_maps
from ingot.targets.cuda.schedule.narrow_buffers import narrow_buffers
from ingot.targets.cuda.schedule.quantized.gates import fold_coded_gates
from ingot.targets.cuda.schedule.siblings import join_siblings
from ingot.targets.cuda.schedule.stored_values import read_stored_values
from ingot.targets.cuda.schedule.streamed_chains import chain_attention, chain_products
from ingot.targets.cuda.schedule.streamed_groups import fold_gates, fold_rows
from ingot.targets.cuda.schedule.streams import stream_weights
from ingot.targets.cuda.schedule.tiling import choose_tiles
from ingot.targets.cuda.schedule.verifier import verify_schedule

SCHEDULE: tuple[SchedulePass, ...] = (
    ("state_updates", update_state_in_place),
    *fusion_passes(FUSION_LIMITS),
    ("narrow_buffers", narrow_buffers),
    ("stored_values", read_stored_values),
    ("map_groups", group_maps),
    ("tiles", choose_tiles),
    ("bulk_windows", pack_windows),
    ("siblings", join_siblings),
    ("bulk_products", pack_products),
    ("bulk_gates", fold_bulk_gates),
    ("coded_gates", fold_coded_gates),
    ("bulk_rotations", fold_rotations),
    ("streams", stream_weights),
    ("gates", fold_gates),
    ("row_prologues", fold_rows),
    ("chains", chain_products),
    ("chained_attention", chain_attention),
    ("persistent_layers", loop_layers),
)


def schedule(
    module: Module,
    disabled: Collection[str] = (),
    *,
    verify: bool = False,
    observe: ScheduleObserver = ignore_pass,
) -> Module:
    """The module after every pass that is not disabled, verified after each that changed it."""
    return run_schedule(SCHEDULE, verify_schedule, module, disabled, verify=verify, observe=observe)
