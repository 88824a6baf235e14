"""`ingot compile`: a factory's model, or a saved program, becomes one file that runs without torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from ingot.cli.capture import Dynamic, add_ranges, parse_dynamic
from ingot.cli.console import AsJson, Debug, Result, command, human
from ingot.cli.inputs.completion import choose_from, complete_reference
from ingot.cli.inputs.paths import check_ingot_output, check_outputs
from ingot.cli.progress import Stages

if TYPE_CHECKING:
    from ingot.ir.program import Program

# What --isa takes, for --help, which imports nothing that is slow; a test compares it with the code's own list.
ISAS = (
    "x86-64-v4-amx",
    "x86-64-v4-bf16",
    "x86-64-v4",
    "x86-64-v3",
    "x86-64",
    "aarch64-bf16",
    "aarch64-dotprod",
    "aarch64",
    "plain",
    "x86-64-v4-macos",
    "x86-64-v3-macos",
    "x86-64-macos",
    "aarch64-bf16-macos",
    "aarch64-dotprod-macos",
    "aarch64-macos",
    "portable",
    "portable+aarch64",
    "portable+aarch64+macos",
)

Source = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:FACTORY|PROGRAM.ingot|MODEL.pt2",
        autocompletion=complete_reference,
        help="A factory, pkg.module:factory or file.py:factory; a file of `ingot capture` or of torch.export.",
    ),
]
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, max=1024, help="Threads to run with; one for each core.")
]
Precise = Annotated[
    Literal["float32", "bfloat16"],
    typer.Option("--precision", help="What matrix products and convolutions with weights multiply in."),
]
PreciseForTarget = Annotated[
    Literal["float32", "bfloat16", "tf32"],
    typer.Option(
        "--precision", help="What matrix products and convolutions multiply in: bfloat16 on a CPU, tf32 on a GPU."
    ),
]
Cached = Annotated[bool, typer.Option("--cache/--no-cache", help="Use libraries that were compiled before.")]

# What a person reads while each stage of the pipeline runs.
DOING = {
    "capture": "capturing",
    "passes": "running passes",
    "lower": "lowering to loops",
    "emit": "writing C",
    "cc": "compiling C and packing weights",
}


@command
def run(
    reference: Source,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Save the compiled model to this file.")] = None,
    dynamic: Dynamic = None,
    target: Annotated[Literal["cpu", "cuda"], typer.Option("--target", help="The machine to compile for.")] = "cpu",
    isa: Annotated[
        list[str] | None,
        typer.Option(
            "--isa",
            metavar="NAME",
            autocompletion=choose_from((*ISAS, "sm_80", "sm_90a", "ptx")),
            help=f"Build for this instruction set, too: {', '.join(ISAS)} (portable: the first four). With --target "
            "cuda, for this architecture: sm_80, sm_90a, …, or ptx. Repeatable.",
        ),
    ] = None,
    threads: Threads = None,
    precision: PreciseForTarget = "float32",
    cache: Cached = True,
    program: Annotated[
        bool, typer.Option("--program", help="Save the program as well, to compile it elsewhere; twice the size.")
    ] = False,
    source: Annotated[Path | None, typer.Option("--source", help="Write the C text to this file.")] = None,
    loop_ir: Annotated[Path | None, typer.Option("--loop-ir", help="Write the scheduled loops to this file.")] = None,
    check: Annotated[bool, typer.Option(help="Run the example through the saved file, and compare with torch.")] = True,
    as_json: AsJson = False,
    debug: Debug = False,
) -> Result:
    """Compile a model to native code, in one file that runs without torch."""
    dynamic_shapes = parse_dynamic(dynamic or ())
    if program and output is None:
        raise typer.BadParameter("--program saves the program in the file: give -o FILE.ingot.")
    check_ingot_output(output)
    check_outputs({"-o": output, "--source": source, "--loop-ir": loop_ir})
    stages = Stages(7 + (0 if output is None else 1 + check))
    with stages("import", "importing torch"):
        from ingot import compiler, pipelines
        from ingot.cli.inputs.machines import check_machines
        from ingot.targets.registry import find_target
        from ingot_runtime.files import write_file
    compiler.check_precision(precision, find_target(target))
    check_machines(target, isa or ())
    model, args, kwargs = open_model(reference, stages, dynamic_shapes)
    compiled = compiler.compile(
        model,
        args,
        kwargs,
        dynamic_shapes=add_ranges(dynamic_shapes),
        target=target,
        threads=threads,
        cache=cache,
        isa=isa,
        precision=precision,
        on_stage=stages.hook(DOING, {"passes": len(pipelines.NATIVE)}),
    )
    if source is not None:
        write_file(source, compiled.source, "the C source")
    if loop_ir is not None:
        write_file(loop_ir, compiled.loop_ir, "the loops")
    difference, unchecked = None, ""
    if output is not None:
        with stages("save", f"saving {output}"):
            compiled.save(output, program=program)
        if check:
            with stages("check", "running the example through the file"):
                difference, unchecked = _difference(output, threads)
    compiled.close()
    data = {
        "reference": reference,
        "kernels": compiled.kernels,
        "source_lines": compiled.source.count("\n"),
        "instruction_sets": list(compiled.libraries),
        "weight_bytes": compiled.weight_bytes,
        "precision": compiled.precision,
        "takes": [_format_spec(item) for item in compiled.model.spec.inputs],
        "gives": [_format_spec(item) for item in compiled.model.spec.outputs],
        "dims": [str(symbol) for symbol in compiled.model.spec.symbols.values()],
        "largest_difference": difference,
        "unchecked": unchecked,
        "source": None if source is None else str(source),
        "loop_ir": None if loop_ir is None else str(loop_ir),
        "file": None if output is None else {"path": str(output), "bytes": output.stat().st_size},
        "seconds": stages.seconds,
    }
    return Result(data, (_summary(data, check),))


def open_model(
    reference: str, stages: Stages, dynamic_shapes: Any = None
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """What `ingot.compile` takes: a factory's model with its arguments, or a saved program without any.

    Raises FactoryError, a FileError, or AlreadyCompiled for a file that holds native code and no program.
    """
    from ingot.cli.capture import read_exported
    from ingot.cli.factory import build, named_file, named_kind
    from ingot.cli.inputs.file_kinds import Kind

    is_exported = named_kind(reference) is Kind.EXPORTED
    file = Path(reference) if is_exported else named_file(reference)
    if file is None:
        with stages("build", f"building {reference}"):
            example = build(reference)
        return example.model, example.args, example.kwargs
    if dynamic_shapes:
        raise typer.BadParameter("a saved program has its dynamic dims already: --dynamic is for a factory's model.")
    with stages("load", f"loading {reference}"):
        return read_exported(reference) if is_exported else _program(reference), (), {}


def open_program(reference: str, stages: Stages, dynamic_shapes: Any = None) -> Program:
    """The program in a file, or the one that a factory's model is captured as. Raises what `open_model` raises."""
    from ingot import api
    from ingot.ir.program import Program

    model, args, kwargs = open_model(reference, stages, dynamic_shapes)
    if isinstance(model, Program):
        return model
    with stages("capture", "capturing"):
        return api.capture(model, args, kwargs, dynamic_shapes=add_ranges(dynamic_shapes))


def _program(reference: str) -> Any:
    from ingot import compiler
    from ingot.cli.factory import AlreadyCompiled
    from ingot.errors import MissingMember, format_error

    try:
        return compiler.load(reference, native=False)
    except MissingMember:
        raise AlreadyCompiled(
            format_error(
                f"{reference} is compiled already.",
                why="it holds native code, and no program to compile again",
                fix="compile from MODULE:FACTORY, or from a file that `ingot capture -o` wrote; `ingot run` runs this",
            )
        ) from None


def _difference(file: Path, threads: int | None) -> tuple[float | None, str]:
    """How far the file's own sample is off on this machine; None and the reason where that is not known. Raises
    SelfTestFailed."""
    import ingot_runtime

    try:
        with ingot_runtime.load(file, threads) as model:
            if model.has_sample:
                return model.self_test(), ""
    except ingot_runtime.DeviceUnavailable as missing:  # compiled here for a machine with a GPU
        return None, str(missing).splitlines()[0]
    return None, "the model draws random numbers, or its example is not known"


def _format_spec(item: Any) -> str:
    return f"{item.name}: {item.spelled}"


def _summary(data: dict[str, Any], check: bool) -> Table:
    rows = [("compiled", f"{data['reference']} for {', '.join(data['instruction_sets'])}")]
    rows += [("takes", "\n".join(data["takes"]) or "nothing"), ("gives", "\n".join(data["gives"]) or "nothing")]
    if data["dims"]:
        rows.append(("where", "\n".join(data["dims"])))
    rows.append(("kernels", f"{data['kernels']:,}, in {data['source_lines']:,} lines of C"))
    multiplied = f", multiplied in {data['precision']}" if data["precision"] != "float32" else ""
    rows.append(("weights", human(data["weight_bytes"], "B") + multiplied))
    if data["source"] is not None:
        rows.append(("source", data["source"]))
    if data["loop_ir"] is not None:
        rows.append(("loops", data["loop_ir"]))
    if data["file"] is not None:
        rows.append(("saved", f"{data['file']['path']} ({human(data['file']['bytes'], 'B')})"))
        rows.append(("checked", _format_check(data["largest_difference"], data["unchecked"], check)))
    else:
        rows.append(("saved", "no (-o FILE.ingot)"))
    seconds = {name: taken for name, taken in data["seconds"].items() if name != "import"}
    rows.append(("time", ", ".join(f"{name} {taken:.2f} s" for name, taken in seconds.items())))
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for label, text in rows:
        table.add_row(label, Text(text))  # as it is: rich would read float32[batch, 64] as markup
    return table


def _format_check(difference: float | None, unchecked: str, check: bool) -> str:
    if not check:
        return "no (--no-check)"
    if difference is None:
        return f"no: {unchecked}"
    return f"the file and torch agree; largest difference {difference:.2g}"
