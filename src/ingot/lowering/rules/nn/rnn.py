"""Recurrent layers as loops over time: the inputs' part of the gates is one product before the loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ingot.lowering import tensor_views
from ingot.lowering.index_expr import size_symbol
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.loop_ir import For, Loop
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.rules.control_flow import memory
from ingot.lowering.rules.linalg.matmul import as_rows, matmul
from ingot.lowering.tensor_views import Deferred, Index, TensorValue
from ingot.lowering.unsupported import LoweringUnsupported

aten = torch.ops.aten

# From the gates' parts by input and by state, each [batch, gates · hidden], and the state, to the next state.
Cell = Callable[[Lowering, TensorValue, TensorValue, Sequence[TensorValue]], list[TensorValue]]


@dataclass(frozen=True, slots=True)
class _Weights:
    """One direction of one layer."""

    of_input: TensorValue
    of_state: TensorValue
    input_bias: TensorValue | None
    state_bias: TensorValue | None
    projection: TensorValue | None


def _element(
    like: TensorValue, compute: Callable[[BodyBuilder, Index, Callable[[TensorValue, int], int]], int], cost: int
) -> TensorValue:
    """A tensor of the state's shape; compute(ops, index, gate) where gate(t, k) is t's element of gate number k."""
    hidden = like.shape[1]

    def load(ops: BodyBuilder, index: Index) -> int:
        return compute(ops, index, lambda t, k: t.load(ops, (index[0], index[1] + k * hidden)))

    return TensorValue(like.shape, like.dtype, Deferred(load, cost))


def _lstm(
    low: Lowering, by_input: TensorValue, by_state: TensorValue, state: Sequence[TensorValue]
) -> list[TensorValue]:
    _, cell = state

    def gate(ops: BodyBuilder, of: Callable[[TensorValue, int], int], number: int, function: str) -> int:
        return ops.call(function, ops.call("add", of(by_input, number), of(by_state, number)))

    def next_cell(ops: BodyBuilder, index: Index, of: Callable[[TensorValue, int], int]) -> int:
        taken, kept, new = gate(ops, of, 0, "sigmoid"), gate(ops, of, 1, "sigmoid"), gate(ops, of, 2, "tanh")
        return ops.call("add", ops.call("mul", kept, cell.load(ops, index)), ops.call("mul", taken, new))

    after = low.realize(_element(cell, next_cell, 40))

    def next_hidden(ops: BodyBuilder, index: Index, of: Callable[[TensorValue, int], int]) -> int:
        return ops.call("mul", gate(ops, of, 3, "sigmoid"), ops.call("tanh", after.load(ops, index)))

    return [low.realize(_element(cell, next_hidden, 30)), after]


def _gru(
    low: Lowering, by_input: TensorValue, by_state: TensorValue, state: Sequence[TensorValue]
) -> list[TensorValue]:
    (hidden,) = state

    def next_hidden(ops: BodyBuilder, index: Index, of: Callable[[TensorValue, int], int]) -> int:
        reset, update = (
            ops.call("sigmoid", ops.call("add", of(by_input, number), of(by_state, number))) for number in (0, 1)
        )
        new = ops.call("tanh", ops.call("add", of(by_input, 2), ops.call("mul", reset, of(by_state, 2))))
        old = hidden.load(ops, index)
        return ops.call("add", ops.call("mul", ops.call("sub", old, new), update), new)

    return [low.realize(_element(hidden, next_hidden, 40))]


def _plain(function: str) -> Cell:
    def cell(
        low: Lowering, by_input: TensorValue, by_state: TensorValue, state: Sequence[TensorValue]
    ) -> list[TensorValue]:
        def next_hidden(ops: BodyBuilder, index: Index, of: Callable[[TensorValue, int], int]) -> int:
            return ops.call(function, ops.call("add", of(by_input, 0), of(by_state, 0)))

        return [low.realize(_element(state[0], next_hidden, 12))]

    return cell


def _iterate_time(
    low: Lowering,
    x: TensorValue,
    start: Sequence[TensorValue],
    weights: _Weights,
    cell: Cell,
    out: TensorValue,
    reverse: bool,
) -> list[TensorValue]:
    """One direction of one layer: writes every step's hidden state to `out`, and returns the last states."""
    length, batch = x.shape[0], x.shape[1]
    flat = matmul(low, as_rows(low, x), tensor_views.permute(weights.of_input, (1, 0)), weights.input_bias)
    gates = tensor_views.reshape(flat, (length, batch, weights.of_input.shape[0]), low.hint)
    homes = [memory(low, s.shape, s.dtype) for s in start]
    for home, first in zip(homes, start, strict=True):
        low.write(home, first)
    name = low.new_symbol()
    turn = size_symbol(name, below=length)
    at = length - 1 - turn if reverse else turn
    outer, low.steps = low.steps, []
    by_state = matmul(low, homes[0], tensor_views.permute(weights.of_state, (1, 0)), weights.state_bias)
    made = cell(low, tensor_views.select(gates, 0, at), by_state, homes)
    if weights.projection is not None:
        made[0] = matmul(low, made[0], tensor_views.permute(weights.projection, (1, 0)))
    for home, value in zip(homes, made, strict=True):
        low.write(home, value)
    low.write(tensor_views.select(out, 0, at), made[0])
    steps, low.steps = low.steps, outer
    low.steps.append(For(Loop(name, length), tuple(steps), low.origin))
    return homes


def _layers(
    low: Lowering, x: TensorValue, start: Sequence[TensorValue], params: Sequence[TensorValue], biases: bool,
    layers: int,
    dropout: float, train: bool, both_ways: bool, batch_first: bool, cell: Cell
) -> list[TensorValue]:  # fmt: skip
    if train and dropout and layers > 1:
        raise LoweringUnsupported("dropout between the layers of a recurrent module in training")
    dtype, ways = low.out_dtype, 1 + both_ways
    x = tensor_views.permute(x, (1, 0, 2)) if batch_first else x
    each = len(params) // (layers * ways)
    ends = [memory(low, s.shape, dtype) for s in start]
    for layer in range(layers):
        sets = [_weights(params[(layer * ways + way) * each :][:each], biases) for way in range(ways)]
        wide_ = start[0].shape[2]
        out = memory(low, (x.shape[0], x.shape[1], wide_ * ways), dtype)
        for way, weights in enumerate(sets):
            number = layer * ways + way
            first = [tensor_views.select(s, 0, number) for s in start]
            mine = tensor_views.slice_dim(out, 2, way * wide_, 1, wide_)
            last = _iterate_time(low, x, first, weights, cell, mine, way == 1)
            for end, value in zip(ends, last, strict=True):
                low.write(tensor_views.select(end, 0, number), value)
        x = out
    return [tensor_views.permute(x, (1, 0, 2)) if batch_first else x, *ends]


def _weights(params: Sequence[TensorValue], biases: bool) -> _Weights:
    of_input, of_state, *rest = params
    input_bias, state_bias = rest[:2] if biases else (None, None)
    projections = rest[2:] if biases else rest
    return _Weights(of_input, of_state, input_bias, state_bias, projections[0] if projections else None)


@lowers(whole=[aten.lstm.input])
def lstm(
    low: Lowering, x: TensorValue, start: Sequence[TensorValue], params: Sequence[TensorValue], biases: bool,
    layers: int,
    dropout: float, train: bool, both_ways: bool, batch_first: bool
) -> list[TensorValue]:  # fmt: skip
    return _layers(low, x, start, params, biases, layers, dropout, train, both_ways, batch_first, _lstm)


def _single(cell: Cell) -> Callable[..., list[TensorValue]]:
    def rule(
        low: Lowering, x: TensorValue, start: TensorValue, params: Sequence[TensorValue], biases: bool, layers: int,
        dropout: float, train: bool, both_ways: bool, batch_first: bool
    ) -> list[TensorValue]:  # fmt: skip
        return _layers(low, x, [start], params, biases, layers, dropout, train, both_ways, batch_first, cell)

    return rule


lowers(whole=[aten.gru.input])(_single(_gru))
lowers(whole=[aten.rnn_tanh.input])(_single(_plain("tanh")))
lowers(whole=[aten.rnn_relu.input])(_single(_plain("relu")))
