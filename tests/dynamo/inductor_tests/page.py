"""The page that says what became of PyTorch's tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.dynamo.inductor_tests.outcome import (
    CRASHED,
    FAILED,
    NOT_COMPARABLE,
    PASSED,
    SKIPPED,
    TIMED_OUT,
    WRONG,
    GraphCounts,
)

Line = dict[str, Any]
_REASONS = 60
_SAYS = """\
PyTorch's own tests of torch.compile on the CPU, at the tag of the installed release, with the backend `ingot` in
Inductor's place: `python -m tests.dynamo.inductor_tests`. In the files of `functorch` it also takes the place of the
backends that run graphs as they are, and of AOTAutograd's compiler that does nothing. All tests of
`test_torchinductor.py` that are for the CPU ran. Of the other files a sample ran so far, one test in 12 to 40; those of
operator samples all ask for a GPU.

A test that fails is run again with graphs in eager and as AOTAutograd makes them. What fails there, too, is not
comparable: it counts kernels, reads generated code, or asks for options of Inductor. *Wrong* is a failed comparison of
values; where no result of the test's graphs is farther from float64 than eager's own, by more than rounding explains,
the test compares rounding and is not comparable. A graph is native if each of its operations is native code; a split
one has native pieces. Graphs are those of comparable tests."""


def page(lines: Sequence[Line]) -> str:
    files = {name: [line for line in lines if line["of"] == name] for name in sorted({line["of"] for line in lines})}
    columns = (PASSED, WRONG, FAILED, CRASHED, TIMED_OUT)
    rows = [
        "| file | tests | skipped | not comparable | comparable |" + "".join(f" {kind} |" for kind in columns),
        "|" + "---|" * (5 + len(columns)),
    ]
    counts = {name: Counter(line["outcome"] for line in found) for name, found in files.items()}
    for name, count in counts.items():
        cells = [f"`{name}`", count.total(), count[SKIPPED], count[NOT_COMPARABLE]]
        cells.append(count.total() - count[SKIPPED] - count[NOT_COMPARABLE])
        rows.append(_row([*cells, *(count[kind] for kind in columns)]))
    graphs = {name: GraphCounts() for name in files}
    together = GraphCounts()
    for name, found in files.items():
        for line in found:
            if line["outcome"] == NOT_COMPARABLE:
                continue
            graphs[name].add(line["graphs"])
            together.add(line["graphs"])
    rows += ["", "| file | graphs | native | split | eager | native, % | tests without a graph |", "|" + "---|" * 7]
    for name, count in graphs.items():
        idle = sum(not line["graphs"] and line["outcome"] == PASSED for line in files[name])
        kinds = [count.kinds[kind] for kind in ("native", "split", "eager")]
        share = f"{100 * kinds[0] / max(count.total, 1):.1f}"
        rows.append(_row([f"`{name}`", count.total, *kinds, share, idle]))
    rows += ["", "## Why graphs are not native", "", "| reason | graphs |", "|---|---|"]
    common = together.reasons.most_common()
    rows += [_row([f"`{_cell(reason)}`", number]) for reason, number in common[:_REASONS]]
    if len(common) > _REASONS:
        rows.append(_row([f"{len(common) - _REASONS} others", sum(number for _, number in common[_REASONS:])]))
    rows += ["", "## Tests that fail, and pass in eager", ""]
    bad = [line for line in lines if line["outcome"] in columns[1:]]
    rows += ["| test | outcome | last line |", "|---|---|---|"] if bad else ["There is none."]
    for line in sorted(bad, key=lambda line: (columns.index(line["outcome"]), line["test"])):
        rows.append(_row([f"`{line['test']}`", line["outcome"], _cell(_last(line["said"]))]))
    codes = Counter(line["code"] for line in lines)
    made = ", ".join(f"{number} by {code}" for code, number in codes.most_common())
    head = ["# PyTorch's own tests of torch.compile", "", _SAYS, "", f"Tests run: {made}.", ""]
    return "\n".join([*head, *rows]) + "\n"


def _row(cells: Sequence[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def _last(said: str) -> str:
    """The line that tells most: the first of the last message."""
    for line in reversed(said.splitlines()):
        if line[:1].strip() and ("Error" in line or "Exception" in line or "Unsupported" in line):
            return line[:160]
    return said.splitlines()[-1][:160] if said else ""


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("`", "'")
