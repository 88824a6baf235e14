"""The manifest of a container: its schemas, how it is encoded, and what makes one valid."""

import re
from collections.abc import Mapping
from typing import Any

from ..errors import DamagedFile, FileError, NotAnIngotFile, UnsafeFile, UnsupportedSchema
from . import canonical_json, chunked_hashing
from .member_names import MANIFEST, check_names

FORMAT = "ingot"
SCHEMA = 3  # the one that is written
SIGNED_SCHEMA = 4  # the one that is written with a signature
READABLE = (1, 2, 3, 4)
SIGNATURE_SIZE = 64
MANIFEST_LIMIT = 16 << 20

COMMENT = b"ingot manifest sha256 "
COMMENT_SIZE = len(COMMENT) + 64
MANIFEST_BEGIN = 64
_HASH = re.compile(r"[0-9a-f]{64}")
_CRC32 = re.compile(r"[0-9a-f]{8}")
RECOPY = "copy or download the file again, or write it again with Ingot"


def hash_kind(schema: int, name: str) -> str:
    """The kind of hash that a member has: sums find damage at the speed of memory, but anybody can forge them."""
    return chunked_hashing.kind_of(name) if schema == SCHEMA else chunked_hashing.SHA256


def encode_manifest(
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
            name: {"size": size, hash_kind(schema, name): hashes[name], "crc32": f"{crcs.get(name, 0):08x}"}
            for name, size in sizes.items()
        },
    }
    if taken := sorted(own.keys() & fields.keys()):
        raise ValueError(f"the container writes these manifest fields itself: {', '.join(taken)}")
    data = canonical_json.encode({**fields, **own})
    if len(data) > MANIFEST_LIMIT:
        raise ValueError(f"the manifest has {len(data)} bytes of {MANIFEST_LIMIT} at most: put large data in a member")
    return data


def check_manifest(data: bytes, path: str) -> dict[str, Any]:
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
        raise damaged_manifest(f"it is not JSON: {error}", path) from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise foreign_file(f"its manifest does not say that its format is {FORMAT!r}", path)
    schema = manifest.get("schema")
    if type(schema) is not int or schema < 1:
        raise damaged_manifest(f"its schema is {schema!r}, not a version", path)
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
        raise damaged_manifest("it does not list members", path)
    check_names(members, path)
    for name, entry in members.items():
        if not (_is_entry_of_schema_1(entry) if schema == 1 else _is_entry(entry, hash_kind(schema, name))):
            raise damaged_manifest(f"its entry for {name!r} is not a size and hashes", path)
    if canonical != data:
        raise damaged_manifest("it is not canonical JSON", path)
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


def foreign_file(why: str, path: str) -> FileError:
    fix = "give a file that Ingot saved; a model of another kind has to be captured and saved by Ingot first"
    return NotAnIngotFile("this is not an ingot file", why, fix, path=path)


def damaged_manifest(why: str, path: str) -> FileError:
    what = "the manifest is not what was written"
    return DamagedFile(what, why, RECOPY, path=path, member=MANIFEST, offset=MANIFEST_BEGIN)
