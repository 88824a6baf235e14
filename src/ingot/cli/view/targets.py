"""What the argument of `ingot view` stands for, and the view of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ingot.cli.capture import add_ranges, read_exported
from ingot.cli.compile import open_model
from ingot.cli.progress import Stages
from ingot.viewer.source_files import short_path

if TYPE_CHECKING:
    from ingot.viewer.collection import ViewOptions
    from ingot.viewer.view_data import ViewData


def check_reference(reference: str) -> None:
    """Raises FactoryError, before anything slow is done, for a file that is missing or of a kind that has no view."""
    from ingot.cli.factory import UnsuitableFile, named_kind
    from ingot.cli.inputs.file_kinds import Kind, explain

    kind, path = named_kind(reference), Path(reference)
    if kind in (Kind.INGOT, Kind.ONNX, Kind.EXPORTED, Kind.FOLDER) or path.suffix in (".ingot", ".onnx"):
        return  # or it says that it is one of these, and reading it tells what is wrong with it
    if kind is not None or path.exists():
        raise UnsuitableFile(explain(path, kind))


def shorten(reference: str) -> str:
    """A reference as a page has it: without the folders of this machine."""
    path, colon, name = reference.rpartition(":")
    if not colon:
        path, name = reference, ""
    return short_path(path) + colon + name if os.path.isabs(path) else reference


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
            view = collect_onnx(path, weights=options.weights)
    if view is None:
        return _collect_model(reference, options, stages, dynamic_shapes)
    if options.disassembly:
        view.notes.append("The machine code is not shown: this view contains graphs only.")
    if options.numerics or options.runs_kernels:
        view.notes.append(
            "Nothing was run: --check, --profile and --counters need a program, and this view contains graphs only."
        )
    return view


def _collect_model(reference: str, options: ViewOptions, stages: Stages, dynamic_shapes: Any) -> ViewData:
    from ingot import api
    from ingot.cli.factory import build, named_file, named_kind
    from ingot.cli.inputs.file_kinds import Kind
    from ingot.viewer.collection import collect_program

    if named_kind(reference) is Kind.EXPORTED:
        with stages("load", f"loading {reference}"):
            program = read_exported(reference)
        return collect_program(program, options, reference=shorten(reference), origin="program")
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
    from ingot.viewer.measured.gpu_counters import count_file
    from ingot_runtime.container import open_container, skip_program

    with stages("load", f"loading {file}"):
        with open_container(file, skip=skip_program) as container:
            compiled = "native" in container.manifest
            if compiled and GRAPH not in container.names:
                view = collect_compiled(container, file, disassembly=options.disassembly)
                if options.profile:
                    profile_compiled(view, file, options.threads)
                if options.counters:
                    view.counters = count_file(file)
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
    from ingot.cli.inputs import calibration_data
    from ingot.viewer.measured.quantization_data import describe_quantization

    whole, quantized = open_model(str(base), stages)[0], open_model(reference, stages)[0]
    if data is None and whole.example_inputs is None:
        raise typer.BadParameter("the float program has no example inputs: name data, --data MODULE:FUNCTION|FILE.npz.")
    if data is None:
        batches = calibration_data.from_example(whole)
    elif calibration_data.is_file(data):
        batches = calibration_data.from_file(data, whole)
    else:
        batches = calibration_data.from_function(call(data), data)
    batches = calibration_data.repeatable(batches)
    with stages("report", "comparing layer by layer", batches.count) as step:
        found = quantize.report(whole, quantized, list(batches.items), call=batches.watch(step), show=False)
    return describe_quantization(view, found)
