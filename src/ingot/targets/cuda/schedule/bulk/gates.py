"""The gate of a product of many rows goes into its kernel.

    before                                    after
    TiledGemm  x · up, in tiles → z           GatedGemm  TiledGemm x · up, in tiles of pairs → z, Map z → silu(…) · …
    Map        silu(z[i]) · z[i + n / 2]

Runs of 8 columns of the weight's halves lie in turn in its tiles: a thread then has the sums of both columns of a pair,
and half as many columns are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from ingot.lowering.dependence import reads_and_writes
from ingot.lowering.index_expr import estimate
from ingot.lowering.loop_ir import Map, MatrixView, Stmt
from ingot.lowering.loop_module import Module
from ingot.targets.cuda.schedule.bulk.paired_columns import find_gate_fault, join_pairs
from ingot.targets.cuda.schedule.bulk.products import find_epilogue_kind
from ingot.targets.cuda.schedule.bulk.tiled_weights import TiledWeights
from ingot.targets.cuda.schedule.bulk.tiles import choose_bulk_tile
from ingot.targets.cuda.schedule.column_pairs import find_pairs
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


class PairFolding(TiledWeights):
    """A module's weights, with those whose columns a pass lays out in pairs."""

    # Sums of a thread at most that leave registers to the epilogues.
    most_sums: ClassVar[int] = 256

    def pack(self, group: GatedGemm) -> GatedGemm | None:
        """The group with a tile for it, and the weight's columns in pairs."""
        step, gate = group.steps
        weight = self.weights[step.b.buffer]
        joined = join_pairs(group, self.buffers)
        assert not isinstance(joined, str), joined
        assert isinstance(step.n, int) and isinstance(step.k, int) and isinstance(weight.layout, SwizzledTiles)
        kinds = [find_epilogue_kind(part.step, self.buffers) for part in joined]
        slowest = next((kind for kind in ("functions", "reads") if kind in kinds), "plain")
        rows = estimate(step.m, self.module.hints)
        choice = choose_bulk_tile(rows, [step.n], step.k, slowest, in_turn=False, most_sums=self.most_sums)
        if choice is None:
            return None
        layout = replace(weight.layout, columns=choice.tile.columns, pairs=step.pairs)
        view = MatrixView(self.add(step.b.buffer, layout, "pairs"), 0, 1, step.k)
        return replace(group, steps=(replace(step, b=view, tile=choice.tile, split_k=choice.parts), gate))


class _GateFolding(PairFolding):
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
            pairs = find_pairs((gate,), product)
            if not alone or isinstance(pairs, str) or pairs.maps[0].points != 1:
                return None
            made = GatedGemm((replace(product, pairs=pairs.half), gate), (buffer,), product.origin)
            if not can_join(gate, done[place + 1 :]) or find_gate_fault(made, self.buffers) is not None:
                return None
            packed = self.pack(made)
            return None if packed is None else (place, packed)
        return None
