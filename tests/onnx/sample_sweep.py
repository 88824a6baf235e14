"""Runs torch's operator samples as ONNX models and says what became of them.

python -m tests.onnx.sample_sweep --json build/onnx.jsonl --write docs/reports/onnx_samples.md    all of them; goes on
python -m tests.onnx.sample_sweep --ops sort topk --dtype float32 --most 3                        a look at a few
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from tests.onnx.core_share import share
from tests.onnx.samples import run
from tests.support.operator_samples.sample_report import JUDGED, Row, command, counts, failures
from tests.support.operator_samples.samples import KINDS, OTHERS


def main() -> None:
    command("torch's operator samples as ONNX models", functools.partial(run, classify=True), markdown)


def markdown(rows: Sequence[Row], most: int | None, note: str = "") -> str:
    every = "Every sample" if most is None else f"At most {most} samples, spread over all,"
    lines = [
        "# torch's operator samples as ONNX models",
        "",
        f"{every} of every operator of torch's own table (`op_db`), exported,",
        "checked, run in ONNX Runtime (where it has no kernel: in onnx.reference) and compared with eager in float64:",
        "an error of at most 4 times eager's own; of operators that work element by element, at every element by",
        f"itself. Inputs that are strided, empty or scalar are made of {OTHERS} to {2 * OTHERS - 1} samples of each",
        "operator and dtype. Written by `make opinfo-onnx`.",
        *JUDGED,
        "",
        *([note, ""] if note else []),
        *_share(),
        "",
        "| dtype | inputs | samples | passed | refused | wrong | crashed | refused of core ATen |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        for kind in KINDS:
            lines += _line(dtype, kind, [row for row in rows if row["dtype"] == dtype and row["kind"] == kind])
    lines += _line("**all**", "all", rows)
    return "\n".join([*lines, *failures(rows)]) + "\n"


def _share() -> list[str]:
    """How much of core ATen can be exported at all."""
    yes, no = share()
    every = len(yes) + len(no)
    return [
        f"Of the {every} operators that carry torch's mark for the core ATen set, {len(yes)} have a rule, or are made",
        f"of operators that have one: {len(yes) / every:.1%}. Without: {', '.join(f'`{name}`' for name in no)}.",
    ]


def _line(dtype: str, kind: str, rows: Sequence[Row]) -> list[str]:
    """A row of the table, or none if there is nothing to say."""
    if not rows:
        return []
    core = sum(row["outcome"] == "refused" and not row["outside"] for row in rows)
    return [f"| {dtype} | {kind} | {len(rows)} | {' | '.join(map(str, counts(rows)))} | {core} |"]


if __name__ == "__main__":
    main()
