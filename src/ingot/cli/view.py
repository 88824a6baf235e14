"""`ingot view`: every stage of a model, from the user's source line to C, as a page in the browser or as one file."""

from __future__ import annotations

import contextlib
import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.text import Text

from ingot.cli.capture import Dynamic, add_ranges, parse_dynamic
from ingot.cli.compile import PreciseForTarget, Threads, open_model
from ingot.cli.console import AsJson, Debug, Result, Stages, command, human
from ingot.cli.torchscript_inputs import is_script

if TYPE_CHECKING:
    from ingot.viewer.collection import ViewOptions
    from ingot.viewer.view_data import ViewData

# Files that look like a model and are something else, with the way from there to one that can be shown.
_OTHERS = {
    ".pt2": "torch.export's file: ingot.from_exported(torch.export.load(path)).save('model.ingot')",
    ".safetensors": "weights alone: name a factory that builds the model and loads them",
    ".bin": "weights alone: name a factory that builds the model and loads them",
    ".py": "Python source: name the factory in it, such as model.py:factory",
    ".json": "one file: give the folder of snapshots that it lies in",
    ".html": "a page already: open it in the browser",
}


@command
def run(
    reference: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FACTORY|FILE.ingot|FILE.onnx|FOLDER",
            help="A factory, a saved program, a compiled model, an ONNX file, or a folder of snapshots.",
        ),
    ],
    export: Annotated[
        Path | None,
        typer.Option("--export", metavar="PAGE.html", help="Write one HTML file that works offline, instead."),
    ] = None,
    browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="The port to serve on; 0 takes a free one.")
    ] = 0,
    check: Annotated[
        Literal["numerics"] | None, typer.Option("--check", help="Run every stage on the example, and compare.")
    ] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Compile the model, and measure every kernel.")] = False,
    against: Annotated[
        str | None,
        typer.Option(
            "--against", metavar="TARGET", help="Another model, whose profile is shown beside; implies --profile."
        ),
    ] = None,
    in_float: Annotated[
        Path | None,
        typer.Option(
            "--float", metavar="FILE.ingot", help="The float program of a quantized one: shows what each layer loses."
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", metavar="MODULE:FUNCTION", help="Batches for --float; else the example.")
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
    check_reference(reference)
    if against is not None:
        check_reference(against)
    stages = Stages()
    with stages("import", "importing torch"):
        from ingot.viewer.collection import ViewOptions
        from ingot.viewer.page import write_page
    options = ViewOptions(
        target=target,
        precision=precision,
        threads=threads,
        numerics=check is not None,
        profile=profile or against is not None,
        progress=lambda doing: stages(doing, doing),
    )
    view = _collect(reference, options, stages, dynamic_shapes)
    if in_float is not None:
        view.quantization = _compare_layers(view, in_float, reference, data, stages)
    if against is not None:
        other = _collect(against, options, stages, dynamic_shapes).to_json()
        view.compare = {
            key: other[key] for key in ("title", "reference", "kernels", "origins", "profile", "memory", "facts")
        }
    made = view.to_json()
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
            write_page(export, made)
        size = export.stat().st_size
        written = f"{export} ({human(size, 'B')}): {len(view.stages)} stages of {view.title}"
        return Result({**facts, "file": {"path": str(export), "bytes": size}}, (written, *map(_note, view.notes)))
    _serve(made, port, browser)
    return Result(facts, ())


def _note(text: str) -> Text:
    return Text(f"note: {text}", style="yellow")


def _serve(made: Any, port: int, browser: bool) -> None:
    """Shows the page until Ctrl-C."""
    from ingot.errors import ViewError, format_error
    from ingot.viewer.server import PageServer, files_of

    console = Console(stderr=True)
    try:
        server = PageServer(files_of(made), port)
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
            webbrowser.open(server.url)
        sys.stderr.flush()
        server.serve_forever()


# ---------------------------------------------------------------------- what is shown


def check_reference(reference: str) -> None:
    """Raises ViewError, before anything slow is done, for a file that is missing or not of a kind that can be shown."""
    from ingot.errors import ViewError, format_error

    path = Path(reference)
    suffix = path.suffix.lower()
    names_file = ":" not in reference and (
        suffix in (".ingot", ".onnx", *_OTHERS) or is_script(reference) or "/" in reference
    )
    if path.is_dir():
        return
    if names_file and not path.is_file():
        raise ViewError(
            format_error(
                f"There is no file {reference}.",
                why=f"looked in {Path.cwd()}",
                fix="check the name, or name a factory: pkg.module:factory",
            )
        )
    if names_file and is_script(reference):
        fix = f"import it first: ingot capture {reference} -o model.ingot, and view that"
        raise ViewError(format_error(f"{reference} is TorchScript, which has no program yet.", fix=fix))
    if names_file and suffix in _OTHERS:
        what, _, how = _OTHERS[suffix].partition(": ")
        raise ViewError(format_error(f"{reference} cannot be shown.", why=f"it is {what}", fix=how))
    if names_file and suffix not in (".ingot", ".onnx"):
        raise ViewError(
            format_error(
                f"{reference} is of no kind that can be shown.",
                why="shown are .ingot and .onnx files, folders of snapshots, and what a factory builds",
                fix="name one of these",
            )
        )


def _collect(reference: str, options: ViewOptions, stages: Stages, dynamic_shapes: Any) -> ViewData:
    path = Path(reference)
    is_file = ":" not in reference or path.exists()
    if is_file and dynamic_shapes:
        raise typer.BadParameter("--dynamic is for a factory's model: a file has its dims already.")
    if is_file and path.is_dir():
        from ingot.viewer.snapshot_folder import collect_snapshots

        with stages("read", f"reading {reference}"):
            return collect_snapshots(path)
    if is_file and path.suffix.lower() == ".onnx":
        from ingot.viewer.onnx_file import collect_onnx

        with stages("read", f"reading {reference}"):
            return collect_onnx(path)
    return _collect_model(reference, options, stages, dynamic_shapes)


def _collect_model(reference: str, options: ViewOptions, stages: Stages, dynamic_shapes: Any) -> ViewData:
    from ingot import api
    from ingot.cli.factory import build, named_file
    from ingot.viewer.collection import collect_program

    file = named_file(reference)
    if file is not None:
        return _collect_ingot(file, options, stages)
    with stages("build", f"building {reference}"):
        example = build(reference)
    with stages("capture", "capturing"):
        shapes = add_ranges(dynamic_shapes)
        program = api.capture(example.model, example.args, example.kwargs, dynamic_shapes=shapes)
    return collect_program(program, options, reference=reference, origin="factory")


def _collect_ingot(file: Path, options: ViewOptions, stages: Stages) -> ViewData:
    from ingot import compiler
    from ingot.serialization.program_file import GRAPH
    from ingot.viewer.collection import collect_program
    from ingot.viewer.compiled_file import collect_compiled
    from ingot_runtime.container import open_container, skip_program

    with stages("load", f"loading {file}"):
        with open_container(file, skip=skip_program) as container:
            compiled = "native" in container.manifest
            if compiled and GRAPH not in container.names:
                return collect_compiled(container, file)
        program: Any = compiler.load(file, native=False)
    title = file.stem if compiled else ""
    return collect_program(
        program, options, reference=str(file), origin="compiled" if compiled else "program", title=title
    )


def _compare_layers(view: ViewData, base: Path, reference: str, data: str | None, stages: Stages) -> Any:
    """What each quantized layer loses."""
    from ingot import quantize
    from ingot.cli.factory import call
    from ingot.viewer.quantization_data import describe_quantization

    whole, quantized = open_model(str(base), stages)[0], open_model(reference, stages)[0]
    if data is None and whole.example_inputs is None:
        raise typer.BadParameter("the float program has no example inputs: name data, --data MODULE:FUNCTION.")
    batches = list(call(data)) if data is not None else [whole.example_inputs]
    how = quantize.feed if data is not None else _call_example
    with stages("report", "comparing layer by layer"):
        found = quantize.report(whole, quantized, batches, call=how, show=False)
    return describe_quantization(view, found)


def _call_example(model: Any, item: Any) -> Any:
    args, kwargs = item
    return model(*args, **kwargs)
