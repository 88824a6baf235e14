"""Files made to do harm, and a watch on what happens while one is looked at."""

from __future__ import annotations

import copy
import mmap
import os
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ingot_runtime import check_container
from ingot_runtime.container import SCHEMA, Container, archive, canonical_json, checksums, chunked_hashing
from tests.runtime.native_model import COMPILER

FUNCTIONS = ("ingot_describe", "ingot_open", "ingot_sizes", "ingot_run", "ingot_seed", "ingot_close")

_ACTION_NAMES = """
    ctypes.dlopen os.remove os.rename os.mkdir os.rmdir os.truncate os.link os.symlink os.chmod os.chown os.system
    os.exec os.posix_spawn os.fork subprocess.Popen socket.connect shutil.rmtree
"""
_ACTIONS = frozenset(_ACTION_NAMES.split())
_watches: list[list[str]] = []


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if not _watches:
        return
    if event in _ACTIONS:
        _watches[-1].append(f"{event} {args[:1]}")
    elif event == "open":
        path, _, flags = args
        if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
            _watches[-1].append(f"open for writing {path}")


_installed: list[bool] = []


@contextmanager
def watch() -> Iterator[list[str]]:
    """Lists what the interpreter does inside: libraries loaded, files written or removed, processes started."""
    if not _installed:
        sys.addaudithook(_hook)  # which cannot be taken away again
        _installed.append(True)
    seen: list[str] = []
    _watches.append(seen)
    try:
        yield seen
    finally:
        _watches.remove(seen)


def build_trap(folder: Path) -> tuple[bytes, Path]:
    """A library with our functions whose constructor leaves a marker, and the marker."""
    functions = "".join(f"void {name}(void) {{}}\n" for name in FUNCTIONS)
    marker = folder / "executed"
    (folder / "trap.c").write_text(
        f"#include <stdio.h>\n{functions}__attribute__((constructor)) static void trap(void) "
        f'{{ FILE *f = fopen("{marker}", "w"); if (f) fclose(f); }}\n'
    )
    assert COMPILER is not None
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", folder / "trap.so", folder / "trap.c"], check=True)
    return (folder / "trap.so").read_bytes(), marker


def archive_of(parts: list[tuple[str, bytes]]) -> bytes:
    """The records of these parts in this order, in order; the first is the manifest."""
    slots = archive.plan((name, len(data)) for name, data in parts)
    crcs = [zlib.crc32(data) for _, data in parts]
    records = b"".join(
        archive.local_header(slot, crc) + data for slot, crc, (_, data) in zip(slots, crcs, parts, strict=True)
    )
    comment = b"ingot manifest sha256 " + checksums.sha256(parts[0][1]).encode()
    return records + archive.directory(slots, crcs, comment)


def entry_of(name: str, data: bytes) -> dict[str, Any]:
    hasher = chunked_hashing.Hasher(chunked_hashing.kind_of(name))
    hasher.update(memoryview(data))
    return {"size": len(data), "crc32": f"{zlib.crc32(data):08x}", chunked_hashing.kind_of(name): hasher.finish()}


def forge(members: Mapping[str, bytes], fields: Mapping[str, Any]) -> bytes:
    """A file in which every hash and record is in order, whatever it holds."""
    ordered = dict(sorted(members.items()))
    entries = {name: entry_of(name, data) for name, data in ordered.items()}
    manifest = canonical_json.encode({**fields, "format": "ingot", "schema": SCHEMA, "members": entries})
    return archive_of([("manifest.json", manifest), *ordered.items()])


def open_bytes(data: bytes, path: str = "<memory>") -> Container:
    """A container over bytes in memory, checked."""
    mapped = mmap.mmap(-1, max(len(data), 1))
    mapped[: len(data)] = data
    with memoryview(mapped) as view, view[: len(data)] as part:
        contents = check_container(part, path)
    return Container(path, mapped, contents)


def parts_of(container: Container) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The members of a file, and its manifest but for the container's own fields; both may be changed."""
    own = ("format", "schema", "members")
    fields = {key: copy.deepcopy(value) for key, value in container.manifest.items() if key not in own}
    return {name: bytes(container.read(name)) for name in container.names}, fields


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a JSON document: its container, and its key there."""
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(inner, dict | list):
            yield from places(inner)


def nest(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


Edit = Callable[[dict[str, bytes], dict[str, Any]], None]
