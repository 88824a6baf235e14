"""A `.ingot` file as a container of named members: written in one way only, checked whole before anything is used.

The file is a plain ZIP archive (`unzip`, `zipfile` read it) with stored members and fixed dates:

    manifest.json     {"format":"ingot","schema":3,"members":{name:{"crc32":...,"sha256":[...],"size":...}}, and the
                      caller's fields}; there is a hash for every 4 MiB of a member: SHA-256, or, of tensors
                      (*.safetensors), "sums" in its place, which checksums.py describes
    other members     sorted by name, their data on multiples of 64 bytes, so that weights can be mapped
    ZIP directory     its comment holds the SHA-256 of manifest.json

Every byte is thus determined: records and data by the manifest, the manifest by the comment. This finds damage, not
forgery: whoever can write a file can write its hashes.

A signed file has schema 4: every member has SHA-256, and one more member comes last, `signature.ed25519`, the
signature of the bytes of manifest.json. The manifest has the size and the hash of every other member, so the signature
covers all of them; signing.py says whose it is.

Schema 2 has SHA-256 for tensors too; schema 1 has one SHA-256 for a whole member and no CRC in the manifest. Such
files are read, and no longer written.

Three things hold in every schema, so that any release can say which one it would need: the manifest is the first
member, its data begins at byte 64, and the comment holds its hash.
"""

import contextlib
import mmap
import os
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Protocol, Self

from . import archive, canonical_json, checksums, chunked_hashing, files
from .chunked_hashing import Piece
from .errors import DamagedFile, FileError, MissingMember, NotAnIngotFile, UnsafeFile, UnsupportedSchema
from .member_names import MANIFEST, PROGRAM_TENSORS, SIGNATURE, check_names

FORMAT = "ingot"
SCHEMA = 3  # the one that is written
SIGNED_SCHEMA = 4  # the one that is written with a signature
READABLE = (1, 2, 3, 4)
SIGNATURE_SIZE = 64
MANIFEST_LIMIT = 16 << 20

_COMMENT = b"ingot manifest sha256 "
_COMMENT_SIZE = len(_COMMENT) + 64
_MANIFEST_BEGIN = 64
_HASH = re.compile(r"[0-9a-f]{64}")
_CRC32 = re.compile(r"[0-9a-f]{8}")
_CACHED = 1 << 20  # large data is hashed and written in parts that stay in the cache between the two
_RECOPY = "copy or download the file again, or write it again with Ingot"

Bytes = bytes | bytearray | memoryview


class StreamedMember(Protocol):
    """A member that is never whole in memory: `chunks()` is called once and yields `size` bytes in all."""

    @property
    def size(self) -> int: ...

    def chunks(self) -> Iterator[Bytes]: ...


Member = Bytes | StreamedMember
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
        """The signature of `signed`, which nobody has verified yet; None in a file that is not signed."""
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
        """Gives the file back; the memory of views still in use goes when the last of them does."""
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
            raise _not_ours("it is empty", path)
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
    signed = bytes(data[_MANIFEST_BEGIN : _MANIFEST_BEGIN + manifest_size])
    manifest = _check_manifest(signed, path)
    entries = manifest["members"]
    sizes = [(MANIFEST, manifest_size), *((name, entry["size"]) for name, entry in entries.items())]
    is_signed = manifest["schema"] == SIGNED_SCHEMA
    slots = archive.plan([*sizes, (SIGNATURE, SIGNATURE_SIZE)] if is_signed else sizes)
    last = slots[-1]
    if last.end > len(data):
        raise DamagedFile(
            "the file is shorter than its members",
            why=f"{last.name!r} would end at byte {last.end}, the file at {len(data)}",
            fix=_RECOPY,
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
            fix=_RECOPY,
            path=path,
            member=piece.member,
            offset=piece.begin,
        )
    crcs = [_crc(data, slot, entries.get(slot.name, {})) for slot in slots]
    for slot, crc in zip(slots, crcs, strict=True):
        _compare(data[slot.offset : slot.begin], archive.local_header(slot, crc), slot.offset, path, slot.name)
    comment = _COMMENT + checksums.sha256(data[slots[0].begin : slots[0].end]).encode()
    _compare(data[last.end :], archive.directory(slots, crcs, comment), last.end, path, None)
    signature = bytes(data[last.begin : last.end]) if is_signed else None
    return Contents(manifest, {slot.name: (slot.begin, slot.end) for slot in used}, signed, signature)


def write_container(
    path: str | os.PathLike[str],
    members: Mapping[str, Member],
    manifest: Mapping[str, Any],
    sign: Callable[[bytes], bytes] | None = None,
) -> None:
    """Writes a `.ingot` file: the same members and manifest fields give the same bytes, always.

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
    schema = SCHEMA if sign is None else SIGNED_SCHEMA
    sizes = {name: _size(member) for name, member in members.items()}
    blank = {name: ["0" * 64] * chunked_hashing.count(n) for name, n in sizes.items()}
    draft = _manifest_bytes(schema, fields, sizes, blank, {})
    planned = [(MANIFEST, len(draft)), *sizes.items()]
    slots = archive.plan(planned if sign is None else [*planned, (SIGNATURE, SIGNATURE_SIZE)])
    hashes: dict[str, list[str]] = {}
    crc_of: dict[str, int] = {}
    for slot in slots[1 : len(planned)]:
        file.seek(slot.begin)
        hashes[slot.name], crc_of[slot.name] = _write_data(file, slot, members[slot.name], _kind(schema, slot.name))
    manifest = _manifest_bytes(schema, fields, sizes, hashes, crc_of)
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
    file.write(archive.directory(slots, crcs, _COMMENT + checksums.sha256(manifest).encode()))


def _kind(schema: int, name: str) -> str:
    """The kind of hash that a member has: sums find damage at the speed of memory, but anybody can forge them."""
    return chunked_hashing.kind_of(name) if schema == SCHEMA else chunked_hashing.SHA256


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
        raise ValueError(f"member {slot.name!r} said that it has {slot.size} bytes, and gave {amount}")
    return hasher.finish(), crc


def _manifest_bytes(
    schema: int,
    fields: Mapping[str, Any],
    sizes: Mapping[str, int],
    hashes: Mapping[str, list[str]],
    crcs: Mapping[str, int],
) -> bytes:
    own = {
        "format": FORMAT,
        "schema": schema,
        "members": {
            # As text of eight digits: the manifest must be as long before the data is known as after.
            name: {"size": size, _kind(schema, name): hashes[name], "crc32": f"{crcs.get(name, 0):08x}"}
            for name, size in sizes.items()
        },
    }
    if taken := sorted(own.keys() & fields.keys()):
        raise ValueError(f"the container writes these manifest fields itself: {', '.join(taken)}")
    data = canonical_json.encode({**fields, **own})
    if len(data) > MANIFEST_LIMIT:
        raise ValueError(f"the manifest has {len(data)} bytes of {MANIFEST_LIMIT} at most: put large data in a member")
    return data


def _check_ends(data: memoryview, path: str) -> int:
    """Checks that this is an ingot file from its first byte to its last; returns the size that the manifest claims."""
    if not data or not _begins(data, archive.LOCAL_SIGNATURE):
        raise _not_ours("it does not begin as a ZIP archive does", path)
    if not _begins(data[archive.NAME_OFFSET :], MANIFEST.encode()):
        raise _not_ours(f"it is a ZIP archive, but its first member is not {MANIFEST}", path)
    if len(data) < _MANIFEST_BEGIN + archive.END_SIZE + _COMMENT_SIZE:
        raise DamagedFile("the file is cut short", f"it has only {len(data)} bytes", _RECOPY, path=path)
    end = len(data) - archive.END_SIZE - _COMMENT_SIZE
    comment = end + archive.END_SIZE
    if data[end : end + 4] != archive.END_SIGNATURE or data[comment : comment + len(_COMMENT)] != _COMMENT:
        raise DamagedFile(
            "the file does not end as an ingot file does",
            why="it was cut short, has bytes behind its end, or was rewritten by another program",
            fix=_RECOPY,
            path=path,
            offset=end,
        )
    size = int.from_bytes(data[archive.SIZE_OFFSET : archive.SIZE_OFFSET + 4], "little")
    if size > min(MANIFEST_LIMIT, end - _MANIFEST_BEGIN):
        raise _bad_manifest(f"its header claims {size} bytes", path)
    found = checksums.sha256(data[_MANIFEST_BEGIN : _MANIFEST_BEGIN + size])
    if data[comment + len(_COMMENT) :] != found.encode():
        raise _bad_manifest(f"its SHA-256 is {found}, the end of the file says otherwise", path)
    return size


def _check_manifest(data: bytes, path: str) -> dict[str, Any]:
    try:
        manifest = canonical_json.decode(data)
        canonical = canonical_json.encode(manifest)
    except canonical_json.RepeatedKey as error:
        raise UnsafeFile(
            f"the manifest names {error.key!r} twice",
            why="two readers could take two different members for it",
            fix="do not use this file: Ingot did not write it",
            path=path,
            member=MANIFEST,
        ) from None
    except (ValueError, RecursionError) as error:
        raise _bad_manifest(f"it is not JSON: {error}", path) from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise _not_ours(f"its manifest does not say that its format is {FORMAT!r}", path)
    schema = manifest.get("schema")
    if type(schema) is not int or schema < 1:
        raise _bad_manifest(f"its schema is {schema!r}, not a version", path)
    if schema not in READABLE:
        if schema > max(READABLE):
            writer, fix = "a newer", "update Ingot's runtime"
        else:
            writer, fix = "an older", "write the file again with this release, or read it with the older one"
        raise UnsupportedSchema(
            f"the file is of schema {schema}, this release reads schema {', '.join(map(str, READABLE))}",
            why=f"it was written by {writer} release of Ingot",
            fix=fix,
            path=path,
        )
    members = manifest.get("members")
    if not isinstance(members, dict):
        raise _bad_manifest("it does not list members", path)
    check_names(members, path)
    for name, entry in members.items():
        if not (_is_entry_of_schema_1(entry) if schema == 1 else _is_entry(entry, _kind(schema, name))):
            raise _bad_manifest(f"its entry for {name!r} is not a size and hashes", path)
    if canonical != data:
        raise _bad_manifest("it is not canonical JSON", path)
    return manifest


def _is_entry(entry: object, kind: str) -> bool:
    match entry:
        case {"size": int(size), "crc32": str(crc32), **rest} if rest.keys() == {kind}:
            hashes = rest[kind]
            return (
                type(size) is int
                and size >= 0
                and isinstance(hashes, list)
                and len(hashes) == chunked_hashing.count(size)
                and all(isinstance(digest, str) and _HASH.fullmatch(digest) for digest in hashes)
                and _CRC32.fullmatch(crc32) is not None
            )
    return False


def _is_entry_of_schema_1(entry: object) -> bool:
    match entry:
        case {"size": int(size), "sha256": str(sha256), **rest} if not rest:
            return type(size) is int and size >= 0 and _HASH.fullmatch(sha256) is not None
    return False


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
    """Takes pages that were only checked out of this process again: members that nobody reads cost no memory."""
    if not hasattr(mmap, "MADV_DONTNEED"):
        return None

    def forget(begin: int, end: int) -> None:
        begin, end = begin + -begin % mmap.PAGESIZE, end - end % mmap.PAGESIZE
        if begin < end:
            mapped.madvise(mmap.MADV_DONTNEED, begin, end - begin)

    return forget


def _size(member: Member) -> int:
    return memoryview(member).nbytes if isinstance(member, Bytes) else member.size


def _compare(found: memoryview, expected: bytes, offset: int, path: str, member: str | None) -> None:
    if found == expected:
        return
    pairs = zip(found, expected, strict=False)
    at = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(found), len(expected)))
    raise DamagedFile(
        f"the ZIP {'directory' if member is None else 'header'} is not what was written",
        why="a byte was changed, added or lost, or another program rewrote the archive",
        fix=_RECOPY,
        path=path,
        member=member,
        offset=offset + at,
    )


def _begins(data: memoryview, expected: bytes) -> bool:
    """Whether data begins so, as far as it goes: data that is cut short is to be called that, and not foreign."""
    return data[: len(expected)] == expected[: len(data)]


def _not_ours(why: str, path: str) -> FileError:
    fix = "give a file that Ingot saved; a model of another kind has to be captured and saved by Ingot first"
    return NotAnIngotFile("this is not an ingot file", why, fix, path=path)


def _bad_manifest(why: str, path: str) -> FileError:
    what = "the manifest is not what was written"
    return DamagedFile(what, why, _RECOPY, path=path, member=MANIFEST, offset=_MANIFEST_BEGIN)


def _unmap(mapped: mmap.mmap) -> None:
    with contextlib.suppress(BufferError):  # views are in use: the last of them takes the map with it
        mapped.close()
