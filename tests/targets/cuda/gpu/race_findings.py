"""What racecheck found, apart from what it cannot know.

Racecheck takes the bytes of a bulk copy (cp.async.bulk, in machine code UBLKCP) for written by the thread that asked
for it, and does not see that readers wait for the barrier which the copy itself completes. So it reports each pair of a
bulk copy and an access of another warp. Such pairs are counted apart; that kernels wait for their copies is tested by
the emulator, where the bytes of a copy are NaN until it lands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_FINDING = re.compile(r"Race reported between \w+ access at (\S+)")
_OTHER = re.compile(r"and \w+ access at (\S+)")
_SECTION = re.compile(r"^\s*\.section\s+\.text\.([\w$]+),")
_BULK_COPY = re.compile(r"^\s*/\*([0-9a-f]+)\*/.*\bUBLKCP\b")


@dataclass(frozen=True)
class Findings:
    """The races that were reported: lines of those between accesses of threads, and how many only name bulk copies."""

    races: tuple[str, ...]
    of_bulk_copies: int


def find_bulk_copies(machine_code: str) -> dict[str, list[int]]:
    """Where each kernel asks for bulk copies, by the text of nvdisasm."""
    found: dict[str, list[int]] = {}
    kernel = ""
    for line in machine_code.splitlines():
        if section := _SECTION.match(line):
            kernel = section[1]
        elif copy := _BULK_COPY.match(line):
            found.setdefault(kernel, []).append(int(copy[1], 16))
    return found


def sort_findings(said: str, bulk_copies: Mapping[str, Iterable[int]]) -> Findings:
    """What racecheck printed, by what it is about."""
    known = {f"{kernel}+{offset:#x}" for kernel, offsets in bulk_copies.items() for offset in offsets}
    races: list[str] = []
    of_copies = 0
    finding, only_copies = "", True

    def end() -> None:
        nonlocal of_copies
        if finding and only_copies:
            of_copies += 1
        elif finding:
            races.append(finding)

    for line in said.splitlines():
        if begin := _FINDING.search(line):
            end()
            finding, only_copies, first = line, True, begin[1]
        elif finding and (other := _OTHER.search(line)):
            finding += f"\n{line}"
            only_copies &= bool({first, other[1]} & known)
    end()
    return Findings(tuple(races), of_copies)
