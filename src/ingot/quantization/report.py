"""Quantization error by layer: the noise that each adds, and how much of its range is used.

    report(program, quantized, batches)                     prints a table with bars, returns it
    report(program, quantized, batches).save("report.html")

*own* is the signal-to-noise ratio of a layer by itself: its inputs are the float program's, quantized, and its result
is compared with the float program's. *total* is that of the quantized program at this place, with all that was lost
before. *range use* is the share of its numbers that an activation takes; *clipped* the share of values beyond them.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from os import PathLike
from statistics import median
from typing import Any, TypeAlias

import torch
from rich.console import Console
from rich.table import Table as Printed
from torch import fx, nn

from ingot import torch_internals as internals
from ingot.errors import QuantizeError, format_error
from ingot.ir import execution, metadata
from ingot.ir.program import Program, check_program
from ingot.quantization.calibration import bar, feed
from ingot.quantization.error_histogram import ErrorCounter, ErrorHistogram
from ingot.quantization.prepare import prepare_for_evaluation
from ingot.quantization.quantizable_ops import JOINING, PRODUCTS
from ingot.quantization.quantization_plan import Edge, nodes_by_place
from ingot_runtime.files import write_file

LOUD = 20.0  # decibels: a layer that keeps less by itself is worth leaving in float
APART = 10.0  # as is one that is this much worse than most
FULL = 50.0  # decibels that fill a bar

Values: TypeAlias = dict[str, Any]  # what the nodes of a graph gave in one call, by their names
# What calls the graphs that it is given, with tensors; others show them batches of batches.
hop = torch.ops.higher_order
_CALLING = frozenset(
    (hop.cond, hop.while_loop, hop.scan, hop.map_impl, hop.wrap_with_autocast, hop.wrap_with_set_grad_enabled)
)


@dataclass(frozen=True, slots=True)
class LayerReport:
    """One quantized operator, and the errors of its result. `node` is its name, behind the path of its graph.
    Histograms are of the differences from the float program's numbers, None where there are none."""

    node: str
    path: str
    operator: str
    own: float
    total: float
    range_use: float | None
    clipped: float | None
    own_errors: ErrorHistogram | None = None
    total_errors: ErrorHistogram | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """Every quantized layer, in the order of the program; `result` is the signal-to-noise ratio of the results."""

    layers: tuple[LayerReport, ...]
    result: float

    @property
    def worth_leaving(self) -> tuple[LayerReport, ...]:
        """The layers that lose most by themselves, worst first: candidates to leave in float."""
        if not self.layers:
            return ()
        limit = max(LOUD, median(layer.own for layer in self.layers) - APART)
        return tuple(layer for layer in self.worst() if layer.own < limit)

    def worst(self) -> list[LayerReport]:
        """All layers, those that lose most by themselves first."""
        return sorted(self.layers, key=lambda layer: layer.own)

    def __rich__(self) -> Printed:
        leave = set(self.worth_leaving)
        table = Printed(
            title=f"signal to noise of the results: {_decibels(self.result)}",
            caption="own: by itself. total: with what was lost before. * worth leaving in float",
        )
        for name in ("layer", "operator", "own", "", "total", "range use", "clipped"):
            table.add_column(name, justify="left" if name in ("layer", "operator", "") else "right")
        for layer in self.layers:
            mark = "*" if layer in leave else ""
            table.add_row(
                f"{layer.path or layer.node}{mark}",
                layer.operator,
                _decibels(layer.own),
                _bar(layer.own),
                _decibels(layer.total),
                _percent(layer.range_use),
                _percent(layer.clipped),
                style="red" if mark else None,
            )
        return table

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the report as one HTML page with its bars as SVG."""
        write_file(path, _page(self), "the report")


@dataclass(slots=True)
class _Sums:
    """What was seen of one layer."""

    signal: float = 0.0
    own: float = 0.0
    total: float = 0.0
    least: float = math.inf
    most: float = -math.inf
    numbers: float = 0.0
    clipped: float = 0.0
    values: float = 0.0
    own_errors: ErrorCounter = field(default_factory=ErrorCounter)
    total_errors: ErrorCounter = field(default_factory=ErrorCounter)


@dataclass(slots=True)
class _Seen:
    sums: dict[Edge, _Sums] = field(default_factory=dict)
    signal: float = 0.0
    noise: float = 0.0


def report(
    program: Program,
    quantized: Program,
    data: Iterable[Any],
    *,
    limit: int | None = None,
    call: Callable[[Any, Any], Any] = feed,
    show: bool = True,
    html: str | PathLike[str] | None = None,
) -> Report:
    """Runs both programs on data, compares them layer by layer, prints a table, and returns the result.

    `program` is the float program of `quantized`. `html` names a file for the report as an HTML page. `data` is as in
    `calibrate`. Raises QuantizeError if no layer of `quantized` is quantized, or if there is no data.
    """
    check_program(program, "report")
    check_program(quantized, "report")
    base = prepare_for_evaluation(program)
    layers = {place: node for place, node in nodes_by_place(quantized).items() if _is_layer(node)}
    if not layers:
        raise QuantizeError(format_error("This program has no quantized layer.", fix="give what `convert` returned"))
    seen = _Seen({place: _Sums() for place in layers})
    count = 0
    with torch.no_grad(), bar("comparing", limit, shown=show) as step:
        for item in data:
            if limit is not None and count >= limit:
                break
            call(lambda *args, **kwargs: _compare(base, quantized, layers, args, kwargs, seen), item)
            count += 1
            step()
    if not count:
        raise QuantizeError(format_error("There is no data to compare with.", fix="give one item at least"))
    rows = tuple(_layer(place, node, seen.sums[place]) for place, node in layers.items())
    made = Report(rows, _ratio(seen.signal, seen.noise))
    if show:
        Console().print(made)
    if html is not None:
        made.save(html)
    return made


def _is_layer(node: fx.Node) -> bool:
    return (node.target in PRODUCTS or node.target in JOINING) and any(map(_is_dequantize, node.all_input_nodes))


def _is_dequantize(node: fx.Node) -> bool:
    return str(node.target).startswith("quantized_decomposed.dequantize")


def _layer(place: Edge, node: fx.Node, sums: _Sums) -> LayerReport:
    use = None if not sums.values else (sums.most - sums.least + 1) / sums.numbers
    return LayerReport(
        str(place),
        metadata.module_path_of(node),
        str(node.target).split(".")[1],
        _ratio(sums.signal, sums.own),
        _ratio(sums.signal, sums.total),
        use,
        None if not sums.values else sums.clipped / sums.values,
        sums.own_errors.finish(),
        sums.total_errors.finish(),
    )


def _ratio(signal: float, noise: float) -> float:
    return math.inf if noise == 0 else 10 * math.log10(signal / noise) if signal else -math.inf


def _power(tensor: torch.Tensor) -> float:
    return float(tensor.double().square().sum())


# ---------------------------------------------------------------------- running both


def _compare(
    base: Program,
    quantized: Program,
    layers: dict[Edge, fx.Node],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    seen: _Seen,
) -> None:
    expected, floats = _run(base, args, kwargs)
    got, whole = _run(quantized, args, kwargs)
    for a, b in zip(metadata.tensors_in(expected), metadata.tensors_in(got), strict=True):
        if a.is_floating_point():
            seen.signal += _power(a)
            seen.noise += _power(a - b)
    for place, node in layers.items():
        # a branch that only one of them took, or an iteration that only one of them ran, is not compared
        for before, after in zip(floats.get(place.graph, ()), whole.get(place.graph, ()), strict=False):
            if node.name in before:
                _measure(node, before, after, seen.sums[place])


def _measure(node: fx.Node, floats: Values, whole: Values, sums: _Sums) -> None:
    expected = floats[node.name]
    sums.signal += _power(expected)
    total, own = whole[node.name] - expected, _run_node(node, floats, whole) - expected
    sums.total += _power(total)
    sums.own += _power(own)
    sums.total_errors.add(total)
    sums.own_errors.add(own)
    for source in node.all_input_nodes:
        numbers: Any = source.args[0] if _is_dequantize(source) else None
        if isinstance(numbers, fx.Node) and numbers.target is internals.quantized_operator("quantize_per_tensor"):
            _measure_range(numbers, whole, sums)


def _measure_range(node: fx.Node, whole: Values, sums: _Sums) -> None:
    """How far an activation's numbers reach; of several activations of a layer, the one that reaches furthest."""
    arguments: Any = node.args
    source, scale, zero, low, high, _ = arguments
    numbers, values = whole[node.name], whole[source.name]
    least, most = (int(x) for x in torch.aminmax(numbers))
    sums.least, sums.most = min(sums.least, least), max(sums.most, most)
    sums.numbers = max(sums.numbers, high - low + 1)
    beyond = (values < (low - zero - 0.5) * scale) | (values > (high - zero + 0.5) * scale)
    sums.clipped += float(beyond.sum())
    sums.values += numbers.numel()


def _alone(node: fx.Node, floats: Values, whole: Values) -> Any:
    """An argument of a layer as it would be if nothing before had been quantized."""
    if node.name in floats:
        return floats[node.name]
    if node.op != "call_function" or not any(n.name in floats or n.args for n in node.all_input_nodes):
        return whole[node.name]
    return _run_node(node, floats, whole)


def _run_node(node: fx.Node, floats: Values, whole: Values) -> Any:
    """What a node gives if nothing before had been quantized."""
    target: Any = node.target
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: _alone(n, floats, whole))
    return target(*args, **kwargs)


def _run(program: Program, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, list[Values]]]:
    """The results of a program, and what every node of every graph gave, by the graph's path and call by call."""
    leaves = execution.check_call(program, args, kwargs)
    specs = program.signature.user_inputs
    given = [leaf for leaf, spec in zip(leaves, specs, strict=True) if spec.name]
    state = [program.state_of(spec).detach() for spec in program.signature.state_inputs]
    runs: dict[str, list[Values]] = {}
    watched = _Watched(program.graph_module, "", runs)
    return watched(*execution.tokens_of(program), *state, *given), runs


class _Watched(nn.Module):
    """A graph that takes down, call by call, what its nodes give; the graphs that its nodes call do as well."""

    def __init__(self, module: fx.GraphModule, path: str, runs: dict[str, list[Values]]) -> None:
        super().__init__()
        self.module, self.path, self.runs = module, path, runs

    def forward(self, *args: Any) -> Any:
        values: Values = {}
        self.runs.setdefault(self.path, []).append(values)
        return _Watching(self.module, self.path, self.runs, values).run(*args, enable_io_processing=False)


class _Watching(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, path: str, runs: dict[str, list[Values]], values: Values) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.path, self.runs, self.values = path, runs, values

    def run_node(self, n: fx.Node) -> Any:
        made = super().run_node(n)
        if isinstance(made, fx.GraphModule) and all(user.target in _CALLING for user in n.users):
            made = _Watched(made, f"{self.path}.{n.target}" if self.path else str(n.target), self.runs)
        if n.op != "output":
            self.values[n.name] = made
        return made


# ---------------------------------------------------------------------- showing it


def _decibels(value: float) -> str:
    return "exact" if value == math.inf else f"{value:.1f} dB"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def _bar(value: float, width: int = 12) -> str:
    return "█" * round(width * min(max(value, 0.0), FULL) / FULL)


def _page(made: Report) -> str:
    """One page, with nothing to load."""
    leave = set(made.worth_leaving)
    rows = []
    for layer in made.layers:
        filled = 200 * min(max(layer.own, 0.0), FULL) / FULL
        color = "#c0392b" if layer in leave else "#2e86c1"
        plot = f'<svg width="200" height="12"><rect width="{filled:.0f}" height="12" fill="{color}"/></svg>'
        cells = [html.escape(layer.path or layer.node), layer.operator, _decibels(layer.own), plot]
        cells += [_decibels(layer.total), _percent(layer.range_use), _percent(layer.clipped)]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    names = ("layer", "operator", "own", "", "total", "range use", "clipped")
    head = "".join(f"<th>{name}</th>" for name in names)
    return (
        '<!doctype html><meta charset="utf-8"><title>Quantization</title>'
        "<style>body{font-family:sans-serif}td,th{padding:2px 10px;text-align:left}</style>"
        f"<h1>Signal to noise of the results: {_decibels(made.result)}</h1>"
        f"<p>Red layers are worth leaving in float.</p><table><tr>{head}</tr>{''.join(rows)}</table>\n"
    )
