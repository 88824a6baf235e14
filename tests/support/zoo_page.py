"""A sweep over the models of the zoo, whatever judges them: what it has written so far, and the tables of its page.

A journal has one line per verdict. A sweep goes on where its journal ends; of several verdicts on a model the last
counts.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.frontend.test_zoo import REFUSED

KINDS = ("static", "dynamic")
OUTCOMES = ("right", "refused", "wrong", "failed")
Row = dict[str, Any]


def read(results: Path) -> list[Row]:
    """The last verdict on each model."""
    if not results.exists():
        return []
    rows = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    return list({(row["kind"], row["name"]): row for row in rows}.values())


def named(row: Row) -> str:
    return f"{row['kind']}:{row['name']}"


def left_of(names: Iterable[str], results: Path) -> list[str]:
    """The models that the journal has no verdict on."""
    known = {named(row) for row in read(results)}
    return [name for name in names if name not in known]


def page(
    title: str,
    about: Sequence[str],
    rows: Sequence[Row],
    names: Iterable[str],
    *,
    done: str,
    maker: str,
    remarks: Sequence[str] = (),
    column: tuple[str, Callable[[Row], str]] | None = None,
) -> str:
    """The verdicts as a page; what there is no verdict on is named too.

    `done` is what became of a model that is right ("Compiled"), `maker` who did it ("compiler"). `remarks` follow the
    largest error, `column` is one more column of the last table.
    """
    count = Counter((row["kind"], row["outcome"]) for row in rows)
    lines = [f"# {title}", "", *about, "", f"| | {' | '.join(OUTCOMES)} |", "|---|" + "---|" * len(OUTCOMES)]
    lines += [f"| {kind} | {' | '.join(str(count[kind, outcome]) for outcome in OUTCOMES)} |" for kind in KINDS]
    right = sorted((row for row in rows if row["outcome"] == "right"), key=lambda row: (row["name"], row["kind"]))
    if right:
        worst = max(right, key=lambda row: row["ratio"])
        largest = f"{worst['ratio']:.2f}, {worst['name']} ({worst['kind']})"
        lines += ["", f"Largest error, in units of eager float32's own (4 is allowed): {largest}."]
        lines += [line for remark in remarks for line in ("", remark)]
        lines += ["", f"Refused by capture, which no {maker} can help: {', '.join(sorted(REFUSED))}."]
    draws = sorted({row["name"] for row in right if row.get("random")})
    if draws:
        lines += ["", f"Draw random numbers, so that their values are not compared: {', '.join(draws)}."]
    others = [row for row in rows if row["outcome"] != "right"]
    if others:
        lines += ["", f"## Not {done.lower()}", "", "| model | kind | outcome | why |", "|---|---|---|---|"]
        for row in sorted(others, key=lambda row: (row["outcome"], row["name"], row["kind"])):
            lines.append(f"| {row['name']} | {row['kind']} | {row['outcome']} | {_short(row['detail'])} |")
    judged = {named(row) for row in rows}
    missing = sorted(name for name in names if name not in judged)
    if missing:
        lines += ["", "## Not judged", "", f"{len(missing)} of {len(missing) + len(judged)}: {', '.join(missing)}."]
    header, cell = column or ("", lambda row: "")
    more = [header] if column else []
    lines += ["", f"## {done}", "", f"| {' | '.join(('model', 'kind', 'sizes', 'error', *more))} |"]
    lines += ["|" + "---|" * (4 + len(more))]
    for row in right:
        cells = (
            row["name"],
            row["kind"],
            str(row.get("sizes", 1)),
            f"{row['ratio']:.2f}",
            *([cell(row)] if more else []),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _short(detail: str) -> str:
    """The reason in one line, without the paths of this machine."""
    found = [line.strip().partition(" (")[0] for line in detail.splitlines() if line.startswith("    ")]
    head = detail.splitlines()[0] if detail else ""
    text = f"{head.partition(':')[0]}: {'; '.join(found)}" if found else head
    return text.replace("|", "\\|")[:300]
