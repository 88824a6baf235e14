"""The table of what became of the registry's models: docs/reports/packages.md."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tests.support.packages.registry import PACKAGES

Record = dict[str, Any]
MODES = ("static", "dynamic")
# What the issue of a sweep aims at: the share of captured models that are right.
GOALS = {"static": 0.97, "dynamic": 0.92, "onnx": 0.90, "time": 0.3}
_REQUIREMENTS = Path(__file__).with_name("requirements.txt")


def page(records: Mapping[str, Record]) -> str:
    """The report."""
    rows = [records[label] for label in sorted(records)]
    lines = [
        "# Models of other packages",
        "",
        "Models of public packages with random weights, captured by Ingot and by `torch.export.export(strict=False)`,",
        "compiled, exported to ONNX, and compared with eager in float64: static, and with dynamic sizes at the",
        "example's sizes, at 1, 2, an odd and a large size, as far as eager runs there. *narrow*: at one of these",
        "sizes the program refuses what eager runs. *failed*: an error of another kind than Ingot's. Each model had",
        "a process of its own. Written by `make report-packages`; the registry is tests/support/packages.",
        "",
        _commits(rows),
        "",
        *_totals(rows),
        "",
        *_times(rows),
        "",
        "## Packages",
        "",
        *_packages(rows),
    ]
    for title, wanted in (
        ("Not captured", lambda row: row.get("capture") not in (None, "ok")),
        ("Captured by Ingot alone", lambda row: row.get("capture") == "ok" and row.get("export") != "ok"),
    ):
        found = [(row["model"], mode, row[mode]) for row in rows for mode in MODES if mode in row and wanted(row[mode])]
        lines += ["", f"## {title}", "", *_captures(found)]
    lines += ["", "## Native code that is not right", "", *_details(rows, "native")]
    lines += ["", "## ONNX files that are not right", "", *_details(rows, "onnx")]
    ended = [row for row in rows if row.get("step") != "done"]
    if ended:
        lines += ["", "## Ended early", "", "| model | step | why |", "|---|---|---|"]
        lines += [f"| {row['model']} | {row['step']} | {_cell(_ended(row))} |" for row in ended]
    labels = [label for package in PACKAGES for label in _labels(package)]
    missing = [label for label in labels if label not in records]
    if missing:
        lines += ["", "## Not judged", "", f"{len(missing)} of {len(labels)}: {', '.join(missing)}."]
    return "\n".join(lines) + "\n"


def _labels(package: str) -> list[str]:
    try:
        return [model.label for model in PACKAGES[package]()]
    except ImportError:
        return [f"{package}, which is not installed"]


def _totals(rows: Iterable[Record]) -> list[str]:
    rows = list(rows)
    lines = ["| | models | captured | torch.export | captured by torch only | native right | narrow | refused | wrong |"
             " failed | ONNX right | refused | wrong |", "|---|" + "---|" * 12]  # fmt: skip
    for mode in MODES:
        some = [row[mode] for row in rows if "capture" in row.get(mode, ())]
        captured = [row for row in some if row["capture"] == "ok"]
        theirs = sum(row.get("export") == "ok" for row in some)
        only = sum(row["capture"] != "ok" and "ok" in (row.get("export"), row.get("dynamo")) for row in some)
        native = Counter(row.get("native", "failed") for row in captured)
        onnx = Counter(row.get("onnx", "failed") for row in captured)
        cells = (
            *(len(some), len(captured), theirs, only),
            _share(native["right"], len(captured)),
            *(native["narrow"], native["refused"], native["wrong"], native["failed"]),
            _share(onnx["right"], len(captured)),
            *(onnx["refused"] + onnx["narrow"] + onnx["failed"], onnx["wrong"]),
        )
        lines.append(f"| {mode} | {' | '.join(map(str, cells))} |")
    crashed = [row["model"] for row in rows if row.get("ended", 0) < 0]
    lines += ["", f"Crashed or out of time or memory: {len(crashed)}{': ' if crashed else ''}{', '.join(crashed)}."]
    return lines


def _commits(rows: Iterable[Record]) -> str:
    """By which code the models were judged."""
    counts = Counter(row.get("commit", "") or "an unknown commit" for row in rows)
    return f"Judged by {', '.join(f'{commit} ({count} models)' for commit, count in counts.most_common())}."


def _share(part: int, whole: int) -> str:
    return f"{part} ({100 * part / whole:.1f}%)" if whole else "0"


def _times(rows: Iterable[Record]) -> list[str]:
    """How long a capture takes, as a multiple of torch.export's processor time."""
    lines = []
    for mode in MODES:
        ratios = [
            row[mode]["capture_seconds"] / row[mode]["export_seconds"]
            for row in rows
            if row.get(mode, {}).get("capture") == "ok" and row[mode].get("export") == "ok"
        ]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            lines.append(
                f"Processor time of a capture, {mode}, as a multiple of torch.export's: geometric mean {mean:.2f} of"
                f" {len(ratios)}, median {sorted(ratios)[len(ratios) // 2]:.2f} (one capture each; every other model"
                " is captured by torch.export first)."
            )
    return lines


def _packages(rows: Iterable[Record]) -> list[str]:
    lines = ["| package | version | models | static: captured, right, ONNX | dynamic: models, captured, right, ONNX |"]
    lines.append("|---|---|---|---|---|")
    rows = list(rows)
    for package in PACKAGES:
        mine = [row for row in rows if row["model"].startswith(f"{package}/")]
        cells = []
        for mode in MODES:
            some = [row[mode] for row in mine if mode in row]
            counts = [sum(row.get(key) == value for row in some) for key, value in _COUNTED]
            cells.append(", ".join(str(count) for count in ([len(some)] if mode == "dynamic" else []) + counts))
        lines.append(
            f"| {package} | {pinned().get(package, _installed(package))} | {len(mine)} | {' | '.join(cells)} |"
        )
    return lines


_COUNTED = (("capture", "ok"), ("native", "right"), ("onnx", "right"))


def pinned() -> dict[str, str]:
    """The version of each package in the requirements file."""
    lines = [line.partition("#")[0].strip() for line in _REQUIREMENTS.read_text(encoding="utf-8").splitlines()]
    pairs = [line.partition("==") for line in lines if "==" in line]
    return {name.strip().lower().replace("_", "-"): number.strip() for name, _, number in pairs}


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "–"


def _captures(found: Iterable[tuple[str, str, Record]]) -> list[str]:
    lines = ["| model | sizes | Ingot | torch.export | torch.compile |", "|---|---|---|---|---|"]
    for model, mode, row in found:
        cells = (model, mode, *(_cell(row.get(key, "–")) for key in ("capture", "export", "dynamo")))
        lines.append(f"| {' | '.join(cells)} |")
    return lines if len(lines) > 2 else ["None."]


def _details(rows: Iterable[Record], kind: str) -> list[str]:
    is_right: Callable[[Record], bool] = lambda row: row.get(kind) in (None, "right")  # noqa: E731
    lines = ["| model | sizes | outcome | why |", "|---|---|---|---|"]
    for row in rows:
        for mode in MODES:
            if not is_right(row.get(mode, {})):
                why = _cell(row[mode].get(f"{kind}_detail", ""))
                lines.append(f"| {row['model']} | {mode} | {row[mode][kind]} | {why} |")
    return lines if len(lines) > 2 else ["None."]


def _ended(row: Record) -> str:
    return str(row.get("raised") or f"ended with {row.get('ended')}")


def _cell(text: str) -> str:
    """One line without the paths of a machine."""
    words = ["/".join(word.split("/")[-2:]) if word.startswith("/") else word for word in text.split()]
    return " ".join(words).replace("|", "\\|")[:220]
