"""Lowering and scheduling know no machine: not by imports, which have a contract, and not by words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ingot

WORDS = re.compile("panel|vnni|avx|vector register|thread pool|winograd", re.IGNORECASE)
SOURCE = Path(ingot.__file__).parent


def find_words(text: str) -> list[str]:
    """Lines with a word of the CPU, in names and comments too. A line break may be inside one."""
    joined = re.sub(r"\s+(#\s+)?", " ", text)
    return [joined[max(0, found.start() - 30) : found.end() + 30] for found in WORDS.finditer(joined)]


@pytest.mark.parametrize("package", ["lowering", "scheduling"])
def test_no_word_of_the_cpu(package: str) -> None:
    paths = sorted((SOURCE / package).rglob("*.py"))
    assert len(paths) > 4
    found = {str(path.relative_to(SOURCE)): words for path in paths if (words := find_words(path.read_text("utf-8")))}
    assert found == {}


def test_words_are_found() -> None:
    assert find_words("# in AVX2") and find_words("def pack_panels(): ...") and find_words("# a vector\n    # register")
    assert not find_words("a vector of registers")
