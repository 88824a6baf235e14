"""setuptools' build backend for `ingot-runtime`, whose package lies outside this folder.

In a checkout, and in the sdist of `ingot`, the package is ../src/ingot_runtime. setuptools takes only what is below the
folder that it builds, so `src` and `LICENSE` become links here. They are not in git, because a checkout may turn links
into text files. The sdist of `ingot-runtime` holds the real files.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from setuptools.build_meta import *  # noqa: F403  # every hook of the backend

HERE = Path(__file__).resolve().parent


def link_sources(folder: Path = HERE) -> None:
    """Links `src` and `LICENSE` to those of the folder above, where they are missing."""
    for name, needed in (("src", "src/ingot_runtime"), ("LICENSE", "LICENSE")):
        if (folder / needed).exists():
            continue
        if not (folder.parent / needed).exists():
            raise FileNotFoundError(
                f"{folder.parent / needed} does not exist. ingot-runtime is built inside a checkout of Ingot, inside "
                "the sdist of ingot, or from its own sdist."
            )
        if (folder / name).is_symlink() or (folder / name).is_file():  # a broken link, or the text of one
            (folder / name).unlink()
        with contextlib.suppress(FileExistsError):  # another build was faster
            os.symlink(f"../{name}", folder / name)


link_sources()
