"""Compilers for tests: scripts that answer like one and then do what a test wants."""

from __future__ import annotations

import platform
from pathlib import Path

from ingot.codegen.build import toolchain
from ingot.codegen.build.toolchain import Toolchain
from ingot.config import Settings

ELF = b"\x7fELF"

SOURCE = "int answer(void) { return 42; }\n"
LIBRARY = ELF + SOURCE.encode()

# $output is the file to make, $words are all arguments. A library of this compiler is ELF's first bytes and the source,
# written in two goes.
WRITES = """printf '\\177ELF' > "$output"; cat model.c >> "$output\""""


def named(compiler: str) -> Settings:
    """Settings that ask for one compiler."""
    return Settings((), Path("unused"), False, compiler)


def script(path: Path, body: str, version: str = "fake 1.0") -> Path:
    """A compiler that knows who it is, and compiles by `body`, in sh."""
    path.write_text(
        f"""#!/bin/sh
case "$*" in
  *--version*) echo "{path.name} {version}"; exit 0;;
  *-dumpmachine*) echo {platform.machine()}-linux-gnu; exit 0;;
esac
words="$*"
while [ $# -gt 0 ]; do
  if [ "$1" = -o ]; then output=$2; fi
  shift
done
{body}
"""
    )
    path.chmod(0o755)
    return path


def fake(folder: Path, body: str = WRITES, version: str = "fake 1.0") -> Toolchain:
    """A toolchain of such a script, in a folder of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    # Not asked through the cache of answers: a test may write another script at the same place.
    return toolchain._ask.__wrapped__("fakecc", (str(script(folder / "fakecc", body, version)),))
