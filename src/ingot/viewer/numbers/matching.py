"""Puts numbers into a view: which names of the user's are those of nodes, modules and kernels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ingot.viewer.numbers.number_files import NumberTable, quote
from ingot.viewer.pools import decode_runs
from ingot.viewer.view_data import Json

_NAMED = 5
# What tools write around the name of a kernel: the types of its arguments, and what compilers append to its symbol.
_AROUND = re.compile(
    r"^(?:void\s+)?(?P<name>\w+)(?:[(<].*|(?:\.(?:isra|constprop|part|lto_priv|cold|_omp_fn)(?:\.\d+)?)+)$", re.DOTALL
)


def add_numbers(data: Json, tables: Sequence[NumberTable]) -> list[str]:
    """Adds to a view, and to the one beside it, the numbers whose names it has. The notes say which names no view has;
    the same notes are returned."""
    views = [data] + ([data["compare"]] if data["compare"] is not None else [])
    unknown = [set(table.values) for table in tables]
    for view in views:
        nodes, modules, kernels = _nodes(view), _modules(view), {kernel["name"] for kernel in view["kernels"]}
        for number, table in enumerate(tables):
            made: Json = {"title": table.title, "unit": table.unit, "nodes": {}, "modules": {}, "kernels": {}}
            for name, value in table.values.items():
                kernel = name if name in kernels else _kernel(name)
                is_known = False
                for kind, key, known in (
                    ("nodes", name, nodes),
                    ("modules", name, modules),
                    ("kernels", kernel, kernels),
                ):
                    if key in known:
                        if key == name or key not in made[kind]:
                            made[kind][key] = value
                        is_known = True
                if is_known:
                    unknown[number].discard(name)
            view["numbers"].append(made)
    notes = _join_alike(_note(table, missing) for table, missing in zip(tables, unknown, strict=True) if missing)
    data["notes"] += notes
    return notes


def _nodes(view: Json) -> set[str]:
    """The names of the nodes of all stages, alone and after the path of their graph."""
    found: set[str] = set()
    for stage in view["stages"]:
        for graph in stage["graphs"]:
            nodes = [view["nodes"][index] for index in decode_runs(graph["nodes"])]
            names = {node["name"] for node in nodes}
            found |= names | {node["alias"] for node in nodes if "alias" in node}
            if graph["path"]:
                found |= {f"{graph['path']}/{name}" for name in names}
    return found


def _modules(view: Json) -> set[str]:
    return {name for module in view["modules"] for name in (module["call"], module["path"]) if name}


def _kernel(name: str) -> str:
    found = _AROUND.match(name)
    return name if found is None else found["name"]


def _note(table: NumberTable, missing: set[str]) -> tuple[str, str]:
    """The title, and what is to be said about it."""
    listed = [name for name in table.values if name in missing][:_NAMED]
    more = len(missing) - len(listed)
    names = ", ".join(map(quote, listed)) + (f" and {more:,} more" if more else "")
    what = "1 name is" if len(missing) == 1 else f"{len(missing):,} names are"
    return table.title, f"{what} not those of nodes, modules or kernels: {names}."


def _join_alike(notes: Iterable[tuple[str, str]]) -> list[str]:
    """One note for all tables of which the same is to be said, as for the columns of one file."""
    titles: dict[str, list[str]] = {}
    for title, text in notes:
        titles.setdefault(text, []).append(title)
    made = []
    for text, names in titles.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        made.append(f"Numbers {quote(names[0])}{more}: {text}")
    return made
