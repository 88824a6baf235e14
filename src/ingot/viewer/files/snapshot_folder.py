"""A folder of snapshots, as `transform(…, snapshots="folder")` and `ingot capture --passes … --snapshots` write it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ingot.errors import ViewError, format_error
from ingot.viewer.pools import encode_runs
from ingot.viewer.stages.deltas import Listed, compare_stages
from ingot.viewer.view_data import NOWHERE, Call, Json, ViewData

PATTERN = "[0-9][0-9]_*.json"
_SCHEMA = 1
# A folder of files that something else wrote is not read for long.
_MOST_BYTES = 256 << 20
_TENSOR = re.compile(r"(?P<dtype>\w+)\[(?P<dims>[^\[\]]*)\]")
_KINDS = {"placeholder": "input", "output": "output", "get_attr": "constant", "call_module": "call"}


def collect_snapshots(folder: Path) -> ViewData:
    """A view of the graphs in a folder. Raises ViewError where a file is not a snapshot."""
    view = ViewData(folder.name or "snapshots", folder.name, "snapshots")
    listed: list[Listed] = []
    paths = sorted(folder.glob(PATTERN))
    if not paths:
        raise ViewError(
            format_error(
                f"{folder} holds no snapshots.",
                why="their names are like 01_functionalize.json",
                fix="write some: ingot capture MODULE:FACTORY --passes functionalize,decompose --snapshots FOLDER",
            )
        )
    for path in paths:
        data = _read(path)
        try:
            listed = _add(view, data, listed)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise _damage_error(path, f"{type(error).__name__}: {error}") from None
    return view


def _read(path: Path) -> Json:
    if path.stat().st_size > _MOST_BYTES:
        raise _damage_error(path, "it is too large")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise _damage_error(path, str(error)) from None
    if not isinstance(data, dict) or data.get("schema") != _SCHEMA:
        raise _damage_error(path, f"its schema is not {_SCHEMA}")
    return data


def _damage_error(path: Path, why: str) -> ViewError:
    return ViewError(format_error(f"{path} is not a snapshot of a program.", why=why, fix="write the folder again"))


def _add(view: ViewData, data: Json, before: list[Listed]) -> list[Listed]:
    listed: list[Listed] = []
    graphs: list[Json] = []
    names = {str(graph["path"]) for graph in data["graphs"]}
    for graph in data["graphs"]:
        path = str(graph["path"])
        indexes = [_add_node(view, path, node, names) for node in graph["nodes"]]
        listed += [(path, str(node["name"]), index) for node, index in zip(graph["nodes"], indexes, strict=True)]
        parent = path.rpartition(".")[0] if path else None
        graphs.append({"path": path, "parent": parent, "caller": None, "nodes": encode_runs(indexes)})
    for graph in graphs:
        graph["caller"] = _find_caller(view, listed, graph)
    step = data["step"] or {}
    text = str(data["code"]).split("\n")
    first = {name: index for _, name, index in reversed(listed)}
    links = [first.get(line.strip().removeprefix("def ").partition(":")[0].partition("(")[0], NOWHERE) for line in text]
    view.add_stage(
        str(data["stage"]),
        "graph",
        "passes" if step else "capture",
        seconds=None if not step else float(step["seconds"]),
        changes=None if not step else int(step["changes"]),
        options={str(name): str(value) for name, value in step.get("options", {}).items()},
        detail=str(data["dialect"]),
        counts={
            "nodes": sum(node["op"] not in ("placeholder", "output") for g in data["graphs"] for node in g["nodes"])
        },
        delta=compare_stages(before, listed, view.nodes.items) if before else None,
        graphs=graphs,
        texts=[{"name": str(data["stage"]), "language": "graph", "lines": view.lines.add(text, links)}],
    )
    return listed


def _add_node(view: ViewData, path: str, node: Json, names: set[str]) -> int:
    name, op, target = str(node["name"]), str(node["op"]), str(node["target"])
    inner = f"{path}.{target}" if path else target
    inputs = [str(one) for one in node["inputs"]]
    kind = _KINDS.get(op, "operator")
    if op == "get_attr" and inner in names:
        kind = "region"
    shape = _add_type(view, node["value"])
    source, module = node["source"], str(node["module"] or "")
    file, _, line = str(source or "").rpartition(":")
    stack = [Call("", "", "")] + [Call(module, module, "")] * bool(module)
    at = view.add_module(stack)
    place = view.add_place(at, file, int(line)) if file and line.isdigit() else view.add_place(at, None, 0)
    regions = [f"{path}.{one}" if path else one for one in inputs if (f"{path}.{one}" if path else one) in names]
    text = f"{name} = {target}({', '.join(inputs)})" if op.startswith("call") else f"{name}: {target}"
    item: dict[str, Any] = {
        "name": name,
        "kind": "call" if regions else kind,
        "target": inner if kind == "region" else target,
        "text": text,
        "inputs": inputs,
        "type": shape,
        "place": place,
        "regions": regions,
    }
    key = (path, name, item["kind"], target, text, tuple(inputs), shape, place, tuple(regions))
    return view.nodes.add(key, item)


def _find_caller(view: ViewData, listed: list[Listed], graph: Json) -> str | None:
    for path, name, index in listed:
        if path == graph["parent"] and graph["path"] in view.nodes.items[index]["regions"]:
            return name
    return None


def _add_type(view: ViewData, value: Json) -> int:
    if value is None:
        return NOWHERE
    text = str(value)
    found = _TENSOR.fullmatch(text)
    if found is None:
        return view.add_type(text)
    dims = [int(dim) if dim.isdigit() else dim for dim in found["dims"].split(", ") if dim]
    return view.add_type(text, found["dtype"], dims)
