"""Views as text for golden files, and views taken apart for checks."""

from __future__ import annotations

from typing import Any

from ingot.viewer.pools import decode_runs

Data = dict[str, Any]


def nodes_of(stage: Data) -> list[int]:
    """The nodes of all graphs of a stage."""
    return [index for graph in stage["graphs"] for index in decode_runs(graph["nodes"])]


def links_of(data: Data) -> list[int]:
    """The link of each line of the pool."""
    runs = data["lines"]["link"]
    return [link for link, count in zip(runs[::2], runs[1::2], strict=True) for _ in range(count)]


def lines_of(data: Data, text: Data) -> list[tuple[int, str]]:
    """Each line of a text with its link."""
    links, strings, places = links_of(data), data["lines"]["strings"], data["lines"]["text"]
    return [(links[index], strings[places[index]]) for index in decode_runs(text["lines"])]


def graph_stages(data: Data) -> list[Data]:
    return [stage for stage in data["stages"] if stage["kind"] == "graph"]


def print_view(data: Data) -> str:
    """Everything that is the same in every run: no times, no text of the runtime library."""
    lines = [f"{data['title']} ({data['origin']}, {data['target']})", ""]
    lines += [f"file {file['name']}" for file in data["files"]]
    lines += [f"module {m['call'] or '(root)'}: {m['type']}, in {m['parent']}" for m in data["modules"]]
    lines += [f"place {number}: {place}" for number, place in enumerate(data["places"])]
    lines += [f"input {item['path']}: {data['types'][item['type']]['text']}" for item in data["inputs"]]
    lines += [f"output {item['path']}: {data['types'][item['type']]['text']}" for item in data["outputs"]]
    lines += [f"dim {dim['text']}" for dim in data["dims"]]
    lines += [f"needs {item['text']}, asked at {item['place']}" for item in data["constraints"]]
    lines += ["", *(_print_node(number, node) for number, node in enumerate(data["nodes"])), ""]
    for stage in data["stages"]:
        changes = "" if stage["changes"] is None else f", {stage['changes']} changes"
        check = "" if stage["check"] is None else f", {stage['check']['agrees']}"
        lines.append(f"{stage['group']}: {stage['name']} ({stage['kind']}){changes}{check}")
        for graph in stage["graphs"]:
            lines.append(
                f"    graph {graph['path'] or '(root)'} in {graph['parent']} by {graph['caller']}: {graph['nodes']}"
            )
        if stage["delta"] is not None and any(stage["delta"].values()):
            lines.append(f"    delta {stage['delta']}")
        if stage["kind"] == "loop_ir":
            lines.append(f"    steps {stage['steps']}")
    lines += ["", *(f"origin {number}: {_print_origin(item)}" for number, item in enumerate(data["origins"]))]
    lines += [
        f"kernel {kernel['name']}: origins {kernel['origins']}, {kernel['launches']} launches"
        for kernel in data["kernels"]
    ]
    return "\n".join(lines) + "\n"


def _print_node(number: int, node: Data) -> str:
    regions = f", calls {', '.join(node['regions'])}" if node["regions"] else ""
    return f"{number}: {node['kind']} {node['target']} at {node['place']}: {node['text']} <- {node['inputs']}{regions}"


def _print_origin(origin: Data) -> str:
    return f"{origin['text']} at {origin['place']}: nodes {origin['nodes']}, inlined {origin['inlined']}"
