"""Reads `.ingot` files: maps one, and checks every byte of it before anything is used."""

import contextlib
import mmap
import os
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

from .. import files
from ..errors import DamagedFile, MissingMember
from . import archive, checksums, chunked_hashing
from .chunked_hashing import Piece
from .member_names import MANIFEST, PROGRAM_TENSORS, SIGNATURE
from .schema import (
    COMMENT,
    COMMENT_SIZE,
    MANIFEST_BEGIN,
    MANIFEST_LIMIT,
    RECOPY,
    SIGNATURE_SIZE,
    SIGNED_SCHEMA,
    check_manifest,
    damaged_manifest,
    foreign_file,
)

Skip = Callable[[Mapping[str, Any]], Collection[str]]


def skip_nothing(manifest: Mapping[str, Any]) -> Collection[str]:
    return ()


def skip_program(manifest: Mapping[str, Any]) -> Collection[str]:
    """What native code does not read: the tensors of the program that a file was compiled from."""
    return PROGRAM_TENSORS if "native" in manifest else ()


class Contents(NamedTuple):
    """What a checked file holds: its manifest, and where the data of each other member begins and ends.

    `signature` is None where the file has none; `signed` is what it signs.
    """

    manifest: Mapping[str, Any]
    members: Mapping[str, tuple[int, int]]
    signed: bytes
    signature: bytes | None


class Container:
    """An open `.ingot` file, whole and checked. Close it, or use it in a `with` statement."""

    __slots__ = ("_contents", "_map", "_view", "path")

    def __init__(self, path: str, mapped: mmap.mmap, contents: Contents) -> None:
        self.path = path
        self._map = mapped
        self._view = memoryview(mapped)
        self._contents = contents

    @property
    def manifest(self) -> Mapping[str, Any]:
        return self._contents.manifest

    @property
    def names(self) -> tuple[str, ...]:
        """The members except the manifest, the signature and those that were skipped, sorted."""
        return tuple(self._contents.members)

    @property
    def signature(self) -> bytes | None:
        """The signature of `signed`, which is not verified yet; None in a file that is not signed."""
        return self._contents.signature

    @property
    def signed(self) -> bytes:
        """The bytes of the manifest, which has the hash of every other member."""
        return self._contents.signed

    def __contains__(self, name: object) -> bool:
        return name in self._contents.members

    def read(self, name: str) -> memoryview:
        """A member's bytes, 64-byte aligned, without a copy.

        Writing to the view changes this process's pages only, never the file. A view outlives `close()`.
        """
        if name not in self._contents.members:
            raise MissingMember(
                f"the file has no member {name!r}",
                why=f"its members are {', '.join(self.names) or 'none'}",
                fix="write the file again with what is needed from it",
                path=self.path,
            )
        begin, end = self._contents.members[name]
        return self._view[begin:end]

    def copy(self, name: str) -> bytes:
        """A copy of a member's bytes, checked once more: no later write to the file can change it.

        For code: what was checked must be what runs.
        """
        data = bytes(self.read(name))
        slot = archive.Slot(name, len(data), 0, 0)
        damage = chunked_hashing.find_damage(memoryview(data), list(_pieces(slot, self.manifest["members"][name])))
        if damage is not None:
            raise DamagedFile(
                "a member changed while the file was open",
                why="another process writes to the file",
                fix="replace files, do not write into them; load it again",
                path=self.path,
                member=name,
            )
        return data

    def close(self) -> None:
        """Closes the file; the memory of views still in use is released with the last of them."""
        self._view.release()
        _unmap(self._map)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def open_container(path: str | os.PathLike[str], *, writable: bool = True, skip: Skip = skip_nothing) -> Container:
    """Maps a `.ingot` file and checks every byte of it before returning; without `writable`, views are read-only.

    Members that `skip` names, given the manifest, are not checked and cannot be read: it is as if they were not there.
    Raises a FileError for what is wrong with the file; where it cannot be opened, that is an UnreadableFile. The file
    must not be changed in place while it is open; `write_container` never does so, it replaces.
    """
    path = os.fspath(path)
    with files.reading(path) as file:
        if os.fstat(file.fileno()).st_size == 0:  # an empty file cannot be mapped
            raise foreign_file("it is empty", path)
        try:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY if writable else mmap.ACCESS_READ)
        except OSError as error:
            raise files.unreadable(error, path) from None
    try:
        with memoryview(mapped) as view:
            contents = check_container(view, path, _forgetting(mapped), skip)
        return Container(path, mapped, contents)
    except BaseException:
        _unmap(mapped)
        raise


def check_container(
    data: memoryview,
    path: str = "<memory>",
    forget: Callable[[int, int], None] | None = None,
    skip: Skip = skip_nothing,
) -> Contents:
    """Checks every byte of a `.ingot` file; returns what it holds, or raises a FileError. `path` is for messages.

    `forget(begin, end)` is called for bytes that are done with, from several threads. Of members that `skip`
    names only the records are checked, and the contents leave them out. Whether a signature is good is not asked here.
    """
    manifest_size = _check_ends(data, path)
    signed = bytes(data[MANIFEST_BEGIN : MANIFEST_BEGIN + manifest_size])
    manifest = check_manifest(signed, path)
    entries = manifest["members"]
    sizes = [(MANIFEST, manifest_size), *((name, entry["size"]) for name, entry in entries.items())]
    is_signed = manifest["schema"] == SIGNED_SCHEMA
    slots = archive.plan([*sizes, (SIGNATURE, SIGNATURE_SIZE)] if is_signed else sizes)
    last = slots[-1]
    if last.end > len(data):
        raise DamagedFile(
            "the file is shorter than its members",
            why=f"{last.name!r} would end at byte {last.end}, the file at {len(data)}",
            fix=RECOPY,
            path=path,
            member=last.name,
        )
    skipped = skip(manifest)
    used = [slot for slot in slots[1 : len(sizes)] if slot.name not in skipped]
    damage = chunked_hashing.find_damage(
        data, [piece for slot in used for piece in _pieces(slot, entries[slot.name])], forget
    )
    if damage is not None:
        piece, found = damage
        raise DamagedFile(
            "a member is not what was written",
            why=f"the hash of bytes {piece.begin} to {piece.end} is {found}, the manifest says {piece.digest}",
            fix=RECOPY,
            path=path,
            member=piece.member,
            offset=piece.begin,
        )
    crcs = [_crc(data, slot, entries.get(slot.name, {})) for slot in slots]
    for slot, crc in zip(slots, crcs, strict=True):
        _compare(data[slot.offset : slot.begin], archive.local_header(slot, crc), slot.offset, path, slot.name)
    comment = COMMENT + checksums.sha256(data[slots[0].begin : slots[0].end]).encode()
    _compare(data[last.end :], archive.directory(slots, crcs, comment), last.end, path, None)
    signature = bytes(data[last.begin : last.end]) if is_signed else None
    return Contents(manifest, {slot.name: (slot.begin, slot.end) for slot in used}, signed, signature)


def _check_ends(data: memoryview, path: str) -> int:
    """Checks that this is an ingot file from its first byte to its last; returns the size that the manifest claims."""
    if not data or not _begins(data, archive.LOCAL_SIGNATURE):
        raise foreign_file("it does not begin as a ZIP archive does", path)
    if not _begins(data[archive.NAME_OFFSET :], MANIFEST.encode()):
        raise foreign_file(f"it is a ZIP archive, but its first member is not {MANIFEST}", path)
    if len(data) < MANIFEST_BEGIN + archive.END_SIZE + COMMENT_SIZE:
        raise DamagedFile("the file is cut short", f"it has only {len(data)} bytes", RECOPY, path=path)
    end = len(data) - archive.END_SIZE - COMMENT_SIZE
    comment = end + archive.END_SIZE
    if data[end : end + 4] != archive.END_SIGNATURE or data[comment : comment + len(COMMENT)] != COMMENT:
        raise DamagedFile(
            "the file does not end as an ingot file does",
            why="it was cut short, has bytes behind its end, or was rewritten by another program",
            fix=RECOPY,
            path=path,
            offset=end,
        )
    size = int.from_bytes(data[archive.SIZE_OFFSET : archive.SIZE_OFFSET + 4], "little")
    if size > min(MANIFEST_LIMIT, end - MANIFEST_BEGIN):
        raise damaged_manifest(f"its header claims {size} bytes", path)
    found = checksums.sha256(data[MANIFEST_BEGIN : MANIFEST_BEGIN + size])
    if data[comment + len(COMMENT) :] != found.encode():
        raise damaged_manifest(f"its SHA-256 is {found}, the end of the file says otherwise", path)
    return size


def _pieces(slot: archive.Slot, entry: Mapping[str, Any]) -> Iterator[Piece]:
    kind = chunked_hashing.SUMS if chunked_hashing.SUMS in entry else chunked_hashing.SHA256
    hashes = entry[kind]
    if isinstance(hashes, str):  # schema 1
        return iter([Piece(slot.name, slot.begin, slot.end, kind, hashes)])
    return chunked_hashing.cut(slot.name, slot.begin, slot.end, kind, hashes)


def _crc(data: memoryview, slot: archive.Slot, entry: Mapping[str, Any]) -> int:
    # The data is known to be what the manifest says by now, so the CRC that was written with it need not be computed.
    return int(entry["crc32"], 16) if "crc32" in entry else zlib.crc32(data[slot.begin : slot.end])


def _forgetting(mapped: mmap.mmap) -> Callable[[int, int], None] | None:
    """Releases pages that were only read for checking: members that are not used cost no memory."""
    if not hasattr(mmap, "MADV_DONTNEED"):
        return None

    def forget(begin: int, end: int) -> None:
        begin, end = begin + -begin % mmap.PAGESIZE, end - end % mmap.PAGESIZE
        if begin < end:
            mapped.madvise(mmap.MADV_DONTNEED, begin, end - begin)

    return forget


def _compare(found: memoryview, expected: bytes, offset: int, path: str, member: str | None) -> None:
    if found == expected:
        return
    pairs = zip(found, expected, strict=False)
    at = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(found), len(expected)))
    raise DamagedFile(
        f"the ZIP {'directory' if member is None else 'header'} is not what was written",
        why="a byte was changed, added or lost, or another program rewrote the archive",
        fix=RECOPY,
        path=path,
        member=member,
        offset=offset + at,
    )


def _begins(data: memoryview, expected: bytes) -> bool:
    """Whether data begins so, as far as it goes: truncated data is reported as such, and not as foreign."""
    return data[: len(expected)] == expected[: len(data)]


def _unmap(mapped: mmap.mmap) -> None:
    with contextlib.suppress(BufferError):  # views are in use: the last of them takes the map with it
        mapped.close()
