"""A digest of all code that a verdict or a time on a GPU can depend on.

python -m tests.targets.cuda.gpu.code_digest      print that of this tree

Journals name it: the copy of the tree on a machine with a GPU has no repository, and what was found there by the same
code counts, whatever has been committed since.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
SUFFIXES = (".py", ".h", ".c", ".cuh", ".cu")
# The compiler, and what says which program a seed or a name means and how it is judged.
COVERED = ("src", "tests/fuzz", "tests/support/operator_samples", "tests/support/zoo", "tests/support/oracle.py")
# What no verdict on a GPU depends on.
APART = (
    "src/ingot/cli",
    "src/ingot/onnx",
    "src/ingot/targets/cpu",
    "src/ingot_runtime/__main__.py",
    "src/ingot_runtime/cli_run.py",
)


@functools.cache
def digest_code(root: Path = ROOT) -> str:
    """Of the code that is covered, without what only other targets and commands use, and without tests."""
    digest = hashlib.sha256()
    apart = [root / path for path in APART]
    files = [
        path for name in COVERED for path in ((root / name).rglob("*") if (root / name).is_dir() else [root / name])
    ]
    files = [path for path in files if path.is_file() and path.suffix in SUFFIXES and not path.name.startswith("test_")]
    for path in sorted(path for path in files if not any(map(path.is_relative_to, apart))):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    print(digest_code())
