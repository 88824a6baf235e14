"""Finds private words in source files, with what to write instead: python tools/check_wording.py

Names, comments, docstrings and messages use the words that readers know from the documents of PyTorch, LLVM, TVM, JAX,
Triton and ONNX. `tests/support/doc_pages.py` holds documents to the same table.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("src", "benchmarks", "examples", "runtime", "tests", "tools")
SUFFIXES = (".py", ".c", ".h", ".cu", ".cuh")
# Files that contain the words to find.
APART = ("tools/check_wording.py", "tools/check_names.py", "tests/test_docs.py", "tests/test_tools.py")

# Words that are not to be used, and what to write instead.
PLAIN = {
    r"\bhangs? on\b": "depends on",
    r"\bwhole numbers?\b": "integers",
    r"\b(of|by|in) the run\b(?!')|\bonly (a|the) run\b": "run-time, data-dependent",
    r"\b(in|out)side of\b": "inside, outside",
    r"\broads?\b": "pipeline",
    r"\bdoors?\b": "entry point",
    r"(?<![TtWw]here\s)\b(is|are) no\b(?!\s+(longer|more|less|larger|smaller|slower|faster)\b)": "is not a",
    r"\bbeside (torch|eager|Ingot)\b": "compared with",
    r"\bFourier's\b|\bWinograd's\b": "FFT, Winograd",
    r"\bweights alone\b": "weight-only",
    r"\bone (rule|file|line) an? \w+": "one rule per operator",
    r"\bmended\b": "fixed",
    r"\bimages of bytes\b": "uint8 images",
}
# Words that a document may use where a source file has a better one.
IN_SOURCES = {
    r"\b_?told\b": "known, bound, given, distinguished",
    r"\bnobody else\b|\bsomebody\b": "no other user, no other thread",
    r"\bmakes \w+ of\b": "converts",
    r"\btensors? of no dims\b": "0-d tensor",
}


def find_in(text: str, table: dict[str, str]) -> Iterator[tuple[int, str]]:
    """The line and the remark for each word of a table that a text contains."""
    for pattern, instead in table.items():
        for match in re.finditer(pattern, text):
            yield text.count("\n", 0, match.start()) + 1, f"{match[0]!r}: write {instead!r}"


def find(root: Path = ROOT) -> Iterator[str]:
    """A line for each word in a source file that is not to be used."""
    apart = {root / name for name in APART}
    for source in SOURCES:
        for file in sorted((root / source).rglob("*")):
            if file.suffix in SUFFIXES and file not in apart:
                for line, remark in sorted(find_in(file.read_text(encoding="utf-8"), PLAIN | IN_SOURCES)):
                    yield f"{file.relative_to(root)}:{line}: {remark}"


def main() -> int:
    found = list(find())
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
