"""Files of numbers that the user brings: JSON, or a CSV table with a header row.

JSON is `{"latency": {"linear": 1.2}}`, or with a unit `{"latency": {"unit": "ms", "values": {"linear": 1.2}}}`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingot.errors import ViewError, format_error

# What a page could show of more is not worth the wait.
MOST_BYTES = 256 << 20
MOST_TITLES = 2000
_LONGEST_TITLE = 200
_SHOWN = 60
_FIX = 'give {"title": {"name": 1.5}} as .json, or a table with a header row as .csv'


@dataclass(frozen=True, slots=True)
class NumberTable:
    """Numbers of one kind by the names of what they are of."""

    title: str
    unit: str
    values: Mapping[str, float]


def read_numbers(paths: Iterable[Path]) -> list[NumberTable]:
    """The tables of these files. Raises OSError, and ViewError where a file is not one of numbers."""
    found: list[NumberTable] = []
    for path in paths:
        for table in _read_file(path):
            found.append(NumberTable(_new_title(table.title, path.name, found), table.unit, table.values))
    if len(found) > MOST_TITLES:
        raise ViewError(
            format_error(
                f"The files hold {len(found):,} kinds of numbers.",
                why=f"a page shows {MOST_TITLES:,} at most",
                fix="give files with fewer columns",
            )
        )
    return found


def check_numbers(given: Mapping[str, Any]) -> list[NumberTable]:
    """The tables of a mapping from titles to numbers by name. Raises ViewError."""
    return parse_tables(given, "numbers=")


def _read_file(path: Path) -> list[NumberTable]:
    from ingot.viewer.numbers.csv_numbers import read_csv

    with path.open("rb") as file:
        raw = file.read(MOST_BYTES + 1)
    if len(raw) > MOST_BYTES:
        raise damage_error(str(path), f"it has more than {MOST_BYTES >> 20} MiB")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise damage_error(str(path), f"byte {error.start:,} is not UTF-8 text") from None
    if "\0" in text:
        raise damage_error(str(path), "it holds zero bytes, as text files do not")
    if path.suffix.lower() == ".json" or text.lstrip()[:1] in ("{", "["):
        return parse_tables(_parse_json(text, str(path)), str(path))
    return read_csv(text, str(path))


def _parse_json(text: str, source: str) -> Any:
    def refuse(name: str) -> float:
        raise damage_error(source, f"it holds {name}, which is not a number that can be shown")

    def collect(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            seen: set[str] = set()
            again = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
            raise damage_error(source, f"{quote(again)} is there twice")
        return made

    try:
        return json.loads(text, parse_constant=refuse, object_pairs_hook=collect)
    except (ValueError, RecursionError) as error:
        raise damage_error(source, f"it is not JSON: {error}") from None


def parse_tables(data: Any, source: str) -> list[NumberTable]:
    """Checks what JSON or a caller gave. Raises ViewError."""
    if not isinstance(data, Mapping):
        raise damage_error(source, f"it holds a {_kind(data)} and not titles with numbers by name")
    if not data:
        raise damage_error(source, "it is empty")
    return [_parse_table(title, values, source) for title, values in data.items()]


def _parse_table(title: Any, values: Any, source: str) -> NumberTable:
    name, unit = check_title(title, source), ""
    if isinstance(values, Mapping) and isinstance(values.get("values"), Mapping):
        more = [key for key in values if key not in ("unit", "values")]
        if more:
            raise damage_error(source, f"{quote(name)} has {quote(more[0])} beside its unit and values")
        unit, values = values.get("unit", ""), values["values"]
        if not isinstance(unit, str) or len(unit) > _LONGEST_TITLE:
            raise damage_error(source, f"the unit of {quote(name)} is not a short text")
    if not isinstance(values, Mapping):
        raise damage_error(source, f"{quote(name)} has a {_kind(values)} and not numbers by name")
    return NumberTable(
        name, unit, {_name(key, source): _number(key, value, name, source) for key, value in values.items()}
    )


def check_title(title: Any, source: str) -> str:
    if not isinstance(title, str) or not title.strip():
        raise damage_error(source, "a title is empty or not text")
    if len(title) > _LONGEST_TITLE:
        raise damage_error(source, f"the title {quote(title)} has {len(title):,} characters")
    return title.strip()


def _name(name: Any, source: str) -> str:
    if not isinstance(name, str):
        raise damage_error(source, f"a name is a {_kind(name)} and not text")
    return name


def _number(name: str, value: Any, title: str, source: str) -> float:
    where = f"{quote(name)} in {quote(title)}"
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise damage_error(source, f"{where} is a {_kind(value)} and not a number")
    try:
        made = float(value)
    except (OverflowError, TypeError, ValueError, RuntimeError):
        made = math.inf
    if not math.isfinite(made):
        raise damage_error(source, f"{where} is not a finite number")
    return made


def _new_title(title: str, file: str, taken: Sequence[NumberTable]) -> str:
    """A title that no other table has: two files may measure the same."""
    titles = {table.title for table in taken}
    made, number = title, 1
    while made in titles:
        made = f"{title} ({file})" if number == 1 else f"{title} ({file}, {number})"
        number += 1
    return made


def damage_error(source: str, why: str) -> ViewError:
    return ViewError(format_error(f"{source} has no numbers to show.", why=why, fix=_FIX))


def quote(name: str) -> str:
    """A name as a message shows it: on one line, and not too long."""
    made = ascii(name) if not name.isprintable() else f"'{name}'"
    return made if len(made) <= _SHOWN else f"{made[: _SHOWN - 2]}…'"


def _kind(value: Any) -> str:
    return {list: "list", str: "text", bool: "truth value", dict: "mapping", type(None): "null"}.get(
        type(value), type(value).__name__
    )
