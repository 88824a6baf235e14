"""`ingot run`: a compiled file called with arrays from .npy files. torch is not imported."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ingot.cli.compile import Threads
from ingot.cli.console import AsJson, Debug, Result, command
from ingot.cli.inputs.completion import complete_file, complete_inputs
from ingot.cli.inputs.paths import check_compiled, check_inputs, check_outputs
from ingot.cli.progress import Stages

TrustKey = Annotated[
    list[Path] | None,
    typer.Option(
        "--trust-key",
        metavar="KEY.pem",
        help="Refuse the file unless the holder of this public key signed it. Repeatable.",
    ),
]


@command
def run(
    file: Annotated[Path, typer.Argument(metavar="FILE.ingot", autocompletion=complete_file, help="A compiled model.")],
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="NAME=FILE.npy",
            autocompletion=complete_inputs,
            help="An input; NAME=NUMBER for a scalar. Repeatable.",
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the results to this .npz file.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Of random draws.")] = None,
    threads: Threads = None,
    trust_key: TrustKey = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> Result:
    """Run a compiled model on arrays from files, without torch: native code of whoever made the file."""
    check_compiled(file)
    check_outputs({"-o": output})
    given = [text.partition("=")[2] for text in inputs or ()]
    check_inputs([Path(name) for name in given if name.endswith(".npy")])
    check_inputs(trust_key or ())
    stages = Stages(2 + (output is not None))
    with stages("import", "importing numpy"):
        from ingot_runtime import IndexOutOfRange
        from ingot_runtime.cli_run import run_file, write_results
    with stages("run", f"running {file}"):
        try:
            results = run_file(file, inputs or (), seed=seed, threads=threads, trust=trust_key or True)
        except IndexOutOfRange as error:
            raise IndexOutOfRange(f"{error}{_describe_integers(inputs or ())}") from error
    if output is not None:
        with stages("save", f"saving {output}"):
            write_results(output, results)
    table = Table("result", "dtype", "shape", "least", "greatest")
    rows = []
    for name, array in results.items():
        least, greatest = (array.min().item(), array.max().item()) if array.size else (None, None)
        rows.append({"name": name, "dtype": str(array.dtype), "shape": list(array.shape)})
        shown = ("" if value is None else f"{value:.6g}" for value in (least, greatest))
        table.add_row(name, str(array.dtype), "×".join(map(str, array.shape)) or "a number", *shown)
    data = {
        "file": str(file),
        "results": rows,
        "output": None if output is None else str(output),
        "seconds": stages.seconds,
    }
    return Result(data, (table,))


def _describe_integers(inputs: Sequence[str]) -> str:
    """The values that the integer inputs hold: an index that is out of range is most often one of them."""
    import numpy as np

    lines = []
    for text in inputs:
        name, _, file = text.partition("=")
        if not file.endswith(".npy"):
            lines.append(f"{name} is {file}")
            continue
        array = np.load(file, mmap_mode="r")
        if array.dtype.kind in "iu" and array.size:
            least, greatest = array.argmin(), array.argmax()
            places = [", ".join(map(str, np.unravel_index(at, array.shape))) for at in (least, greatest)]
            lines.append(
                f"{name} holds {array.dtype.name} from {array.flat[least]} (at [{places[0]}]) "
                f"to {array.flat[greatest]} (at [{places[1]}])"
            )
    return f"\n  why: {'; '.join(lines)}" if lines else ""
