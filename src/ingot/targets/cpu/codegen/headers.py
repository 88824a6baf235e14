"""The C headers that generated files are assembled from, and every name that they define.

All of them go into one file, and C has one name space: `definitions` holds each name with the header that defines it,
and raises where a second header defines it too. What macros write out (`ig_tile_##kind##_##width`) is not in it: their
arguments are what keeps it apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources

# Headers whose text makes up a file of its own.
_APART = ("roofline.h",)
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_MACRO = re.compile(r"^#define (\w+)", re.MULTILINE)
# What stands at the beginning of a line: `static int name(`, `typedef float name __attribute__…;`, `} name;`.
_FUNCTION = re.compile(r"^(?:static|IG_|INGOT_EXPORT|__attribute__).*?\b(\w+)\((?!\()", re.MULTILINE)
_TYPE = re.compile(
    r"^typedef [\w ]*?(\w+)(?: __attribute__.*)?;$|^typedef \w+ (\w+)\(|^(?:typedef struct \{.*)?\} (\w+);$",
    re.MULTILINE,
)
_ENUM = re.compile(r"^enum \{([^}]*)\}", re.MULTILINE)


def resource(name: str) -> str:
    """The text of a header of `targets/cpu/codegen/c`. No name that it defines is defined by another one."""
    definitions()
    return _text(name)


@cache
def definitions() -> Mapping[str, str]:
    """Each name that a header defines, and which one. Raises ValueError where two define the same."""
    found: dict[str, str] = {}
    folder = resources.files("ingot.targets.cpu.codegen") / "c"
    for header in sorted(file.name for file in folder.iterdir() if file.name.endswith(".h")):
        if header not in _APART:
            define(found, header, _text(header))
    return found


def define(found: dict[str, str], header: str, text: str) -> None:
    """Adds the names that a header defines. Raises ValueError where another one defines one of them."""
    for name in set(_names(text)):
        if found.setdefault(name, header) != header:
            raise ValueError(f"the C name {name} is defined in {found[name]} and in {header}")


@cache
def _text(name: str) -> str:
    return (resources.files("ingot.targets.cpu.codegen") / "c" / name).read_text(encoding="utf-8")


def _names(text: str) -> Iterator[str]:
    text = _COMMENT.sub("", text)
    for pattern in (_MACRO, _FUNCTION, _TYPE):
        for match in pattern.finditer(text):
            yield from (name for name in match.groups() if name)
    for match in _ENUM.finditer(text):
        yield from re.findall(r"(?:^|,)\s*(\w+)", match[1])
