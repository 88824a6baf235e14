"""What can be wrong with a `.ingot` file. `IngotError` is the root of the compiler's exceptions too (ingot.errors).

    IngotError
    FileError                 anything below
    ├── NotAnIngotFile        another kind of file
    ├── UnsupportedSchema     a good file, of a version that this release does not read
    ├── DamagedFile           cut short, a flipped bit, a size that lies, a record that is not canonical
    ├── UnsafeFile            a member name that could leave its folder, or that two members share
    └── MissingMember         a good file without the member that was asked for (also a KeyError)

A file that cannot be opened at all (absent, no permission) raises Python's own OSError.
"""


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


class MissingMember(FileError, KeyError):
    """The file has no member of that name."""
