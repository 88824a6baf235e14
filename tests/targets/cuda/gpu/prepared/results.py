"""What a machine with a GPU sends back: rows, and the results of calls in archives that have a size limit.

    left_out = write_results(folder, rows, arrays)      rows.jsonl and results-1.tar, results-2.tar, …
    rows, read = read_results([folder, …])              read(stem) has the arrays of a program's calls

Needs neither torch nor ingot.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.targets.cuda.gpu.prepared.bundles import Arrays, add_member

ROWS = "rows.jsonl"
# Archives beside the rows, the bytes of one, and of all.
ARCHIVES, ARCHIVE_BYTES, TOTAL_BYTES = 7, 15 << 20, 58 << 20
# What a member of an archive takes besides its data, at most; and the end of an archive.
_MEMBER, _END = 1024, 10240

ResultRow = dict[str, Any]


def save_arrays(path: Path, arrays: Arrays) -> None:
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


def write_results(folder: Path, rows: Sequence[ResultRow], files: Mapping[str, Path]) -> list[str]:
    """Writes the rows, and the files of the programs that ran, by stem, as long as there is room. Rows of those that
    are left out say so; their stems are returned."""
    folder.mkdir(parents=True, exist_ok=True)
    shares: list[list[str]] = [[]]
    size = total = 0
    left_out = []
    for stem, file in files.items():
        own = file.stat().st_size + _MEMBER
        if total + own > TOTAL_BYTES or own + _END > ARCHIVE_BYTES:
            left_out.append(stem)
            continue
        if size + own + _END > ARCHIVE_BYTES:
            if len(shares) == ARCHIVES:
                left_out.append(stem)
                continue
            shares.append([])
            size = 0
        shares[-1].append(stem)
        size, total = size + own, total + own
    for number, share in enumerate(shares, 1):
        with tarfile.open(folder / f"results-{number}.tar", "w") as archive:
            for stem in share:
                add_member(archive, f"{stem}.npz", files[stem].read_bytes())
    without = set(left_out)
    lines = [
        {**row, "outcome": "left out"} if row["outcome"] == "ran" and row["stem"] in without else row for row in rows
    ]
    (folder / ROWS).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return left_out


def read_rows(path: Path) -> list[ResultRow]:
    """The rows of a file. One that was cut off is left out."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def read_results(folders: Sequence[Path]) -> tuple[list[ResultRow], Callable[[str], Arrays]]:
    """All rows, in order, and what reads the results of the program with a stem."""
    rows = [row for folder in folders for row in read_rows(folder / ROWS)]
    where: dict[str, tuple[Path, tarfile.TarInfo]] = {}
    for folder in folders:
        for path in sorted(folder.glob("results-*.tar")):
            with tarfile.open(path) as archive:
                where |= {member.name.removesuffix(".npz"): (path, member) for member in archive}

    def read(stem: str) -> Arrays:
        path, member = where[stem]
        with path.open("rb") as file:
            file.seek(member.offset_data)
            with np.load(io.BytesIO(file.read(member.size)), allow_pickle=False) as stored:
                return {name: stored[name] for name in stored.files}

    return rows, read
