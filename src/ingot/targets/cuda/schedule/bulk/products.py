"""Products with weights, whose weights then lie in whole tiles as shared memory has them.

    before                                    after
    TiledGemm  x · w → y                      TiledGemm  x · w, in tiles → y    algorithm="bulk"
    SiblingGemms  x · wq → q, x · wk → k      SiblingGemms of such

One thread of a block asks for tiles, and the others multiply: Hopper has the copies for it. Products whose operands do
not fit stay as they are.
"""

from __future__ import annotations

from dataclasses import replace

from ingot.lowering.dependence import map_steps
from ingot.lowering.dtypes import HALVES
from ingot.lowering.index_expr import estimate
from ingot.lowering.loop_body import reads
from ingot.lowering.loop_ir import Buffer, Map, MatrixView, Stmt
from ingot.lowering.loop_module import Module
from ingot.targets.cuda.schedule.bulk.tiled_weights import TiledWeights
from ingot.targets.cuda.schedule.bulk.tiles import BULK_TERMS, choose_bulk_tile
from ingot.targets.cuda.schedule.statements import GemmTile, SiblingGemms, TiledGemm
from ingot.targets.cuda.schedule.tiling import lies_along
from ingot.targets.cuda.schedule.weight_layouts import SwizzledTiles

# Elements of 16 bytes, by which rows are aligned, and which a run of columns has.
_EACH = 8
# Operations that take many instructions.
_FUNCTIONS = {"erf", "exp", "log", "tanh", "sin", "cos", "pow", "sigmoid", "gelu", "silu", "expm1", "log1p", "rsqrt"}


def pack_products(module: Module) -> Module:
    """Products with weights as products by tiles of them; computes the same."""
    packing = _ProductPacking.create(module)
    return packing.finish(map_steps(module.steps, packing.change))


class _ProductPacking(TiledWeights):
    def change(self, step: Stmt) -> Stmt:
        match step:
            case TiledGemm():
                packed = self.pack((step,), in_turn=False)
                return step if packed is None else packed[0]
            case SiblingGemms():
                members = tuple(one for one in step.steps if isinstance(one, TiledGemm))
                packed = self.pack(members, in_turn=step.in_turn) if len(members) == len(step.steps) else None
                return step if packed is None else replace(step, steps=packed)
        return step

    def pack(self, steps: tuple[TiledGemm, ...], *, in_turn: bool) -> tuple[TiledGemm, ...] | None:
        """Products of one kernel, if they all fit."""
        first = steps[0]
        if not all(self.fits(step) and (step.a, step.m, step.k) == (first.a, first.m, first.k) for step in steps):
            return None
        assert isinstance(first.k, int)
        widths = [step.n for step in steps if isinstance(step.n, int)]
        kinds = [find_epilogue_kind(step.epilogue, self.buffers) for step in steps]
        slowest = next((kind for kind in ("functions", "reads") if kind in kinds), "plain")
        m = estimate(first.m, self.module.hints)
        choice = choose_bulk_tile(m, widths, first.k, slowest, in_turn=in_turn)
        if choice is None:
            return None
        return tuple(self.pack_step(step, choice.tile, choice.parts) for step in steps)

    def fits(self, step: TiledGemm) -> bool:
        weight, buffer = self.weights.get(step.b.buffer), self.buffers[step.b.buffer]
        dtypes = {buffer.dtype, self.buffers[step.a.buffer].dtype}
        if weight is None or weight.layout is not None or buffer.kind != "weight" or step.batch:
            return False
        places = (step.n, step.k, step.b.offset, step.b.rows, step.b.columns)
        if len(dtypes) > 1 or buffer.dtype not in HALVES or step.dtype != "float32":
            return False
        if step.algorithm not in ("tensor", "warpgroup") or not all(isinstance(place, int) for place in places):
            return False
        return rows_fit(step) and step.n % _EACH == 0 and step.k % BULK_TERMS == 0 and step.k != 0

    def pack_step(self, step: TiledGemm, tile: GemmTile, parts: int) -> TiledGemm:
        view = step.b
        assert isinstance(step.n, int) and isinstance(step.k, int) and isinstance(view.offset, int)
        assert isinstance(view.rows, int) and isinstance(view.columns, int)
        layout = SwizzledTiles(view.offset, step.n, step.k, view.columns, view.rows, tile.columns)
        name = self.add(view.buffer, layout, "tiles")
        return replace(step, algorithm="bulk", tile=tile, split_k=parts, b=MatrixView(name, 0, 1, step.k))


def rows_fit(step: TiledGemm) -> bool:
    """Whether a map can describe a product's rows: dense, a fixed step apart, everything aligned to 16 bytes."""
    one_row = step.m == 1
    is_step = one_row or (isinstance(step.a.rows, int) and step.a.rows > 0)
    return is_step and lies_along(step.a, step.m, step.k, _EACH, rows_first=True)


def find_epilogue_kind(epilogue: Map, buffers: dict[str, Buffer]) -> str:
    """What takes the time of an epilogue: functions, reads of what other steps wrote, or nothing much."""
    if any(op.name in _FUNCTIONS for op in epilogue.body.ops):
        return "functions"
    read = [load for load in reads(epilogue.body) if buffers[load.buffer].kind != "weight"]
    return "reads" if read else "plain"
