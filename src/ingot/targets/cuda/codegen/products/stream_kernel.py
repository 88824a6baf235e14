"""Kernels of streamed products: one, several in turn, with attention before them, or in a loop over layers.

    the warp that copies      asks for the weights of all products of all layers, as fast as slots become free
    the others, each layer    attention's parts | row, product 0 | row, product 1 | …

A bar is a barrier of the grid, and so is the end of a layer. What that orders:

- Whatever a phase reads besides weights, an earlier phase, or an earlier kernel, has written: caches, rows, parts.
  Weights are written by nobody, so that the warp that copies needs no barrier.
- Attention's parts of a layer are read behind the first bar and written again behind the last one of that layer.
- Each block's row and sums in shared memory are its own. A phase writes them behind a barrier that the block's threads
  passed after they had last read them, and `write_product` has one between the row and its use.
- Blocks that run ahead wait at the next bar: between two of them nothing is written that others still read. The rules
  for groups and chains see to that within a phase. Temporaries of one step never share memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ingot.lowering.loop_ir import Attention
from ingot.targets.cuda.codegen.attention_kernels.token_phase import TokenPhase
from ingot.targets.cuda.codegen.kernel import CudaKernel, Grid
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter
from ingot.targets.cuda.codegen.products.stream_product import (
    declare_stream,
    fetch_row,
    open_blocks,
    plan_product,
    write_product,
)
from ingot.targets.cuda.codegen.products.tile_product import use_headers
from ingot.targets.cuda.schedule.statements import StreamedChain, StreamedGemm
from ingot.targets.cuda.schedule.streamed_chains import list_groups, plan_chain
from ingot.targets.cuda.schedule.streams import CONSUMERS, THREADS, WARPS, RingPlan, plan_ring
from ingot.targets.cuda.schedule.tiles import PROCESSORS

# Blocks of a multiprocessor that there are registers for: of this kernel, and of the next one.
_RESIDENT = 2
# Slots that may be on their way while the kernel before this one runs, while blocks wait for each other, and while they
# compute attention: more of them were slower on an H200, since all that other warps read waits behind them.
_EARLY_FLIGHT = 1
_BARRIER_FLIGHT = 1
_ATTENTION_FLIGHT = 1
# What a kernel takes for the word at which its blocks wait for each other: it is 0 when no kernel runs.
BARRIER = "barrier:"


def write_stream(out: CudaKernelWriter, group: StreamedGemm) -> CudaKernel:
    """A kernel of one product."""
    writer = _StreamKernel(out, [group], None, ())
    return writer.write(plan_ring([product.plan for product in writer.products]))


def write_chain(out: CudaKernelWriter, chain: StreamedChain, renamed: Sequence[Mapping[str, str]]) -> CudaKernel:
    """A kernel of a chain, or of several in turn that are the same but for their buffers: what each of them calls those
    of `chain`, the first one."""
    return _StreamKernel(out, list_groups(chain.steps), chain.attention, renamed).write(plan_chain(chain))


class _StreamKernel:
    """A kernel being written. `renamed`: what the layers of a loop call the buffers; empty where there is no loop."""

    def __init__(
        self,
        out: CudaKernelWriter,
        groups: Sequence[StreamedGemm],
        attention: Attention | None,
        renamed: Sequence[Mapping[str, str]],
    ) -> None:
        use_headers(out)
        out.library.use("async_copies.cuh")
        out.library.use("gemm_stream.cuh")
        self.out, self.renamed = out, renamed
        self.products = [plan_product(out, number, group) for number, group in enumerate(groups)]
        self.together = len(groups) > 1
        self.phase = None if attention is None else TokenPhase(out, attention, CONSUMERS)

    def write(self, ring: RingPlan) -> CudaKernel:
        out = self.out
        out.line(f"typedef ig_stream_ring<{ring.slots}, {ring.terms}, {ring.flight}> ring_type;")
        out.line("ring_type ring;")
        out.line("char *const x = ig_shared() + ring_type::BYTES;")
        out.line(f"float *const sums_of = (float *)(x + {ring.sums});")
        out.line(f"ring.set_up({_EARLY_FLIGHT if self.together else ring.flight});")
        out.line("ig_start_next();")
        out.open(f"if (ig_warp() == {WARPS})")
        copying = self._open_layer()
        for product in self.products:
            declare_stream(out, product)
            open_blocks(out, product)
            out.line(f"{product.stream}.ask();")
            out.close()
        copied = list(out.pointers)
        self._close_layer()
        out.line("return;")
        out.close()
        out.wait_for_block = f"ig_wait_for_first<{CONSUMERS}>();"
        using = self._open_layer()
        self._write_phases(ring)
        self._close_layer()
        blocks = max(product.plan.blocks for product in self.products)
        made = out.finish(Grid(min(blocks, PROCESSORS) if self.together else blocks), THREADS, ring.shared, waits=True)
        resident = 1 if self.together else _RESIDENT
        made = replace(made, resident=resident, plain_shared=ring.plain_shared, together=self.together)
        return self._pass_by_table(made, {copying: copied, using: list(out.pointers)}) if self.renamed else made

    def _write_phases(self, ring: RingPlan) -> None:
        out, phase = self.out, self.phase
        barrier = out.scratch_pointer(BARRIER, "unsigned", written=True) if self.together else ""
        for product in self.products:
            declare_stream(out, product)
        if phase is not None:
            self._wait(barrier, is_first=True)
            out.line(f"ring.allow({_ATTENTION_FLIGHT});")
            out.open("")
            phase.write_parts("x")
            out.close()
        for product in self.products:
            if product.group.row is not None:
                fetch_row(out, product.group.row, weights=True)
            is_first = product.number == 0 and phase is None
            self._wait(barrier, is_first=is_first)
            out.open("")
            write_product(out, product, ring.flight, phase if product.number == 0 else None)
            out.close()

    def _wait(self, barrier: str, *, is_first: bool) -> None:
        """Ahead of a phase: for all blocks, or, the first time, for the kernel before this one."""
        out = self.out
        if is_first and not self.renamed:
            out.line("ig_wait_for_previous();")
            return
        if is_first:
            out.line("if (layer == 0) ig_wait_for_previous();")
            out.open("else")
        out.line(f"ring.allow({_BARRIER_FLIGHT});")
        out.line(f"ig_wait_for_grid<{CONSUMERS}>({barrier});")
        if is_first:
            out.close()

    # ------------------------------------------------------------------ the loop over layers

    def _open_layer(self) -> int:
        """Opens the loop over layers, where there is one; returns the line before which their buffers are declared."""
        if self.renamed:
            self.out.line("#pragma unroll 1")
            self.out.open(f"for (int layer = 0; layer < {len(self.renamed)}; ++layer)")
        return len(self.out.lines)

    def _close_layer(self) -> None:
        if self.renamed:
            self.out.close()

    def _pass_by_table(self, made: CudaKernel, used: Mapping[int, Sequence[str]]) -> CudaKernel:
        """The kernel with a table of the buffers that differ from layer to layer; they are declared in front of these
        lines, behind which they are used."""
        differ = [name for name in made.buffers if any(names.get(name, name) != name for names in self.renamed)]
        declared = dict(zip(made.buffers, made.signature, strict=False))
        lines = list(self.out.lines)
        for at, names in sorted(used.items(), reverse=True):
            indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
            found = [name for name in names if name in differ]
            lines[at:at] = [indent + _read_table(declared[name], differ.index(name)) for name in found]
        kept = [name for name in made.buffers if name not in differ]
        return replace(
            made,
            text="\n".join(lines),
            signature=(*(declared[name] for name in kept), *made.signature[len(made.buffers) :]),
            buffers=tuple(kept),
            table=tuple(tuple(names.get(name, name) for name in differ) for names in self.renamed),
        )


def _read_table(declaration: str, column: int) -> str:
    """A pointer, declared as a parameter would be, of this layer."""
    type_ = declaration[: declaration.index("*") + 1]
    return f"{declaration} = ({type_})layers.at[layer][{column}];"
