"""The ZIP records of a `.ingot` file: for given members there is exactly one archive, byte for byte.

    local header | padding | data      one per member; data is stored, and begins on a multiple of ALIGNMENT
    ...
    directory entry                    one per member, in the same order
    ...
    [ZIP64 end record and locator]     only where a number does not fit the plain end record
    end record | comment

Nothing here reads an archive. The reader builds the same records again and compares them with what the file holds,
so a file that differs anywhere is refused without a parser that could be misled.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

ALIGNMENT = 64
LOCAL_SIGNATURE = b"PK\x03\x04"
SIZE_OFFSET = 22  # in a local header: the size of the data
NAME_OFFSET = 30  # in a local header: the name
END_SIGNATURE = b"PK\x05\x06"
END_SIZE = 22

# The first size, offset or count that no longer fits the plain records. Tests lower ZIP64_LIMIT to see ZIP64 in small.
ZIP64_LIMIT = 0xFFFFFFFF
_COUNT_LIMIT = 0xFFFF

_DIRECTORY_SIGNATURE = b"PK\x01\x02"
_ZIP64_END_SIGNATURE = b"PK\x06\x06"
_ZIP64_LOCATOR_SIGNATURE = b"PK\x06\x07"
_ZIP64_EXTRA = 0x0001
_PADDING_EXTRA = 0xD935  # the alignment field of Android's zipalign, which ZIP tools already know to skip
_PADDING_HEAD = struct.Struct("<3H")
_VERSION = 20
_ZIP64_VERSION = 45
_MADE_BY_UNIX = 3 << 8 | _ZIP64_VERSION
_PLAIN_FILE = 0o100644 << 16
_MIDNIGHT = 0
_FIRST_DAY = 1 << 5 | 1  # 1980-01-01, where ZIP's calendar begins
_LOCAL = struct.Struct("<4s5H3L2H")
_DIRECTORY = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_ZIP64_END = struct.Struct("<4sQ2H2L4Q")
_ZIP64_LOCATOR = struct.Struct("<4sLQL")


class Slot(NamedTuple):
    """Where a member lies: its header at `offset`, its data at `begin` up to `end`."""

    name: str
    size: int
    offset: int
    begin: int

    @property
    def end(self) -> int:
        return self.begin + self.size


def plan(sizes: Iterable[tuple[str, int]]) -> list[Slot]:
    """The slots of members of these names and sizes, in this order, one right behind the other."""
    slots = []
    offset = 0
    for name, size in sizes:
        bare = offset + _LOCAL.size + len(name) + len(_local_zip64(size)) + _PADDING_HEAD.size
        begin = bare + -bare % ALIGNMENT
        slots.append(Slot(name, size, offset, begin))
        offset = begin + size
    return slots


def local_header(slot: Slot, crc: int) -> bytes:
    """Everything from `slot.offset` to `slot.begin`."""
    zip64 = _local_zip64(slot.size)
    name = slot.name.encode("ascii")
    extra_size = slot.begin - slot.offset - _LOCAL.size - len(name)
    blank = extra_size - len(zip64) - _PADDING_HEAD.size
    padding = _PADDING_HEAD.pack(_PADDING_EXTRA, 2 + blank, ALIGNMENT) + bytes(blank)
    version = _ZIP64_VERSION if zip64 else _VERSION
    size = _fit(slot.size)
    head = _LOCAL.pack(
        LOCAL_SIGNATURE, version, 0, 0, _MIDNIGHT, _FIRST_DAY, crc, size, size, len(name), extra_size
    )  # fmt: skip
    return head + name + zip64 + padding


def directory(slots: Sequence[Slot], crcs: Sequence[int], comment: bytes) -> bytes:
    """Everything behind the last member's data."""
    entries = b"".join(_directory_entry(slot, crc) for slot, crc in zip(slots, crcs, strict=True))
    return entries + _end_records(len(slots), len(entries), slots[-1].end, comment)


def _directory_entry(slot: Slot, crc: int) -> bytes:
    size, offset = _fit(slot.size), _fit(slot.offset)
    large = [slot.size, slot.size] if slot.size >= ZIP64_LIMIT else []
    if slot.offset >= ZIP64_LIMIT:
        large.append(slot.offset)
    zip64 = _zip64_field(large)
    name = slot.name.encode("ascii")
    version = _ZIP64_VERSION if zip64 else _VERSION
    head = _DIRECTORY.pack(
        _DIRECTORY_SIGNATURE, _MADE_BY_UNIX, version, 0, 0, _MIDNIGHT, _FIRST_DAY, crc, size, size,
        len(name), len(zip64), 0, 0, 0, _PLAIN_FILE, offset,
    )  # fmt: skip
    return head + name + zip64


def _end_records(count: int, size: int, offset: int, comment: bytes) -> bytes:
    zip64 = b""
    if count >= _COUNT_LIMIT or size >= ZIP64_LIMIT or offset >= ZIP64_LIMIT:
        rest_size = _ZIP64_END.size - 12  # the record does not count its own signature and size
        zip64 = _ZIP64_END.pack(
            _ZIP64_END_SIGNATURE, rest_size, _MADE_BY_UNIX, _ZIP64_VERSION, 0, 0, count, count, size, offset
        ) + _ZIP64_LOCATOR.pack(_ZIP64_LOCATOR_SIGNATURE, 0, offset + size, 1)
    count = min(count, _COUNT_LIMIT)
    return zip64 + _END.pack(END_SIGNATURE, 0, 0, count, count, _fit(size), _fit(offset), len(comment)) + comment


def _local_zip64(size: int) -> bytes:
    # Presence alone decides the plan, and a size that lies may not even fit 64 bits: clamp, the plan is refused later.
    clamped = min(size, 2**64 - 1)
    return _zip64_field([clamped, clamped] if size >= ZIP64_LIMIT else [])


def _zip64_field(values: Sequence[int]) -> bytes:
    return struct.pack(f"<2H{len(values)}Q", _ZIP64_EXTRA, 8 * len(values), *values) if values else b""


def _fit(value: int) -> int:
    return value if value < ZIP64_LIMIT else 0xFFFFFFFF
