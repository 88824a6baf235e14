"""Writes `.ingot` files."""

import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, Protocol

from .. import files
from . import archive, checksums, chunked_hashing, schema
from .member_names import MANIFEST, SIGNATURE, check_names
from .schema import COMMENT, SIGNATURE_SIZE, encode_manifest, hash_kind

_CACHED = 1 << 20  # large data is hashed and written in parts that stay in the cache between the two

Bytes = bytes | bytearray | memoryview


class StreamedMember(Protocol):
    """A member that is never whole in memory: `chunks()` is called once and yields `size` bytes in all."""

    @property
    def size(self) -> int: ...

    def chunks(self) -> Iterator[Bytes]: ...


Member = Bytes | StreamedMember


def write_container(
    path: str | os.PathLike[str],
    members: Mapping[str, Member],
    manifest: Mapping[str, Any],
    sign: Callable[[bytes], bytes] | None = None,
) -> None:
    """Writes a `.ingot` file: the same members and manifest fields always produce the same bytes.

    `manifest` adds fields to the manifest; "format", "schema" and "members" are the container's own. The file appears
    whole or not at all: whatever happens on the way, nothing is left behind and an older file at `path` is untouched.
    `sign` is given the manifest's bytes and returns their signature; the file is a signed one then.
    Raises UnwritableFile where it cannot be written, UnsafeFile for a bad member name, ValueError for a bad manifest or
    a member that is not of its stated size.
    """
    path = os.fspath(path)
    members = {name: members[name] for name in sorted(members)}
    check_names(members, path)
    try:
        with files.replacing(path, "the .ingot file") as file:
            _write(file, members, manifest, sign)
    except BaseException as error:
        error.add_note(f"this happened while writing {path}; what was there before is untouched")
        raise


def _write(
    file: BinaryIO, members: Mapping[str, Member], fields: Mapping[str, Any], sign: Callable[[bytes], bytes] | None
) -> None:
    # A hash is as long as any other, so the layout is known before the data is: one pass over the data is enough, and
    # the headers and the manifest are filled in behind it.
    version = schema.SCHEMA if sign is None else schema.SIGNED_SCHEMA
    sizes = {name: _size(member) for name, member in members.items()}
    blank = {name: ["0" * 64] * chunked_hashing.count(n) for name, n in sizes.items()}
    draft = encode_manifest(version, fields, sizes, blank, {})
    planned = [(MANIFEST, len(draft)), *sizes.items()]
    slots = archive.plan(planned if sign is None else [*planned, (SIGNATURE, SIGNATURE_SIZE)])
    hashes: dict[str, list[str]] = {}
    crc_of: dict[str, int] = {}
    for slot in slots[1 : len(planned)]:
        file.seek(slot.begin)
        hashes[slot.name], crc_of[slot.name] = _write_data(
            file, slot, members[slot.name], hash_kind(version, slot.name)
        )
    manifest = encode_manifest(version, fields, sizes, hashes, crc_of)
    crcs = [zlib.crc32(manifest), *crc_of.values()]
    if sign is not None:
        signature = sign(manifest)
        if len(signature) != SIGNATURE_SIZE:
            raise ValueError(f"the signature has {len(signature)} bytes, not {SIGNATURE_SIZE}")
        crcs.append(zlib.crc32(signature))
        file.seek(slots[-1].begin)
        file.write(signature)
    for slot, crc in zip(slots, crcs, strict=True):
        file.seek(slot.offset)
        file.write(archive.local_header(slot, crc))
    file.seek(slots[0].begin)
    file.write(manifest)
    file.seek(slots[-1].end)
    file.write(archive.directory(slots, crcs, COMMENT + checksums.sha256(manifest).encode()))


def _write_data(file: BinaryIO, slot: archive.Slot, member: Member, kind: str) -> tuple[list[str], int]:
    hasher = chunked_hashing.Hasher(kind)
    crc = 0
    written = 0
    for chunk in [member] if isinstance(member, Bytes) else member.chunks():
        view = memoryview(chunk)
        if view.nbytes == 0:  # such a view may have a shape that cannot be cast
            continue
        view = view.cast("B")
        written += view.nbytes
        if written > slot.size:
            break
        for begin in range(0, view.nbytes, _CACHED):
            part = view[begin : begin + _CACHED]
            hasher.update(part)
            crc = zlib.crc32(part, crc)
            file.write(part)
    if written != slot.size:
        amount = "more" if written > slot.size else f"only {written}"
        raise ValueError(f"member {slot.name!r} declares {slot.size} bytes, but has {amount}")
    return hasher.finish(), crc


def _size(member: Member) -> int:
    return memoryview(member).nbytes if isinstance(member, Bytes) else member.size
