"""`ingot quantize`: quantizes a factory's model, or a saved program."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from ingot.cli.capture import Dynamic, parse_dynamic
from ingot.cli.compile import Source, open_program
from ingot.cli.console import AsJson, Debug, Result, command, human
from ingot.cli.inputs.completion import choose_from
from ingot.cli.inputs.paths import check_ingot_output, check_inputs, check_outputs
from ingot.cli.progress import Stages

# A test compares them with the recipes that there are: --help imports nothing that is slow.
RECIPES = ("int8_static", "int8_dynamic", "int8_weight_only", "int4_weight_only")


@command
def run(
    reference: Source,
    output: Annotated[Path, typer.Option("-o", "--output", help="The .ingot file to write.")],
    recipe: Annotated[
        str,
        typer.Option(
            "--recipe",
            metavar="NAME",
            autocompletion=choose_from(RECIPES),
            help=f"{', '.join(RECIPES[:-1])} or {RECIPES[-1]}.",
        ),
    ] = "int8_static",
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="MODULE:FUNCTION|FILE.npz",
            help="Batches to calibrate with, in place of the example: a function that returns them, or arrays by the "
            "names of the arguments, several batches along a first axis.",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="How many batches at most.")] = None,
    in_float: Annotated[
        list[str] | None,
        typer.Option("--float", metavar="MODULE", help="A module that stays float; * matches. Repeatable."),
    ] = None,
    report: Annotated[bool, typer.Option("--report", help="Show what each layer loses.")] = False,
    html: Annotated[Path | None, typer.Option("--html", help="Write that report to this file.")] = None,
    dynamic: Dynamic = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> Result:
    """Quantize a model: calibrate it, convert it, and save the program for `ingot compile`."""
    dynamic_shapes = parse_dynamic(dynamic or ())
    if recipe not in RECIPES:
        raise typer.BadParameter(f"there is no recipe {recipe!r}: give one of {', '.join(RECIPES)}.")
    check_ingot_output(output)
    check_outputs({"-o": output, "--html": html})
    compares = report or html is not None
    stages = Stages(7 + compares)
    with stages("import", "importing torch"):
        from ingot import quantize
        from ingot.cli.factory import call
        from ingot.cli.inputs import calibration_data
        from ingot.quantization import recipes
        from ingot.quantization.prepare import plan_of
    is_file = data is not None and calibration_data.is_file(data)
    if data is not None and is_file:
        check_inputs([Path(data)])
    # A function runs before the capture: where it fails, nothing was waited for.
    made = call(data, "function") if data is not None and not is_file else None
    program = open_program(reference, stages, dynamic_shapes)
    if data is None:
        batches = calibration_data.from_example(program)
    elif is_file:
        batches = calibration_data.from_file(data, program)
    else:
        batches = calibration_data.from_function(made, data)
    batches = batches.take(limit)
    if compares:
        batches = calibration_data.repeatable(batches)
    with stages("prepare", "preparing"):
        prepared = quantize.prepare(program, recipes.RECIPES[recipe](overrides=dict.fromkeys(in_float or ())))
    with stages("calibrate", "calibrating", batches.count) as step:
        quantize.calibrate(prepared, batches.items, call=batches.watch(step), progress=False)
    with stages("convert", "converting"):
        made = quantize.convert(prepared)
    with stages("save", f"saving {output}"):
        made.save(output)
    found = None
    if compares:
        with stages("report", "comparing layer by layer"):
            found = quantize.report(program, made, batches.items, call=batches.call, show=False, html=html)
    table = plan_of(prepared).table
    facts = {
        "reference": reference,
        "recipe": recipe,
        "calibrated_on": data or "the example inputs",
        "activations": sum(len(group.points) for group in table.groups),
        "weights": len(table.weights),
        "bytes_before": _bytes(program),
        "bytes_after": _bytes(made),
        "output": str(output),
        "report": None if found is None else _layers(found),
        "seconds": stages.seconds,
    }
    return Result(facts, (_summary(facts), *((found,) if found is not None and report else ())))


def _bytes(program: Any) -> int:
    tensors = {id(t): t for t in (*program.state_dict.values(), *program.constants.values())}
    return sum(t.numel() * t.element_size() for t in tensors.values())


def _layers(found: Any) -> dict[str, Any]:
    leave = [layer.path or layer.node for layer in found.worth_leaving]
    layers = [{name: getattr(layer, name) for name in layer.__slots__} for layer in found.layers]
    return {"result_db": found.result, "worth_leaving": leave, "layers": layers}


def _summary(facts: dict[str, Any]) -> Table:
    rows = [
        ("quantized", f"{facts['reference']}, {facts['recipe']}"),
        ("calibrated", f"on {facts['calibrated_on']}"),
        ("numbers", f"{facts['weights']} weights, {facts['activations']} activations"),
        ("state", f"{human(facts['bytes_before'], 'B')} before, {human(facts['bytes_after'], 'B')} after"),
        ("saved", facts["output"]),
    ]
    seconds = {name: taken for name, taken in facts["seconds"].items() if name != "import"}
    rows.append(("time", ", ".join(f"{name} {taken:.2f} s" for name, taken in seconds.items())))
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for label, text in rows:
        table.add_row(label, Text(text))
    return table
