"""What shape inference knows about a program's values, for `ingot inspect --shapes`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from ingot.ir.program import Program

Dims = tuple[int | str | None, ...] | None

_ANY_RANK = "..."
_ANY_SIZE = "?"


def parse_shapes(texts: list[str] | tuple[str, ...]) -> dict[str, Dims]:
    """`--shape` options by argument, as `ingot.shapes_of` takes them. Raises typer.BadParameter."""
    shapes: dict[str, Dims] = {}
    for text in texts:
        name, given, listed = (part.strip() for part in text.partition("="))
        dims = [dim.strip() for dim in listed.split(",")] if listed else []
        if not name.isidentifier() or not given or not all(map(_is_dim, dims if listed != _ANY_RANK else ())):
            raise typer.BadParameter(
                f'{text!r} is not of the form NAME=DIM,DIM,…, such as "x=batch,?,3", or "x=..." for any rank.'
            )
        shapes[name] = None if listed == _ANY_RANK else tuple(map(_dim, dims))
    return shapes


def _is_dim(text: str) -> bool:
    return text == _ANY_SIZE or text.isidentifier() or (text.isascii() and text.isdigit())


def _dim(text: str) -> int | str | None:
    if text == _ANY_SIZE:
        return None
    return int(text) if text.isdigit() else text


def list_types(program: Program, inputs: dict[str, Dims]) -> list[dict[str, Any]]:
    """One row for each argument and each operator of the program's outermost graph."""
    from ingot.analysis.shape_inference import shapes_of
    from ingot.ir import metadata

    inferred = shapes_of(program, inputs)
    arguments = {spec.name for spec in program.signature.user_inputs}
    rows: list[dict[str, Any]] = []
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name not in arguments:
            continue
        if node.op in ("placeholder", "call_function"):
            source = metadata.source_of(node)
            rows.append(
                {
                    "value": node.name,
                    "type": str(inferred[node]),
                    "operator": "" if node.op == "placeholder" else str(node.target),
                    "source": str(source) if source is not None else "",
                    "why_not_more": str(inferred.unknown_reasons.get(node, "")),
                }
            )
    return rows


def table(rows: list[dict[str, Any]]) -> Table:
    """The same for people; a reason stands where something is unknown."""
    columns = {"value": "value", "type": "type", "operator": "operator", "source": "source"}
    if any(row["why_not_more"] for row in rows):
        columns["why_not_more"] = "why it is not known"
    shown = Table(*columns.values())
    for row in rows:
        shown.add_row(*(Text(row[key]) for key in columns))  # a type in brackets is not markup
    return shown
