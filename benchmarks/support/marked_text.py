"""Parts of a page that a program writes, between two comments."""

from __future__ import annotations

from pathlib import Path


def replace(page: Path, begin: str, end: str, text: str) -> None:
    """Puts a text between the comments of a page. Raises ValueError where the page does not have both."""
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, ended, behind = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"{page} does not have both {begin!r} and {end!r}")
    page.write_text(f"{before}{begin}\n{text}\n{end}{behind}", encoding="utf-8")
