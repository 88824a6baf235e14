"""The cache runs what this user's Ingot compiled, and nothing that another user put there."""

from __future__ import annotations

import ctypes
import hashlib
import multiprocessing
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ingot.codegen.build import cache_safety, isa
from ingot.codegen.build.cache import Cache
from ingot.codegen.build.toolchain import find
from ingot.config import secret_path
from ingot.errors import StorageError, UnsafeCache, UnsafeCacheWarning
from tests.support.compilers import LIBRARY, SOURCE, fake
from tests.support.processes import files

HOST = isa.host()
NOBODY = 65534

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs another user's files")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def modes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.lstat().st_mode & 0o777 for path in (folder, *folder.rglob("*"))}


class TestFolder:
    @pytest.mark.parametrize("mask", [0o000, 0o002, 0o022, 0o077])
    def test_it_is_closed_whatever_the_umask(self, mask: int, cache: Cache, tmp_path: Path) -> None:
        before = os.umask(mask)
        try:
            cache.library(SOURCE, HOST, fake(tmp_path))
        finally:
            os.umask(before)
        assert cache.folder is not None
        found = modes(cache.folder)
        assert {found[name] for name in (".", "libraries", "work", "locks")} == {0o700}
        assert all(mode & 0o077 == 0 for name, mode in found.items() if name.endswith(".so"))
        assert secret_path().lstat().st_mode & 0o777 == 0o600

    @pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
    def test_one_that_others_may_write_to_is_not_used(self, mode: int, cache: Cache, tmp_path: Path) -> None:
        assert cache.folder is not None
        cache.folder.mkdir()
        cache.folder.chmod(mode)
        with pytest.warns(UnsafeCacheWarning, match=r"(?s)others may write.*chmod 700"):
            library = cache.library(SOURCE, HOST, fake(tmp_path))
        assert library.read_bytes() == LIBRARY and not library.is_relative_to(tmp_path)
        assert files(cache.folder) == []

    @as_root
    def test_one_of_another_user_is_not_used(self, cache: Cache, tmp_path: Path) -> None:
        assert cache.folder is not None
        cache.folder.mkdir(mode=0o700)
        os.chown(cache.folder, NOBODY, NOBODY)
        with pytest.warns(UnsafeCacheWarning, match="belongs to user 65534"):
            cache.library(SOURCE, HOST, fake(tmp_path))
        assert files(cache.folder) == []

    @as_root
    def test_one_that_holds_a_folder_of_another_user(self, cache: Cache, tmp_path: Path) -> None:
        cache.library(SOURCE, HOST, fake(tmp_path))
        assert cache.folder is not None
        os.chown(cache.folder / "libraries", NOBODY, NOBODY)
        with pytest.warns(UnsafeCacheWarning):
            cache.library(SOURCE, HOST, fake(tmp_path))

    def test_one_in_a_folder_that_anybody_may_write_to(self, tmp_path: Path) -> None:
        (tmp_path / "open").mkdir()
        (tmp_path / "open").chmod(0o777)
        cache = Cache(tmp_path / "open" / "cache")
        (tmp_path / "open" / "cache").mkdir(mode=0o700)
        with pytest.warns(UnsafeCacheWarning, match="anybody may replace"):
            cache.library(SOURCE, HOST, fake(tmp_path))

    def test_older_folders_are_closed(self, cache: Cache, tmp_path: Path) -> None:
        library = cache.library(SOURCE, HOST, fake(tmp_path))
        assert cache.folder is not None
        (cache.folder / "libraries").chmod(0o755)
        assert cache.library(SOURCE, HOST, fake(tmp_path)) == library
        assert modes(cache.folder)["libraries"] == 0o700


class TestEntries:
    def test_a_planted_library_is_not_run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        marker = tmp_path / "executed"
        source = tmp_path / "evil.c"
        source.write_text(
            "#include <stdio.h>\n__attribute__((constructor)) static void f(void) "
            f'{{ fclose(fopen("{marker}", "w")); }}'
        )
        evil = tmp_path / "evil.so"
        subprocess.run([*find().command, "-shared", "-fPIC", "-o", evil, source], check=True)
        ctypes.CDLL(str(evil))
        assert marker.exists()
        marker.unlink()
        monkeypatch.setenv("INGOT_CACHE_DIR", str(tmp_path / "cache"))
        code = (
            "import torch, ingot; torch.manual_seed(0); m, x = torch.nn.Linear(4, 4).eval(), torch.ones(2, 4)\n"
            "assert torch.allclose(ingot.compile(m, (x,))(x), m(x), atol=1e-5)"
        )
        subprocess.run((sys.executable, "-c", code), check=True)
        keys = {entry.name.partition(".")[0] for entry in (tmp_path / "cache").glob("libraries/*/*.so")}
        for entry in list((tmp_path / "cache").glob("libraries/*/*.so")):
            key = entry.name.partition(".")[0]
            entry.unlink()
            data = evil.read_bytes()
            for forged in (hashlib.sha256(data).hexdigest(), cache_safety.code_of(bytes(32), key, data)):
                planted = entry.with_name(f"{key}.{forged}.so")
                planted.write_bytes(data)
                planted.chmod(0o700)
        subprocess.run((sys.executable, "-c", code), check=True)
        assert not marker.exists()
        assert keys and keys == {
            entry.name.partition(".")[0] for entry in (tmp_path / "cache").glob("libraries/*/*.so")
        }
        assert not [e for e in (tmp_path / "cache").glob("libraries/*/*.so") if e.read_bytes() == evil.read_bytes()]

    def test_an_entry_of_another_key(self, cache: Cache, tmp_path: Path) -> None:
        first = cache.library(SOURCE, HOST, fake(tmp_path))
        second = cache.library(SOURCE + "\n", HOST, fake(tmp_path))
        second.write_bytes(first.read_bytes())
        first.rename(second.with_name(second.name.partition(".")[0] + first.name[64:]))
        assert cache.read_library(SOURCE + "\n", HOST, fake(tmp_path)) == LIBRARY + b"\n"

    @pytest.mark.parametrize("kind", ["link", "hard link of another mode", "folder"])
    def test_entries_that_are_not_plain_files(self, kind: str, cache: Cache, tmp_path: Path) -> None:
        entry = cache.library(SOURCE, HOST, fake(tmp_path))
        if kind == "link":
            moved = tmp_path / "moved"
            entry.rename(moved)
            entry.symlink_to(moved)
        elif kind == "folder":
            entry.unlink()
            entry.mkdir()
        else:
            entry.chmod(0o777)
        assert cache.read_library(SOURCE, HOST, fake(tmp_path)) == LIBRARY
        if kind != "folder":
            assert stat.S_ISREG(entry.lstat().st_mode) and entry.lstat().st_mode & 0o077 == 0

    @as_root
    def test_an_entry_of_another_user(self, cache: Cache, tmp_path: Path) -> None:
        entry = cache.library(SOURCE, HOST, fake(tmp_path))
        os.chown(entry, NOBODY, NOBODY)
        assert cache.read_library(SOURCE, HOST, fake(tmp_path)) == LIBRARY
        assert entry.stat().st_uid == os.geteuid()

    def test_a_cache_that_was_copied_from_elsewhere(
        self, cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        entry = cache.library(SOURCE, HOST, fake(tmp_path))
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user's"))
        other = cache.library(SOURCE, HOST, fake(tmp_path))
        assert other.name != entry.name and other.read_bytes() == LIBRARY and not entry.exists()


class TestSecret:
    def test_it_is_made_once(self, tmp_path: Path) -> None:
        with multiprocessing.get_context("fork").Pool(8) as pool:
            found = pool.map(cache_safety.read_secret, [tmp_path / "a" / "cache.key"] * 32)
        assert len(set(found)) == 1 and len(found[0]) == 32
        assert os.listdir(tmp_path / "a") == ["cache.key"]
        assert cache_safety.read_secret(tmp_path / "b") != found[0]

    @pytest.mark.parametrize("damage", ["readable", "writable", "short", "link"])
    def test_one_that_others_may_know(self, damage: str, cache: Cache, tmp_path: Path) -> None:
        path = secret_path()
        cache.library(SOURCE, HOST, fake(tmp_path))
        if damage == "short":
            path.write_bytes(b"short")
        elif damage == "link":
            path.rename(tmp_path / "elsewhere")
            path.symlink_to(tmp_path / "elsewhere")
        else:
            path.chmod(0o644 if damage == "readable" else 0o622)
        with pytest.raises((UnsafeCache, OSError)):
            cache_safety.read_secret(path)
        if damage == "link":
            assert cache.library(SOURCE, HOST, fake(tmp_path)).read_bytes() == LIBRARY
        else:
            with pytest.warns(UnsafeCacheWarning, match=r"(?s)remove .*cache.key"):
                assert cache.library(SOURCE, HOST, fake(tmp_path)).read_bytes() == LIBRARY

    def test_no_place_for_it(self, cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
        library = cache.library(SOURCE, HOST, fake(tmp_path))
        assert library.read_bytes() == LIBRARY and not library.is_relative_to(tmp_path)
        assert issubclass(UnsafeCache, StorageError)

    def test_it_is_not_in_the_cache(self, cache: Cache, tmp_path: Path, state: Path) -> None:
        cache.library(SOURCE, HOST, fake(tmp_path))
        assert cache.folder is not None and not secret_path().is_relative_to(cache.folder)
        assert secret_path().is_relative_to(state)


def test_a_second_process_finds_the_entry(cache: Cache, tmp_path: Path) -> None:
    compiler = fake(tmp_path, 'echo x >> calls; printf "\\177ELF" > "$output"; cat model.c >> "$output"')
    cache.library(SOURCE, HOST, compiler)
    code = (
        "import sys; from pathlib import Path\n"
        "from ingot.codegen.build import isa; from ingot.codegen.build.cache import Cache\n"
        "from ingot.codegen.build.toolchain import Toolchain\n"
        "tool = Toolchain(sys.argv[3], ('/bin/false',), sys.argv[4], sys.argv[5])\n"
        "sys.stdout.buffer.write(Cache(Path(sys.argv[1])).read_library(sys.argv[2], isa.host(), tool))"
    )
    arguments = (str(cache.folder), SOURCE, compiler.name, compiler.identity, compiler.target)
    done = subprocess.run((sys.executable, "-c", code, *arguments), capture_output=True, check=True)
    assert done.stdout == LIBRARY
