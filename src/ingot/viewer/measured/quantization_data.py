"""What each quantized layer loses, as data: the report of `ingot.quantize.report`, and the errors of every layer."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ingot.quantization.error_histogram import ErrorHistogram
from ingot.quantization.report import LayerReport, Report
from ingot.viewer.view_data import NOWHERE, Json, ViewData


def describe_quantization(view: ViewData, report: Report) -> Json:
    """The report, with the nodes of the view's first stage where they have the names that it says."""
    first = next((stage for stage in view.stages if stage["kind"] == "graph"), None)
    indexes: dict[str, int] = {}
    if first is not None:
        from ingot.viewer.pools import decode_runs

        for graph in reversed(first["graphs"]):
            for index in decode_runs(graph["nodes"]):
                name = view.nodes.items[index]["name"]
                indexes[f"{graph['path']}.{name}" if graph["path"] else name] = index
    leave = set(report.worth_leaving)
    return {
        "result": _number(report.result),
        "text": "exact" if report.result == math.inf else f"{report.result:.1f} dB",
        "layers": [_describe_layer(view, layer, indexes, layer in leave) for layer in report.layers],
    }


def _describe_layer(view: ViewData, layer: LayerReport, indexes: Mapping[str, int], leave: bool) -> Json:
    node = indexes.get(layer.node, NOWHERE)
    return {
        "node": node,
        "name": layer.node,
        "module": layer.path,
        "operator": layer.operator,
        "own": _number(layer.own),
        "total": _number(layer.total),
        "range_use": layer.range_use,
        "clipped": layer.clipped,
        "worth_leaving": leave,
        "values": (view.stats.get(node) or {}).get("histogram"),
        "own_errors": _describe_histogram(layer.own_errors),
        "total_errors": _describe_histogram(layer.total_errors),
    }


def _describe_histogram(histogram: ErrorHistogram | None) -> Json:
    if histogram is None:
        return None
    return {"low": histogram.low, "high": histogram.high, "counts": list(histogram.counts)}


def _number(decibels: float) -> float | None:
    """None of a layer that is exact."""
    return decibels if math.isfinite(decibels) else None
