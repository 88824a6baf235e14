"""Runs torch's operator samples as native code and says what became of them.

python -m tests.support.sample_sweep --write docs/reports/operator_samples.md      all: about half an hour on one core
python -m tests.support.sample_sweep --ops sort topk --dtype float32 --most 3      a look at a few
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from tests.support.operator_samples.batched_compile import run
from tests.support.operator_samples.sample_report import JUDGED, Row, command, counts, failures
from tests.support.operator_samples.samples import KINDS, OTHERS


def main() -> None:
    command("torch's operator samples as native code", functools.partial(run, classify=True), markdown)


def markdown(rows: Sequence[Row], most: int | None, note: str = "") -> str:
    every = "Every sample" if most is None else f"At most {most} samples"
    lines = [
        "# torch's operator samples as native code",
        "",
        f"{every} of every operator of torch's own table (`op_db`), compiled and compared with eager in float64:",
        "an error of at most 4 times eager's own; of operators that work element by element, at every element by",
        "itself. A sample is of core ATen if torch's decompositions take it to operators with `torch.Tag.core` alone",
        "(`tests/support/operator_samples/core_aten.py` asks). Inputs that are strided, empty or scalar are made of "
        f"{OTHERS} to {2 * OTHERS - 1} samples of",
        "each operator and dtype, or all if there are fewer, where eager takes them. Written by `make opinfo-native`.",
        *JUDGED,
        "",
        *([note, ""] if note else []),
        "| dtype | inputs | samples | passed | refused | wrong | crashed | passed of all |"
        " of core ATen | passed | refused | passed of core ATen |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
    for dtype in dtypes:
        for kind in KINDS:
            lines += _line(dtype, kind, [row for row in rows if row["dtype"] == dtype and row["kind"] == kind])
        lines += _line(f"**{dtype}**", "all", [row for row in rows if row["dtype"] == dtype])
    lines += _line("**all**", "all", rows)
    return "\n".join([*lines, *failures(rows)]) + "\n"


def _line(dtype: str, kind: str, rows: Sequence[Row]) -> list[str]:
    """A row of the table, or none if there is nothing to say."""
    if not rows:
        return []
    numbers = counts(rows)
    core = [row["outcome"] for row in rows if not row["outside"]]
    passed = core.count("passed")
    cells = [dtype, kind, len(rows), *numbers, f"{numbers[0] / len(rows):.1%}"]
    cells += [len(core), passed, core.count("refused"), f"{passed / len(core):.1%}" if core else "–"]
    return [f"| {' | '.join(map(str, cells))} |"]


if __name__ == "__main__":
    main()
