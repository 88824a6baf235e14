"""The `ingot` command.

    ingot capture pkg.module:factory -o model.ingot     factory() -> (model, args, kwargs)
    ingot compile pkg.module:factory -o model.ingot     native code, in one file
    ingot run model.ingot --input x=x.npy               of a compiled file; torch is not needed
    ingot bench pkg.module:factory                      compared with eager
    ingot inspect model.ingot
    ingot view pkg.module:factory                       every stage, from source line to C, in the browser
    ingot onnx pkg.module:factory -o model.onnx         an ONNX file, run in ONNX Runtime against torch
    ingot quantize pkg.module:factory -o model.ingot --data pkg.module:batches      an integer program
    ingot verify pkg.module:factory                     every pass, with numbers compared after each
    ingot sign model.ingot --key key.pem                so that load(…, trust="key.pub.pem") knows that it is yours
    ingot keygen key.pem
    ingot cache ls|clear                                libraries that compile keeps between runs
    ingot doctor

Each command is one file with a `run`; torch is imported when a command needs it, so that `ingot --help` is fast.
"""

from __future__ import annotations

from typing import Annotated

import typer

from ingot import __version__
from ingot.cli import bench, cache, capture, compile, doctor, inspect, onnx, quantize, run, sign, verify, view
from ingot.cli.inputs import completion

app = typer.Typer(
    name="ingot",
    help="Capture PyTorch models as graphs; check, inspect and save them; compile them to native code.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("capture")(capture.run)
app.command("compile")(compile.run)
app.command("run")(run.run)
app.command("bench")(bench.run)
app.command("inspect")(inspect.run)
app.command("view")(view.run)
app.command("onnx")(onnx.run)
app.command("quantize")(quantize.run)
app.command("verify")(verify.run)
app.command("sign")(sign.run)
app.command("keygen")(sign.keygen)
app.command("doctor")(doctor.run)
cache_app = typer.Typer(
    help="Show or remove the libraries that compile keeps between runs.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
cache_app.command("ls")(cache.ls)
cache_app.command("clear")(cache.clear)
app.add_typer(cache_app, name="cache")


def _print_version(asked: bool) -> None:
    if asked:
        print(f"ingot {__version__}")
        raise typer.Exit


@app.callback()
def _global_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of every command."""


def main() -> None:
    """The entry point of the `ingot` script."""
    with completion.join_words():
        app(prog_name="ingot")  # also of `python -m ingot.cli`: completion goes by it


__all__ = ["app", "main"]
