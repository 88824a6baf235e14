"""`ingot quantize`: quantizes a factory's model, or a saved program."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from ingot.cli.capture import Dynamic, add_ranges, parse_dynamic
from ingot.cli.compile import open_model
from ingot.cli.console import AsJson, Debug, Result, command, human
from ingot.cli.progress import Stages


@command
def run(
    reference: Annotated[
        str, typer.Argument(metavar="MODULE:FACTORY|PROGRAM.ingot", help="A factory, or a program saved by capture.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The .ingot file to write.")],
    recipe: Annotated[
        str, typer.Option("--recipe", help="int8_static, int8_dynamic, int8_weight_only or int4_weight_only.")
    ] = "int8_static",
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="MODULE:FUNCTION", help="Returns batches to calibrate with; else the example."),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", help="How many batches at most.")] = None,
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
    stages = Stages()
    with stages("import", "importing torch"):
        from ingot import api, quantize
        from ingot.cli.factory import call
        from ingot.ir.program import Program
        from ingot.quantization.prepare import plan_of
        from ingot.quantization.recipes import RECIPES
    if recipe not in RECIPES:
        raise typer.BadParameter(f"there is no recipe {recipe!r}: give one of {', '.join(RECIPES)}.")
    model, args, kwargs = open_model(reference, stages, dynamic_shapes)
    program = model
    if not isinstance(model, Program):
        with stages("capture", "capturing"):
            program = api.capture(model, args, kwargs, dynamic_shapes=add_ranges(dynamic_shapes))
    if data is None and program.example_inputs is None:
        raise typer.BadParameter(
            "the program has no example inputs: name data to calibrate with, --data MODULE:FUNCTION."
        )
    with stages("prepare", "preparing"):
        prepared = quantize.prepare(program, RECIPES[recipe](overrides=dict.fromkeys(in_float or ())))
    with stages("calibrate", "calibrating"):
        batches: list[Any] = list(call(data)) if data is not None else [program.example_inputs]
        how = quantize.feed if data is not None else _example
        quantize.calibrate(prepared, batches, limit=limit, call=how, progress=False)
    with stages("convert", "converting"):
        made = quantize.convert(prepared)
    with stages("save", f"saving {output}"):
        made.save(output)
    found = None
    if report or html is not None:
        with stages("report", "comparing layer by layer"):
            found = quantize.report(program, made, batches, limit=limit, call=how, show=False, html=html)
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


def _example(model: Any, item: Any) -> Any:
    args, kwargs = item
    return model(*args, **kwargs)


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
