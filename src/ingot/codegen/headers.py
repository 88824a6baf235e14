"""The C headers that generated files are assembled from, and every name that they define.

    PORTABLE.read("sort.h")                                            a header of `codegen/c`
    HeaderSet(("ingot.codegen", "ingot.targets.cpu.codegen"))          those, and a target's own

All headers of a set go into one file, and C has one name space: `definitions` holds each name with the header that
defines it, and raises where a second header defines it too. What macros write out (`ig_tile_##kind##_##width`) is not
in it: their arguments are what keeps it apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_MACRO = re.compile(r"^#define (\w+)", re.MULTILINE)
# What stands at the beginning of a line: `static int name(`, `typedef float name __attribute__…;`, `} name;`.
_FUNCTION = re.compile(r"^(?:static|IG_|INGOT_EXPORT|__attribute__).*?\b(\w+)\((?!\()", re.MULTILINE)
_TYPE = re.compile(
    r"^typedef [\w ]*?(\w+)(?: __attribute__.*)?;$|^typedef \w+ (\w+)\(|^(?:typedef struct \{.*)?\} (\w+);$",
    re.MULTILINE,
)
_ENUM = re.compile(r"^enum \{([^}]*)\}", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class HeaderSet:
    """The headers in the folder `c` of each of these packages. `apart` are those whose text makes up a file of its own:
    they may define what others define."""

    packages: tuple[str, ...]
    apart: tuple[str, ...] = ()

    def read(self, name: str) -> str:
        """The text of a header. No name that it defines is defined by another one of the set."""
        self.definitions()
        return _read_headers(self)[name]

    def definitions(self) -> Mapping[str, str]:
        """Each name that a header defines, and which one. Raises ValueError where two define the same."""
        return _find_definitions(self)


# No vector types, threads or instructions of one machine: a compiler for another one takes them too.
PORTABLE = HeaderSet(("ingot.codegen",))


def define(found: dict[str, str], header: str, text: str) -> None:
    """Adds the names that a header defines. Raises ValueError where another one defines one of them."""
    for name in set(_names(text)):
        if found.setdefault(name, header) != header:
            raise ValueError(f"the C name {name} is defined in {found[name]} and in {header}")


@cache
def _read_headers(headers: HeaderSet) -> Mapping[str, str]:
    """The text of each header, by name. Raises ValueError where two packages have one of the same name."""
    found: dict[str, str] = {}
    for package in headers.packages:
        for file in (resources.files(package) / "c").iterdir():
            if file.name in found:
                raise ValueError(f"two packages have a C header called {file.name}: {', '.join(headers.packages)}")
            if file.name.endswith(".h"):
                found[file.name] = file.read_text(encoding="utf-8")
    return found


@cache
def _find_definitions(headers: HeaderSet) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for header, text in sorted(_read_headers(headers).items()):
        if header not in headers.apart:
            define(found, header, text)
    return found


def _names(text: str) -> Iterator[str]:
    text = _COMMENT.sub("", text)
    for pattern in (_MACRO, _FUNCTION, _TYPE):
        for match in pattern.finditer(text):
            yield from (name for name in match.groups() if name)
    for match in _ENUM.finditer(text):
        yield from re.findall(r"(?:^|,)\s*(\w+)", match[1])
