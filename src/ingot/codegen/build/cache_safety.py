"""Safety of the cache: its folder belongs to this user, and its entries were written by this user's Ingot.

Whoever can put a library into the cache has it run by the next compilation. So the folder and what lies in it must
belong to this user and be writable by no other, and an entry's name has a code (HMAC-SHA256) of its bytes that takes
a secret to make. The secret is a file of the user's own, outside the cache: a cache that was copied from elsewhere,
unpacked from an archive or shared with others holds nothing that is run.

A file is opened once, without following a link, and looked at, read and checked through that one descriptor.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import stat
from pathlib import Path

from ingot.errors import UnsafeCache, format_error

SECRET_SIZE = 32

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class NotOurs(Exception):
    """A file of the cache is not one that this user's Ingot made; the message says why."""


def check_folder(folder: Path, inner: tuple[str, ...]) -> None:
    """Raises UnsafeCache unless `folder`, where it is there, belongs to this user and no other user may write to it.

    The folders `inner`, which Ingot made, are closed to others if they are not. OSError is left to the caller.
    """
    try:
        status = _status_of_folder(folder.resolve())
    except FileNotFoundError:
        return
    if status.st_uid != os.geteuid():
        raise _unsafe(
            folder, f"it belongs to user {status.st_uid}, not to you ({os.geteuid()})", "use a folder of yours"
        )
    if status.st_mode & _OTHERS_WRITE:
        raise _unsafe(folder, f"others may write to it (mode {status.st_mode & 0o777:o})", f"chmod 700 {folder}")
    for parent in folder.resolve().parents:
        mode = parent.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise _unsafe(folder, f"anybody may replace what is in {parent}", f"chmod o-w {parent}")
    for name in inner:
        with contextlib.suppress(FileNotFoundError):
            status = _status_of_folder(folder / name, close=True)
            if status.st_uid != os.geteuid():
                raise _unsafe(folder / name, f"it belongs to user {status.st_uid}", f"remove {folder / name}")


def make_folder(folder: Path) -> None:
    """Makes a folder, and those above it, that others may not enter. One that is there stays as it is."""
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)


def read_file(path: Path) -> bytes:
    """The bytes of a file that belongs to this user and that no other user may write to. Raises NotOurs, OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise NotOurs("it is not a file")
        if status.st_uid != os.geteuid():
            raise NotOurs(f"it belongs to user {status.st_uid}")
        if status.st_mode & _OTHERS_WRITE:
            raise NotOurs("others may write to it")
        return file.read()


def read_secret(path: Path) -> bytes:
    """This user's secret, created at first use, by one of any number of processes.

    Raises UnsafeCache where others may know it, and OSError where it can be neither read nor made.
    """
    if not path.exists():
        _make_secret(path)
    try:
        data = read_file(path)
        mode = path.lstat().st_mode
    except NotOurs as failure:
        raise _unsafe(path, str(failure), f"remove {path}: a new one is made") from None
    if mode & _OTHERS or len(data) != SECRET_SIZE:
        raise _unsafe(path, "others may read it, or it is damaged", f"remove {path}: a new one is made")
    return data


def code_of(secret: bytes, key: str, library: bytes) -> str:
    """The code of an entry, which cannot be computed for other bytes or another key without the secret."""
    code = hmac.new(secret, key.encode(), hashlib.sha256)
    code.update(library)
    return code.hexdigest()


def _make_secret(path: Path) -> None:
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}-{os.urandom(8).hex()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(os.urandom(SECRET_SIZE))
            file.flush()
            os.fsync(descriptor)
        try:
            os.link(temporary, path)
        except FileExistsError:  # another process was first: its secret counts
            pass
        except OSError:  # a file system without links; entries of a process that lost are built again
            os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _status_of_folder(folder: Path, *, close: bool = False) -> os.stat_result:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if close and status.st_mode & _OTHERS and status.st_uid == os.geteuid():
            with contextlib.suppress(OSError):  # a file system that is read-only
                os.fchmod(descriptor, status.st_mode & 0o700)
        return status
    finally:
        os.close(descriptor)


def _unsafe(place: Path, why: str, fix: str) -> UnsafeCache:
    message = format_error(
        "the cache is not used: others could put libraries into it",
        where=str(place),
        why=why,
        fix=f"{fix}; or set INGOT_CACHE_DIR to a folder of your own",
    )
    return UnsafeCache(message, place=str(place), why=why)
