"""Libraries that were compiled before, found by what they were compiled from.

    Cache.from_settings(settings).library(source, isa, toolchain)      the path of a library that may be loaded now

    <folder>/libraries/<2 digits>/<key>.<sha256>.so    an entry: one file, whose name says what it must hold
    <folder>/locks/<key>.lock                          held by the process that compiles for that key
    <folder>/work/                                     where compilers run
    <folder>/failed/<key>/                             a source that a compiler failed on, and what it said

A library appears by one rename and is never changed, so a process may die at any moment and leave nothing worse than
files in work/, which go when they are old. Every library is checked against its name before it is handed out; one that
does not fit is thrown away and made anew. Locks only keep processes from doing the same work twice: nothing goes wrong
without them. A cache that cannot be written is done without, and the library lies in a temporary folder of the process.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import filelock

from ingot.codegen.building import storage_error, sync_folder
from ingot.codegen.isa import Isa
from ingot.codegen.toolchain import RUN_FLAGS, SECONDS, Toolchain
from ingot.errors import CacheError, StorageError, explain
from ingot.settings import Settings
from ingot_runtime.spec import ABI

LIMIT = 2 << 30

# Of what the key covers and how the folder is laid out: entries of another format are not found.
_FORMAT = 1
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
    was handed out in the last `recent` seconds stays: whoever asked for it may not have loaded it yet.
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
        """A library made of `source`, now or earlier: its path, checked, ready to be loaded.

        Raises what `Toolchain.compile_library` raises, and CacheError where no folder can hold the library.
        """
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

        if self.folder is None:
            return _Folder(_private(fresh=True), None, timeout).library(name, compile_to)
        folder = self.folder.expanduser().absolute()
        try:
            found = _Folder(folder, folder / "failed" / name, timeout).library(name, compile_to, self.clean)
        except StorageError as error:
            _log.info("the cache is not used: %s", error)
            try:
                return _Folder(_private(), None, timeout).library(name, compile_to)
            except StorageError as second:
                raise _nowhere(error, second) from second
        return found

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


@dataclass(frozen=True, slots=True)
class _Folder:
    """A folder laid out as at the head of this file, and for how long to wait for a process that compiles the same."""

    path: Path
    failed: Path | None
    timeout: float

    def library(
        self,
        name: str,
        compile_to: Callable[[Path, Path | None], None],
        clean: Callable[[], None] = lambda: None,
    ) -> Path:
        found = self._look_up(name)
        if found is not None:
            return found
        with self._lock(name):
            found = self._look_up(name)
            if found is not None:
                return found
            try:
                (self.path / "work").mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryDirectory(dir=self.path / "work", ignore_cleanup_errors=True) as work:
                    library = Path(work, "library.so")
                    compile_to(library, self.failed)
                    made = self._store(name, library)
            except OSError as error:
                raise storage_error(error, self.path) from error
        clean()
        return made

    def _look_up(self, name: str) -> Path | None:
        """The library of that key, if it is what its name says; what is damaged is thrown away."""
        try:
            entries = sorted(file for file in os.listdir(self._shelf(name)) if file.startswith(name))
        except OSError:
            return None
        for entry in entries:
            file = self._shelf(name) / entry
            try:
                whole = entry == f"{name}.{_sha256(file)}.so"
            except FileNotFoundError:  # another process removed it
                continue
            except OSError as error:
                _log.info("%s cannot be read: %s", file, error)
                continue
            if whole:
                with contextlib.suppress(OSError):
                    os.utime(file)  # for the clean-up
                return file
            _log.warning("%s is damaged; it is compiled anew", file)
            with contextlib.suppress(OSError):
                file.unlink()
        return None

    def _store(self, name: str, library: Path) -> Path:
        """Moves a library that is whole and on disk to its place."""
        shelf = self._shelf(name)
        shelf.mkdir(parents=True, exist_ok=True)
        place = shelf / f"{name}.{_sha256(library)}.so"
        os.replace(library, place)
        sync_folder(shelf)
        return place

    def _shelf(self, name: str) -> Path:
        # These folders stay when they are empty: a process may be about to rename a library into one.
        return self.path / "libraries" / name[:2]

    @contextlib.contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        """Holds the key's lock, which the system frees when a process dies; does without where there are no locks."""
        with contextlib.ExitStack() as stack:
            try:
                locks = self.path / "locks"
                locks.mkdir(parents=True, exist_ok=True)
                # A lock that is a mere file would outlive a process that is killed.
                lock = filelock.FileLock(locks / f"{name}.lock", fallback_to_soft=False)
                # Whoever holds it is done, or has given up, after its own time and that of two writes.
                stack.enter_context(lock.acquire(timeout=2 * self.timeout + 60))
            except (OSError, NotImplementedError, filelock.Timeout) as error:
                _log.info("compiling without a lock: %s", error)
            yield


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


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
        explain(
            "no folder can hold a compiled library",
            why=f"{cache.place}: {cache.why}; {private.place}: {private.why}",
            fix="make room, or set INGOT_CACHE_DIR or TMPDIR to a folder that you may write to",
        ),
        place=cache.place,
        why=cache.why,
    )
