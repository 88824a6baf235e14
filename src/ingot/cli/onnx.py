"""`ingot onnx`: a factory's model, or a saved program, becomes an ONNX file that was run against torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from ingot.cli.capture import Dynamic, parse_dynamic
from ingot.cli.compile import Source, open_program
from ingot.cli.console import AsJson, Debug, Result, command, human
from ingot.cli.inputs.paths import check_outputs
from ingot.cli.progress import Stages

# What a person reads while each stage runs.
DOING = {
    "passes": "running passes",
    "convert": "translating operators",
    "write": "writing the file",
    "check": "checking the file",
    "run": "running it in ONNX Runtime and in torch",
}


@command
def run(
    reference: Source,
    output: Annotated[Path, typer.Option("-o", "--output", help="The ONNX file to write.")],
    dynamic: Dynamic = None,
    opset: Annotated[int | None, typer.Option("--opset", help="The opset to write; 20 if not given.")] = None,
    verify: Annotated[bool, typer.Option(help="Check the file and run it against torch before it appears.")] = True,
    external_data: Annotated[
        bool, typer.Option("--external-data", help="Put the weights into a file beside the model.")
    ] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> Result:
    """Export a model to an ONNX file, and compare it with torch at several sizes."""
    dynamic_shapes = parse_dynamic(dynamic or ())
    check_outputs({"-o": output})
    if output.suffix == ".ingot":
        raise typer.BadParameter(f"-o {output}: this command writes an ONNX file. Give {output.stem}.onnx.")
    stages = Stages(6 + 2 * verify)
    with stages("import", "importing torch"):
        from ingot.onnx.api import export_onnx
    _check_opset(opset)
    program = open_program(reference, stages, dynamic_shapes)
    report = export_onnx(
        program,
        output,
        opset=opset,
        verify=verify,
        external_data=external_data,
        on_stage=stages.hook(DOING),
    )
    data = {
        "reference": reference,
        "opset": report.opset,
        "nodes": report.nodes,
        "takes": list(report.inputs),
        "gives": list(report.outputs),
        "dims": [str(dim) for dim in program.dims],
        "files": [{"path": str(file), "bytes": file.stat().st_size} for file in report.files],
        "verified": None if report.runner is None else {"by": report.runner, "random": report.random},
        "differences": [{"at": one.label, "error": one.error, "of_torch_own": one.ratio} for one in report.differences],
        "largest_difference": report.largest_difference,
        "dropped_assertions": list(report.dropped_assertions),
        "seconds": stages.seconds,
    }
    return Result(data, (_summary(data, [str(one) for one in report.differences]),))


def _check_opset(opset: int | None) -> None:
    """Before the model is captured. Raises OnnxUnavailable and OnnxError."""
    from ingot.errors import OnnxUnavailable, format_error

    try:
        from ingot.onnx.convert import check_opset
    except ModuleNotFoundError as missing:
        raise OnnxUnavailable(
            format_error(
                f"The package {missing.name} is not installed; ONNX export needs it.",
                fix="pip install 'ingot[onnx]'",
            )
        ) from missing
    check_opset(opset)


def _summary(data: dict[str, Any], differences: list[str]) -> Table:
    rows = [("exported", f"{data['reference']}, opset {data['opset']}, {data['nodes']:,} nodes")]
    rows += [("takes", ", ".join(data["takes"]) or "nothing"), ("gives", ", ".join(data["gives"]) or "nothing")]
    if data["dims"]:
        rows.append(("where", "\n".join(data["dims"])))
    rows.append(("saved", "\n".join(f"{file['path']} ({human(file['bytes'], 'B')})" for file in data["files"])))
    rows.append(("verified", _format_verification(data, differences)))
    if data["dropped_assertions"]:
        rows.append(("left out", "\n".join(["assertions, which ONNX has none of:", *data["dropped_assertions"]])))
    seconds = {name: taken for name, taken in data["seconds"].items() if name != "import"}
    rows.append(("time", ", ".join(f"{name} {taken:.2f} s" for name, taken in seconds.items())))
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for label, text in rows:
        table.add_row(label, Text(text))  # as it is: rich would read [1, 64] as markup
    return table


def _format_verification(data: dict[str, Any], differences: list[str]) -> str:
    if data["verified"] is None:
        return "no (--no-verify)"
    if not differences:
        return "checked, but not run: the program has no example inputs"
    by = f"by {data['verified']['by']}"
    if data["verified"]["random"]:
        return f"{by}; the model draws random numbers, so types and shapes were compared, values were not"
    return "\n".join([by, *differences])
