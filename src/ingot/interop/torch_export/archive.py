"""Archives that torch.export.save wrote, files named .pt2, as Programs."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import torch

from ingot.errors import ConversionError, format_error
from ingot.interop.torch_export.importer import from_exported
from ingot.ir.program import Program


def is_archive(path: str | os.PathLike[str]) -> bool:
    """Whether a file is an archive of torch.export; nothing of it is run. False where it cannot be read."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (OSError, ValueError, zipfile.BadZipFile):
        return False
    inner = {name.partition("/")[2] for name in names}
    is_export = "archive_format" in inner or "serialized_exported_program.json" in {*names, *inner}
    return is_export and "manifest.json" not in names


def read_archive(path: str | os.PathLike[str]) -> Program:
    """The program in an archive. Reading one may run code that the file names.

    Raises ConversionError where this torch cannot read it, or what it holds has no form as a Program.
    """
    try:
        exported = torch.export.load(Path(path))
    except Exception as error:  # whatever torch raises for files of other releases, or damaged ones
        first = str(error).strip().partition("\n")[0]
        raise ConversionError(
            format_error(
                f"torch.export.load cannot read {path}.",
                why=f"{type(error).__name__}: {first}",
                fix=f"export the model again with this torch, {torch.__version__}",
            )
        ) from error
    return from_exported(exported)
