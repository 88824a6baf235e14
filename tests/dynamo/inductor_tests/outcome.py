"""What became of a test and of the graphs in it, as the journal keeps them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ingot.dynamo import GraphReport

# In the place of Inductor: this backend, graphs as they are, AOTAutograd's graphs as they are, and this backend beside
# those and those in float64.
Mode = Literal["native", "eager", "aot_eager", "measured"]
BASELINES: tuple[Mode, ...] = ("eager", "aot_eager")

PASSED, SKIPPED, FAILED, WRONG = "passed", "skipped", "failed", "wrong"
TIMED_OUT, CRASHED, NOT_COMPARABLE = "timed out", "crashed", "not comparable"

# What assertions about numbers say.
_WRONG = re.compile(r"Tensor-likes are not|are different|not equal|not close|Scalars are not|mismatch", re.IGNORECASE)
_OPERATOR = re.compile(r"\b(?!test_|ingot)(?:[a-z]\w*)\.(?!py\b)[a-z_]\w*(?:\.\w+)*(?=[:\s])")
_LONGEST = 400


@dataclass(frozen=True, slots=True)
class Reply:
    """What a worker says about a test that it ran."""

    outcome: str
    said: str = ""
    graphs: tuple[dict[str, Any], ...] = ()
    seconds: float = 0.0
    excess: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """A line of the journal. `of` is the file, by its path below the repository's folder of tests."""

    of: str
    test: str
    outcome: str
    said: str = ""
    baseline: str = ""  # what fails, too, where the test is not comparable
    graphs: tuple[dict[str, Any], ...] = ()
    seconds: float = 0.0

    def line(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class GraphCounts:
    """How many graphs are native code, and why the others are not."""

    kinds: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, graphs: Iterable[dict[str, Any]]) -> None:
        for graph in graphs:
            self.kinds[graph["kind"]] += 1
            for reason in dict.fromkeys(map(shorten_reason, graph.get("reasons", ()))):
                self.reasons[reason] += 1

    @property
    def total(self) -> int:
        return sum(self.kinds.values())


def describe_graph(report: GraphReport) -> dict[str, Any]:
    if report.is_native:
        return {"kind": "native"}
    kind = "split" if report.native else "eager"
    reasons = [reason[:_LONGEST] for reason in report.reasons]
    return {"kind": kind, "native": report.native, "operations": report.operations, "reasons": reasons}


def shorten_reason(reason: str) -> str:
    """The operator that a reason names, or the beginning of it."""
    first = reason.strip().splitlines()[0] if reason.strip() else "nothing"
    found = _OPERATOR.search(reason if "cannot be compiled" in first else first)
    return found.group() if found else first[:80]


def is_wrong(said: str) -> bool:
    """Whether a failure is about numbers."""
    return bool(_WRONG.search(said))
