"""`ingot sign` and `ingot keygen`: signed files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ingot.cli.console import AsJson, Debug, Result, command
from ingot.cli.inputs.completion import complete_file


@command
def run(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE.ingot", autocompletion=complete_file, help="A compiled model, or a saved program."
        ),
    ],
    key: Annotated[Path, typer.Option("--key", metavar="KEY.pem", help="An Ed25519 private key, in PEM.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the signed file here, not over the file.")
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> Result:
    """Sign a file, so that `load(…, trust=PUBLIC_KEY)` can verify that it is yours and complete."""
    from ingot_runtime import sign_file

    sign_file(file, key, output)
    target = file if output is None else output
    return Result({"file": str(target), "key": str(key)}, (f"{target} is signed",))


@command
def keygen(
    private: Annotated[Path, typer.Argument(metavar="KEY.pem", help="Where the private key goes. Keep it secret.")],
    public: Annotated[
        Path | None, typer.Option("--public", help="Where the public key goes; KEY.pub.pem beside it by default.")
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> Result:
    """Make an Ed25519 key pair for `ingot sign`. Existing files are never overwritten."""
    from ingot_runtime import write_keys

    shown = private.with_suffix(".pub.pem") if public is None else public
    write_keys(private, shown)
    text = f"{private}: the private key, to sign with; keep it secret\n{shown}: the public key, for those who load"
    return Result({"private": str(private), "public": str(shown)}, (text,))
