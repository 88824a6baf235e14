"""What a generator says of one program."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """`reason` of a refusal names no detail of the program, so that reasons can be counted; that of a wrong result says
    what differs and shows the program."""

    kind: str  # right | refused | wrong; the driver adds crashed
    reason: str = ""
