"""LSTM, GRU and plain recurrent layers: one node a layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ingot.ir.metadata import value_of
from ingot.onnx.exporter import Exporter
from ingot.onnx.registry import exports
from ingot.onnx.values import OnnxValue

aten = torch.ops.aten

# Where torch has each gate that ONNX wants, in ONNX's order: input, output, forget, cell; update, reset, hidden.
_ORDER = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}


def _plain(node: Any) -> bool:
    """Without dropout between layers or projections, which ONNX does not have, and not in float64: runtimes lack it."""
    x, state, weights, biases, layers, dropout, train, both, *_ = node.args
    each = len(weights) // (layers * (1 + int(both)))
    hidden = state[0] if isinstance(state, list | tuple) else state
    fits = value_of(hidden).shape[-1] == value_of(weights[1]).shape[-1]
    cell = value_of(state[1]).shape[-1] == value_of(hidden).shape[-1] if isinstance(state, list | tuple) else True
    runs = value_of(x).dtype is not torch.float64 and all(size != 0 for size in value_of(x).shape)
    return bool(each == (4 if biases else 2) and fits and cell and runs and (not train or not dropout or layers == 1))


def _recurrent(kind: str, activation: str | None = None) -> Any:
    def rule(
        ex: Exporter, x: OnnxValue, state: Any, weights: Sequence[OnnxValue], biases: bool, layers: int, dropout: float,
        train: bool, both: bool, batch_first: bool,
    ) -> list[OnnxValue]:  # fmt: skip
        states = list(state) if isinstance(state, list | tuple) else [state]
        ways = 1 + int(both)
        each = len(weights) // (layers * ways)
        x = ex.transpose(x, [1, 0, 2]) if batch_first else x
        width = states[0].sizes[-1]
        last: list[list[OnnxValue]] = [[] for _ in states]
        for layer in range(layers):
            own = [weights[(layer * ways + way) * each : (layer * ways + way + 1) * each] for way in range(ways)]
            begin = [ex.slice(part, 0, layer * ways, (layer + 1) * ways) for part in states] if layers > 1 else states
            made = ex.several(
                kind,
                1 + len(states),
                x,
                _join(ex, [_gates(ex, kind, w[0], width) for w in own]),
                _join(ex, [_gates(ex, kind, w[1], width) for w in own]),
                _join(ex, [_biases(ex, kind, w[2], w[3], width) for w in own]) if biases else None,
                None,
                *begin,
                hidden_size=int(width),
                direction="bidirectional" if both else "forward",
                linear_before_reset=1 if kind == "GRU" else None,
                activations=[activation] * ways if activation else None,
            )
            out, *ends = made
            # [time, ways, batch, width] to [time, batch, ways · width]
            turned = ex.op("Transpose", out, perm=[0, 2, 1, 3])
            x = ex.op("Reshape", turned, ex.ints([0, 0, -1]))
            for found, end in zip(last, ends, strict=True):
                found.append(end)
        x = ex.op("Transpose", x, perm=[1, 0, 2]) if batch_first else x
        return [x, *(ends[0] if len(ends) == 1 else ex.op("Concat", *ends, axis=0) for ends in last)]

    return rule


def _gates(ex: Exporter, kind: str, weight: OnnxValue, width: Any) -> OnnxValue:
    """The rows of a weight or a bias, gate by gate in ONNX's order."""
    order = _ORDER[kind]
    if len(order) == 1:
        return weight
    parts = ex.several("Split", len(order), weight, axis=0, num_outputs=len(order))
    return ex.op("Concat", *(parts[place] for place in order), axis=0)


def _biases(ex: Exporter, kind: str, first: OnnxValue, second: OnnxValue, width: Any) -> OnnxValue:
    return ex.op("Concat", _gates(ex, kind, first, width), _gates(ex, kind, second, width), axis=0)


def _join(ex: Exporter, parts: Sequence[OnnxValue]) -> OnnxValue:
    """One for each way, along a new first dim."""
    wide = [ex.unsqueeze(part, 0) for part in parts]
    return wide[0] if len(wide) == 1 else ex.op("Concat", *wide, axis=0)


exports(aten.lstm.input, takes=_plain)(_recurrent("LSTM"))
exports(aten.gru.input, takes=_plain)(_recurrent("GRU"))
exports(aten.rnn_tanh.input, takes=_plain)(_recurrent("RNN", "Tanh"))
exports(aten.rnn_relu.input, takes=_plain)(_recurrent("RNN", "Relu"))
