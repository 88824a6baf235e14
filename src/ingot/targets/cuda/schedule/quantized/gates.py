"""The gate of a product with a weight of integers goes into its kernel.

    before                                  after
    CodedGemm  x · up → z                   GatedCodes  CodedGemm x · up, in pairs → z, Map z → silu(…) · …
    Map        silu(z[i]) · z[i + n / 2]

Runs of 8 lines of the weight's halves lie in turn in its tiles: a block then has the sums of both columns of a pair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ingot.lowering.dependence import reads_and_writes
from ingot.lowering.index_expr import Size, symbol
from ingot.lowering.loop_body import BodyBuilder, rewrite
from ingot.lowering.loop_ir import Buffer, Load, Map, MatrixView, Op, SourceLocation, StepGroup, Stmt
from ingot.lowering.loop_module import Module, PackedWeight
from ingot.targets.cuda.schedule.column_pairs import ColumnPairs, PairMap, find_pairs, is_own_column
from ingot.targets.cuda.schedule.quantized.layouts import TILE, CodeFragments, FragmentScales
from ingot.targets.cuda.schedule.quantized.products import NOWHERE, CodedGemm
from ingot.targets.cuda.schedule.statements import TiledGemm
from ingot.targets.cuda.schedule.streamed_groups import REACH, can_join, count_users


@dataclass(frozen=True, slots=True)
class GatedCodes(StepGroup):
    """A product with `pairs` in one kernel with the Map behind it that alone reads its result, at columns i and
    i + n / 2. The product's result is `local`: it is not in memory."""

    steps: tuple[CodedGemm, Map]
    local: tuple[str, ...]
    origin: SourceLocation = NOWHERE

    def members(self) -> tuple[Stmt, ...]:
        return self.steps

    def local_buffers(self) -> tuple[str, ...]:
        return self.local


def fold_coded_gates(module: Module) -> Module:
    """Puts Maps of pairs of columns into the kernels of products with integers; computes the same."""
    folding = _CodedGateFolding(module)
    done: list[Stmt] = []
    for step in module.steps:
        found = folding.find_product(step, done) if isinstance(step, Map) else None
        if found is None:
            done.append(step)
        else:
            place, made = found
            done[place] = made
    weights = tuple(folding.weights.values())
    return replace(module, steps=tuple(done), buffers=folding.buffers, weights=weights)


class _CodedGateFolding:
    """A module's buffers and weights, with those that the pass makes."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.buffers = dict(module.buffers)
        self.weights = {weight.buffer: weight for weight in module.weights}

    def find_product(self, gate: Map, done: Sequence[Stmt]) -> tuple[int, GatedCodes] | None:
        """The product whose one result a Map alone reads, and what the two become."""
        read = reads_and_writes(gate)[0]
        for place in range(len(done) - 1, max(len(done) - 2 - REACH, -1), -1):
            product = done[place]
            if not isinstance(product, CodedGemm) or product.pairs or not product.epilogue.stores:
                continue
            buffer = product.epilogue.stores[0].buffer
            if buffer not in read:
                continue
            alone = self.buffers[buffer].kind == "temporary" and count_users(self.module, buffer) == 2
            made = GatedCodes((replace(product, pairs=True), gate), (buffer,), product.origin)
            if not alone or not can_join(gate, done[place + 1 :]) or find_coded_gate_fault(made) is not None:
                return None
            return place, self.pair_lines(made)
        return None

    def pair_lines(self, group: GatedCodes) -> GatedCodes:
        """The group with its weight's halves in pairs."""
        step, gate = group.steps
        scales, zeros = (self.pair(one) if isinstance(one, str) else one for one in (step.scales, step.zeros))
        return replace(group, steps=(replace(step, codes=self.pair(step.codes), scales=scales, zeros=zeros), gate))

    def pair(self, name: str) -> str:
        layout, made = self.weights[name].layout, f"{name}_pairs"
        assert isinstance(layout, (CodeFragments, FragmentScales))
        self.buffers[made] = replace(self.buffers[name], name=made)
        self.weights[made] = PackedWeight(made, self.weights[name].source, replace(layout, pairs=True))
        return made


def find_coded_gate_fault(group: GatedCodes) -> str | None:
    """Why a product and a Map cannot be one kernel; None where they can."""
    if [type(step) for step in group.steps] != [CodedGemm, Map]:
        return "it is a product with a Map behind it"
    step, gate = group.steps
    pairs = _find_halves(step, gate)
    if isinstance(pairs, str):
        return pairs
    if not step.pairs or step.n % TILE:
        return "its product's weight does not lie in pairs of whole runs of 8 lines"
    if {store.buffer for store in step.epilogue.stores} != set(group.local):
        return "its product's result is in memory"
    if reads_and_writes(step)[0] & reads_and_writes(gate)[1]:
        return "its Map writes what its product reads, in other blocks too"
    return None


def _as_product(step: CodedGemm) -> TiledGemm:
    """The same product of floats: its columns are paired in the same way."""
    right = MatrixView(step.codes, 0, 0, 0)
    return TiledGemm((), step.m, step.n, step.k, step.a, right, step.dtype, step.epilogue, step.origin)


def _find_halves(step: CodedGemm, gate: Map) -> ColumnPairs | str:
    """The pairs that a Map reads, or why it does not read those of halves of the columns."""
    pairs = find_pairs((gate,), _as_product(step))
    if isinstance(pairs, str):
        return pairs
    if pairs.maps[0].points != 1 or len(step.epilogue.loops) > 2:
        return "its Map does not go over rows and the halves of its columns"
    return pairs


def join_coded_gate(group: GatedCodes, buffers: Mapping[str, Buffer]) -> CodedGemm:
    """The product with one epilogue of half the columns: of the sum of the column, the accumulator, and of the sum of
    the column of the other half, which is beside it. Values between are rounded as memory would hold them."""
    step, gate = group.steps
    half = step.n // 2
    (store,) = step.epilogue.stores
    dtype, ops = buffers[store.buffer].dtype, BodyBuilder()
    own: list[Size] = [symbol(loop.variable, below=loop.extent) for loop in gate.loops]
    *row, column = [0, *own] if len(own) == 1 else own
    values: list[int] = []
    for sums, further in (("accumulator", 0), ("second_accumulator", half)):
        places = (*row, column + further)[-len(step.epilogue.loops) :]
        names = {loop.variable: place for loop, place in zip(step.epilogue.loops, places, strict=True)}

        def take_sum(op: Op, _: tuple[int, ...], into: BodyBuilder, sums: str = sums) -> int | None:
            return into.emit(sums, (), op.dtype) if op.name == "accumulator" else None

        _, results = rewrite(step.epilogue.body, symbols=names, into=ops, replace=take_sum)
        values.append(ops.cast(results[store.result], dtype))
    pair, product = PairMap(gate, 1), _as_product(step)

    def take_value(op: Op, _: tuple[int, ...], into: BodyBuilder) -> int | None:
        if not isinstance(op.attribute, Load) or op.attribute.buffer != store.buffer:
            return None
        return values[0 if is_own_column(pair, product, op.attribute.index) else 1]

    _, results = rewrite(gate.body, into=ops, replace=take_value)
    return replace(step, n=half, epilogue=replace(gate, body=ops.finish(results)))
