"""Numbers of a table: a header row, a column of names, and columns of numbers.

What `ncu --csv` writes is one case: lines before the header, a row of units, several launches of each kernel. Rows of
one name become one number: amounts are added, rates and shares averaged, and a largest or smallest value stays that.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from ingot.viewer.numbers.number_files import NumberTable, check_title, damage_error, quote

Rows: TypeAlias = list[tuple[int, list[str]]]

# What the column of names is called, the best first. Without one of these it is the first column that has no numbers.
_NAMES = ("kernel name", "name", "node", "module", "kernel", "layer", "symbol", "function")
# Columns of profilers that number things and count nothing.
_NUMBERING = frozenset({"id", "process id", "context", "stream", "device", "cc", "pid", "tid"})
_METRIC, _VALUE, _UNIT = "metric name", "metric value", "metric unit"
_MISSING = frozenset(
    {"", "-", "–", "n/a", "na", "none", "null", "<not counted>", "<not supported>", "(!) n/a", "no data"}
)
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d*)?")
_HEADING = re.compile(r"(?P<title>.*\S)\s*[\[(](?P<unit>[^\[\]()]{1,24})[\])]")
_AVERAGED = re.compile(r"%|/|^(?:hz|khz|mhz|ghz|ratio|[kmg]?flops?)$", re.IGNORECASE)
_SUMMARIES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "sum": math.fsum,
    "max": max,
    "min": min,
    "avg": lambda values: math.fsum(values) / len(values),
}
_RATES = frozenset({"avg", "mean", "pct", "ratio", "rate", "per_second", "per_cycle_active", "per_cycle_elapsed"})
_LONGEST_FIELD = 1 << 20


def read_csv(text: str, source: str) -> list[NumberTable]:
    """The tables of the columns. Raises ViewError."""
    header, rows = _split(text, source)
    keys = [name.strip().lower() for name in header]
    again = next((name for number, name in enumerate(keys) if name and name in keys[:number]), None)
    if again is not None:
        raise damage_error(source, f"two columns are called {quote(again)}")
    if _METRIC in keys and _VALUE in keys:
        return _read_long(keys, rows, source)
    names = _find_names(keys, rows, source)
    units = _take_units(rows, names, keys)
    found: list[NumberTable] = []
    for number, heading in enumerate(header):
        if number == names or keys[number] in _NUMBERING or not heading.strip():
            continue
        values = _read_column(heading, number, names, rows, source)
        if values:
            parts = _HEADING.fullmatch(heading.strip())
            title = check_title(parts["title"] if parts else heading, source)
            unit = units.get(number) or (parts["unit"] if parts else "")
            found.append(NumberTable(title, unit, _join(values, title, unit)))
    if not found:
        raise damage_error(source, f"no column beside {quote(header[names])} holds numbers")
    return found


def _split(text: str, source: str) -> tuple[list[str], Rows]:
    """The header, and the rows below with their line numbers. Profilers write messages before the header."""
    first = text.lstrip("\n").split("\n", 1)[0]
    tabs = "\t" in first and "," not in first
    rows: Rows = []
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter="\t" if tabs else ",", strict=True)
        for row in reader:
            if row and not (not rows and row[0].startswith(("==", "#"))) and any(field.strip() for field in row):
                rows.append((reader.line_num, row))
    except csv.Error as error:
        raise damage_error(source, f"line {reader.line_num:,} is not CSV: {error}") from None
    if len(rows) < 2:
        raise damage_error(source, "it has no rows below a header")
    header = rows.pop(0)[1]
    for line, row in rows:
        if len(row) > len(header):
            raise damage_error(source, f"line {line:,} has {len(row)} fields, and the header has {len(header)}")
    return header, rows


def _find_names(keys: Sequence[str], rows: Rows, source: str) -> int:
    for name in _NAMES:
        if name in keys:
            return keys.index(name)
    for number in range(len(keys)):
        fields = [_field(row, number) for _, row in rows]
        if any(fields) and not any(_is_number(field) for field in fields):
            return number
    raise damage_error(source, "no column holds names")


def _take_units(rows: Rows, names: int, keys: Sequence[str]) -> dict[int, str]:
    """Units by column: those of a first row without a name and without numbers, which is taken away."""
    row = rows[0][1]
    if _field(row, names) or any(_is_number(field) for field in row) or len(rows) < 2:
        return {}
    del rows[0]
    return {number: _field(row, number)[:24] for number in range(len(keys)) if _field(row, number)}


def _read_column(heading: str, number: int, names: int, rows: Rows, source: str) -> dict[str, list[float]]:
    """The numbers of a column by name; none where the column holds text."""
    found: dict[str, list[float]] = {}
    foreign: tuple[int, str] | None = None
    for line, row in rows:
        field = _field(row, number)
        if field.lower() in _MISSING:
            continue
        if not _is_number(field):
            foreign = foreign or (line, field)
            continue
        name = _field(row, names)
        if not name:
            raise damage_error(source, f"line {line:,} has no name")
        found.setdefault(name, []).append(_parse(field, line, heading, source))
    if found and foreign is not None:
        raise damage_error(source, f"line {foreign[0]:,}: {quote(foreign[1])} in {quote(heading)} is not a number")
    return found


def _read_long(keys: Sequence[str], rows: Rows, source: str) -> list[NumberTable]:
    """A table with one row per name and metric."""
    others = [key if key not in (_METRIC, _VALUE, _UNIT) else "" for key in keys]
    names = _find_names(others, rows, source)
    metric, value = keys.index(_METRIC), keys.index(_VALUE)
    unit = keys.index(_UNIT) if _UNIT in keys else -1
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for line, row in rows:
        field, title = _field(row, value), _field(row, metric)
        if field.lower() in _MISSING or not title or not _is_number(field):
            continue
        column = found.setdefault((check_title(title, source), _field(row, unit)[:24] if unit >= 0 else ""), {})
        name = _field(row, names)
        if not name:
            raise damage_error(source, f"line {line:,} has no name")
        column.setdefault(name, []).append(_parse(field, line, title, source))
    if not found:
        raise damage_error(source, f"{quote(_VALUE)} holds no numbers")
    return [NumberTable(title, unit, _join(values, title, unit)) for (title, unit), values in found.items()]


def _field(row: Sequence[str], number: int) -> str:
    return row[number].strip() if number < len(row) else ""


def _is_number(field: str) -> bool:
    """Whether this is written as a number; nan and inf are, too, and are refused where they stand."""
    try:
        float(field)
    except ValueError:
        return _THOUSANDS.fullmatch(field) is not None
    return "_" not in field


def _parse(field: str, line: int, heading: str, source: str) -> float:
    made = float(field.replace(",", ""))
    if not math.isfinite(made):
        raise damage_error(source, f"line {line:,}: {quote(field)} in {quote(heading)} is not a finite number")
    return made


def summary_of(title: str, unit: str) -> str:
    """How rows of one name become one number: sum, avg, max or min."""
    ending = title.lower().rsplit(".", 1)[-1]
    if ending in ("sum", "max", "min"):
        return ending
    return "avg" if ending in _RATES or _AVERAGED.search(unit) else "sum"


def _join(values: Mapping[str, list[float]], title: str, unit: str) -> dict[str, float]:
    joined = _SUMMARIES[summary_of(title, unit)]
    return {name: numbers[0] if len(numbers) == 1 else joined(numbers) for name, numbers in values.items()}
