"""`ingot verify`: a factory's model with its numbers compared after every pass.

With --bisect the compiled model is compared with eager, and where they differ the pass that is to blame is found. With
--schedule its loops are interpreted before and after every scheduling step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from ingot.cli.capture import Dynamic, parse_dynamic
from ingot.cli.compile import Precise, Source, open_program
from ingot.cli.console import AsJson, Debug, Result, command
from ingot.cli.inputs.completion import complete_passes
from ingot.cli.inputs.paths import refuse_together
from ingot.cli.progress import Stages

if TYPE_CHECKING:
    from ingot.lowering.loop_module import Module


@command
def run(
    reference: Source,
    dynamic: Dynamic = None,
    passes: Annotated[
        str | None,
        typer.Option(
            "--passes", autocompletion=complete_passes, help="Other passes than the default ones: a,b{option=1}."
        ),
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
    refuse_together("--bisect", bisect, "--schedule", schedule, "they are two ways to find a wrong pass")
    if (bisect or schedule) and passes is not None:
        name = "--bisect" if bisect else "--schedule"
        raise typer.BadParameter(f"{name} compiles with the passes of compile: leave --passes out.")
    if not (bisect or schedule) and precision != "float32":
        raise typer.BadParameter("--precision is that of compiled code: give --bisect or --schedule with it.")
    stages = Stages()
    if schedule:
        return _check_schedule(reference, dynamic_shapes, precision, stages)
    if bisect:
        return _bisect(reference, dynamic_shapes, precision, stages)
    with stages("import", "importing torch"):
        from ingot.passes import DEFAULT_PIPELINE, transform
        from ingot.passes.manager import info_of, stage_of
        from ingot.passes.pipeline_parser import parse
    chosen = parse(passes) if passes is not None else list(DEFAULT_PIPELINE)
    stages.count = 3 + len(chosen)
    program = open_program(reference, stages, dynamic_shapes)
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
        from ingot.compiler import run_cpu_pipeline
        from ingot.targets.cpu.schedule.pipeline import SCHEDULE
        from ingot.targets.cpu.target import CPU
        from ingot.targets.reference.schedule_check import schedule_checked
    program = open_program(reference, stages, dynamic_shapes)
    with stages("lower", "lowering"):
        program = run_cpu_pipeline(program)
        module = CPU.lower(program, precision)
    rows: list[dict[str, Any]] = []
    with stages("schedule", "interpreting before and after every step", len(SCHEDULE)) as step:

        def observe(name: str, before: Module, after: Module) -> None:
            rows.append({"step": name, "steps_before": len(before.steps), "steps_after": len(after.steps)})
            step(name)

        scheduled = schedule_checked(CPU, program, module, observe=observe)
    rows.append({"step": "buffer_planning", "steps_before": len(scheduled.steps), "steps_after": len(scheduled.steps)})
    table = Table("scheduling step", "steps of the module", "numbers agree")
    for row in rows:
        table.add_row(row["step"], f"{row['steps_before']} → {row['steps_after']}", "yes")
    return Result({"reference": reference, "schedule": rows}, (table,))


def _bisect(reference: str, dynamic_shapes: Any, precision: Any, stages: Stages) -> Result:
    with stages("import", "importing torch"):
        from ingot.cli.bisection import bisect
    program = open_program(reference, stages, dynamic_shapes)
    tried: list[str] = []
    with stages("bisect", "compiling and comparing with eager") as step:

        def report(line: str) -> None:
            tried.append(line)
            step(f"{len(tried)} times, the last {'right' if line.endswith(': right') else 'wrong'}")

        found = bisect(program, precision=precision, report=report)
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
