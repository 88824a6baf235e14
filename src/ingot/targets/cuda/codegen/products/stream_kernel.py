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

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ingot.targets.cuda.codegen.attention_kernels.token_phase import TokenPhase
from ingot.targets.cuda.codegen.kernel import CudaKernel, Grid
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter
from ingot.targets.cuda.codegen.products.stream_product import (
    StreamProduct,
    declare_stream,
    fetch_row,
    open_blocks,
    plan_product,
    write_product,
)
from ingot.targets.cuda.codegen.products.tile_product import use_headers
from ingot.targets.cuda.schedule.statements import StreamedChain, StreamedGemm
from ingot.targets.cuda.schedule.streamed_chains import list_groups, plan_chains
from ingot.targets.cuda.schedule.streams import CONSUMERS, THREADS, WARPS, RingPlan
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
    return write_chains(out, [StreamedChain((group,), group.origin)])


def write_chains(
    out: CudaKernelWriter,
    chains: Sequence[StreamedChain],
    layer: StreamedChain | None = None,
    renamed: Sequence[Mapping[str, str]] = (),
) -> CudaKernel:
    """A kernel of chains one after another. `layer` is one of them, and stands for several in a loop, which are the
    same but for their buffers: what each of them calls those of `layer`, the first one."""
    use_headers(out)
    out.library.use("async_copies.cuh")
    out.library.use("gemm_stream.cuh")
    segments: list[_Segment] = []
    for chain in chains:
        first = sum(len(one.products) for one in segments)
        products = [plan_product(out, number, group) for number, group in enumerate(list_groups(chain.steps), first)]
        phase = None if chain.attention is None else TokenPhase(out, chain.attention, CONSUMERS)
        segments.append(_Segment(products, phase, chain is layer))
    return _StreamKernel(out, segments, renamed).write(plan_chains(chains))


@dataclass(frozen=True)
class _Segment:
    """A chain in a kernel: its products, and attention before them. One of them is in a loop over layers."""

    products: Sequence[StreamProduct]
    phase: TokenPhase | None
    loops: bool


@dataclass
class _StreamKernel:
    """A kernel being written. `renamed`: what the layers of a loop call the buffers; empty where there is no loop."""

    out: CudaKernelWriter
    segments: Sequence[_Segment]
    renamed: Sequence[Mapping[str, str]]
    # Of the text: where a segment's lines begin and end.
    places: list[tuple[int, int, _Segment]] = field(default_factory=list)

    def write(self, ring: RingPlan) -> CudaKernel:
        out = self.out
        products = [product for segment in self.segments for product in segment.products]
        together = len(products) > 1
        out.line(f"typedef ig_stream_ring<{ring.slots}, {ring.terms}, {ring.flight}> ring_type;")
        out.line("ring_type ring;")
        out.line("char *const x = ig_shared() + ring_type::BYTES;")
        out.line(f"float *const sums_of = (float *)(x + {ring.sums});")
        out.line(f"ring.set_up({_EARLY_FLIGHT if together else ring.flight});")
        out.line("ig_start_next();")
        out.open(f"if (ig_warp() == {WARPS})")
        for segment in self.segments:
            self._write_segment(segment, self._write_copies)
        out.line("return;")
        out.close()
        out.wait_for_block = f"ig_wait_for_first<{CONSUMERS}>();"
        barrier = out.scratch_pointer(BARRIER, "unsigned", written=True) if together else ""
        for segment in self.segments:
            self._write_segment(segment, lambda one: self._write_phases(one, ring, barrier))
        blocks = max(product.plan.blocks for product in products)
        made = out.finish(Grid(min(blocks, PROCESSORS) if together else blocks), THREADS, ring.shared, waits=True)
        resident = 1 if together else _RESIDENT
        made = replace(made, resident=resident, plain_shared=ring.plain_shared, together=together)
        return self._pass_by_table(made) if self.renamed else made

    def _write_segment(self, segment: _Segment, write: Callable[[_Segment], None]) -> None:
        out = self.out
        if segment.loops:
            out.line("#pragma unroll 1")
            out.open(f"for (int layer = 0; layer < {len(self.renamed)}; ++layer)")
        elif self.renamed:
            out.open("")
        begin = len(out.lines)
        write(segment)
        self.places.append((begin, len(out.lines), segment))
        if self.renamed:
            out.close()

    def _write_copies(self, segment: _Segment) -> None:
        for product in segment.products:
            declare_stream(self.out, product)
            open_blocks(self.out, product)
            self.out.line(f"{product.stream}.ask();")
            self.out.close()

    def _write_phases(self, segment: _Segment, ring: RingPlan, barrier: str) -> None:
        out, phase = self.out, segment.phase
        for product in segment.products:
            declare_stream(out, product)
        if phase is not None:
            self._wait(segment, barrier, is_first=True)
            out.line(f"ring.allow({_ATTENTION_FLIGHT});")
            out.open("")
            phase.write_parts("x")
            out.close()
        for place, product in enumerate(segment.products):
            if product.group.row is not None:
                fetch_row(out, product.group.row, weights=True)
            self._wait(segment, barrier, is_first=place == 0 and phase is None)
            out.open("")
            write_product(out, product, ring.flight, phase if place == 0 else None)
            out.close()

    def _wait(self, segment: _Segment, barrier: str, *, is_first: bool) -> None:
        """Ahead of a phase, the first one of its segment or another: for all blocks, or, the first time, for the kernel
        before this one."""
        out = self.out
        begins = is_first and segment is self.segments[0]
        if begins and not segment.loops:
            out.line("ig_wait_for_previous();")
            return
        if begins:
            out.line("if (layer == 0) ig_wait_for_previous();")
            out.open("else")
        out.line(f"ring.allow({_BARRIER_FLIGHT});")
        out.line(f"ig_wait_for_grid<{CONSUMERS}>({barrier});")
        if begins:
            out.close()

    def _pass_by_table(self, made: CudaKernel) -> CudaKernel:
        """The kernel with a table of the buffers that differ from layer to layer. Outside of the loop they have the
        names of the first layer."""
        differ = [name for name in made.buffers if any(names.get(name, name) != name for names in self.renamed)]
        declared = dict(zip(made.buffers, made.signature, strict=False))
        lines = list(self.out.lines)
        for begin, end, segment in reversed(self.places):
            words = set(re.findall(r"\w+", "\n".join(lines[begin:end])))
            indent = lines[begin][: len(lines[begin]) - len(lines[begin].lstrip())]
            layer = "layer" if segment.loops else "0"
            lines[begin:begin] = [
                f"{indent}{_read_table(declared[name], layer, column)}"
                for column, name in enumerate(differ)
                if self.out.pointers[name] in words
            ]
        kept = [name for name in made.buffers if name not in differ]
        return replace(
            made,
            text="\n".join(lines),
            signature=(*(declared[name] for name in kept), *made.signature[len(made.buffers) :]),
            buffers=tuple(kept),
            table=tuple(tuple(names.get(name, name) for name in differ) for names in self.renamed),
        )


def _read_table(declaration: str, layer: str, column: int) -> str:
    """A pointer, declared as a parameter would be, of a layer."""
    type_ = declaration[: declaration.index("*") + 1]
    return f"{declaration} = ({type_})layers.at[{layer}][{column}];"
