"""Modules of the loop IR as stages of a view: their steps, and the printed text with the origin of each line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from ingot.lowering.dependence import reads_and_writes
from ingot.lowering.loop_ir import SourceLocation, Stmt
from ingot.lowering.loop_ir_printer import print_module, print_steps
from ingot.lowering.loop_module import Module
from ingot.viewer.pools import encode_runs
from ingot.viewer.stages.deltas import compare_steps
from ingot.viewer.view_data import NOWHERE, Json, ViewData

_INDENT = "  "
_ORIGIN = re.compile(r"  // (?P<origin>.*)$")


@dataclass(frozen=True, slots=True)
class _ShownStep:
    """A step as it is shown: its lines with their origins. The step is kept, so that its identity is its own."""

    step: Stmt
    text: str
    lines: tuple[str, ...]
    links: tuple[int, ...]
    number: int  # in the view's pool


class LoopStages:
    """Takes modules as they pass by. Each is compared with the one before."""

    def __init__(self, view: ViewData) -> None:
        self.view = view
        self._texts: list[str] = []
        self._shown: dict[int, _ShownStep] = {}  # steps are immutable, and most stages keep most of them

    def add(self, name: str, group: str, module: Module, **facts: Any) -> Json:
        """The module as a stage."""
        head = print_module(replace(module, steps=())).removesuffix("}\n").rstrip("\n").split("\n")
        head += [""] if module.steps else []
        shown = [self._show(step) for step in module.steps]
        text = [*head, *(line for one in shown for line in one.lines), "}"]
        links = [NOWHERE for _ in head] + [link for one in shown for link in one.links] + [NOWHERE]
        texts = [one.text for one in shown]
        known = self.view.last_stage("loop_ir") is not None
        delta = compare_steps(self._texts, texts) if known else None
        self._texts = texts
        return self.view.add_stage(
            name,
            "loop_ir",
            group,
            changes=None if delta is None else len(delta["added"]),
            detail=f"{len(module.steps)} steps, {len(module.buffers)} buffers",
            counts={"steps": len(module.steps), "buffers": len(module.buffers)},
            delta=delta,
            head=len(head),
            steps=encode_runs(one.number for one in shown),
            texts=[{"name": name, "language": "loop_ir", "lines": self.view.lines.add(text, links)}],
            **facts,
        )

    def _show(self, step: Stmt) -> _ShownStep:
        known = self._shown.get(id(step))
        if known is None:
            text = print_steps((step,))
            origins = {str(origin): add_origin(self.view, origin) for origin in origins_of(step)}
            lines = text.removesuffix("\n").split("\n")
            read, written = reads_and_writes(step)
            item: dict[str, Any] = {
                "lines": len(lines),
                "origins": [number for number in dict.fromkeys(origins.values()) if number != NOWHERE],
                "reads": sorted(read),
                "writes": sorted(written),
            }
            number = self.view.steps.add((text, *item["origins"]), item)
            links = _link_lines(lines, origins, origins.get(str(step.origin), NOWHERE))
            shown = tuple(_INDENT + line if line else "" for line in lines)
            known = _ShownStep(step, text, shown, tuple(links), number)
            self._shown[id(step)] = known
        return known


def _link_lines(lines: Sequence[str], origins: Mapping[str, int], own: int) -> list[int]:
    """The origin of each line: that of the innermost block that says where it comes from."""
    links: list[int] = []
    blocks: list[tuple[int, int]] = []  # indentation and origin of those that are open
    for line in lines:
        indent = len(line) - len(line.lstrip(" "))
        if line.strip() == "}":
            while blocks and blocks[-1][0] > indent:
                blocks.pop()
            links.append(blocks.pop()[1] if blocks and blocks[-1][0] == indent else own)
            continue
        while blocks and blocks[-1][0] >= indent:
            blocks.pop()
        found = _ORIGIN.search(line)
        outer = blocks[-1][1] if blocks else own
        link = origins.get(found["origin"], outer) if found is not None else outer
        if found is not None or line.endswith("{"):
            blocks.append((indent, link))
        links.append(link)
    return links


def origins_of(step: Stmt) -> list[SourceLocation]:
    """Where a step comes from, and where those inside it do, without repeats."""
    found: dict[SourceLocation, None] = {}
    _collect(step, found)
    return list(found)


def _collect(value: Any, found: dict[SourceLocation, None]) -> None:
    if isinstance(value, SourceLocation):
        found[value] = None
    elif isinstance(value, tuple):
        for item in value:
            if is_dataclass(item):
                _collect(item, found)
    elif is_dataclass(value) and hasattr(value, "origin"):
        for field in sorted(fields(value), key=lambda field: field.name != "origin"):
            _collect(getattr(value, field.name), found)


def add_origin(view: ViewData, origin: SourceLocation) -> int:
    """The number of an origin; -1 of one that says nothing."""
    text = str(origin)
    if not text:
        return NOWHERE
    item = {"op": origin.op, "module": origin.module, "place": NOWHERE, "text": text, "nodes": [], "inlined": []}
    return view.origins.add((origin.op, origin.module, origin.source), item)
