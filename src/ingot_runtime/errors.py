"""What can go wrong with a `.ingot` file and with a call of its model; ingot.errors draws the compiler's own branches.

    IngotError
    ├── FileError                   something is wrong with a file
    │   ├── NotAnIngotFile          another kind of file
    │   ├── UnsupportedSchema       a good file, of a version that this release does not read
    │   ├── DamagedFile             cut short, a flipped bit, an inconsistent size field, a record that is not canonical
    │   ├── UnsafeFile              a member name that could leave its folder, or that two members share
    │   ├── MissingMember           a good file without the requested member (also a KeyError)
    │   ├── UntrustedFile           a file that may not be used: not signed, or not by a key that is trusted
    │   ├── NotCompiled             a good file without native code
    │   ├── MissingInstructionSet   native code, and none of it for this machine
    │   ├── UnreadableFile          it cannot be opened (also an OSError)
    │   │   └── MissingFile         it is not there (also a FileNotFoundError)
    │   └── UnwritableFile          it cannot be written: a full disk, no permission, a folder (also an OSError)
    │       └── MissingFolder       the folder for it is not there (also a FileNotFoundError)
    ├── CallError                   a model was called with something it was not made for
    │   ├── StructureError          other argument names or nesting
    │   ├── LiteralError            another value for an argument that was captured as a constant
    │   ├── InputError              another dtype, rank, size or device
    │   └── OutputError             a buffer for an output that the output cannot be written to
    ├── AssertionFailed             an assertion of the model does not hold (also a RuntimeError)
    ├── IndexOutOfRange             an index that the model computed or was given (also an IndexError)
    ├── DivisionByZero              an integer was divided by zero (also a ZeroDivisionError)
    ├── OutOfMemory                 (also a MemoryError)
    ├── DeviceUnavailable           no driver, no GPU, no code for it, or it failed (also a RuntimeError)
    ├── InvalidKey                  something else than an Ed25519 key was given for one (also a ValueError)
    ├── SigningUnavailable          signatures need a package that is not installed (also an ImportError)
    ├── ClosedModel                 a model was called after close() (also a ValueError)
    ├── CopyError                   what holds native code was pickled or copied (also a TypeError)
    └── SelfTestFailed              the stored sample gave another result

No OSError, MemoryError or error of ctypes leaves the public functions without one of these names.
"""

from collections.abc import Sequence
from typing import Any


class IngotError(Exception):
    """Anything that Ingot raises on purpose."""


class FileError(IngotError):
    """Something is wrong with a `.ingot` file: what, where (path, member, byte offset), why, and what to do."""

    def __init__(
        self,
        what: str,
        why: str = "",
        fix: str = "",
        *,
        path: str | None = None,
        member: str | None = None,
        offset: int | None = None,
    ) -> None:
        # Three positional arguments and plain attributes: this is what lets the exception be pickled between processes.
        super().__init__(what, why, fix)
        self.what = what
        self.why = why
        self.fix = fix
        self.path = path
        self.member = member
        self.offset = offset

    def __str__(self) -> str:
        places = [
            self.path,
            None if self.member is None else f"member {self.member!r}",
            None if self.offset is None else f"byte {self.offset}",
        ]
        where = ", ".join(place for place in places if place is not None)
        lines = [("where", where), ("why", self.why), ("what to do", self.fix)]
        return "\n".join([self.what, *(f"  {label}: {text}" for label, text in lines if text)])


class NotAnIngotFile(FileError):
    """The file is of another kind."""


class UnsupportedSchema(FileError):
    """The file is whole, but of a schema version that this release does not read."""


class DamagedFile(FileError):
    """The file is not, byte for byte, what was written."""


class UnsafeFile(FileError):
    """A member name is not one that can be unpacked safely."""


class UntrustedFile(FileError):
    """The file is not one that the caller trusts: its native code was not loaded."""


class MissingMember(FileError, KeyError):
    """The file has no member of that name."""


class NotCompiled(FileError):
    """The file has no native code."""


class MissingInstructionSet(FileError):
    """The file has native code, and none of it runs on this machine."""


class _AccessError(FileError, OSError):
    """A file cannot be opened or written; `errno`, `strerror` and `filename` are as OSError has them."""

    def __init__(
        self, what: str, why: str = "", fix: str = "", *, path: str | None = None, errno: int | None = None
    ) -> None:
        super().__init__(what, why, fix, path=path)
        self.errno = errno
        self.strerror = why
        self.filename = path

    def __reduce__(self) -> Any:
        return _access_error, (type(self), self.what, self.why, self.fix, self.path, self.errno)


def _access_error(
    kind: type[_AccessError], what: str, why: str, fix: str, path: str | None, errno: int | None
) -> _AccessError:
    return kind(what, why, fix, path=path, errno=errno)


class UnreadableFile(_AccessError):
    """A file cannot be opened or read."""


class MissingFile(UnreadableFile, FileNotFoundError):
    """There is no such file."""


class UnwritableFile(_AccessError):
    """A file cannot be written; nothing was, and what was there before is as it was."""


class MissingFolder(UnwritableFile, FileNotFoundError):
    """The folder of a file to write does not exist."""


class CopyError(IngotError, TypeError):
    """Something that holds native code was pickled, or copied with all that it holds."""


class CallError(IngotError):
    """A Program or a compiled model was called with something it was not made for."""


class StructureError(CallError):
    """The arguments have other names or another nesting than the captured ones."""


class LiteralError(CallError):
    """An argument that was captured as a constant has another value."""


class InputError(CallError):
    """A tensor argument has another dtype, rank, size or device."""


class OutputError(CallError):
    """A buffer that was given for an output is too small, of another dtype, or cannot be written to."""


class AssertionFailed(IngotError, RuntimeError):
    """An assertion of the model does not hold for what it was called with."""


class IndexOutOfRange(IngotError, IndexError):
    """The model indexed a tensor beyond its size."""


class DivisionByZero(IngotError, ZeroDivisionError):
    """The model divided an integer by zero."""


class OutOfMemory(IngotError, MemoryError):
    """There is no memory for what the model needs."""


class DeviceUnavailable(IngotError, RuntimeError):
    """There is no GPU that the model can run on: no driver, no device, no code for it. Or the device failed."""


class InvalidKey(IngotError, ValueError):
    """A key is not an Ed25519 key of the kind that is needed."""


class SigningUnavailable(IngotError, ImportError):
    """Signatures need the cryptography package, which is not installed."""


class ClosedModel(IngotError, ValueError):
    """A model was used after it was closed."""


class SelfTestFailed(IngotError):
    """The model's stored sample did not reproduce the stored result on this machine."""


def format_error(what: str, *, where: str | None = None, why: str | None = None, fix: str | None = None) -> str:
    """One message in the house form; the parts that are not known are left out."""
    parts: Sequence[tuple[str, str | None]] = (("where", where), ("why", why), ("what to do", fix))
    lines = [what, *(f"  {label}: {text}" for label, text in parts if text)]
    return "\n".join(lines)
