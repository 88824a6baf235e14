"""`ingot inspect`: what a program consists of, by module and by operator."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from ingot.cli.compile import open_program
from ingot.cli.console import AsJson, Debug, Result, command, human
from ingot.cli.inputs.completion import complete_reference, complete_sizes
from ingot.cli.inspection.shapes import list_types, parse_shapes, table
from ingot.cli.progress import Stages

if TYPE_CHECKING:
    from ingot.cli.inspection.model_summary import ModelSummary, SummaryRow
    from ingot.ir.program import Program

# Without --depth the table goes as deep as fits in about a screen.
_ROWS = 40

COUNTED = (
    "FLOPs: two for each multiply-add of matrix products, convolutions, attention and recurrent layers; "
    "elementwise operators are left out. Written: bytes of the tensors that operators make; views make none."
)


@command
def run(
    reference: Annotated[
        str,
        typer.Argument(
            metavar="FILE.ingot|MODULE:FACTORY",
            autocompletion=complete_reference,
            help="A saved program, a compiled model, or a factory to capture.",
        ),
    ],
    depth: Annotated[int | None, typer.Option("--depth", min=0, help="Levels of modules to show.")] = None,
    ops: Annotated[bool, typer.Option("--ops/--no-ops", help="Show the table of operators.")] = True,
    size: Annotated[
        list[str] | None,
        typer.Option(
            "--size",
            metavar="NAME=SIZE",
            autocompletion=complete_sizes,
            help='Count with this size of a dynamic dim, e.g. "batch=8".',
        ),
    ] = None,
    shapes: Annotated[
        bool, typer.Option("--shapes", help="Show what is known of every value's dtype and shape instead.")
    ] = False,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            "--shape",
            metavar="NAME=DIMS",
            help='--shapes for an argument of this shape: "x=batch,?,3", or "x=..." for any rank.',
        ),
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> Result:
    """Show a program's parameters, FLOPs, bytes and operators, by module; or the shapes of its values."""
    chosen = parse_sizes(size or ())
    given = parse_shapes(shape or ())
    if (shapes or given) and (chosen or depth is not None):
        raise typer.BadParameter("--shapes shows values: --size and --depth are for the table of modules.")
    stages = Stages()
    compiled = None if shapes or given else _inspect_compiled(reference)
    if compiled is not None:
        return compiled
    with stages("import", "importing torch"):
        from ingot.cli.inspection import model_summary
    program = open_program(reference, stages)
    if shapes or given:
        with stages("shapes", "inferring shapes"):
            values = list_types(program, given)
        return Result({"reference": reference, "values": values}, (table(values),))
    with stages("count", "counting"):
        counted = model_summary.take(program, chosen)
    shown = _depth(counted, depth)
    rows = [row for row in counted.rows if row.depth <= shown]
    data = _data(reference, program, counted, rows)
    text: list[Any] = [_modules(counted, rows), *_notes(counted)]
    if ops:
        text.append(_operators(counted))
    return Result(data, tuple(text))


def _inspect_compiled(reference: str) -> Result | None:
    """What a compiled file takes and returns, and for which machines it is; None for anything else.

    Everything comes from the manifest: nothing of the file runs.
    """
    from ingot.cli.factory import named_file
    from ingot_runtime import describe
    from ingot_runtime.container import open_container, skip_program
    from ingot_runtime.container.manifest import read_spec

    file = named_file(reference)
    if file is None:
        return None
    with open_container(file, skip=skip_program) as container:
        if "native" not in container.manifest:
            return None
        spec = read_spec(container.manifest, container.names, container.path)
    data = {
        "reference": reference,
        "instruction_sets": [*spec.libraries, *spec.images],
        "precision": spec.precision,
        "takes": [f"{item.name}: {item.spelled}" for item in spec.inputs],
        "gives": [f"{item.name}: {item.spelled}" for item in spec.outputs],
        "dims": [str(symbol) for symbol in spec.symbols.values()],
    }
    return Result(data, (Text(describe(file)),))


def parse_sizes(texts: list[str] | tuple[str, ...]) -> dict[str, int]:
    """`--size` options by dim name. Raises typer.BadParameter."""
    sizes: dict[str, int] = {}
    for text in texts:
        name, _, number = text.partition("=")
        if not name.strip().isidentifier() or not number.strip().isdigit():
            raise typer.BadParameter(f'{text!r} is not of the form NAME=SIZE, such as "batch=8".')
        sizes[name.strip()] = int(number)
    return sizes


def _depth(counted: ModelSummary, asked: int | None) -> int:
    if asked is not None:
        return asked
    deepest = max(row.depth for row in counted.rows)
    fitting = [d for d in range(1, deepest + 1) if sum(row.depth <= d for row in counted.rows) <= _ROWS]
    return max(fitting, default=min(1, deepest))


def _data(reference: str, program: Program, counted: ModelSummary, rows: list[SummaryRow]) -> dict[str, Any]:
    total = counted.total
    return {
        "reference": reference,
        "dialect": program.dialect.name,
        "sizes": dict(counted.sizes),
        "total": {
            "parameters": total.parameters,
            "parameter_bytes": total.parameter_bytes,
            "flops": total.flops,
            "bytes_written": total.bytes,
            "nodes": total.nodes,
            "state_bytes": {kind.value: size for kind, size in counted.state_bytes.items()},
        },
        "modules": [_row_data(row) for row in rows],
        "operators": dict(counted.operators),
        "not_counted": {
            "operators": dict(counted.opaque),
            "nodes_of_unknown_size": counted.unknown,
            "while_loops_counted_once": counted.loops,
        },
    }


def _row_data(row: SummaryRow) -> dict[str, Any]:
    fields = asdict(row)
    return {**{key: value for key, value in fields.items() if key != "bytes"}, "bytes_written": fields["bytes"]}


def _modules(counted: ModelSummary, rows: list[SummaryRow]) -> Table:
    table = Table("module", "type", title_justify="left")
    for column in ("parameters", "FLOPs", "%", "written", "nodes"):
        table.add_column(column, justify="right")
    for row in rows:
        name = "  " * row.depth + (row.path.rpartition(".")[2] or "(whole model)")
        share = f"{100 * row.flops / counted.total.flops:.1f}" if counted.total.flops else ""
        table.add_row(
            name,
            row.type,
            human(row.parameters),
            human(row.flops),
            share,
            human(row.bytes, "B"),
            f"{row.nodes:,}",
            style=None if row.depth else "bold",
        )
    return table


def _notes(counted: ModelSummary) -> list[str]:
    state = ", ".join(f"{kind.value}s {human(size, 'B')}" for kind, size in counted.state_bytes.items())
    notes = [f"State: {state}.", COUNTED]
    if counted.sizes:
        notes.append(f"At {', '.join(f'{name}={size}' for name, size in counted.sizes.items())}; --size changes that.")
    if counted.opaque:
        listed = ", ".join(f"{name} (×{count})" for name, count in counted.opaque.items())
        notes.append(f"No FLOPs are known for {listed}.")
    if counted.unknown:
        notes.append(f"{counted.unknown} nodes depend on sizes known only at run time and are left out.")
    if counted.loops:
        notes.append("The body of a while_loop is counted once.")
    return notes


def _operators(counted: ModelSummary) -> Table:
    table = Table("operator")
    table.add_column("nodes", justify="right")
    for name, count in counted.operators.items():
        table.add_row(name, f"{count:,}")
    return table
