"""Bags of rows: embedding_bag adds, averages or takes the largest of the rows that each bag names."""

from __future__ import annotations

import torch

from ingot.lowering import tensor_views
from ingot.lowering.dtypes import wide
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.rules.scatter import narrow, writable
from ingot.lowering.tensor_views import Deferred, Index, TensorValue
from ingot.lowering.unsupported import LoweringUnsupported

aten = torch.ops.aten

_SUM, _MEAN, _MAX = 0, 1, 2


@lowers(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def embedding_bag(
    low: Lowering, weight: TensorValue, indices: TensorValue, offsets: TensorValue, by_frequency: bool = False,
    mode: int = _SUM,
    sparse: bool = False, per_sample_weights: TensorValue | None = None, include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[TensorValue, ...]:  # fmt: skip
    """Bag b has the rows from place offsets[b] to offsets[b + 1]; a row that is `padding_idx` counts for nothing.

    The three further results serve torch's backward, and which of them it fills depends on the mode: they are not
    supported.
    """
    if any(user.args[1] != 0 for user in low.node.users):
        raise LoweringUnsupported("a result other than the first, which only its backward reads")
    kind, count, width = wide(weight.dtype), indices.shape[0], weight.shape[1]
    bags = offsets.shape[0] - (1 if include_last_offset else 0)
    indices = low.materialize_if_expensive(indices)
    total = writable(low, low.full((bags, width), float("-inf") if mode == _MAX else 0, kind))
    sizes = writable(low, low.full((bags,), 0, kind))
    if count != 0 and bags != 0:
        starts = tensor_views.slice_dim(_whole(offsets), 0, 0, 1, bags)
        places = TensorValue((count,), "int64", Deferred(lambda ops, index: ops.index(index[0]), 1))
        (after,) = low.routine(
            "search", [starts, places], [((count,), "int64")], (count, bags, count), right=True
        )  # how many bags begin at this place or before it

        def bag(ops: BodyBuilder, index: Index) -> Index:
            mine = ops.call("sub", after.load(ops, index[:1]), ops.const(1, "int64"))
            return (ops.as_index(ops.call("max", mine, ops.const(0, "int64")), bags),)

        def counts(ops: BodyBuilder, index: Index) -> int:
            row = ops.cast(indices.load(ops, index[:1]), "int64")
            return ops.call("ne", row, ops.const(padding_idx, "int64"))

        def value(ops: BodyBuilder, index: Index) -> int:
            row = ops.check_index(indices.load(ops, index[:1]), weight.shape[0], wraps=False)
            found = ops.cast(weight.load(ops, (row, index[1])), kind)
            if per_sample_weights is not None:
                found = ops.call("mul", found, ops.cast(per_sample_weights.load(ops, index[:1]), kind))
            nothing = ops.const(float("-inf") if mode == _MAX else 0, kind)
            return ops.where(counts(ops, index), found, nothing)

        low.scatter(
            total,
            (count, width),
            lambda ops, index: ((*bag(ops, index), index[1]), value(ops, index)),
            "max" if mode == _MAX else "add",
        )
        low.scatter(sizes, (count,), lambda ops, index: (bag(ops, index), ops.cast(counts(ops, index), kind)), "add")

    def load(ops: BodyBuilder, index: Index) -> int:
        found, size = total.load(ops, index), sizes.load(ops, index[:1])
        if mode == _MEAN:
            return ops.call("div", found, ops.call("max", size, ops.const(1, kind)))
        if mode == _MAX:
            return ops.where(ops.call("eq", size, ops.const(0, kind)), ops.const(0, kind), found)
        return found

    made = narrow(TensorValue((bags, width), kind, Deferred(load, 4)), weight.dtype)
    return made, made, made, made


def _whole(x: TensorValue) -> TensorValue:
    return TensorValue(x.shape, "int64", Deferred(lambda ops, index: ops.cast(x.load(ops, index), "int64"), x.cost))
