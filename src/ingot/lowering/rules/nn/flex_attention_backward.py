"""The gradient of attention with a user's score function: in queries, keys, values, and in what the function reads.

A gradient in a table that the function reads is a sum of values at computed places. Inside the function's own
gradient it is never a tensor: `Sparse` says which value goes where, and the kernel adds it there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ingot.lowering.index_expr import Size, symbol
from ingot.lowering.loop_body import BodyBuilder, rewrite
from ingot.lowering.loop_ir import AttentionBackward, Body, Loop, Op, Scatter, Store
from ingot.lowering.lower import Lowering, lowers, rule_of
from ingot.lowering.rules.nn.flex_attention import FlexAttentionCall
from ingot.lowering.subgraph_lowering import lower_results
from ingot.lowering.tensor_views import Deferred, Strided, TensorValue, contiguous_strides
from ingot.lowering.unsupported import LoweringUnsupported
from ingot.registry import Registry

aten = torch.ops.aten
hop = torch.ops.higher_order
# Rules that win over the general ones inside the function's own gradient.
_RULES: Registry[Any, Callable[..., Any]] = Registry("gradient rule")


@dataclass(frozen=True)
class Sparse:
    """A tensor of zeros but for values that are added at places: an index of scalars, as long as the shape."""

    shape: tuple[Size, ...]
    dtype: str
    entries: tuple[tuple[tuple[Any, ...], TensorValue], ...]


@lowers(hop.flex_attention_backward)
def flex_attention_backward(
    low: Lowering,
    q: TensorValue,
    k: TensorValue,
    v: TensorValue,
    out: TensorValue,
    lse: TensorValue,
    grad_out: TensorValue | None,
    grad_lse: TensorValue | None,
    score_mod: fx.GraphModule,
    joint: fx.GraphModule,
    block_mask: Sequence[Any],
    scale: float,
    options: dict[str, Any],
    score_operands: Sequence[Any] = (),
    mask_operands: Sequence[Any] = (),
) -> list[Any]:
    call = FlexAttentionCall(low, q, k, v, block_mask, score_operands, mask_operands)
    depth, columns = q.shape[-1], v.shape[-1]
    if not isinstance(depth, int) or not isinstance(columns, int):
        raise LoweringUnsupported("attention whose depth is dynamic")
    gradient = grad_out if grad_out is not None else low.full(out.shape, 0, out.dtype)
    mask = call.mask()
    bodies = _Bodies(call, score_mod, joint, _natural(low, lse, call.kind), _delta(low, out, gradient, grad_lse, call))
    homes = [_dense(low, tensor) for tensor in (q, k, v)]
    tables, scatters = bodies.make_scatters(low)
    common: dict[str, Any] = {
        "batch": _both_loops(call),
        "queries": call.queries,
        "keys": call.keys,
        "depth": depth,
        "values": columns,
        "scale": scale,
        "heads": q.shape[1] // k.shape[1],
        "images": q.shape[0] // k.shape[0],
        "q": call.matrix(q),
        "k": call.matrix(k),
        "v": call.matrix(v),
        "gradient": call.matrix(gradient),
        "dtype": call.kind,
        "origin": low.origin,
    }
    low.steps.append(
        AttentionBackward(
            side="queries",
            body=bodies.whole(None, weights=False),
            masked=bodies.whole(mask, weights=False) if mask is not None else None,
            tiles=call.tiles(mask, *low.strategy.attention_block) if mask is not None else None,
            first=_name(homes[0]),
            scatter=scatters,
            parts=low.strategy.accumulator_copies,
            **common,
        )
    )
    low.steps.append(
        AttentionBackward(
            side="keys",
            body=bodies.whole(None, weights=True),
            masked=bodies.whole(mask, weights=True) if mask is not None else None,
            tiles=call.tiles(mask, *low.strategy.attention_block[::-1]) if mask is not None else None,
            first=_name(homes[1]),
            second=_name(homes[2]),
            **common,
        )
    )
    return [*homes, [_sum(low, table) if table is not None else None for table in tables]]


def _both_loops(call: FlexAttentionCall) -> tuple[Loop, Loop]:
    """A loop over images and one over heads, also where there is one of them."""
    image, head = (
        Loop(str(place) if place != 0 else name, size)
        for place, name, size in zip(call.at, ("image", "head"), call.q.shape[:2], strict=True)
    )
    return image, head


def _dense(low: Lowering, tensor: TensorValue) -> TensorValue:
    buffer = low.buffer("temporary", tensor.dtype, tensor.shape)
    return TensorValue(tensor.shape, tensor.dtype, Strided(buffer.name, 0, contiguous_strides(tensor.shape)))


def _name(tensor: TensorValue) -> str:
    assert isinstance(tensor.data, Strided)
    return tensor.data.buffer


def _natural(low: Lowering, lse: TensorValue, kind: str) -> TensorValue:
    """The log of the weights' sum; torch hands it over in units of log 2."""

    def load(ops: BodyBuilder, index: Any) -> int:
        return ops.call("mul", ops.cast(lse.load(ops, index), kind), ops.const(math.log(2), kind))

    return low.realize(TensorValue(lse.shape, kind, Deferred(load, 2)))


def _delta(
    low: Lowering, out: TensorValue, gradient: TensorValue, grad_lse: TensorValue | None, call: FlexAttentionCall
) -> TensorValue:
    """Σ out · ∂out of each row, less the gradient of the log of its sum."""
    kind = call.kind

    def both(ops: BodyBuilder, index: Any) -> int:
        return ops.call("mul", *(ops.cast(t.load(ops, index), kind) for t in (out, gradient)))

    (sums,) = low.reduce(
        TensorValue(out.shape, kind, Deferred(both, 3)), (3,), ("sum",), lambda ops, x, index: (x,), (kind,)
    )
    if grad_lse is None:
        return sums

    def load(ops: BodyBuilder, index: Any) -> int:
        more = ops.call("mul", ops.cast(grad_lse.load(ops, index), kind), ops.const(1 / math.log(2), kind))
        return ops.call("sub", sums.load(ops, index), more)

    return low.realize(TensorValue(sums.shape, kind, Deferred(load, 3)))


def _sum(low: Lowering, table: TensorValue) -> TensorValue:
    """The sum of the copies that the parts of the work made, by the type that the table has."""
    (made,) = low.reduce(table, (0,), ("sum",), lambda ops, x, index: (x,), ("float64",))
    return made


class _Bodies:
    """The bodies of both kernels, made of the score's function and of its gradient."""

    def __init__(
        self,
        call: FlexAttentionCall,
        score_mod: fx.GraphModule,
        joint: fx.GraphModule,
        lse: TensorValue,
        delta: TensorValue,
    ) -> None:
        self.call, self.lse, self.delta = call, lse, delta
        self.score = call.score(score_mod)
        inputs = [
            call.value("accumulator"),
            *call.places(),
            call.value("gradient"),
            *call.materialize(call.score_operands),
        ]
        results = lower_results(joint, inputs, around=call.low, extra=_RULES)
        self.slope: TensorValue = results[0]
        self.gradients = [_as_sparse(result) for result in results[5:]]

    def whole(self, mask: Body | None, *, weights: bool) -> Body:
        """From a pair's product and ∂out · v to the product's gradient, its weight, and what tables gain."""
        call, ops = self.call, BodyBuilder()
        product, kind = ops.emit("accumulator", (), call.kind), call.kind
        score = rewrite(self.score, into=ops)[1][0] if self.score is not None else product
        at = (*call.at, symbol("i", below=call.queries))
        lse = self.lse.load(ops, at)
        nothing = ops.const(0, kind)
        weight = ops.call("exp", ops.call("sub", score, lse))
        # A row that sees no key has no weights, and exp(-inf - -inf) would be nan.
        weight = ops.where(ops.call("eq", lse, ops.const(-math.inf, kind)), nothing, weight)
        holds = rewrite(mask, into=ops)[1][0] if mask is not None else None
        if holds is not None:
            weight = ops.where(holds, weight, nothing)
        slope = ops.call("sub", ops.emit("gradient", (), kind), self.delta.load(ops, at))
        slope = ops.call("mul", weight, slope)
        body = self._joint()

        def substitute_gradient(op: Op, operands: tuple[int, ...], into: BodyBuilder) -> int | None:
            return slope if op.name == "gradient" else None

        first, *gains = rewrite(body, into=ops, replace=substitute_gradient)[1]
        made = [ops.cast(value, kind) for value in (first, *gains)]
        if holds is not None:
            made = [ops.where(holds, value, nothing) for value in made]
        return ops.finish([made[0], weight] if weights else made)

    def _joint(self) -> Body:
        ops = BodyBuilder()
        values = [self.slope, *(value for gradient in self.gradients if gradient for _, value in gradient.entries)]
        return ops.finish([value.load(ops, ()) for value in values])

    def make_scatters(self, low: Lowering) -> tuple[list[TensorValue | None], tuple[Scatter, ...]]:
        """Tables of zeros, a copy for each part of the work, and how each value that tables gain gets there."""
        tables: list[TensorValue | None] = []
        scatters: list[Scatter] = []
        for gradient in self.gradients:
            if gradient is None:
                tables.append(None)
                continue
            parts = low.strategy.accumulator_copies
            table = low.realize(low.full((parts, *gradient.shape), 0, "float64"))
            assert isinstance(table.data, Strided)
            for places, _ in gradient.entries:
                ops = BodyBuilder()
                index = [
                    ops.check_index(place.load(ops, ()), size) if isinstance(place, TensorValue) else place
                    for place, size in zip(places, gradient.shape, strict=True)
                ]
                store = Store(table.data.buffer, table.data.offset_at((symbol("part", below=parts), *index)), 0, "add")
                named = [place for place, op in enumerate(ops.ops) if op.name == "bounds_check"]
                scatters.append(Scatter(Body(tuple(ops.ops), tuple(named)), store))
            tables.append(table)
        return tables, tuple(scatters)


# ---------------------------------------------------------------------- gradients of tables


def _as_sparse(result: Any) -> Sparse | None:
    if result is None or isinstance(result, Sparse):
        return result
    if isinstance(result, TensorValue) and not result.rank:
        return Sparse((), result.dtype, (((), result),))
    if isinstance(result, TensorValue) and _is_zero(result):
        return Sparse(result.shape, result.dtype, ())
    raise LoweringUnsupported("a score function whose gradient for a closed-over tensor is not a sum of indexed values")


def _is_zero(tensor: Any) -> bool:
    if not isinstance(tensor, TensorValue):
        return False
    ops = BodyBuilder()
    tensor.load(ops, tuple(symbol(f"z{d}", below=size) for d, size in enumerate(tensor.shape)))
    return len(ops.ops) == 1 and ops.ops[0].name == "const" and not ops.ops[0].attribute.value


def _place(target: Any, places: tuple[Any, ...], values: Any) -> Sparse:
    """Zeros, or what is sparse already, with values added at places of the first dims."""
    if not isinstance(target, Sparse) and not _is_zero(target):
        raise LoweringUnsupported("it adds to something that is not zeros")
    before = target.entries if isinstance(target, Sparse) else ()
    found = _as_sparse(values)
    assert found is not None
    if len(places) + len(found.shape) != len(target.shape):
        raise LoweringUnsupported("it adds a value to many places at once")
    return Sparse(target.shape, found.dtype, (*before, *(((*places, *inner), value) for inner, value in found.entries)))


@_RULES.register(aten.index_put.default)
def _index_put(low: Lowering, x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    return _place(x, tuple(indices), values)


@_RULES.register("flex_lib.zeros_and_scatter.default")  # torch registers it late
def _zeros_and_scatter(low: Lowering, shape: Sequence[Size], indices: Sequence[Any], values: Any) -> Any:
    return _place(low.full(tuple(shape), 0, values.dtype), tuple(indices), values)


@_RULES.register(aten.select_scatter.default)
def _select_scatter(low: Lowering, x: Any, source: Any, dim: int, place: Any) -> Any:
    found = _as_sparse(source)
    assert found is not None
    if not isinstance(x, Sparse) and not _is_zero(x):
        raise LoweringUnsupported("it adds to something that is not zeros")
    dim = dim % len(x.shape)
    entries = tuple(((*at[:dim], place, *at[dim:]), value) for at, value in found.entries)
    return Sparse(x.shape, found.dtype, entries)


@_RULES.register(aten.add.Tensor)
def _add(low: Lowering, a: Any, b: Any, *, alpha: Any = 1) -> Any:
    if not isinstance(a, Sparse) and not isinstance(b, Sparse):
        return _general(aten.add.Tensor)(low, a, b, alpha=alpha)
    left, right = _as_sparse(a), _as_sparse(b)
    assert left is not None and right is not None and alpha == 1
    return Sparse(left.shape, left.dtype, (*left.entries, *right.entries))


def _each(target: Any) -> Callable[..., Any]:
    """The general rule, applied to each value of what is sparse: it must give 0 for 0."""

    def rule(low: Lowering, x: Any, *more: Any, **options: Any) -> Any:
        if not isinstance(x, Sparse):
            return _general(target)(low, x, *more, **options)
        if any(isinstance(value, Sparse) for value in more):
            raise LoweringUnsupported("it multiplies the gradients of two tables")
        made = [(places, _general(target)(low, value, *more, **options)) for places, value in x.entries]
        return Sparse(x.shape, made[0][1].dtype if made else x.dtype, tuple(made))

    return rule


def _general(target: Any) -> Callable[..., Any]:
    rule = rule_of(target)
    assert rule is not None
    return rule


for _target in (
    *(aten.neg.default, aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor),
    *(aten._to_copy.default, aten.alias.default, aten.clone.default),
):
    _RULES.add(_target, _each(_target))
