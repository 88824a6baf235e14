"""`ingot view`: every stage of a model, from the user's source line to C, as a page in the browser or as one file."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.text import Text

from ingot.cli.capture import Dynamic, parse_dynamic
from ingot.cli.compile import PreciseForTarget, Threads
from ingot.cli.console import AsJson, Debug, Result, command, human
from ingot.cli.inputs.paths import check_inputs, check_outputs
from ingot.cli.progress import Stages
from ingot.cli.view.targets import check_reference, collect, compare_layers

if TYPE_CHECKING:
    from ingot.viewer.numbers.number_files import NumberTable
    from ingot.viewer.weights.tensor_pool import TensorPool


@command
def run(
    reference: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FACTORY|FILE.ingot|FILE.pt2|FILE.onnx|FOLDER",
            help="A factory, a program, a compiled model, a file of torch.export or ONNX, or a folder of snapshots.",
        ),
    ],
    export: Annotated[
        Path | None,
        typer.Option("--export", metavar="PAGE.html", help="Write one HTML file that works offline, instead."),
    ] = None,
    weights: Annotated[
        bool, typer.Option("--weights", help="With --export: put the values of the weights into the file.")
    ] = False,
    browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="The port to serve on; 0 takes a free one.")
    ] = 0,
    check: Annotated[
        Literal["numerics"] | None, typer.Option("--check", help="Run every stage on the example, and compare.")
    ] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Compile the model, and measure every kernel.")] = False,
    counters: Annotated[
        bool,
        typer.Option("--counters", help="Read the GPU's counters for every kernel, by Nsight Compute (ncu)."),
    ] = False,
    disassembly: Annotated[
        bool, typer.Option("--disassembly", help="Compile the model, and show the machine code of every kernel.")
    ] = False,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="TARGET",
            help="Another model to show beside this one; implies --profile.",
        ),
    ] = None,
    in_float: Annotated[
        Path | None,
        typer.Option(
            "--float", metavar="FILE.ingot", help="The float program of a quantized one: shows what each layer loses."
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="MODULE:FUNCTION|FILE.npz", help="Batches for --float; else the example."),
    ] = None,
    numbers: Annotated[
        list[Path] | None,
        typer.Option(
            "--numbers",
            metavar="FILE",
            help="JSON or CSV with numbers by the names of nodes, modules or kernels; may be repeated.",
        ),
    ] = None,
    dynamic: Dynamic = None,
    target: Annotated[
        Literal["cpu", "cuda"], typer.Option("--target", help="The machine whose code is shown.")
    ] = "cpu",
    threads: Threads = None,
    precision: PreciseForTarget = "float32",
    as_json: AsJson = False,
    debug: Debug = False,
) -> Result:
    """Show every stage of a model in the browser: passes, loops, code, profile."""
    dynamic_shapes = parse_dynamic(dynamic or ())
    for one in (reference, against, None if in_float is None else str(in_float)):
        if one is not None:
            check_reference(one)
    check_outputs({"--export": export})
    if weights and export is None:
        raise typer.BadParameter("--weights is for --export: a page that is served has the values of its weights.")
    if counters:
        from ingot.viewer.measured.gpu_counters import find_tool

        find_tool()
    tables = _read_numbers(numbers or ())
    stages = Stages()
    with stages("import", "importing torch"):
        from ingot.cli.inputs import calibration_data
        from ingot.viewer.collection import ViewOptions
        from ingot.viewer.numbers.matching import add_numbers
        from ingot.viewer.page import SCRIPT, read_asset, write_page
    check_inputs([Path(data)] if data is not None and calibration_data.is_file(data) else [])
    read_asset(SCRIPT)  # before anything slow is done: an installation may have no page
    options = ViewOptions(
        target=target,
        precision=precision,
        threads=threads,
        numerics=check is not None,
        profile=profile or against is not None,
        weights=weights or export is None,
        disassembly=disassembly,
        counters=counters,
        progress=lambda doing: stages(doing, doing),
    )
    view = collect(reference, options, stages, dynamic_shapes)
    if in_float is not None:
        view.quantization = compare_layers(view, in_float, reference, data, stages)
    if against is not None:
        beside = replace(options, weights=False, counters=False)
        view.compare = collect(against, beside, stages, dynamic_shapes).to_json()
    made = view.to_json()
    add_numbers(made, [*view.counters, *tables])
    facts = {
        "reference": reference,
        "title": view.title,
        "stages": [stage["name"] for stage in view.stages],
        "nodes": len(view.nodes),
        "kernels": len(view.kernels),
        "notes": view.notes,
    }
    if export is not None:
        with stages("export", f"writing {export}"):
            write_page(export, made, view.tensors if weights else None)
        size = export.stat().st_size
        written = f"{export} ({human(size, 'B')}): {len(view.stages)} stages of {view.title}"
        return Result({**facts, "file": {"path": str(export), "bytes": size}}, (written, *map(_note, view.notes)))
    _serve(made, view.tensors, port, browser)
    return Result(facts, ())


def _read_numbers(paths: Iterable[Path]) -> list[NumberTable]:
    """The numbers of these files, before anything slow is done."""
    from ingot.viewer.numbers.number_files import read_numbers

    given = list(paths)
    check_inputs(given)
    return read_numbers(given)


def _note(text: str) -> Text:
    return Text(f"note: {text}", style="yellow")


def _serve(made: Any, weights: TensorPool | None, port: int, browser: bool) -> None:
    """Shows the page until Ctrl-C."""
    from ingot.errors import ViewError, format_error
    from ingot.viewer.server import PageServer, files_of

    console = Console(stderr=True)
    try:
        server = PageServer(files_of(made), port, weights)
    except OSError as error:
        raise ViewError(
            format_error(
                f"Nothing can be served on port {port}.", why=str(error), fix="leave --port out, or give another"
            )
        ) from None
    with server, contextlib.suppress(KeyboardInterrupt):
        for note in made["notes"]:
            console.print(_note(note), soft_wrap=True)
        console.print(Text(f"{server.url}  (Ctrl-C stops)"), soft_wrap=True)
        if browser:
            server.open()
        sys.stderr.flush()
        server.serve_forever()
