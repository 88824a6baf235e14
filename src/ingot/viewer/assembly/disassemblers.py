"""The tools that take machine code apart: found, and run on a copy in a folder of their own."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ingot.errors import ViewError, format_error

_SECONDS = 120
_MOST_BYTES = 256 << 20
_OBJDUMP = ("objdump", "llvm-objdump", "gobjdump")


def find_objdump() -> str:
    """The path of objdump. Raises ViewError where there is none."""
    for name in _OBJDUMP:
        found = shutil.which(name)
        if found is not None:
            return found
    raise ViewError(
        format_error(
            "The machine code cannot be shown.",
            why="objdump is not installed",
            fix="install the system's package binutils or llvm",
        )
    )


def find_nvdisasm() -> str | None:
    """The path of NVIDIA's disassembler: of the toolkit, or of the package from PyPI."""
    found = shutil.which("nvdisasm")
    if found is not None:
        return found
    package = importlib.util.find_spec("nvidia")
    for folder in (package.submodule_search_locations or ()) if package is not None else ():
        for place in sorted(Path(folder).glob("*/bin/nvdisasm")):
            return str(place)
    return None


def run_tool(command: Sequence[str], code: bytes, name: str) -> str:
    """What a tool says of machine code, which it finds under that name. Raises ViewError."""
    with tempfile.TemporaryDirectory(prefix="ingot-view-") as folder, open(Path(folder, "output"), "w+b") as output:
        Path(folder, name).write_bytes(code)
        try:
            done = subprocess.run(
                [*command, name],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.PIPE,
                timeout=_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _failure(command[0], str(error)) from None
        if done.returncode:
            raise _failure(
                command[0], done.stderr.decode(errors="replace").strip()[:300] or f"exit code {done.returncode}"
            )
        output.seek(0)
        text = output.read(_MOST_BYTES)
    return text.decode(errors="replace")


def _failure(tool: str, why: str) -> ViewError:
    return ViewError(format_error(f"{Path(tool).name} could not take the code apart.", why=why))
