"""Compiled files and the inputs of their calls, in a form that is small to carry to a machine with a GPU.

    write_pack(path, [(program, file, arrays), …])      programs that were built together, as one archive
    unpack(path, folder)                                the programs; their files and inputs lie in the folder
    arrange_bundles(folder, most)                       packs into folders of at most so many bytes

A pack is a tar.xz. The programs of a batch share an image, which stands in the file of each: behind the first one it
takes a few bytes. Needs neither torch nor ingot.
"""

from __future__ import annotations

import io
import json
import lzma
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

PACKS = "packs"
SUFFIX = ".tar.xz"
_INDEX = "index.json"
# More than lies between a file and the next one, so that an image is found again.
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": 16 << 20}]

# By name: the number of the call, "in" or "out", the number of the tensor; and "bfloat16" where it has those bits.
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class PreparedProgram:
    """A program of a pack. `file` is a digest of its file, `inputs` of its calls' inputs, `text` of all that is run;
    `refusable` says for each call whether the model may raise an IngotError. `stem` names its file and its inputs."""

    what: str
    name: str
    unit: str
    text: str
    file: str
    inputs: str
    draws: bool
    public: bool
    refusable: tuple[bool, ...]
    code: str
    commit: str
    stem: str = ""


def array_name(call: int, kind: str, place: int, is_bfloat16: bool) -> str:
    return f"{call:02}.{kind}.{place:04}{'.bfloat16' if is_bfloat16 else ''}"


def select_arrays(arrays: Arrays, call: int, kind: str) -> dict[str, NDArray[Any]]:
    """Those of a call, in order."""
    return {name: arrays[name] for name in sorted(arrays) if name.startswith(f"{call:02}.{kind}.")}


def write_pack(path: Path, programs: Sequence[tuple[PreparedProgram, bytes, Arrays]]) -> None:
    """Writes a pack whole or not at all."""
    temporary = path.with_name(f"{path.name}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    named = [(f"{path.name.removesuffix(SUFFIX)}.{place:02}", *one) for place, one in enumerate(programs)]
    index = [{**asdict(program), "stem": stem} for stem, program, _, _ in named]
    with lzma.open(temporary, "wb", filters=_FILTERS) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        add_member(archive, _INDEX, json.dumps(index).encode())
        for stem, _, file, _ in named:
            add_member(archive, f"{stem}.ingot", file)
        for stem, _, _, arrays in named:
            stored = io.BytesIO()
            np.savez(stored, **arrays)  # type: ignore[arg-type]
            add_member(archive, f"{stem}.npz", stored.getvalue())
    temporary.rename(path)


def add_member(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def unpack(path: Path, folder: Path) -> list[PreparedProgram]:
    """The programs of a pack, whose files are written to a folder."""
    with tarfile.open(path, "r:xz") as archive:
        first = archive.next()
        assert first is not None and first.name == _INDEX, f"{path} is not a pack"
        file = archive.extractfile(first)
        assert file is not None
        rows = json.load(file)
        programs = [PreparedProgram(**{**row, "refusable": tuple(row["refusable"])}) for row in rows]
        wanted = {f"{one.stem}.{suffix}" for one in programs for suffix in ("ingot", "npz")}
        for member in archive:
            file = archive.extractfile(member)
            if member.name in wanted and file is not None:
                (folder / member.name).write_bytes(file.read())
    return programs


def find_packs(folders: Iterable[Path]) -> list[Path]:
    return sorted(pack for folder in folders for pack in folder.rglob(f"*{SUFFIX}"))


def arrange_bundles(folder: Path, most: int) -> list[Path]:
    """Moves the packs of `folder / PACKS` into new folders `bundle-01` and so on, each of at most so many bytes, which
    are returned. A bundle that is there already is left as it is: it may have been carried away."""
    made: list[Path] = []
    size = most
    for pack in find_packs([folder / PACKS]):
        size += pack.stat().st_size
        if size > most or not made:
            size = pack.stat().st_size
            there = [int(one.name.split("-")[1]) for one in folder.glob("bundle-*")]
            made.append(folder / f"bundle-{max(there, default=0) + 1:02}")
            made[-1].mkdir()
        pack.rename(made[-1] / pack.name)
    return made
