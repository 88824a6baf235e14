"""Which names the members of a `.ingot` file may have."""

import re
from collections.abc import Callable, Iterable

from ..errors import UnsafeFile

MANIFEST = "manifest.json"
SIGNATURE = "signature.ed25519"
# The tensors of the program that a file was compiled from. Native code has copies of its own, as it reads them.
PROGRAM_TENSORS = ("example.safetensors", "weights.safetensors")

_LIMIT = 240
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*(/[A-Za-z0-9_][A-Za-z0-9_.+-]*)*")

# The first rule that a name breaks is the one reported. The last allows by list; those before it only say it better.
_RULES: tuple[tuple[Callable[[str], bool], str], ...] = (
    (lambda name: name.startswith("/"), "it is an absolute path"),
    (lambda name: "\\" in name, "it has a backslash, which some systems take for a folder"),
    (lambda name: "\0" in name, "it has a NUL, where some systems stop reading"),
    (lambda name: ":" in name, "it has a colon, which some systems take for a drive"),
    (lambda name: ".." in name.split("/"), "it leaves its folder"),
    (lambda name: len(name) > _LIMIT, f"it is longer than {_LIMIT} characters"),
    (
        lambda name: _PLAIN.fullmatch(name) is None,
        "the parts between slashes have letters A-Z a-z, digits and _ . + - only, and begin with none of . + -",
    ),
)


def check_names(names: Iterable[str], path: str) -> None:
    """Checks that members of these names could be unpacked on any system: into one folder, each to a file of its own.

    The names of the manifest and of the signature are taken. Raises UnsafeFile; `path` is for the message.
    """
    taken = {MANIFEST: MANIFEST, SIGNATURE: SIGNATURE}
    for name in names:
        for breaks, why in _RULES:
            if breaks(name):
                raise _unsafe(name, why, path)
        key = name.casefold()
        if key in taken:
            raise _unsafe(name, f"{taken[key]!r} is taken, and on some systems case does not count", path)
        taken[key] = name
    for key, name in taken.items():
        parts = key.split("/")
        for count in range(1, len(parts)):
            if (folder := "/".join(parts[:count])) in taken:
                raise _unsafe(name, f"{taken[folder]!r} would be both a file and a folder", path)


def _unsafe(name: str, why: str, path: str) -> UnsafeFile:
    fix = "use another member name; do not use a file from elsewhere that has such a name"
    return UnsafeFile(f"the member name {name!r} is not safe", why, fix, path=path, member=name)
