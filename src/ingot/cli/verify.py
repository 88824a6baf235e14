"""`ingot verify`: a factory's model goes down the road with its numbers compared after every pass."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from ingot.cli.capture import Dynamic, Reference, parse_dynamic, with_ranges
from ingot.cli.terminal import AsJson, Debug, Result, Stages, command


@command
def run(
    reference: Reference,
    dynamic: Dynamic = None,
    passes: Annotated[str | None, typer.Option("--passes", help="Other passes than the road's: a,b{option=1}.")] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> Result:
    """Run every pass on a model and compare results before and after, in its own dtype and in float64."""
    dynamic_shapes = parse_dynamic(dynamic or ())
    stages = Stages()
    with stages("import", "importing torch"):
        from ingot import entry
        from ingot.cli.factory import build
        from ingot.passes import ROAD, transform
        from ingot.passes.manager import info_of
        from ingot.passes.selection import parse
    chosen = parse(passes) if passes is not None else list(ROAD)
    with stages("build", f"building {reference}"):
        example = build(reference)
    with stages("capture", "capturing"):
        program = entry.capture(example.model, example.args, example.kwargs, dynamic_shapes=with_ranges(dynamic_shapes))
    rows: list[dict[str, Any]] = []
    for item in chosen:
        name = info_of(item[0] if isinstance(item, tuple) else item).name
        with stages(name, f"checking {name}"):
            program = transform(program, [item], check="numerics")
        step = program.history[-1]
        rows.append(
            {
                "pass": step.name,
                "changes": step.changes,
                "nodes_before": step.nodes_before,
                "nodes_after": step.nodes_after,
                "seconds": round(step.seconds, 4),
                "agrees": "bit for bit"
                if info_of(item[0] if isinstance(item, tuple) else item).exact
                else "to rounding",
            }
        )
    table = Table("pass", "changes", "nodes", "seconds", "numbers agree")
    for row in rows:
        table.add_row(
            row["pass"],
            str(row["changes"]),
            f"{row['nodes_before']} → {row['nodes_after']}",
            f"{row['seconds']:.3f}",
            row["agrees"],
        )
    return Result({"reference": reference, "dialect": program.dialect.name, "passes": rows}, (table,))
