"""The emitted text as a stage of a view: which lines are of which kernel, and where a kernel comes from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ingot.codegen.native_source import NativeSource
from ingot.lowering.dependence import all_steps
from ingot.lowering.loop_ir import Assert, BindSymbol, For, If, SourceLocation, Stmt, While
from ingot.lowering.loop_module import Module
from ingot.viewer.stages.loop_stages import add_origin, origins_of
from ingot.viewer.view_data import NOWHERE, Json, ViewData

_DEFINITION = re.compile(r"^(?![ /#]).*\bvoid\b.*?\b(?P<name>k\d+)\((?!.*;)")
_LAUNCH = re.compile(r"^\s+\w*LAUNCH\w*\(.*?\b(?P<name>k\d+)\b")
_CONTROL = (Assert, BindSymbol, If, While, For)


def add_code(view: ViewData, source: NativeSource, module: Module, **facts: Any) -> Json:
    """The texts of a source as a stage, and its kernels."""
    names: dict[str, list[int]] = {}
    launches: dict[str, int] = {}
    for name, origins in _launches(view, source, module):
        known = names.setdefault(name, [])
        known += [origin for origin in origins if origin not in known and origin != NOWHERE]
        launches[name] = launches.get(name, 0) + 1
    for name, origins in names.items():
        view.kernels.append(new_kernel(name, origins, launches[name]))
    return add_texts(view, source.files, **facts)


def new_kernel(name: str, origins: Sequence[int] = (), launches: int = 0) -> Json:
    return {"name": name, "origins": list(origins), "launches": launches, "file": "", "first": -1, "last": -1}


def add_texts(view: ViewData, files: Mapping[str, str], **facts: Any) -> Json:
    """A stage of these texts; finds the kernels of the view in them."""
    numbers = {kernel["name"]: number for number, kernel in enumerate(view.kernels)}
    texts: list[Json] = []
    count = 0
    for name, text in files.items():
        lines = text.split("\n")
        count += len(lines)
        links = _link_lines(view, name, lines, numbers)
        language = "cuda" if name.endswith(".cu") else "c"
        texts.append({"name": name, "language": language, "lines": view.lines.add(lines, links)})
    return view.add_stage(
        next(iter(files), "code"),
        "code",
        "code",
        detail=f"{len(view.kernels)} kernels, {count:,} lines",
        counts={"kernels": len(view.kernels), "lines": count},
        texts=texts,
        **facts,
    )


def _launches(view: ViewData, source: NativeSource, module: Module) -> Iterable[tuple[str, list[int]]]:
    """The kernel of each launch, and the origins of its step where the steps that launch are known."""
    steps: Sequence[Stmt] = [step for step in all_steps(module.steps) if not isinstance(step, _CONTROL)]
    for number, launch in enumerate(source.launches):
        origins: list[SourceLocation] = [launch.origin]
        if len(steps) == len(source.launches):
            origins += origins_of(steps[number])
        yield launch.kernel, list(dict.fromkeys(add_origin(view, origin) for origin in origins))


def _link_lines(view: ViewData, file: str, lines: Sequence[str], numbers: Mapping[str, int]) -> list[int]:
    links = [NOWHERE] * len(lines)
    at: Json = None
    for number, line in enumerate(lines):
        if at is None:
            found = _DEFINITION.match(line)
            if found is not None and found["name"] in numbers:
                at = view.kernels[numbers[found["name"]]]
                first = number - 1 if number and lines[number - 1].startswith("/*") else number
                at["file"], at["first"] = file, first
        if at is not None:
            if line == "}":
                at["last"] = number
                kernel = numbers[at["name"]]
                links[at["first"] : number + 1] = [kernel] * (number + 1 - at["first"])
                at = None
            continue
        launch = _LAUNCH.match(line)
        if launch is not None:
            links[number] = numbers.get(launch["name"], NOWHERE)
    return links
