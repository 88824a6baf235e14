"""Recurrent layers as loops over time: the inputs' part of the gates is one product before the loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ingot.lowering import values
from ingot.lowering.body import Recorder
from ingot.lowering.expr import symbol
from ingot.lowering.ir import Loop, Repeat
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.refusing import Unsupported
from ingot.lowering.rules.control import memory
from ingot.lowering.rules.products import as_rows, matmul
from ingot.lowering.values import Index, Lazy, Tensor

aten = torch.ops.aten

# From the gates' parts by input and by state, each [batch, gates · hidden], and the state, to the next state.
Cell = Callable[[Lowering, Tensor, Tensor, Sequence[Tensor]], list[Tensor]]


@dataclass(frozen=True, slots=True)
class _Weights:
    """One direction of one layer."""

    of_input: Tensor
    of_state: Tensor
    input_bias: Tensor | None
    state_bias: Tensor | None
    projection: Tensor | None


def _element(
    like: Tensor, compute: Callable[[Recorder, Index, Callable[[Tensor, int], int]], int], cost: int
) -> Tensor:
    """A tensor of the state's shape; compute(ops, index, gate) where gate(t, k) is t's element of gate number k."""
    hidden = like.shape[1]

    def load(ops: Recorder, index: Index) -> int:
        return compute(ops, index, lambda t, k: t.load(ops, (index[0], index[1] + k * hidden)))

    return Tensor(like.shape, like.dtype, Lazy(load, cost))


def _lstm(low: Lowering, by_input: Tensor, by_state: Tensor, state: Sequence[Tensor]) -> list[Tensor]:
    _, cell = state

    def gate(ops: Recorder, of: Callable[[Tensor, int], int], number: int, function: str) -> int:
        return ops.call(function, ops.call("add", of(by_input, number), of(by_state, number)))

    def next_cell(ops: Recorder, index: Index, of: Callable[[Tensor, int], int]) -> int:
        taken, kept, new = gate(ops, of, 0, "sigmoid"), gate(ops, of, 1, "sigmoid"), gate(ops, of, 2, "tanh")
        return ops.call("add", ops.call("mul", kept, cell.load(ops, index)), ops.call("mul", taken, new))

    after = low.realize(_element(cell, next_cell, 40))

    def next_hidden(ops: Recorder, index: Index, of: Callable[[Tensor, int], int]) -> int:
        return ops.call("mul", gate(ops, of, 3, "sigmoid"), ops.call("tanh", after.load(ops, index)))

    return [low.realize(_element(cell, next_hidden, 30)), after]


def _gru(low: Lowering, by_input: Tensor, by_state: Tensor, state: Sequence[Tensor]) -> list[Tensor]:
    (hidden,) = state

    def next_hidden(ops: Recorder, index: Index, of: Callable[[Tensor, int], int]) -> int:
        reset, update = (
            ops.call("sigmoid", ops.call("add", of(by_input, number), of(by_state, number))) for number in (0, 1)
        )
        new = ops.call("tanh", ops.call("add", of(by_input, 2), ops.call("mul", reset, of(by_state, 2))))
        old = hidden.load(ops, index)
        return ops.call("add", ops.call("mul", ops.call("sub", old, new), update), new)

    return [low.realize(_element(hidden, next_hidden, 40))]


def _plain(function: str) -> Cell:
    def cell(low: Lowering, by_input: Tensor, by_state: Tensor, state: Sequence[Tensor]) -> list[Tensor]:
        def next_hidden(ops: Recorder, index: Index, of: Callable[[Tensor, int], int]) -> int:
            return ops.call(function, ops.call("add", of(by_input, 0), of(by_state, 0)))

        return [low.realize(_element(state[0], next_hidden, 12))]

    return cell


def _over_time(
    low: Lowering, x: Tensor, start: Sequence[Tensor], weights: _Weights, cell: Cell, out: Tensor, reverse: bool
) -> list[Tensor]:
    """One direction of one layer: writes every step's hidden state to `out`, and gives the last states."""
    length, batch = x.shape[0], x.shape[1]
    flat = matmul(low, as_rows(low, x), values.permute(weights.of_input, (1, 0)), weights.input_bias)
    gates = values.reshape(flat, (length, batch, weights.of_input.shape[0]), low.hint)
    homes = [memory(low, s.shape, s.dtype) for s in start]
    for home, first in zip(homes, start, strict=True):
        low.write(home, first)
    name = low.new_symbol()
    turn = symbol(name, below=length)
    at = length - 1 - turn if reverse else turn
    outer, low.steps = low.steps, []
    by_state = matmul(low, homes[0], values.permute(weights.of_state, (1, 0)), weights.state_bias)
    made = cell(low, values.select(gates, 0, at), by_state, homes)
    if weights.projection is not None:
        made[0] = matmul(low, made[0], values.permute(weights.projection, (1, 0)))
    for home, value in zip(homes, made, strict=True):
        low.write(home, value)
    low.write(values.select(out, 0, at), made[0])
    steps, low.steps = low.steps, outer
    low.steps.append(Repeat(Loop(name, length), tuple(steps), low.origin))
    return homes


def _layers(
    low: Lowering, x: Tensor, start: Sequence[Tensor], params: Sequence[Tensor], biases: bool, layers: int,
    dropout: float, train: bool, both_ways: bool, batch_first: bool, cell: Cell
) -> list[Tensor]:  # fmt: skip
    if train and dropout and layers > 1:
        raise Unsupported("dropout between the layers of a recurrent module in training")
    dtype, ways = low.out_dtype, 1 + both_ways
    x = values.permute(x, (1, 0, 2)) if batch_first else x
    each = len(params) // (layers * ways)
    ends = [memory(low, s.shape, dtype) for s in start]
    for layer in range(layers):
        sets = [_weights(params[(layer * ways + way) * each :][:each], biases) for way in range(ways)]
        wide_ = start[0].shape[2]
        out = memory(low, (x.shape[0], x.shape[1], wide_ * ways), dtype)
        for way, weights in enumerate(sets):
            number = layer * ways + way
            first = [values.select(s, 0, number) for s in start]
            mine = values.slice_dim(out, 2, way * wide_, 1, wide_)
            last = _over_time(low, x, first, weights, cell, mine, way == 1)
            for end, value in zip(ends, last, strict=True):
                low.write(values.select(end, 0, number), value)
        x = out
    return [values.permute(x, (1, 0, 2)) if batch_first else x, *ends]


def _weights(params: Sequence[Tensor], biases: bool) -> _Weights:
    of_input, of_state, *rest = params
    input_bias, state_bias = rest[:2] if biases else (None, None)
    projections = rest[2:] if biases else rest
    return _Weights(of_input, of_state, input_bias, state_bias, projections[0] if projections else None)


@lowers(aten.lstm.input)
def lstm(
    low: Lowering, x: Tensor, start: Sequence[Tensor], params: Sequence[Tensor], biases: bool, layers: int,
    dropout: float, train: bool, both_ways: bool, batch_first: bool
) -> list[Tensor]:  # fmt: skip
    return _layers(low, x, start, params, biases, layers, dropout, train, both_ways, batch_first, _lstm)


def _single(cell: Cell) -> Callable[..., list[Tensor]]:
    def rule(
        low: Lowering, x: Tensor, start: Tensor, params: Sequence[Tensor], biases: bool, layers: int,
        dropout: float, train: bool, both_ways: bool, batch_first: bool
    ) -> list[Tensor]:  # fmt: skip
        return _layers(low, x, [start], params, biases, layers, dropout, train, both_ways, batch_first, cell)

    return rule


lowers(aten.gru.input)(_single(_gru))
lowers(aten.rnn_tanh.input)(_single(_plain("tanh")))
lowers(aten.rnn_relu.input)(_single(_plain("relu")))
