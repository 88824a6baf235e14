"""The compilation cache: libraries, found by what they were compiled from.

    Cache.from_settings(settings).read_library(source, isa, toolchain)     the bytes of a library, to be loaded

    <folder>/libraries/<2 digits>/<key>.<code>.so      an entry: one file, whose name authenticates what it holds
    <folder>/locks/<key>.lock                          held by the process that compiles for that key
    <folder>/work/                                     where compilers run
    <folder>/failed/<key>/                             a source that a compiler failed on, and what it said

A library appears by one rename and is never changed, so a process may die at any moment and leave nothing worse than
files in work/, which go when they are old. Every library is checked against its name before it is handed out, by a code
that takes this user's secret to make (cache_safety.py); one that does not match is deleted and built again. Locks only
keep processes from doing the same work twice: nothing goes wrong without them. A cache that cannot be written, or that
others can write to, is done without, and the library lies in a temporary folder of the process.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import filelock

from ingot.codegen.build import cache_safety
from ingot.codegen.build.cache_safety import NotOurs
from ingot.codegen.build.compile_process import storage_error, sync_folder
from ingot.codegen.build.isa import Isa
from ingot.codegen.build.toolchain import RUN_FLAGS, SECONDS, Toolchain
from ingot.config import Settings, secret_path
from ingot.errors import CacheError, StorageError, UnsafeCache, UnsafeCacheWarning, format_error
from ingot_runtime.container.manifest import ABI

LIMIT = 2 << 30

# Of what the key covers and how the folder is laid out: entries of another format are not found.
_FORMAT = 2
_INNER = ("libraries", "locks", "work", "failed")
_RECENT_SECONDS = 600.0
_WORK_SECONDS = 6 * 3600.0
_LOCK_SECONDS = 2 * 86400.0
_FAILED_SECONDS = 7 * 86400.0
_SPARE = 0.9  # of the limit is left in use by a clean-up, so that not every new library brings the next one

_log = logging.getLogger("ingot.cache")


@dataclass(frozen=True, slots=True)
class Cache:
    """A folder of compiled libraries, for any number of processes; without a folder nothing is kept between calls.

    `limit` is the size in bytes above which the libraries that were not used for the longest time are removed. One that
    was handed out in the last `recent` seconds stays: the process that requested it may not have loaded it yet.
    """

    folder: Path | None
    limit: int = LIMIT
    recent: float = _RECENT_SECONDS

    @classmethod
    def from_settings(cls, settings: Settings) -> Cache:
        return cls(None if settings.disable_cache else settings.cache_dir)

    def library(
        self,
        source: str,
        isa: Isa,
        toolchain: Toolchain,
        *,
        extra_flags: Sequence[str] = (),
        parts: int = 1,
        timeout: float = SECONDS,
    ) -> Path:
        """Where a library made of `source`, now or earlier, lies. To run it, `read_library` is the way."""
        return self._entry(source, isa, toolchain, extra_flags, parts, timeout).path

    def read_library(
        self,
        source: str,
        isa: Isa,
        toolchain: Toolchain,
        *,
        extra_flags: Sequence[str] = (),
        parts: int = 1,
        timeout: float = SECONDS,
    ) -> bytes:
        """A library made of `source`, now or earlier: its bytes, authenticated, ready to be loaded.

        Raises what `Toolchain.compile_library` raises, and CacheError where no folder can hold the library.
        """
        if self.folder is not None:
            return self._entry(source, isa, toolchain, extra_flags, parts, timeout).data
        try:
            with tempfile.TemporaryDirectory(dir=_private(), ignore_cleanup_errors=True) as work:
                made = Path(work, "library.so")
                toolchain.compile_library(
                    source, isa, made, extra_flags=extra_flags, parts=parts, timeout=timeout,
                    work=Path(work), is_lasting=False,
                )  # fmt: skip
                return made.read_bytes()
        except OSError as error:
            raise storage_error(error, None) from error

    def _entry(
        self, source: str, isa: Isa, toolchain: Toolchain, extra_flags: Sequence[str], parts: int, timeout: float
    ) -> _Entry:
        name = key(source, isa, toolchain, extra_flags, parts)

        def compile_to(destination: Path, failed: Path | None) -> None:
            toolchain.compile_library(
                source,
                isa,
                destination,
                extra_flags=extra_flags,
                parts=parts,
                timeout=timeout,
                work=destination.parent,
                failed=failed,
            )

        return self._find_or_make(name, compile_to, timeout)

    def read_image(
        self, text: str, made_by: Sequence[str], make: Callable[[], bytes], timeout: float = SECONDS
    ) -> bytes:
        """What `make` builds from a text, now or earlier. `made_by` names all else that the bytes depend on: compiler,
        version, flags."""
        if self.folder is None:
            return make()
        name = hashlib.sha256(f"{json.dumps([_FORMAT, 'image', *made_by])}\n{text}".encode()).hexdigest()

        def compile_to(destination: Path, failed: Path | None) -> None:
            with destination.open("wb") as file:
                file.write(make())
                file.flush()
                os.fsync(file.fileno())

        return self._find_or_make(name, compile_to, timeout).data

    def _find_or_make(self, name: str, compile_to: Callable[[Path, Path | None], None], timeout: float) -> _Entry:
        if self.folder is None:
            return _private_folder(timeout, fresh=True).entry(name, compile_to)
        try:
            found = self._open(name, timeout).entry(name, compile_to, self.clean)
        except StorageError as error:
            _log.info("the cache is not used: %s", error)
            if isinstance(error, UnsafeCache):
                warnings.warn(str(error), UnsafeCacheWarning, stacklevel=2)
            try:
                return _private_folder(timeout).entry(name, compile_to)
            except StorageError as second:
                raise _nowhere(error, second) from second
        return found

    def _open(self, name: str, timeout: float) -> _Folder:
        """The folder, if it is safe. Raises StorageError."""
        assert self.folder is not None
        folder = self.folder.expanduser().absolute()
        try:
            cache_safety.check_folder(folder, _INNER)
            return _Folder(folder, folder / "failed" / name, timeout, cache_safety.read_secret(secret_path()))
        except OSError as error:
            raise storage_error(error, folder) from error

    def clean(self) -> None:
        """Removes what dead processes left, and libraries beyond the limit, unless another process is at it."""
        if self.folder is None:
            return
        folder = self.folder.expanduser().absolute()
        if not (folder / "locks").is_dir():
            return
        with contextlib.suppress(OSError, filelock.Timeout):
            with filelock.FileLock(folder / "locks" / "clean.lock", timeout=0, fallback_to_soft=False):
                _remove_old(folder / "work", _WORK_SECONDS)
                _remove_old(folder / "locks", _LOCK_SECONDS)
                _remove_old(folder / "failed", _FAILED_SECONDS)
                self._remove_unused(folder / "libraries")

    def _remove_unused(self, libraries: Path) -> None:
        entries = []
        for file in libraries.glob("*/*.so"):
            with contextlib.suppress(FileNotFoundError):
                status = file.stat()
                entries.append((status.st_mtime, status.st_size, file))
        size = sum(entry[1] for entry in entries)
        if size <= self.limit:
            return
        now = time.time()
        for used, one, file in sorted(entries):
            if size <= self.limit * _SPARE:
                break
            if 0 <= now - used < self.recent:
                continue
            with contextlib.suppress(OSError):
                file.unlink()
                size -= one


def key(source: str, isa: Isa, toolchain: Toolchain, extra_flags: Sequence[str] = (), parts: int = 1) -> str:
    """What a library depends on, as 64 hexadecimal digits."""
    flags = toolchain.flags(isa, extra_flags)
    head = json.dumps([_FORMAT, ABI, isa.name, flags, parts, RUN_FLAGS, toolchain.identity])
    return hashlib.sha256(f"{head}\n{source}".encode()).hexdigest()


class _Entry(NamedTuple):
    """A library: where it lies, and the bytes that were checked."""

    path: Path
    data: bytes


@dataclass(frozen=True, slots=True)
class _Folder:
    """A folder laid out as at the head of this file, and for how long to wait for a process that compiles the same."""

    path: Path
    failed: Path | None
    timeout: float
    secret: bytes

    def entry(
        self,
        name: str,
        compile_to: Callable[[Path, Path | None], None],
        clean: Callable[[], None] = lambda: None,
    ) -> _Entry:
        found = self._look_up(name)
        if found is not None:
            _log.info("hit: %s", name)
            return found
        with self._lock(name):
            found = self._look_up(name)
            if found is not None:
                _log.info("hit, once another process had compiled it: %s", name)
                return found
            _log.info("miss: %s", name)
            try:
                self._make("work")
                with tempfile.TemporaryDirectory(dir=self.path / "work", ignore_cleanup_errors=True) as work:
                    library = Path(work, "library.so")
                    compile_to(library, self.failed)
                    made = self._store(name, library)
            except OSError as error:
                raise storage_error(error, self.path) from error
        clean()
        return made

    def _look_up(self, name: str) -> _Entry | None:
        """The library of that key, if it is what its name says; any other file is thrown away."""
        try:
            entries = sorted(file for file in os.listdir(self._shelf(name)) if file.startswith(name))
        except OSError:
            return None
        for entry in entries:
            file = self._shelf(name) / entry
            try:
                data = cache_safety.read_file(file)
                why = None if self._name_of(name, data) == entry else "it is damaged, or was not made here"
            except FileNotFoundError:  # another process removed it
                continue
            except NotOurs as failure:
                why = str(failure)
            except OSError as error:
                if error.errno != errno.ELOOP:
                    _log.info("%s cannot be read: %s", file, error)
                    continue
                why = "it is a link"
            if why is None:
                with contextlib.suppress(OSError):
                    os.utime(file, follow_symlinks=False)  # for the clean-up
                return _Entry(file, data)
            _log.warning("%s is not used, and compiled again: %s", file, why)
            with contextlib.suppress(OSError):
                file.unlink()
        return None

    def _store(self, name: str, library: Path) -> _Entry:
        """Moves a library that is whole and on disk to its place."""
        self._make("libraries")
        shelf = self._shelf(name)
        cache_safety.make_folder(shelf)
        library.chmod(0o700)
        data = cache_safety.read_file(library)
        place = shelf / self._name_of(name, data)
        os.replace(library, place)
        sync_folder(shelf)
        return _Entry(place, data)

    def _name_of(self, name: str, data: bytes) -> str:
        return f"{name}.{cache_safety.code_of(self.secret, name, data)}.so"

    def _make(self, inner: str) -> None:
        cache_safety.make_folder(self.path)
        cache_safety.make_folder(self.path / inner)

    def _shelf(self, name: str) -> Path:
        # These folders stay when they are empty: a process may be about to rename a library into one.
        return self.path / "libraries" / name[:2]

    @contextlib.contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        """Holds the key's lock, which the system frees when a process dies; does without where there are no locks."""
        with contextlib.ExitStack() as stack:
            try:
                self._make("locks")
                locks = self.path / "locks"
                # A lock that is a mere file would outlive a process that is killed.
                lock = filelock.FileLock(locks / f"{name}.lock", fallback_to_soft=False)
                # Whoever holds it is done, or has given up, after its own time and that of two writes.
                stack.enter_context(lock.acquire(timeout=2 * self.timeout + 60))
            except (OSError, NotImplementedError, filelock.Timeout) as error:
                _log.info("compiling without a lock: %s", error)
            yield


def _remove_old(folder: Path, seconds: float) -> None:
    """Removes what in `folder` was not touched for so long that no process can be at work on it."""
    before = time.time() - seconds
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.stat(follow_symlinks=False).st_mtime >= before:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    os.unlink(entry.path)


def _private_folder(timeout: float, *, fresh: bool = False) -> _Folder:
    return _Folder(_private(fresh=fresh), None, timeout, _private_secret())


@functools.cache
def _private_secret() -> bytes:
    return os.urandom(cache_safety.SECRET_SIZE)


def _private(*, fresh: bool = False) -> Path:
    """A temporary folder of this process; with `fresh`, an empty one."""
    try:
        folder = _private_of(os.getpid())
        folder.mkdir(mode=0o700, exist_ok=True)  # something that tidies up temporary files may have taken it
        return Path(tempfile.mkdtemp(dir=folder)) if fresh else folder
    except OSError as error:
        raise storage_error(error, None) from error


@functools.cache
def _private_of(process: int) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="ingot-"))
    atexit.register(_remove_private, folder, process)
    return folder


def _remove_private(folder: Path, process: int) -> None:
    # A process that was forked has its parent's list of what to do at the end.
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def _nowhere(cache: StorageError, private: StorageError) -> CacheError:
    return CacheError(
        format_error(
            "no folder can hold a compiled library",
            why=f"{cache.place}: {cache.why}; {private.place}: {private.why}",
            fix="make room, or set INGOT_CACHE_DIR or TMPDIR to a folder that you may write to",
        ),
        place=cache.place,
        why=cache.why,
    )
