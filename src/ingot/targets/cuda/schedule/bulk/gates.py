"""The gate of a product of many rows goes into its kernel.

    before                                    after
    TiledGemm  x · up, in tiles → z           GatedGemm  TiledGemm x · up, in tiles of pairs → z, Map z → silu(…) · …
    Map        silu(z[i]) · z[i + n / 2]

Runs of 8 columns of the weight's halves lie in turn in its tiles: a thread then has the sums of both columns of a pair,
and half as many columns are stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ingot.lowering.dependence import reads_and_writes
from ingot.lowering.index_expr import Size, estimate, symbol
from ingot.lowering.loop_body import BodyBuilder, rewrite
from ingot.lowering.loop_ir import Buffer, Load, Map, MatrixView, Op, Stmt
from ingot.lowering.loop_module import Module
from ingot.targets.cuda.schedule.bulk.products import find_epilogue_kind
from ingot.targets.cuda.schedule.bulk.tiled_weights import TiledWeights
from ingot.targets.cuda.schedule.bulk.tiles import choose_bulk_tile
from ingot.targets.cuda.schedule.column_pairs import ColumnPairs, PairMap, find_pairs, is_own_column
from ingot.targets.cuda.schedule.statements import GatedGemm, TiledGemm
from ingot.targets.cuda.schedule.streamed_groups import REACH, can_join, count_users
from ingot.targets.cuda.schedule.weight_layouts import SwizzledTiles


def fold_bulk_gates(module: Module) -> Module:
    """Puts Maps of pairs of columns into the kernels of products by tiles of a weight; computes the same."""
    folding = _GateFolding.create(module)
    done: list[Stmt] = []
    for step in module.steps:
        found = folding.find_product(step, done) if isinstance(step, Map) else None
        if found is None:
            done.append(step)
        else:
            place, made = found
            done[place] = made
    return folding.finish(done)


class _GateFolding(TiledWeights):
    def find_product(self, gate: Map, done: Sequence[Stmt]) -> tuple[int, GatedGemm] | None:
        """The product whose one result a Map alone reads, and what the two become."""
        read = reads_and_writes(gate)[0]
        for place in range(len(done) - 1, max(len(done) - 2 - REACH, -1), -1):
            product = done[place]
            if not isinstance(product, TiledGemm) or product.algorithm != "bulk" or not product.epilogue.stores:
                continue
            buffer = product.epilogue.stores[0].buffer
            if buffer not in read:
                continue
            alone = self.buffers[buffer].kind == "temporary" and count_users(self.module, buffer) == 2
            made = GatedGemm((replace(product, pairs=True), gate), (buffer,), product.origin)
            if not alone or not can_join(gate, done[place + 1 :]) or find_gate_fault(made) is not None:
                return None
            packed = self.pack(made)
            return None if packed is None else (place, packed)
        return None

    def pack(self, group: GatedGemm) -> GatedGemm | None:
        """The group with a tile for it, and the weight's halves in pairs."""
        step, gate = group.steps
        weight = self.weights[step.b.buffer]
        joined = join_gate(group, self.buffers)
        assert isinstance(step.n, int) and isinstance(step.k, int) and isinstance(weight.layout, SwizzledTiles)
        kind = find_epilogue_kind(joined.epilogue, self.buffers)
        choice = choose_bulk_tile(estimate(step.m, self.module.hints), [step.n], step.k, kind, in_turn=False)
        if choice is None:
            return None
        layout = replace(weight.layout, columns=choice.tile.columns, pairs=True)
        view = MatrixView(self.add(step.b.buffer, layout, "pairs"), 0, 1, step.k)
        return replace(group, steps=(replace(step, b=view, tile=choice.tile, split_k=choice.parts), gate))


def find_gate_fault(group: GatedGemm) -> str | None:
    """Why a product and a Map cannot be one kernel; None where they can."""
    if [type(step) for step in group.steps] != [TiledGemm, Map]:
        return "it is a product with a Map behind it"
    step, gate = group.steps
    if step.algorithm != "bulk" or not step.pairs or step.batch:
        return "its product is not one by tiles of a weight that hold pairs of columns"
    pairs = find_pairs((gate,), step)
    if isinstance(pairs, str):
        return pairs
    if pairs.maps[0].points != 1 or len(step.epilogue.loops) != 2 or len(gate.loops) != 2 or pairs.half % 8:
        return "its Map does not go over rows and the halves of its columns, of whole runs of 8"
    if {store.buffer for store in step.epilogue.stores} != set(group.local):
        return "its product's result is in memory"
    if reads_and_writes(step)[0] & reads_and_writes(gate)[1]:
        return "its Map writes what its product reads, in other blocks too"
    return None


def join_gate(group: GatedGemm, buffers: Mapping[str, Buffer]) -> TiledGemm:
    """The product with one epilogue of half the columns: of the sum of the column, the accumulator, and of the sum of
    the column of the other half, which is beside it. Values between are rounded as memory would hold them."""
    step, gate = group.steps
    pairs = find_pairs((gate,), step)
    assert isinstance(pairs, ColumnPairs)
    (store,) = step.epilogue.stores
    dtype, ops = buffers[store.buffer].dtype, BodyBuilder()
    own = [symbol(loop.variable, below=loop.extent) for loop in gate.loops]
    values: list[int] = []
    for sums, further in (("accumulator", 0), ("beside", pairs.half)):
        places = (own[0], own[1] + further)
        loops = step.epilogue.loops
        names: dict[str, Size] = {loop.variable: place for loop, place in zip(loops, places, strict=True)}

        def take_sum(op: Op, _: tuple[int, ...], into: BodyBuilder, sums: str = sums) -> int | None:
            return into.emit(sums, (), op.dtype) if op.name == "accumulator" else None

        _, results = rewrite(step.epilogue.body, symbols=names, into=ops, replace=take_sum)
        values.append(ops.cast(results[store.result], dtype))

    pair = PairMap(gate, 1)

    def take_value(op: Op, _: tuple[int, ...], into: BodyBuilder) -> int | None:
        if not isinstance(op.attribute, Load) or op.attribute.buffer != store.buffer:
            return None
        return values[0 if is_own_column(pair, step, op.attribute.index) else 1]

    _, results = rewrite(gate.body, into=ops, replace=take_value)
    return replace(step, n=pairs.half, epilogue=replace(gate, body=ops.finish(results)))
