"""Attention of one token as a phase of a kernel whose blocks wait for each other (cu/attention_token.cuh).

Units of work, a point's part of the keys each, are shared out over blocks, which leave what they find in the step's
scratch. Behind a barrier of the grid each block combines the parts of all points into a row in its shared memory.
"""

from __future__ import annotations

from ingot.codegen.c_expressions import STORED
from ingot.lowering.dtypes import BYTES
from ingot.lowering.loop_ir import Attention
from ingot.targets.cuda.codegen.attention_kernels.attention_writer import AttentionWriter, prepare_attention
from ingot.targets.cuda.codegen.attention_kernels.body_functions import half_dtype
from ingot.targets.cuda.codegen.attention_kernels.shapes import token_shape_text
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter
from ingot.targets.cuda.codegen.loop_kernels.loop_points import unflatten
from ingot.targets.cuda.schedule.layers.token_phases import plan_phase

# Columns that a thread combines at once.
_COLUMNS = 8


class TokenPhase(AttentionWriter):
    """The two halves of the phase. `threads` of a block share the work, and wait for each other by `out`'s barrier."""

    def __init__(self, out: CudaKernelWriter, step: Attention, threads: int) -> None:
        tile = plan_phase(step)
        super().__init__(out, prepare_attention(step))
        half = half_dtype(out, (self.step.q, self.step.k, self.step.v))
        assert tile is not None and half is not None and isinstance(self.points, int)
        for header in ("vectors.cuh", "attention_tile.cuh", "async_copies.cuh", "attention_token.cuh"):
            out.library.use(header)
        self.threads, self.point_count, self.tile = threads, self.points, tile
        self.shape = token_shape_text(tile, half, self.step.depth, "ig_token_parts")
        queries = self.points * tile.queries
        sizes = (queries * tile.parts * self.step.depth, queries * tile.parts * 2)
        self.memory = [out.scratch.reserve(size * BYTES["float32"]) for size in sizes]

    @property
    def units(self) -> int:
        return self.point_count * self.tile.parts

    def write_parts(self, shared: str) -> None:
        """What this block has of all units, with its shared memory from `shared` on. The last unit's threads are out of
        that memory when this ends."""
        step, out, type_ = self.step, self.out, self.type_
        self._declare_memory()
        out.open(f"for (int unit = (int)blockIdx.x; unit < {self.units}; unit += (int)gridDim.x)")
        out.line(f"const int part = unit % {self.tile.parts};")
        out.line(f"const {type_} o = unit / {self.tile.parts};")
        unflatten(out, "o", type_, step.batch)
        self.functions.declare_flags()
        matrices = (("q", step.q), ("k", step.k), ("v", step.v))
        names = [self.functions.declare_matrix(name, matrix) for name, matrix in matrices]
        score = self.functions.declare_body("score", step.score, ["acc"], self.real, "s")
        mask = self.functions.declare_body("mask", step.mask, [], "int", "m")
        scale, factor, _unit = self._scales()
        keys = f"({type_})({out.size(step.keys)}), part"
        out.line(f"ig_attend_part<shape, {self._flags()}>({', '.join(names)}, {keys}, {scale}, {factor},")
        out.line(f"    {score}, {mask}, (float *){shared}, [] {{ {out.wait_for_block} }},")
        out.line("    [&](const int g, const int c, const float value) { parts.keep((int)o, part, g, c, value); });")
        self.functions.report_flags()
        out.line(out.wait_for_block)
        out.close()

    def write_row(self, shared: str) -> None:
        """All points combined. Where the step stores its result, that is a row at `shared` from here on."""
        step, out, type_ = self.step, self.out, self.type_
        buffer = step.epilogue.stores[0].buffer
        stored = STORED[out.buffers[buffer].dtype]
        out.line(f"{stored} *const own_row = ({stored} *){shared};")
        out.locals[buffer] = ("own_row", True)
        out.open("")
        self._declare_memory()
        each = step.depth // _COLUMNS
        pieces = self.point_count * self.tile.queries * each
        out.open(f"for (int piece = (int)threadIdx.x; piece < {pieces}; piece += {self.threads})")
        out.line(f"const int query = piece / {each} % {self.tile.queries}, column = piece % {each} * {_COLUMNS};")
        out.line(f"const {type_} o = piece / {each * self.tile.queries};")
        unflatten(out, "o", type_, step.batch)
        self.functions.declare_flags()
        self._declare_results()
        out.line(f"float sums[{_COLUMNS}], top, total;")
        out.line(f"parts.combine<{_COLUMNS}>((int)o, query, column, sums, top, total);")
        out.line("const float share = row(query, top, total, false);")
        out.line("IG_UNROLL")
        out.line(f"for (int e = 0; e < {_COLUMNS}; ++e) cell(query, column + e, sums[e] * share);")
        self.functions.report_flags()
        out.close()
        out.close()
        out.written.discard(buffer)

    def _declare_memory(self) -> None:
        sums, numbers = (self.out.scratch_pointer(name, "float", written=True) for name in self.memory)
        self.out.line(f"using shape = {self.shape};")
        self.out.line(f"const ig_kept_parts<shape> parts = {{{sums}, {numbers}}};")
