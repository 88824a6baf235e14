"""Checks of ELF shared libraries without loading them: loading one runs its code.

This does not guard against malice. A library that is damaged, of another machine, or of another program gets a named
error before anything of it is mapped.
"""

import struct
from collections.abc import Collection, Iterator

from ..cpu_features import architecture

_MAGIC = b"\x7fELF\x02\x01\x01"  # 64 bits, little-endian, version 1
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SHARED = 3  # e_type
_MACHINES = {"x86_64": 62, "aarch64": 183}
_LOADED = 1  # p_type
_DYNAMIC_SYMBOLS = 11  # sh_type


def find_problem(data: memoryview, functions: Collection[str]) -> str | None:
    """Why these bytes are not a library for this machine that exports these functions; None where they are."""
    try:
        return _find_problem(data, functions)
    except (struct.error, IndexError):
        return "its tables lie outside it"


def _find_problem(data: memoryview, functions: Collection[str]) -> str | None:
    if data[: len(_MAGIC)] != _MAGIC:
        return "it is not a 64-bit ELF file"
    _, kind, machine, *_ = header = _HEADER.unpack_from(data)
    if kind != _SHARED:
        return "it is not a shared library"
    if machine != _MACHINES.get(architecture(), machine):
        return f"it is for another machine (ELF machine {machine}) than {architecture()}"
    for segment in _table(data, _SEGMENT, header[5], header[10]):
        if segment[0] == _LOADED and segment[2] + segment[5] > len(data):
            return "it is cut short"
    exported = set(_exports(data, header))
    missing = [name for name in functions if name not in exported]
    return f"it has no function {', '.join(missing)}" if missing else None


def _exports(data: memoryview, header: tuple[int, ...]) -> Iterator[str]:
    sections = list(_table(data, _SECTION, header[6], header[12]))
    for _, kind, _, _, offset, size, link, _, _, _ in sections:
        if kind != _DYNAMIC_SYMBOLS:
            continue
        names_at, names_size = sections[link][4:6]
        names = bytes(data[names_at : names_at + names_size])
        for name, _, _, section, _, _ in _table(data, _SYMBOL, offset, size // _SYMBOL.size):
            if section:  # defined here
                yield names[name : names.find(b"\0", name)].decode("ascii", "replace")


def _table(data: memoryview, row: struct.Struct, offset: int, count: int) -> Iterator[tuple[int, ...]]:
    if offset + count * row.size > len(data):
        raise IndexError
    return row.iter_unpack(data[offset : offset + count * row.size])
