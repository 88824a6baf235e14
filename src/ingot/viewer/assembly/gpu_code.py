"""Machine code of a GPU as nvdisasm writes it, and PTX, which is text already."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ingot.viewer.assembly.disassemblers import run_tool
from ingot.viewer.assembly.machine_code import AssemblyLine

_SECTION = re.compile(r"^\s*\.section\s+\.text\.(?P<name>[\w$]+),")
_INSTRUCTION = re.compile(r"^\s*/\*(?P<offset>[0-9a-f]+)\*/\s*(?P<text>.*?)\s*;?\s*$")
_LABEL = re.compile(r"^(?P<name>\.L_\w+):")
_ENTRY = re.compile(r"^(?:\.\w+\s+)*\.(?:entry|func)\s.*?\b(?P<name>k\d+)\(")


def list_cubin(tool: str, images: Sequence[bytes], kernels: Sequence[str]) -> list[AssemblyLine]:
    """The kernels of cubins. Raises ViewError."""
    found: dict[str, list[AssemblyLine]] = {}
    for image in images:
        _parse_cubin(run_tool([tool, "-c"], image, "model.cubin").split("\n"), found)
    return _sort_kernels(found, kernels)


def _parse_cubin(text: Iterable[str], found: dict[str, list[AssemblyLine]]) -> None:
    name, lines = "", list[AssemblyLine]()
    for line in text:
        section = _SECTION.match(line)
        if section is not None:
            name = section["name"]
            lines = found.setdefault(name, [])
            continue
        instruction = _INSTRUCTION.match(line)
        label = _LABEL.match(line)
        if instruction is not None and name:
            lines.append(AssemblyLine(f"{int(instruction['offset'], 16):6x}  {instruction['text']}", name))
        elif label is not None and name:
            lines.append(AssemblyLine(f"{label['name']}:", name))


def list_ptx(texts: Iterable[str], kernels: Sequence[str]) -> list[AssemblyLine]:
    """The kernels of PTX."""
    found: dict[str, list[AssemblyLine]] = {}
    for text in texts:
        lines: list[AssemblyLine] | None = None
        for line in text.split("\n"):
            entry = _ENTRY.match(line)
            if entry is not None and entry["name"] in kernels:
                name = entry["name"]
                lines = found.setdefault(name, [])
            if lines is not None and line.strip():
                lines.append(AssemblyLine(line.expandtabs(4), name))
                if line == "}":
                    lines = None
    return _sort_kernels(found, kernels)


def _sort_kernels(found: dict[str, list[AssemblyLine]], kernels: Sequence[str]) -> list[AssemblyLine]:
    lines: list[AssemblyLine] = []
    for name in kernels:
        if name in found:
            lines += [AssemblyLine(f"{name}:", name), *found[name], AssemblyLine("")]
    return lines
