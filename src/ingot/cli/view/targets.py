"""What the argument of `ingot view` stands for, and the view of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ingot.cli.capture import add_ranges
from ingot.cli.compile import open_model
from ingot.cli.console import Stages
from ingot.cli.torchscript_inputs import is_script
from ingot.viewer.source_files import short_path

if TYPE_CHECKING:
    from ingot.viewer.collection import ViewOptions
    from ingot.viewer.view_data import ViewData

# Files that look like a model and are something else, with the way from there to one that can be shown.
_OTHERS = {
    ".pt2": "torch.export's file: ingot.from_exported(torch.export.load(path)).save('model.ingot')",
    ".safetensors": "weights without a model: name a factory that builds the model and loads them",
    ".bin": "weights without a model: name a factory that builds the model and loads them",
    ".py": "Python source: name the factory in it, such as model.py:factory",
    ".json": "one file: give the folder of snapshots that it lies in",
    ".html": "a page already: open it in the browser",
}


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


def shorten(reference: str) -> str:
    """A reference as a page has it: without the folders of this machine."""
    path, colon, name = reference.rpartition(":")
    if not colon:
        path, name = reference, ""
    return short_path(path) + colon + name if os.path.isabs(path) else reference


def check_folder(page: Path) -> None:
    """Raises ViewError where the folder of the page to write is missing."""
    from ingot.errors import ViewError, format_error

    if page.is_dir() or not page.absolute().parent.is_dir():
        why = "it is a folder" if page.is_dir() else f"there is no folder {page.absolute().parent}"
        raise ViewError(
            format_error(f"{page} cannot be written.", why=why, fix="make the folder, or name another file")
        )


def collect(reference: str, options: ViewOptions, stages: Stages, dynamic_shapes: Any) -> ViewData:
    path = Path(reference)
    is_file = ":" not in reference or path.exists()
    if is_file and dynamic_shapes:
        raise typer.BadParameter("--dynamic is for a factory's model: a file has its dims already.")
    view = None
    if is_file and path.is_dir():
        from ingot.viewer.files.snapshot_folder import collect_snapshots

        with stages("read", f"reading {reference}"):
            view = collect_snapshots(path)
    elif is_file and path.suffix.lower() == ".onnx":
        from ingot.viewer.files.onnx_file import collect_onnx

        with stages("read", f"reading {reference}"):
            view = collect_onnx(path)
    if view is None:
        return _collect_model(reference, options, stages, dynamic_shapes)
    if options.numerics or options.profile:
        view.notes.append("Nothing was run: numbers and times need a program, and this holds graphs alone.")
    return view


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
    seconds = stages.seconds["capture"]
    return collect_program(program, options, reference=shorten(reference), origin="factory", seconds=seconds)


def _collect_ingot(file: Path, options: ViewOptions, stages: Stages) -> ViewData:
    from ingot import compiler
    from ingot.serialization.program_file import GRAPH
    from ingot.viewer.collection import collect_program
    from ingot.viewer.files.compiled_file import collect_compiled, profile_compiled
    from ingot_runtime.container import open_container, skip_program

    with stages("load", f"loading {file}"):
        with open_container(file, skip=skip_program) as container:
            compiled = "native" in container.manifest
            if compiled and GRAPH not in container.names:
                view = collect_compiled(container, file)
                if options.profile:
                    profile_compiled(view, file, options.threads)
                return view
        program: Any = compiler.load(file, native=False)
    title = file.stem if compiled else ""
    return collect_program(
        program, options, reference=shorten(str(file)), origin="compiled" if compiled else "program", title=title
    )


def compare_layers(view: ViewData, base: Path, reference: str, data: str | None, stages: Stages) -> Any:
    """What each quantized layer loses."""
    from ingot import quantize
    from ingot.cli.factory import call
    from ingot.viewer.measured.quantization_data import describe_quantization

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
