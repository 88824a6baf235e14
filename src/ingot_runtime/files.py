"""Opening and replacing files, with errors that name the file and why it cannot be used.

with reading(path) as file: ...                       UnreadableFile, MissingFile
with replacing(path, "the report") as file: ...       whole or not at all; UnwritableFile, MissingFolder
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import BinaryIO

from .errors import FileError, MissingFile, MissingFolder, UnreadableFile, UnwritableFile

Path = str | os.PathLike[str]

_REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would be larger than this process may write",
    errno.EROFS: "the file system is read-only",
    errno.ENOTDIR: "a part of the path is a file",
    errno.EISDIR: "it is a folder",
    errno.ENAMETOOLONG: "the name is too long",
}
_UNTOUCHED = "nothing was written, and a file that was there before is as it was"


def reason(error: OSError) -> str:
    """Why a file cannot be used, in plain words and in the system's."""
    said = error.strerror or str(error)
    known = _REASONS.get(error.errno or 0)
    return f"{known} ({said})" if known else said


@contextlib.contextmanager
def reading(path: Path) -> Iterator[BinaryIO]:
    """The file, open for reading. Raises UnreadableFile where it cannot be opened."""
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(open(path, "rb"))
        except (OSError, ValueError) as error:
            raise unreadable(error, path) from None
        yield file


def unreadable(error: OSError | ValueError, path: Path) -> UnreadableFile:
    """What an error of the system's means for someone who reads `path`."""
    if isinstance(error, FileNotFoundError):
        fix = "check the name, and the folder that this process runs in"
        return MissingFile("there is no such file", reason(error), fix, path=os.fspath(path), errno=error.errno)
    if not isinstance(error, OSError):  # a name that no file has
        return UnreadableFile("the file cannot be read", str(error), "correct the name", path=os.fspath(path))
    fix = "give the name of a file that this user may read"
    return UnreadableFile("the file cannot be read", reason(error), fix, path=os.fspath(path), errno=error.errno)


def unwritable(error: OSError | ValueError, path: Path, what: str) -> UnwritableFile:
    """What an error of the system's means for someone who writes `what` to `path`."""
    problem = f"{what} cannot be written"
    if isinstance(error, FileNotFoundError):
        why = f"its folder does not exist ({error.strerror})"
        fix = f"make the folder, or choose another one; {_UNTOUCHED}"
        return MissingFolder(problem, why, fix, path=os.fspath(path), errno=error.errno)
    if not isinstance(error, OSError):
        return UnwritableFile(problem, str(error), "correct the name", path=os.fspath(path))
    fix = f"make room, or choose another place; {_UNTOUCHED}"
    return UnwritableFile(problem, reason(error), fix, path=os.fspath(path), errno=error.errno)


@contextlib.contextmanager
def replacing(path: Path, what: str) -> Iterator[BinaryIO]:
    """A file to write to that appears at `path` whole, when the block ends, or not at all.

    Whatever happens on the way, nothing is left behind and an older file at `path` is untouched. `what` is for the
    message of UnwritableFile.
    """
    temporary = None
    try:
        target = os.path.realpath(path)  # through a link: replace the file, not the link
        temporary = os.path.join(os.path.dirname(target), f".ingot-{os.urandom(16).hex()}.tmp")
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException as error:
        if temporary is not None:
            with contextlib.suppress(OSError, ValueError):
                os.unlink(temporary)
        if isinstance(error, OSError) and not isinstance(error, FileError):
            raise unwritable(error, path, what) from error
        if isinstance(error, ValueError) and "\0" in os.fspath(path):
            raise unwritable(error, path, what) from None
        raise


def write_file(path: Path, data: bytes | memoryview | str, what: str) -> None:
    """Writes bytes, or text as UTF-8, as `replacing` does."""
    with replacing(path, what) as file:
        file.write(data.encode() if isinstance(data, str) else data)
