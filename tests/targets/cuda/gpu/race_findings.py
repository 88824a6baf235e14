"""What racecheck found, apart from what it cannot know.

Racecheck takes the bytes of a bulk copy (cp.async.bulk, in machine code UBLKCP) for written by the thread that asked
for it, and does not see that readers wait for the barrier which the copy itself completes. So it reports a bulk copy
with each access of another warp to its bytes. That kernels wait for their copies is tested by the emulator, where the
bytes of a copy are NaN until it lands.

A word that one thread exchanges (ATOMS.EXCH) while others poll it is not a race by the rules of PTX, where
volatile accesses are relaxed atomic ones; in machine code they look as others do. Both kinds are counted apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_FINDING = re.compile(r"Race reported between \w+ access at (\S+)")
_OTHER = re.compile(r"and \w+ access at (\S+)")
_SECTION = re.compile(r"^\s*\.section\s+\.text\.([\w$]+),")
_ORDERED = re.compile(r"^\s*/\*([0-9a-f]+)\*/.*\b(?:UBLKCP|ATOMS\.EXCH)\b")


@dataclass(frozen=True)
class Findings:
    """The races that were reported, as lines, how many findings are about what the tool cannot order, and whether it
    left findings out."""

    races: tuple[str, ...]
    unordered: int
    is_cut_off: bool


def find_ordered(machine_code: str) -> dict[str, list[int]]:
    """Where each kernel asks for bulk copies or exchanges a word, by the text of nvdisasm."""
    found: dict[str, list[int]] = {}
    kernel = ""
    for line in machine_code.splitlines():
        if section := _SECTION.match(line):
            kernel = section[1]
        elif access := _ORDERED.match(line):
            found.setdefault(kernel, []).append(int(access[1], 16))
    return found


def sort_findings(said: str, ordered: Mapping[str, Iterable[int]]) -> Findings:
    """What racecheck printed, by what it is about."""
    known = {f"{kernel}+{offset:#x}" for kernel, offsets in ordered.items() for offset in offsets}
    races: list[str] = []
    unordered = 0
    finding, is_ordered = "", True

    def end() -> None:
        nonlocal unordered
        if finding and is_ordered:
            unordered += 1
        elif finding:
            races.append(finding)

    for line in said.splitlines():
        if begin := _FINDING.search(line):
            end()
            finding, is_ordered, first = line, True, begin[1]
        elif finding and (other := _OTHER.search(line)):
            finding += f"\n{line}"
            is_ordered &= bool({first, other[1]} & known)
    end()
    return Findings(tuple(races), unordered, "Maximum number of hazards reached" in said)
