"""Checks the limits on files and folders of Python code: python tools/check_layout.py

A file has at most 500 lines, a folder at most 20 modules: what is larger has more than one concern.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("src", "benchmarks", "examples", "runtime", "tests", "tools")
LINES = 500
MODULES = 20


def find(root: Path = ROOT) -> Iterator[str]:
    """A line for each file and each folder that is too large."""
    folders: Counter[Path] = Counter()
    for source in SOURCES:
        for file in sorted((root / source).rglob("*.py")):
            folders[file.parent] += 1
            lines = len(file.read_text(encoding="utf-8").splitlines())
            if lines > LINES:
                yield f"{file.relative_to(root)}: {lines} lines, and at most {LINES} are allowed"
    for folder, count in sorted(folders.items()):
        if count > MODULES:
            yield f"{folder.relative_to(root)}: {count} modules, and at most {MODULES} are allowed"


def main() -> int:
    found = list(find())
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
