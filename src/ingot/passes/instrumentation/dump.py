"""A program after each pass as a JSON file, to look at later: `transform(program, passes, snapshots="folder")`.

    folder/00_before.json, 01_autocast.json, 02_grad_mode.json, …

    file   := {"schema": 1, "stage", "dialect", "step": step | null, "code": text, "graphs": [graph, …]}
    step   := {"changes", "seconds", "nodes_before", "nodes_after", "options"}
    graph  := {"path": "" | "cond_true" …, "nodes": [node, …]}
    node   := {"name", "op", "target", "inputs": [name, …], "value", "source", "module"}

Nothing reads these back into a program; `program.save` is for that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

from torch import fx

from ingot.errors import PassError, format_error
from ingot.ir import metadata
from ingot.ir.printer import describe_value, operator_name
from ingot.ir.program import Program

SCHEMA = 1


class Snapshots:
    """Writes one file per stage, each whole or not at all. Files of an earlier run in the folder are removed."""

    def __init__(self, folder: str | PathLike[str]) -> None:
        self._folder = Path(folder)
        self._count = 0
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for old in self._folder.glob("[0-9][0-9]_*.json"):
                old.unlink()
        except OSError as failure:
            raise PassError(
                format_error(f"Snapshots cannot be written to {self._folder}.", why=str(failure), fix="choose a folder")
            ) from failure

    def __call__(self, stage: str, program: Program) -> None:
        path = self._folder / f"{self._count:02}_{stage}.json"
        draft = path.with_suffix(".tmp")
        draft.write_text(json.dumps(snapshot(stage, program), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        draft.replace(path)
        self._count += 1


def snapshot(stage: str, program: Program) -> dict[str, Any]:
    """One stage as plain data."""
    step = program.history[-1] if program.history and stage == program.history[-1].name else None
    return {
        "schema": SCHEMA,
        "stage": stage,
        "dialect": program.dialect.name,
        "step": None
        if step is None
        else {
            "changes": step.changes,
            "seconds": step.seconds,
            "nodes_before": step.nodes_before,
            "nodes_after": step.nodes_after,
            "options": {name: str(value) for name, value in step.options},
        },
        "code": str(program),
        "graphs": [{"path": path, "nodes": list(map(_node, m.graph.nodes))} for path, m in _graphs(program)],
    }


def _graphs(program: Program) -> Iterator[tuple[str, fx.GraphModule]]:
    for path, module in program.graph_module.named_modules():
        if isinstance(module, fx.GraphModule):
            yield path, module


def _node(node: fx.Node) -> dict[str, Any]:
    value, source = metadata.value_of(node), metadata.source_of(node)
    return {
        "name": node.name,
        "op": node.op,
        "target": operator_name(node.target) if node.op == "call_function" else str(node.target),
        "inputs": [n.name for n in node.all_input_nodes],
        "value": None if value is None or node.op == "output" else describe_value(value),
        "source": None if source is None else str(source),
        "module": metadata.module_path_of(node) or None,
    }
