"""Paths and options that a command was given, checked before the work: nothing fails after minutes of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import typer

# What people end the name of another kind of file in.
_FOREIGN = {
    ".onnx": "`ingot onnx` writes ONNX files",
    ".c": "--source writes the C text",
    ".cu": "--source writes the text",
    ".npz": "`ingot run -o` writes results",
    ".py": "this would replace a Python file",
    **dict.fromkeys((".pt", ".pth", ".pt2", ".so", ".safetensors", ".bin"), "it is not a file that torch reads"),
}


def check_outputs(outputs: Mapping[str, Path | None]) -> None:
    """That a file can be written at each path, by the option that gives it, and that no two are the same.

    Raises MissingFolder, UnwritableFile and typer.BadParameter.
    """
    seen: dict[str, str] = {}
    for option, path in outputs.items():
        if path is None:
            continue
        other = seen.setdefault(os.path.realpath(path), option)
        if other != option:
            raise typer.BadParameter(f"{other} and {option} both name {path}: give two files.")
        _check_output(path, option)


def check_ingot_output(path: Path | None) -> None:
    """That the name of a .ingot file is not that of another kind of file. Raises typer.BadParameter."""
    why = _FOREIGN.get(path.suffix.lower()) if path is not None else None
    if path is not None and why is not None:
        raise typer.BadParameter(f"-o {path}: this command writes a .ingot file; {why}. Give {path.stem}.ingot.")


def check_compiled(path: Path) -> None:
    """That a file is one of Ingot's, whichever. Raises MissingFile, UnreadableFile and UnsuitableFile."""
    from ingot.cli.factory import UnsuitableFile
    from ingot.cli.inputs.file_kinds import Kind, explain, identify

    if not path.is_dir():
        check_inputs([path])
    kind = identify(path)
    if kind not in (Kind.INGOT, None):
        raise UnsuitableFile(explain(path, kind))


def check_inputs(paths: Iterable[Path]) -> None:
    """That a file can be read at each path. Raises MissingFile and UnreadableFile."""
    from ingot_runtime.files import reading

    for path in paths:
        with reading(path):
            pass


def check_folder(path: Path | None, option: str) -> None:
    """That files can be written in a folder, which may have to be made. Raises MissingFolder and UnwritableFile."""
    if path is None:
        return
    if path.is_dir():
        _check_output(path / "a file", option)
    else:
        _check_output(path, option)
        if path.exists():
            raise typer.BadParameter(f"{option} {path} is a file: give a folder.")


def refuse_together(first: str, is_first: bool, second: str, is_second: bool, why: str) -> None:
    """Raises typer.BadParameter where two options are given that exclude each other."""
    if is_first and is_second:
        raise typer.BadParameter(f"{first} and {second} exclude each other: {why}.")


def _check_output(path: Path, option: str) -> None:
    from ingot.errors import MissingFolder, UnwritableFile

    problem, folder = f"{option} {path} cannot be written", path.parent
    if path.is_dir():
        raise UnwritableFile(problem, "it is a folder", "give the name of a file", path=str(path))
    if not folder.exists():
        fix = f"make it (mkdir -p {folder}), or choose another one; nothing was done yet"
        raise MissingFolder(problem, f"the folder {folder} does not exist", fix, path=str(path))
    if not folder.is_dir():
        raise UnwritableFile(problem, f"{folder} is a file, and not a folder", "choose a folder", path=str(path))
    if not os.access(folder, os.W_OK | os.X_OK):
        fix = "choose a folder that you may write to; nothing was done yet"
        raise UnwritableFile(problem, f"this user may not write to the folder {folder}", fix, path=str(path))
