"""Machine code of a CPU: what objdump, GNU's or LLVM's, says of a library.

A listing is one text: each kernel in order, then the functions that they call. A line has the offset of its
instruction in the function. Targets of jumps are offsets, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ingot.viewer.assembly.disassemblers import find_objdump, run_tool
from ingot.viewer.view_data import NOWHERE

_FUNCTION = re.compile(r"^[0-9a-f]+ <(?P<name>[^>]+)>:$")
_INSTRUCTION = re.compile(r"^\s*(?P<address>[0-9a-f]+):\s+(?P<text>\S.*)$")
_LINE = re.compile(r"^(?:; )?(?P<file>[^\s()][^()]*):(?P<line>\d+)(?: \(discriminator \d+\))?$")
_TARGET = re.compile(r"(?:0x)?[0-9a-f]+ <(?P<name>[^>+]+)(?:\+0x(?P<offset>[0-9a-f]+))?>")
# Of data, which tools name by the symbol before it.
_DATA = re.compile(r"\s*# (?:0x)?[0-9a-f]+ <[^>+]+\+0x[0-9a-f]+>")
_SOURCE = "model.c"
_MOST_LINES = 400_000


@dataclass(frozen=True, slots=True)
class AssemblyLine:
    """`kernel`: the name of the kernel that it is of, or "". `source`: the line of the C text, from 0, or -1."""

    text: str
    kernel: str = ""
    source: int = NOWHERE


@dataclass(slots=True)
class _ListedFunction:
    begin: int = NOWHERE
    lines: list[AssemblyLine] = field(default_factory=list)
    calls: set[str] = field(default_factory=set)


def list_machine_code(library: bytes, isa: str, kernels: Sequence[str]) -> list[AssemblyLine]:
    """The kernels of a library, and the functions of it that they call. Raises ViewError."""
    syntax = ["-M", "intel"] if isa.startswith("x86") else []
    text = run_tool([find_objdump(), "-d", "-l", "--no-show-raw-insn", *syntax], library, "model.so")
    return _list_functions(_parse(text.split("\n"), frozenset(kernels)), kernels)


def _parse(text: Iterable[str], kernels: frozenset[str]) -> dict[str, _ListedFunction]:
    functions: dict[str, _ListedFunction] = {}
    name, function, source = "", _ListedFunction(), NOWHERE
    for line in text:
        begins = _FUNCTION.match(line)
        if begins is not None:
            name, source = begins["name"], NOWHERE
            function = functions.setdefault(name, _ListedFunction())
            continue
        found = _INSTRUCTION.match(line)
        if found is not None and name:
            address = int(found["address"], 16)
            if function.begin == NOWHERE:
                function.begin = address
            shown = _name_targets(" ".join(found["text"].split()), name, function.calls)
            shown = f"{address - function.begin:6x}  {shown}"
            function.lines.append(AssemblyLine(shown, name if name in kernels else "", source))
            continue
        place = _LINE.match(line)
        if place is not None:
            source = int(place["line"]) - 1 if place["file"].rsplit("/", 1)[-1] == _SOURCE else NOWHERE
    return functions


def _name_targets(text: str, name: str, calls: set[str]) -> str:
    """An instruction with offsets in its own function in place of addresses, and with the names of others, which join
    `calls`."""

    def name_target(target: re.Match[str]) -> str:
        if target["name"] == name:
            return target["offset"] or "0"
        calls.add(target["name"])
        return target["name"] + (f"+{target['offset']}" if target["offset"] else "")

    return _TARGET.sub(name_target, _DATA.sub("", text))


def _list_functions(functions: Mapping[str, _ListedFunction], kernels: Sequence[str]) -> list[AssemblyLine]:
    wanted = [name for name in kernels if name in functions]
    known = set(wanted)
    for name in wanted:  # grows meanwhile: what is called, and what that calls
        more = sorted(functions[name].calls & functions.keys() - known)
        known |= set(more)
        wanted += more
    lines: list[AssemblyLine] = []
    for name in wanted:
        kernel = name if name in kernels else ""
        lines += [AssemblyLine(f"{name}:", kernel), *functions[name].lines, AssemblyLine("")]
        if len(lines) > _MOST_LINES:
            return [*lines[:_MOST_LINES], AssemblyLine("… and more, which is not shown")]
    return lines
