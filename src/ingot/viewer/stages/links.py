"""Links between nodes and loops: which nodes an origin stands for, and which loop computes a node that has none.

A loop carries the operator, the module and the line of the node that it was lowered from. A node whose loop was fused
into another, or that only looks at memory in another way, is computed in the loops of its users.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ingot.viewer.source_files import short_path
from ingot.viewer.stages.deltas import Listed
from ingot.viewer.view_data import NOWHERE, Json, ViewData

# Operator, module path, and the line as loops have it.
_Key = tuple[str, str, str]
_COMPUTED = frozenset({"operator", "item", "size", "call"})


def link_origins(view: ViewData, listed: Sequence[Listed]) -> None:
    """Gives every origin its place and its nodes, those of the last graph stage."""
    by_key: dict[_Key, list[int]] = {}
    for _, _, index in listed:
        item = view.nodes.items[index]
        if item["kind"] in _COMPUTED:
            for key in _keys(view, item):
                by_key.setdefault(key, []).append(index)
    sources = {place: _source(view, place) for place in range(len(view.places))}
    places = {source: place for place, source in reversed(sources.items())}
    own: dict[int, list[int]] = {}
    for number, (key, origin) in enumerate(zip(_origin_keys(view), view.origins, strict=True)):
        origin["nodes"] = by_key.get(key) or by_key.get(("", *key[1:]), [])
        if origin["nodes"]:
            origin["place"] = view.nodes.items[origin["nodes"][0]]["place"]
        else:
            origin["place"] = places.get(key[1:], NOWHERE)
        for index in origin["nodes"]:
            own.setdefault(index, []).append(number)
    _link_inlined(view, listed, own)


def _origin_keys(view: ViewData) -> Iterable[_Key]:
    for op, module, source in view.origins.keys:
        yield op.removesuffix(".default"), module, source


def _keys(view: ViewData, item: Json) -> tuple[_Key, _Key]:
    module, source = _source(view, item["place"])
    return (item["target"].removeprefix("aten."), module, source), ("", module, source)


def _source(view: ViewData, place: int) -> tuple[str, str]:
    """The module's path and the line of a place, as loops have them."""
    if place == NOWHERE:
        return "", ""
    module, file, line = view.places.items[place]
    path = "" if module == NOWHERE else view.modules.items[module]["path"]
    return path, "" if file == NOWHERE else f"{short_path(view.files.paths[file])}:{line}"


def _link_inlined(view: ViewData, listed: Sequence[Listed], own: Mapping[int, Sequence[int]]) -> None:
    last = view.last_stage("loop_ir")
    if last is None:
        return
    final = {origin for step in view.steps_of(last) for origin in step["origins"]}
    indexes = {(path, name): index for path, name, index in listed}
    callers = {graph["path"]: (graph["parent"], graph["caller"]) for graph in view.last_stage("graph")["graphs"]}
    users: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for path, name, index in listed:
        for used in view.nodes.items[index]["inputs"]:
            users.setdefault((path, used), []).append((path, name))
    ends: dict[tuple[str, str], frozenset[int]] = {}
    # An inner graph comes after the one around it in the list, and its node before its users there: outer ones first.
    by_graph: dict[str, list[str]] = {}
    for path, name, _ in listed:
        by_graph.setdefault(path, []).append(name)
    for path, names in by_graph.items():
        for name in reversed(names):
            index = indexes[path, name]
            item = view.nodes.items[index]
            mine = frozenset(own.get(index, ())) & final
            if not mine and item["kind"] == "output" and callers[path][1] is not None:
                mine = ends.get((callers[path][0] or "", callers[path][1] or ""), frozenset())
            elif not mine:
                mine = frozenset[int]().union(*(ends[user] for user in users.get((path, name), ())))
                if item["kind"] in _COMPUTED:
                    for origin in sorted(mine):
                        view.origins.items[origin]["inlined"].append(index)
            ends[path, name] = mine
