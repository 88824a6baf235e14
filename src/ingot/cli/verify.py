"""`ingot verify`: a factory's model with its numbers compared after every pass.

With --bisect the compiled model is compared with eager, and where they differ the pass that is to blame is found. With
--schedule its loops are interpreted before and after every scheduling step."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from ingot.cli.capture import Dynamic, Reference, add_ranges, parse_dynamic
from ingot.cli.compile import Precise, open_model
from ingot.cli.console import AsJson, Debug, Result, command
from ingot.cli.progress import Stages


@command
def run(
    reference: Reference,
    dynamic: Dynamic = None,
    passes: Annotated[
        str | None, typer.Option("--passes", help="Other passes than the default ones: a,b{option=1}.")
    ] = None,
    bisect: Annotated[
        bool, typer.Option("--bisect", help="Compile instead; if a result is wrong, find the pass that makes it so.")
    ] = False,
    schedule: Annotated[
        bool, typer.Option("--schedule", help="Interpret the loops before and after every scheduling step instead.")
    ] = False,
    precision: Precise = "float32",
    as_json: AsJson = False,
    debug: Debug = False,
) -> Result:
    """Run every pass on a model and compare results before and after, in its own dtype and in float64."""
    dynamic_shapes = parse_dynamic(dynamic or ())
    stages = Stages()
    if bisect and schedule:
        raise typer.BadParameter("--bisect and --schedule are two ways to find a wrong pass: give one of them.")
    if (bisect or schedule) and passes is not None:
        name = "--bisect" if bisect else "--schedule"
        raise typer.BadParameter(f"{name} compiles with the passes of compile: leave --passes out.")
    if schedule:
        return _check_schedule(reference, dynamic_shapes, precision, stages)
    if bisect:
        return _bisect(reference, dynamic_shapes, precision, stages)
    with stages("import", "importing torch"):
        from ingot import api
        from ingot.cli.factory import build
        from ingot.passes import DEFAULT_PIPELINE, transform
        from ingot.passes.manager import info_of, stage_of
        from ingot.passes.pipeline_parser import parse
    chosen = parse(passes) if passes is not None else list(DEFAULT_PIPELINE)
    with stages("build", f"building {reference}"):
        example = build(reference)
    with stages("capture", "capturing"):
        program = api.capture(example.model, example.args, example.kwargs, dynamic_shapes=add_ranges(dynamic_shapes))
    rows: list[dict[str, Any]] = []
    for item in chosen:
        info = info_of(stage_of(item).function)
        with stages(info.name, f"checking {info.name}"):
            program = transform(program, [item], check="numerics")
        step = program.history[-1]
        rows.append(
            {
                "pass": step.name,
                "changes": step.changes,
                "nodes_before": step.nodes_before,
                "nodes_after": step.nodes_after,
                "seconds": round(step.seconds, 4),
                "agrees": "bit for bit" if info.exact else "to rounding",
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


def _check_schedule(reference: str, dynamic_shapes: Any, precision: Any, stages: Stages) -> Result:
    with stages("import", "importing torch"):
        from ingot import api
        from ingot.compiler import run_cpu_pipeline
        from ingot.ir.program import Program
        from ingot.targets.cpu.target import CPU
        from ingot.targets.reference.schedule_check import schedule_checked
    model, args, kwargs = open_model(reference, stages, dynamic_shapes)
    with stages("capture", "capturing"):
        program = (
            model
            if isinstance(model, Program)
            else api.capture(model, args, kwargs, dynamic_shapes=add_ranges(dynamic_shapes))
        )
    with stages("lower", "lowering"):
        program = run_cpu_pipeline(program)
        module = CPU.lower(program, precision)
    rows: list[dict[str, Any]] = []
    with stages("schedule", "interpreting before and after every step"):
        scheduled = schedule_checked(
            CPU,
            program,
            module,
            observe=lambda name, before, after: rows.append(
                {"step": name, "steps_before": len(before.steps), "steps_after": len(after.steps)}
            ),
        )
    rows.append({"step": "buffer_planning", "steps_before": len(scheduled.steps), "steps_after": len(scheduled.steps)})
    table = Table("scheduling step", "steps of the module", "numbers agree")
    for row in rows:
        table.add_row(row["step"], f"{row['steps_before']} → {row['steps_after']}", "yes")
    return Result({"reference": reference, "schedule": rows}, (table,))


def _bisect(reference: str, dynamic_shapes: Any, precision: Any, stages: Stages) -> Result:
    with stages("import", "importing torch"):
        from ingot import api
        from ingot.cli.bisection import bisect
        from ingot.ir.program import Program
    model, args, kwargs = open_model(reference, stages, dynamic_shapes)
    with stages("capture", "capturing"):
        program = (
            model
            if isinstance(model, Program)
            else api.capture(model, args, kwargs, dynamic_shapes=add_ranges(dynamic_shapes))
        )
    tried: list[str] = []
    with stages("bisect", "compiling and comparing with eager"):
        found = bisect(program, precision=precision, report=tried.append)
    data = {
        "reference": reference,
        "right": found.difference is None,
        "difference": None if found.difference is None else str(found.difference),
        "pass": found.culprit,
        "right_without_it": found.alone if found.culprit is not None else None,
        "tried": tried,
    }
    if found.difference is None:
        return Result(data, ("correct: compiled code and eager agree.",))
    lines = [f"wrong: {found.difference}"]
    if found.culprit is None:
        lines.append("pass: none of the optional ones; the result is wrong without all of them too.")
    else:
        lines.append(f"pass: {found.culprit}")
        lines.append(
            f"Without it alone the result is {'right' if found.alone else 'still wrong: another pass is at fault too'}."
        )
        if found.alone:
            lines.append(f'Until it is fixed: compile with disable_passes={{"{found.culprit}"}}.')
    return Result(data, ("\n".join(lines),), exit_code=1)
