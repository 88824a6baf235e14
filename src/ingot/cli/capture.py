"""`ingot capture`: a factory's model becomes a program, is verified, shown and saved."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.syntax import Syntax
from rich.table import Table

from ingot.cli.console import AsJson, Debug, Result, command, human
from ingot.cli.inputs.completion import complete_passes, complete_reference
from ingot.cli.inputs.paths import check_folder, check_ingot_output, check_outputs
from ingot.cli.progress import Stages

if TYPE_CHECKING:
    from ingot.ir.program import Program

_DECLARATION = re.compile(
    r"^(?P<argument>[^:=]+)(?::(?P<dim>-?\d+))?=(?P<size>[^\[\]]+)(?:\[(?P<low>\d+),\s*(?P<high>\d+)?\])?$"
)

Dynamic = Annotated[
    list[str] | None,
    typer.Option(
        "--dynamic",
        metavar="ARG:DIM=NAME",
        help='A dim that may change, e.g. "x:0=batch", "x:1=2*seq", "x:0=batch[1,64]", "x=auto". Repeatable.',
    ),
]
Reference = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:FACTORY",
        autocompletion=complete_reference,
        help="pkg.module:factory or file.py:factory, a function without arguments that returns (model, args, kwargs); "
        "or a file of TorchScript or of torch.export.",
    ),
]


@command
def run(
    reference: Reference,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Save the program to this .ingot file.")] = None,
    dynamic: Dynamic = None,
    preserve: Annotated[
        list[str] | None,
        typer.Option("--preserve", metavar="MODULE", help="A module that keeps its call signature. Repeatable."),
    ] = None,
    passes: Annotated[
        str | None,
        typer.Option(
            "--passes",
            autocompletion=complete_passes,
            help="Passes to run on it: a,b{option=1}. See ingot.passes.REGISTRY.",
        ),
    ] = None,
    snapshots: Annotated[
        Path | None, typer.Option("--snapshots", help="A folder for a JSON file of the program after each pass.")
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="NAME=DTYPE[SIZES]",
            help='What an argument of a TorchScript file is like: "x=f32[batch,3]", "n=4". Repeatable.',
        ),
    ] = None,
    method: Annotated[str, typer.Option("--method", help="The method of a TorchScript file.")] = "forward",
    unroll: Annotated[
        bool,
        typer.Option("--unroll", help="Unroll a TorchScript file's loops with a constant number of iterations."),
    ] = False,
    show_code: Annotated[bool, typer.Option("--print", help="Print the program's code.")] = False,
    verify: Annotated[bool, typer.Option(help="Check the program's invariants.")] = True,
    as_json: AsJson = False,
    debug: Debug = False,
) -> Result:
    """Capture a model as a program; verify, show and save it."""
    dynamic_shapes = parse_dynamic(dynamic or ())
    if snapshots is not None and passes is None:
        raise typer.BadParameter("--snapshots shows what --passes does; name some passes.")
    check_ingot_output(output)
    check_outputs({"-o": output})
    check_folder(snapshots, "--snapshots")
    from ingot.cli.factory import build, named_kind
    from ingot.cli.inputs.file_kinds import Kind

    kind = named_kind(reference)
    if kind is not Kind.SCRIPT and (inputs or method != "forward" or unroll):
        raise typer.BadParameter("--input, --method and --unroll are for a TorchScript file: leave them out.")
    if kind is Kind.EXPORTED and (dynamic_shapes or preserve):
        raise typer.BadParameter(f"{reference} has its dims and modules already: leave --dynamic and --preserve out.")
    stages = Stages(5 + (passes is not None) + verify + (output is not None) - (kind is not None))
    with stages("import", "importing torch"):
        from ingot import api
        from ingot.cli.inputs import torchscript_inputs
        from ingot.cli.inspection import model_summary
        from ingot.passes.pipeline_parser import parse
    chosen = [] if passes is None else parse(passes)
    if kind is Kind.SCRIPT:
        with stages("capture", "importing TorchScript"):
            shapes = add_ranges(dynamic_shapes)
            program = torchscript_inputs.read(reference, inputs or (), shapes, method, unroll, tuple(preserve or ()))
    elif kind is Kind.EXPORTED:
        with stages("capture", "importing from torch.export"):
            program = read_exported(reference)
    else:
        with stages("build", f"building {reference}"):
            example = build(reference)
        with stages("capture", "capturing"):
            program = api.capture(
                example.model,
                example.args,
                example.kwargs,
                dynamic_shapes=add_ranges(dynamic_shapes),
                preserve_module_call_signature=tuple(preserve or ()),
            )
    if passes is not None:
        from ingot.passes import transform
        from ingot.passes.instrumentation.dump import Snapshots

        with stages("passes", "running passes", len(chosen)) as step:
            written = [] if snapshots is None else [Snapshots(snapshots)]
            for write in written:
                write("before", program)

            def write_stage(name: str, changed: Program) -> None:
                step(name)
                for write in written:
                    write(name, changed)

            program = transform(program, chosen, check=None, snapshots=write_stage)
    if verify:
        with stages("verify", "verifying"):
            program.verify()
    if output is not None:
        with stages("save", f"saving {output}"):
            program.save(output)
    with stages("count", "counting"):
        counted = model_summary.take(program)
    code = str(program) if show_code else None
    data = {
        "reference": reference,
        "dialect": program.dialect.name,
        "nodes": counted.total.nodes,
        "parameters": counted.total.parameters,
        "parameter_bytes": counted.total.parameter_bytes,
        "state_bytes": sum(counted.state_bytes.values()),
        "flops": counted.total.flops,
        "inputs": [i.name for i in program.signature.user_inputs if i.name],
        "dims": [{"name": dim.name, "low": dim.low, "high": dim.high} for dim in program.dims],
        "constraints": [str(constraint) for constraint in program.constraints],
        "preserved": list(preserve or ()),
        "passes": [{"pass": step.name, "changes": step.changes} for step in program.history],
        "verified": verify,
        "file": None if output is None else {"path": str(output), "bytes": output.stat().st_size},
        "seconds": stages.seconds,
        **({} if code is None else {"code": code}),
    }
    if code is not None:
        return Result(data, (Syntax(code, "python", theme="ansi_dark").highlight(code),))
    return Result(data, (_summary(data, program),))


def read_exported(path: str) -> Program:
    """The program in a file of torch.export. Raises UnsuitableFile where this torch cannot read it."""
    from ingot.cli.factory import UnsuitableFile
    from ingot.errors import ConversionError
    from ingot.interop.torch_export import read_archive

    try:
        return read_archive(path)
    except ConversionError as error:
        raise UnsuitableFile(str(error)) from error


def _summary(data: dict[str, Any], program: Program) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("program", f"{data['reference']} ({data['dialect']})")
    inner = data["nodes"] - sum(node.op == "call_function" for node in program.graph.nodes)
    table.add_row("nodes", f"{data['nodes']:,}" + (f", {inner:,} of them in inner graphs" if inner else ""))
    table.add_row("parameters", f"{data['parameters']:,}")
    table.add_row("state", human(data["state_bytes"], "B"))
    table.add_row("FLOPs", human(data["flops"]))
    table.add_row("dims", "\n".join(map(str, program.dims)) or "all fixed")
    if program.constraints:
        table.add_row("needs", "\n".join(data["constraints"]))
    table.add_row("verified", "yes" if data["verified"] else "no (--no-verify)")
    if data["file"] is not None:
        table.add_row("saved", f"{data['file']['path']} ({human(data['file']['bytes'], 'B')})")
    stages = ("build", "capture", "verify", "save")
    times = ", ".join(f"{name} {data['seconds'][name]:.2f} s" for name in stages if name in data["seconds"])
    table.add_row("time", times)
    return table


# ---------------------------------------------------------------------- dynamic dims


Declared = dict[str, Any]


def parse_dynamic(declarations: list[str] | tuple[str, ...]) -> Declared:
    """`--dynamic` options as ingot.capture's dynamic_shapes, with (name, low, high) where a range was given.

        ["x:0=batch", "cache.0:2=past[1,64]", "y=auto"]
        {"x": {0: "batch"}, "cache": {"0": {2: ("past", 1, 64)}}, "y": "auto"}

    A range holds wherever its name is used. Raises typer.BadParameter.
    """
    read: list[tuple[str, int | None, str]] = []
    ranges: dict[str, tuple[str, int, int | None]] = {}
    for text in declarations:
        match = _DECLARATION.match(text.strip())
        if match is None or (match["dim"] is None and match["size"] != "auto"):
            raise typer.BadParameter(f'{text!r} is not of the form ARG:DIM=NAME, such as "x:0=batch" or "x=auto".')
        size = match["size"].strip()
        if match["low"] is not None:
            if not size.isidentifier() or size == "auto":
                raise typer.BadParameter(f"{text!r}: a range can be given to a name only, not to {size!r}.")
            given = (size, int(match["low"]), int(match["high"]) if match["high"] else None)
            if ranges.setdefault(size, given) != given:
                raise typer.BadParameter(f"{text!r}: {size} has another range in another --dynamic.")
        read.append((match["argument"].strip(), None if match["dim"] is None else int(match["dim"]), size))
    shapes: Declared = {}
    for argument, dim, size in read:
        _put(shapes, argument, dim, ranges.get(size, size))
    return shapes


def _put(shapes: Declared, argument: str, dim: int | None, size: Any) -> None:
    *outer, last = argument.split(".")
    place: Any = shapes
    for step in outer:
        place = place.setdefault(step, {})
    if dim is None:
        if last in place:
            raise typer.BadParameter(f"{argument} is declared twice.")
        place[last] = size
        return
    known = place.setdefault(last, {})
    if not isinstance(known, dict) or dim in known:
        raise typer.BadParameter(f"{argument}:{dim} is declared twice.")
    known[dim] = size


def add_ranges(shapes: Any) -> Any:
    """The parsed declarations with torch.export.Dim in place of names that have a range; None where there are none."""
    if isinstance(shapes, dict):
        return {key: add_ranges(value) for key, value in shapes.items()} or None
    if isinstance(shapes, tuple):
        from torch.export import Dim

        name, low, high = shapes
        return Dim(name, min=low, max=high)
    return shapes
