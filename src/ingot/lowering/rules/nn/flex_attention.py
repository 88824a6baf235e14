"""Attention with a user's score and mask functions: their subgraphs become the bodies of attention's kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ingot.lowering.dtypes import wide
from ingot.lowering.index_expr import Expr, Size, symbol
from ingot.lowering.loop_body import BodyBuilder, rewrite
from ingot.lowering.loop_ir import (
    Attention,
    BlockMask,
    Body,
    ClassifyMaskBlocks,
    Load,
    Loop,
    Map,
    MatrixView,
    Op,
    Store,
)
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.rules.nn.attention import attend_with_gemms
from ingot.lowering.subgraph_lowering import lower_body
from ingot.lowering.tensor_views import (
    Deferred,
    Index,
    Strided,
    TensorValue,
    broadcast_place,
    contiguous_strides,
    loop_variables,
)
from ingot.lowering.unsupported import LoweringUnsupported

hop = torch.ops.higher_order


@lowers(hop.flex_attention)
def flex_attention(
    low: Lowering,
    q: TensorValue,
    k: TensorValue,
    v: TensorValue,
    score_mod: fx.GraphModule,
    block_mask: Sequence[Any],
    scale: float,
    options: dict[str, Any],
    score_operands: Sequence[Any] = (),
    mask_operands: Sequence[Any] = (),
) -> list[TensorValue]:
    """The result, and in units of log 2, as torch has it, the log of the weights' sum and the largest score."""
    call = FlexAttentionCall(low, q, k, v, block_mask, score_operands, mask_operands)
    depth, columns = q.shape[-1], v.shape[-1]
    if not isinstance(depth, int) or not isinstance(columns, int):
        raise LoweringUnsupported("attention whose depth is dynamic")
    if low.strategy.computes_by_loops(call.queries) and call.keys != 0:
        return _few_queries(low, call, score_mod, scale)
    dtype = low.out_dtype
    out, home = _allocate_result(low, q, columns, dtype)
    ops = BodyBuilder()
    value = ops.cast(ops.emit("accumulator", (), call.kind), dtype)
    row, column = (Loop(f"i{len(call.batch) + n}", size) for n, size in enumerate((call.queries, columns)))
    index = (*call.at, *(symbol(loop.variable, below=loop.extent) for loop in (row, column)))
    epilogue = Map(
        (*call.batch, row, column), ops.finish([value]), (Store(home.buffer, home.offset_at(index), 0),), low.origin
    )
    numbers = [low.buffer("temporary", call.kind, q.shape[:-1]).name for _ in range(2)]
    place = Strided(numbers[0], 0, contiguous_strides(q.shape[:-1])).offset_at(
        (*call.at, symbol("i", below=call.queries))
    )
    mask = call.mask()
    low.steps.append(
        Attention(
            batch=call.batch,
            queries=call.queries,
            keys=call.keys,
            depth=depth,
            values=columns,
            scale=scale,
            causal=False,
            q=call.matrix(q),
            k=call.matrix(k),
            v=call.matrix(v),
            score=call.score(score_mod),
            dtype=call.kind,
            epilogue=epilogue,
            origin=low.origin,
            mask=mask,
            tiles=call.tiles(mask, *low.strategy.attention_block) if mask is not None else None,
            lse=Store(numbers[0], place, 0),
            top=Store(numbers[1], place, 0),
        )
    )
    homes = [Strided(name, 0, contiguous_strides(q.shape[:-1])) for name in numbers]
    return [out, *(_convert_to_log2(TensorValue(q.shape[:-1], call.kind, home), call.kind) for home in homes)]


def _few_queries(low: Lowering, call: FlexAttentionCall, score_mod: fx.GraphModule, scale: float) -> list[TensorValue]:
    """Decoding: products along the rows of keys and values, the functions between them."""
    score, mask, kind = call.score(score_mod), call.mask(), call.kind

    def weigh(ops: BodyBuilder, value: int, index: Index) -> int:
        lead = {str(mine): theirs for mine, theirs in zip(call.at, index[:2], strict=True) if mine != 0}
        names: dict[str, Size] = {**lead, "i": index[2], "j": index[3]}
        if score is not None:
            value = rewrite(score, symbols=names, into=ops, replace=_substitute_accumulator(value))[1][0]
        if mask is not None:
            holds = rewrite(mask, symbols=names, into=ops)[1][0]
            value = ops.where(holds, value, ops.const(-math.inf, kind))
        return value

    shape = call.q.shape[:-1]
    out, weighed = attend_with_gemms(low, call.q, call.k, call.v, shape[:2], scale, weigh, may_hide=True)
    (top,) = low.reduce(weighed, (3,), ("max",), lambda ops, x, index: (x,), (kind,))

    def weight(ops: BodyBuilder, x: int, index: Index) -> tuple[int]:
        largest = top.load(ops, index[:-1])
        hidden = ops.call("eq", largest, ops.const(-math.inf, kind))
        return (ops.call("exp", ops.call("sub", x, ops.where(hidden, ops.const(0, kind), largest))),)

    (total,) = low.reduce(weighed, (3,), ("sum",), weight, (kind,))

    def lse(ops: BodyBuilder, index: Index) -> int:
        return ops.call("add", top.load(ops, index), _log_of_weights(ops, total.load(ops, index), kind))

    return [out, *(_convert_to_log2(low.realize(t), kind) for t in (TensorValue(shape, kind, Deferred(lse, 4)), top))]


def _log_of_weights(ops: BodyBuilder, total: int, kind: str) -> int:
    """log of a sum of weights, the largest of which is 1; 0 where there is none."""
    none = ops.call("eq", total, ops.const(0, kind))
    return ops.call("log", ops.where(none, ops.const(1, kind), total))


def _substitute_accumulator(value: int) -> Callable[[Op, tuple[int, ...], BodyBuilder], int | None]:
    return lambda op, operands, ops: value if op.name == "accumulator" else None


def _allocate_result(low: Lowering, q: TensorValue, columns: int, dtype: str) -> tuple[TensorValue, Strided]:
    """Memory for the result with adjacent heads, as the layer that follows reads them."""
    images, heads, queries, _ = q.shape
    shape = (images, heads, queries, columns)
    buffer = low.buffer("temporary", dtype, (images, queries, heads, columns))
    home = Strided(buffer.name, 0, (queries * heads * columns, columns, heads * columns, 1))
    return TensorValue(shape, dtype, home), home


def _convert_to_log2(numbers: TensorValue, kind: str) -> TensorValue:
    return TensorValue(
        numbers.shape,
        kind,
        Deferred(lambda ops, i: ops.call("mul", numbers.load(ops, i), ops.const(1 / math.log(2), kind)), 2),
    )


@dataclass
class FlexAttentionCall:
    """The operands of one call of attention, and what the bodies of its functions see of the kernel's loops."""

    low: Lowering
    q: TensorValue
    k: TensorValue
    v: TensorValue
    block_mask: Sequence[Any]
    score_operands: Sequence[Any]
    mask_operands: Sequence[Any]

    @property
    def kind(self) -> str:
        return wide(self.q.dtype)

    @property
    def queries(self) -> Size:
        return self.q.shape[-2]

    @property
    def keys(self) -> Size:
        return self.k.shape[-2]

    @property
    def batch(self) -> tuple[Loop, ...]:
        """Loops over images and heads; what there is one of has no loop."""
        return tuple(Loop(*pair) for pair in loop_variables(self.q.shape[:2], range(2))[1])

    @property
    def at(self) -> Index:
        return loop_variables(self.q.shape[:2], range(2))[0]

    def matrix(self, tensor: TensorValue) -> MatrixView:
        """A tensor's rows at the batch's place: key heads serve groups of heads, one image may serve all."""
        strided = self.low.realize(tensor)
        assert isinstance(strided.data, Strided)
        image, head = self.at
        self.low.check_fit(strided.shape[0], self.q.shape[0])
        lead = (
            broadcast_place(image, strided.shape[0], self.q.shape[0]),
            head if strided.shape[1] == self.q.shape[1] else head // (self.q.shape[1] // strided.shape[1]),
        )
        strides = strided.data.strides
        return MatrixView(strided.data.buffer, strided.data.offset_at((*lead, 0, 0)), strides[-2], strides[-1])

    # ------------------------------------------------------------------ functions

    def score(self, function: fx.GraphModule) -> Body | None:
        """The score's body, or None where it returns the score unchanged."""
        body = lower_body(
            function,
            [self.value("accumulator"), *self.places(), *self.materialize(self.score_operands)],
            around=self.low,
        )
        return None if body.ops[body.results[0]].name == "accumulator" else self._cast(body)

    def mask(self) -> Body | None:
        """The mask's body, what the lists of blocks say included; None where every pair counts."""
        inputs = [*self.places(), *self.materialize(self.mask_operands)]
        body = lower_body(self.block_mask[-1], inputs, around=self.low)
        result = body.ops[body.results[0]]
        always = result.name == "const" and bool(result.attribute.value)
        blocks = self._blocks()
        if blocks is None:
            return None if always else body
        ops = BodyBuilder()
        (holds,) = rewrite(body, into=ops)[1]
        kind = blocks.load(ops, self._block(blocks))
        listed = ops.call("and", ops.call("ne", kind, ops.const(0, "uint8")), holds)
        return ops.finish([ops.call("or", ops.call("eq", kind, ops.const(2, "uint8")), listed)])

    def value(self, name: str) -> TensorValue:
        return TensorValue((), self.kind, Deferred(lambda ops, index: ops.emit(name, (), self.kind), 1))

    def places(self) -> list[TensorValue]:
        """Batch, head, query and key as the function's scalars."""
        at: list[Size] = [*self.at, symbol("i", below=self.queries), symbol("j", below=self.keys)]
        return [TensorValue((), "int32", Deferred(_as_value(place), 1)) for place in at]

    def materialize(self, operands: Sequence[Any]) -> list[Any]:
        """Operands, in memory where each element would be computed for every pair."""
        return [
            self.low.materialize_if_expensive(operand) if isinstance(operand, TensorValue) else operand
            for operand in operands
        ]

    def _cast(self, body: Body) -> Body:
        """A score in the type that softmax is computed in."""
        ops = BodyBuilder()
        _, results = rewrite(body, into=ops)
        return ops.finish([ops.cast(results[0], self.kind), *results[1:]])

    # ------------------------------------------------------------------ blocks

    def _blocks(self) -> TensorValue | None:
        """What the lists of a block mask say of each block: 0 hidden, 1 as the mask says, 2 seen whole."""
        places = self.block_mask[3]
        if all(size == 1 for size in places.shape[-2:]):
            return None
        shape = (*places.shape[:-1], places.shape[-1] + 1)  # the last place takes what is listed nowhere
        table = self.low.realize(self.low.full(shape, 0, "uint8"))
        for kind, (count, place) in enumerate((self.block_mask[2:4], self.block_mask[4:6]), start=1):
            if count is not None:
                self._list(table, count, place, kind)
        return table

    def _list(self, table: TensorValue, counts: TensorValue, places: TensorValue, kind: int) -> None:
        def write(ops: BodyBuilder, index: Index) -> tuple[Index, int]:
            count = ops.cast(counts.load(ops, index[:-1]), "int64")
            listed = ops.call("lt", ops.index(index[-1]), count)
            nowhere = ops.const(0, "int64") if table.shape[-1] == 1 else ops.index(table.shape[-1] - 1)
            place = ops.where(listed, ops.cast(places.load(ops, index), "int64"), nowhere)
            return (*index[:-1], ops.check_index(place, table.shape[-1])), ops.const(kind, "uint8")

        self.low.scatter(table, places.shape, write)

    def _block(self, blocks: TensorValue) -> Index:
        high, wide_ = self.block_mask[-3:-1]
        lead = tuple(map(broadcast_place, self.at, blocks.shape[:2], self.q.shape[:2]))
        return (*lead, symbol("i", below=self.queries) // high, symbol("j", below=self.keys) // wide_)

    def tiles(self, mask: Body, high: int, wide_: int) -> BlockMask:
        """The step that asks the mask once about every tile, for as much of the batch as it depends on."""
        used = _variables(mask)
        batch = tuple(loop for loop in self.batch if loop.variable in used)
        rows, columns = (self.queries + high - 1) // high, (self.keys + wide_ - 1) // wide_
        shape = (*(loop.extent for loop in batch), rows, columns)
        buffer = self.low.buffer("temporary", "uint8", shape).name
        self.low.steps.append(
            ClassifyMaskBlocks(batch, self.queries, self.keys, high, wide_, mask, buffer, self.low.origin)
        )
        offset: Size = 0
        for loop in batch:
            offset = offset * loop.extent + symbol(loop.variable, below=loop.extent)
        return BlockMask(buffer, offset * rows * columns, columns)


def _as_value(place: Size) -> Any:
    return lambda ops, index: ops.index(place, "int32")


def _variables(body: Body) -> set[str]:
    """The loops' variables that a body reads."""
    found: set[str] = set()
    for op in body.ops:
        index = op.attribute.index if isinstance(op.attribute, Load) else op.attribute
        if isinstance(index, Expr):
            found |= {s.name for s in index.symbols}
    return found
