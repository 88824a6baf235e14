"""Checks of a Mac's shared libraries without loading them, as elf.py has them for Linux."""

import struct
from collections.abc import Collection, Iterator

from ..cpu_features import architecture

_MAGIC = 0xFEEDFACF  # 64 bits, little-endian
_HEADER = struct.Struct("<IIIIIIII")
_COMMAND = struct.Struct("<II")
_SEGMENT = struct.Struct("<II16sQQQQIIII")
_SYMBOLS = struct.Struct("<IIIIII")
_SYMBOL = struct.Struct("<IBBHQ")
_MACHINES = {"x86_64": 0x01000007, "aarch64": 0x0100000C}
_LIBRARY = 6  # filetype
_SEGMENT_64, _SYMBOL_TABLE = 0x19, 0x2
_KIND, _DEFINED, _EXPORTED = 0x0E, 0x0E, 0x01  # of a symbol: a mask, defined in a section, seen from outside


def find_problem(data: memoryview, functions: Collection[str], machine: str | None = None) -> str | None:
    """Why these bytes are not a library for this machine that exports these functions; None where they are."""
    try:
        return _find_problem(data, functions, machine or architecture())
    except (struct.error, IndexError):
        return "its tables lie outside it"


def _find_problem(data: memoryview, functions: Collection[str], machine: str) -> str | None:
    magic, processor, _, kind, count, _, _, _ = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        return "it is not a 64-bit Mach-O file"
    if kind != _LIBRARY:
        return "it is not a shared library"
    if processor != _MACHINES.get(machine, processor):
        return f"it is for another machine (Mach-O processor {processor:#x}) than {machine}"
    exported: set[str] = set()
    for command, at in _commands(data, count):
        if command == _SEGMENT_64:
            _, _, _, _, _, begin, size, *_ = _SEGMENT.unpack_from(data, at)
            if begin + size > len(data):
                return "it is cut short"
        elif command == _SYMBOL_TABLE:
            exported.update(_exports(data, at))
    missing = [name for name in functions if name not in exported]
    return f"it has no function {', '.join(missing)}" if missing else None


def _commands(data: memoryview, count: int) -> Iterator[tuple[int, int]]:
    """Each load command and where it begins."""
    at = _HEADER.size
    for _ in range(count):
        command, size = _COMMAND.unpack_from(data, at)
        yield command, at
        if size < _COMMAND.size:
            raise IndexError
        at += size


def _exports(data: memoryview, at: int) -> Iterator[str]:
    _, _, offset, count, names_at, names_size = _SYMBOLS.unpack_from(data, at)
    if offset + count * _SYMBOL.size > len(data) or names_at + names_size > len(data):
        raise IndexError
    names = bytes(data[names_at : names_at + names_size])
    for name, kind, _, _, _ in _SYMBOL.iter_unpack(data[offset : offset + count * _SYMBOL.size]):
        if kind & _KIND == _DEFINED and kind & _EXPORTED:
            # Functions of C have an underscore before their names.
            yield names[name : names.find(b"\0", name)].decode("ascii", "replace").removeprefix("_")
