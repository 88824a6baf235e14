"""Passes as text: `autocast,decompose{keep=[linear,gelu]},fold{limit_bytes=1024}`."""

from __future__ import annotations

import ast
import difflib
import re
from typing import Any

from ingot.errors import PassError, format_error
from ingot.passes.manager import REGISTRY, PassLike

_PASS = re.compile(r"^\s*(?P<name>[A-Za-z_]\w*)\s*(?:\{(?P<options>.*)\})?\s*$", re.DOTALL)


def parse(text: str) -> list[PassLike]:
    """The passes that a text names, with their options. Raises PassError where it cannot be read."""
    chosen: list[PassLike] = []
    for part in _split(text):
        match = _PASS.match(part)
        if match is None:
            raise PassError(
                format_error(
                    f"{part.strip()!r} is not a pass.", fix="write name or name{option=value}, separated by commas"
                )
            )
        name = match["name"]
        if name not in REGISTRY:
            close = difflib.get_close_matches(name, REGISTRY, n=1)
            raise PassError(
                format_error(
                    f"There is no pass {name!r}.",
                    why=f"the passes are {', '.join(sorted(REGISTRY))}",
                    fix=f"did you mean {close[0]!r}?" if close else None,
                )
            )
        options = dict(_option(item) for item in _split(match["options"] or ""))
        chosen.append((REGISTRY[name], options) if options else REGISTRY[name])
    return chosen


def _split(text: str) -> list[str]:
    """The parts between commas that stand outside braces and brackets."""
    parts, depth, current = [], 0, ""
    for character in text:
        depth += (character in "{[(") - (character in "}])")
        if character == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += character
    parts.append(current)
    return [part for part in parts if part.strip()]


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise PassError(format_error(f"The option {text.strip()!r} has no value.", fix="write option=value"))
    return name.strip(), _value(value.strip())


def _value(text: str) -> Any:
    """A Python literal, a list of values, or else the text itself."""
    if text.startswith("[") and text.endswith("]"):
        return [_value(part.strip()) for part in _split(text[1:-1])]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
