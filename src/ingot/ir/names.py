"""Names that are legal in a graph, derived from the user's."""

from __future__ import annotations

import re
from collections.abc import Container

_ILLEGAL = re.compile(r"\W+")


def identifier(text: str) -> str:
    """`text` as a Python identifier."""
    cleaned = _ILLEGAL.sub("_", text).strip("_") or "value"
    return f"_{cleaned}" if cleaned[0].isdigit() else cleaned


def unique(name: str, taken: Container[str]) -> str:
    """`name`, or `name_1`, `name_2` … where it is taken."""
    candidate, count = name, 0
    while candidate in taken:
        count += 1
        candidate = f"{name}_{count}"
    return candidate
