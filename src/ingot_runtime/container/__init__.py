"""A `.ingot` file as a container of named members: written in one way only, checked whole before anything is used.

The file is a plain ZIP archive (`unzip`, `zipfile` read it) with stored members and fixed dates:

    manifest.json     {"format":"ingot","schema":3,"members":{name:{"crc32":...,"sha256":[...],"size":...}}, and the
                      caller's fields}; there is a hash for every 4 MiB of a member: SHA-256, or, of tensors
                      (*.safetensors), "sums" in its place, which checksums.py describes
    other members     sorted by name, their data on multiples of 64 bytes, so that weights can be mapped
    ZIP directory     its comment holds the SHA-256 of manifest.json

Every byte is thus determined: records and data by the manifest, the manifest by the comment. This finds damage, not
forgery: an attacker who can write a file can write its hashes.

A signed file has schema 4: every member has SHA-256, and one more member comes last, `signature.ed25519`, the
signature of the bytes of manifest.json. The manifest has the size and the hash of every other member, so the signature
covers all of them; signing.py says whose it is.

Schema 2 has SHA-256 for tensors too; schema 1 has one SHA-256 for a whole member and no CRC in the manifest. Such
files are read, and no longer written.

Three things hold in every schema, so that any release can say which one it would need: the manifest is the first
member, its data begins at byte 64, and the comment holds its hash.
"""

from .reader import Container, Contents, check_container, open_container, skip_nothing, skip_program
from .schema import READABLE, SCHEMA, SIGNED_SCHEMA
from .writer import Member, StreamedMember, write_container

__all__ = [
    "READABLE",
    "SCHEMA",
    "SIGNED_SCHEMA",
    "Container",
    "Contents",
    "Member",
    "StreamedMember",
    "check_container",
    "open_container",
    "skip_nothing",
    "skip_program",
    "write_container",
]
