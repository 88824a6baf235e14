from __future__ import annotations

import ctypes
import errno
import logging
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ingot.codegen.build import compile_process, isa
from ingot.codegen.build.cache import Cache
from ingot.codegen.build.toolchain import Toolchain, find
from ingot.errors import CacheError, StorageError
from tests.support.compilers import LIBRARY, SOURCE, fake
from tests.support.processes import files, in_child

HOST = isa.host()


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


# ---------------------------------------------------------------------- folders that cannot be written


@pytest.fixture
def open_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the user that `as_nobody` becomes, which every user can reach, unlike pytest's own."""
    home, folder = Path(tempfile.mkdtemp()), Path(tempfile.mkdtemp())
    monkeypatch.setenv("XDG_STATE_HOME", str(home))  # where the secret goes
    for one in (home, folder):
        one.chmod(0o755)
        if os.getuid() == 0:
            os.chown(one, 65534, 65534)
    yield folder
    shutil.rmtree(folder)
    shutil.rmtree(home)


def as_nobody(work: Callable[[], object]) -> int:
    """Runs `work` as a user who may not write everywhere, as root may."""

    def run() -> None:
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        work()

    return in_child(run)


def test_a_read_only_cache_still_gives_what_it_has(open_folder: Path) -> None:
    cache, compiler = Cache(open_folder / "cache"), fake(open_folder)
    assert as_nobody(lambda: cache.library(SOURCE, HOST, compiler)) == 0
    (library,) = open_folder.glob("cache/libraries/*/*")
    _make_read_only(open_folder)

    def ask() -> None:
        assert cache.library(SOURCE, HOST, fake_that_fails) == library

    fake_that_fails = Toolchain(compiler.name, ("/bin/false",), compiler.identity, compiler.target)
    try:
        assert as_nobody(ask) == 0
    finally:
        _make_writable(open_folder)


@pytest.mark.parametrize("there", [True, False], ids=["an empty folder", "no folder"])
def test_a_read_only_cache_is_done_without(there: bool, open_folder: Path) -> None:
    cache, compiler = Cache(open_folder / "cache"), fake(open_folder)
    if there:
        assert as_nobody((open_folder / "cache").mkdir) == 0
    _make_read_only(open_folder)

    def ask() -> None:
        first = cache.library(SOURCE, HOST, compiler)
        assert first.read_bytes() == LIBRARY and not first.is_relative_to(open_folder)
        assert first.parents[2].stat().st_mode & 0o077 == 0
        assert cache.library(SOURCE, HOST, Toolchain("x", ("/bin/false",), compiler.identity, compiler.target)) == first

    try:
        assert as_nobody(ask) == 0
    finally:
        _make_writable(open_folder)
    assert files(open_folder) == ["fakecc"]


def test_a_damaged_entry_in_a_read_only_cache(open_folder: Path) -> None:
    cache, compiler = Cache(open_folder / "cache"), fake(open_folder)
    assert as_nobody(lambda: cache.library(SOURCE, HOST, compiler)) == 0
    (library,) = open_folder.glob("cache/libraries/*/*")
    library.write_bytes(b"\x7fELF, but not what it says")
    _make_read_only(open_folder)

    def ask() -> None:
        other = cache.library(SOURCE, HOST, compiler)
        assert other.read_bytes() == LIBRARY and not other.is_relative_to(open_folder)

    try:
        assert as_nobody(ask) == 0
    finally:
        _make_writable(open_folder)


def _make_read_only(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() or os.access(path, os.X_OK) else 0o444)


def _make_writable(folder: Path) -> None:
    folder.chmod(0o755)
    for path in folder.rglob("*"):
        path.chmod(0o755)


def test_a_cache_folder_that_is_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    with caplog.at_level(logging.INFO, "ingot.cache"):
        library = Cache(tmp_path / "file").library(SOURCE, HOST, fake(tmp_path))
    assert library.read_bytes() == LIBRARY and not library.is_relative_to(tmp_path)
    assert "the cache is not used" in caplog.text


def test_the_private_folder_goes_with_the_process(tmp_path: Path) -> None:
    code = (
        "import os, sys; from ingot.codegen.build import isa; from ingot.codegen.build.cache import Cache\n"
        "from ingot.codegen.build.toolchain import find\n"
        "library = Cache(None).library('int answer(void) { return 42; }', isa.host(), find())\n"
        "if os.fork() == 0: sys.exit()  # which runs what is registered for the end, in the child\n"
        "os.wait(); assert library.exists(); print(library)"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run((sys.executable, "-c", code), env=environment, capture_output=True, text=True, check=True)
    assert str(tmp_path) in done.stdout and os.listdir(tmp_path) == []


# ---------------------------------------------------------------------- disks that are full


@pytest.mark.parametrize("limit", [0, 10, 34])  # of the source: nothing, a part, all but not the library
def test_no_room_anywhere(limit: int, cache: Cache, tmp_path: Path) -> None:
    compiler = fake(tmp_path)

    def ask() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        with pytest.raises(CacheError) as caught:
            cache.library(SOURCE, HOST, compiler)
        message = str(caught.value)
        assert str(cache.folder) in message and "INGOT_CACHE_DIR" in message and "TMPDIR" in message

    assert in_child(ask) == 0
    assert cache.folder is not None and list(cache.folder.glob("libraries/*/*")) == []
    assert cache.library(SOURCE, HOST, compiler).read_bytes() == LIBRARY


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("step", ["fsync", "replace", "mkdir"])
def test_no_room_in_the_cache_alone(
    code: int, step: str, cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler, real = fake(tmp_path), getattr(os, step)

    def full(what: object, *rest: object, **options: object) -> object:
        path = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else os.fspath(what)  # type: ignore[call-overload]
        if path.startswith(str(cache.folder)):
            raise OSError(code, os.strerror(code), path)
        return real(what, *rest, **options)

    monkeypatch.setattr(os, step, full)
    library = cache.library(SOURCE, HOST, compiler)
    assert library.read_bytes() == LIBRARY and cache.folder is not None and not library.is_relative_to(cache.folder)
    monkeypatch.undo()
    assert list(cache.folder.glob("libraries/*/*")) == []
    assert not (cache.folder / "work").exists() or os.listdir(cache.folder / "work") == []


def test_a_file_system_that_is_full(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ("mount", "-t", "tmpfs", "-o", "size=8k,nr_inodes=64", "tmpfs", str(small)), capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("may not mount a file system here")
    try:
        library = Cache(small / "cache").library(SOURCE, HOST, find())
        assert not library.is_relative_to(small) and ctypes.CDLL(str(library)).answer() == 42
        assert files(small / "cache" / "libraries") == []
    finally:
        subprocess.run(("umount", str(small)), check=True)


def test_storage_errors_are_compile_errors() -> None:
    error = compile_process.storage_error(OSError(errno.ENOSPC, "No space left on device", "/some/where"), None)
    assert isinstance(error, StorageError) and error.place == "/some/where" and "the disk is full" in str(error)
