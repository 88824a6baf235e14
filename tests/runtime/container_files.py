"""Containers for tests: written as users do, and forged byte by byte."""

import hashlib
import io
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingot_runtime import (
    SCHEMA,
    FileError,
    check_container,
    write_container,
)
from ingot_runtime.container import archive, canonical_json, checksums, chunked_hashing

MEMBERS = {"weights/a.bin": bytes(range(70)), "graph.json": b"{}", "empty": b""}
TENSORS = {**MEMBERS, "w.safetensors": bytes(range(201))}
ROWS = {**TENSORS, "w.safetensors": bytes(range(251)) * 34}  # one whole row of digests.sums, and bytes behind it
SHA, CRC = hashlib.sha256(b"ab").hexdigest(), f"{zlib.crc32(b'ab'):08x}"
FIELDS = {"isa": "x86-64-v4", "tool": {"name": "ingot", "ünïcode": [1, 2.5, None]}}


@dataclass(frozen=True, slots=True)
class Streamed:
    size: int
    make: Callable[[], Iterator[bytes | memoryview]]

    def chunks(self) -> Iterator[bytes | memoryview]:
        return self.make()


def written(folder: Path, members: Mapping[str, Any] = MEMBERS, fields: Mapping[str, Any] = FIELDS) -> bytes:
    path = folder / "written.ingot"
    write_container(path, members, fields)
    return path.read_bytes()


def forged(manifest: bytes, members: Mapping[str, bytes] | None = None) -> memoryview:
    """A file whose records and hashes are all in order, around any manifest at all."""
    data = {"manifest.json": manifest, **(members or {})}
    slots = archive.plan((name, len(content)) for name, content in data.items())
    crcs = [zlib.crc32(content) for content in data.values()]
    out = io.BytesIO()
    for slot, crc in zip(slots, crcs, strict=True):
        out.write(archive.local_header(slot, crc) + data[slot.name])
    out.write(archive.directory(slots, crcs, b"ingot manifest sha256 " + hashlib.sha256(manifest).hexdigest().encode()))
    return memoryview(out.getvalue())


def sums_of(data: bytes) -> str:
    """`digests.sums`, in its own words and without numpy."""
    row = 8 * checksums.ROW
    end = len(data) - len(data) % row
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, end, 8)]
    columns = [sum(words[column :: checksums.ROW]) % 2**64 for column in range(checksums.ROW)]
    return hashlib.sha256(b"".join(column.to_bytes(8, "little") for column in columns) + data[end:]).hexdigest()


def entry_of(name: str, data: bytes, schema: int = SCHEMA) -> dict[str, Any]:
    parts = [data[at : at + chunked_hashing.PIECE] for at in range(0, len(data), chunked_hashing.PIECE)]
    entry: dict[str, Any] = {"size": len(data), "crc32": f"{zlib.crc32(data):08x}"}
    if schema == 3 and name.endswith(".safetensors"):
        return {**entry, "sums": [sums_of(part) for part in parts]}
    return {**entry, "sha256": [hashlib.sha256(part).hexdigest() for part in parts]}


def manifest_of(members: Mapping[str, bytes], /, **fields: Any) -> dict[str, Any]:
    entries = {name: entry_of(name, data, fields.get("schema", SCHEMA)) for name, data in members.items()}
    return {"format": "ingot", "schema": SCHEMA, "members": entries, **fields}


def schema_2(members: Mapping[str, bytes], **fields: Any) -> memoryview:
    """A file as releases before schema 3 wrote it."""
    members = dict(sorted(members.items()))
    return forged(canonical_json.encode(manifest_of(members, schema=2, **fields)), members)


def schema_1(members: Mapping[str, bytes], **fields: Any) -> memoryview:
    """A file as releases before schema 2 wrote it."""
    members = dict(sorted(members.items()))
    entries = {name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in members.items()}
    return forged(canonical_json.encode({"format": "ingot", "schema": 1, "members": entries, **fields}), members)


def refusal(data: bytes | bytearray | memoryview) -> FileError | None:
    try:
        check_container(memoryview(data))
    except FileError as error:
        return error
    return None
