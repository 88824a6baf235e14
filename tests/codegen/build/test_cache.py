from __future__ import annotations

import ctypes
import errno
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ingot.codegen.build import cache as cache_module
from ingot.codegen.build import cache_safety, isa
from ingot.codegen.build.cache import Cache, key
from ingot.codegen.build.toolchain import Toolchain, find
from ingot.config import Settings, secret_path
from ingot.errors import CompilerFailed, CompilerKilled
from tests.support.compilers import ELF, LIBRARY, SOURCE, WRITES, fake, named
from tests.support.processes import files, fork, in_child, wait_for

HOST = isa.host()
ROOT = Path(__file__).parents[3]


def counting(folder: Path, body: str = WRITES) -> Toolchain:
    """A compiler that leaves a line in folder/calls each time it is run."""
    return fake(folder, f'echo "$output" >> {folder}/calls; {body}')


def calls(folder: Path) -> int:
    file = folder / "calls"
    return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


# ---------------------------------------------------------------------- entries


def test_a_library_is_made_once(cache: Cache, tmp_path: Path) -> None:
    compiler = counting(tmp_path)
    first = cache.library(SOURCE, HOST, compiler)
    assert first.read_bytes() == LIBRARY and first.is_absolute()
    assert cache.library(SOURCE, HOST, compiler) == first and calls(tmp_path) == 1
    assert cache.folder is not None
    assert [name for name in files(cache.folder) if not name.startswith("locks/")] == [
        str(first.relative_to(cache.folder))
    ]


def test_a_real_one(cache: Cache) -> None:
    library = cache.library(SOURCE, HOST, find())
    assert ctypes.CDLL(str(library)).answer() == 42
    assert cache.library(SOURCE, HOST, find()) == library


def test_what_a_key_depends_on(tmp_path: Path) -> None:
    compiler, plain, host = fake(tmp_path / "a"), isa.find_isa("plain"), HOST
    keys = {
        key(SOURCE, host, compiler),
        key(SOURCE + " ", host, compiler),
        key(SOURCE, plain, compiler),
        key(SOURCE, host, compiler, ("-g",)),
        key(SOURCE, host, compiler, ("-g", "-DX")),
        key(SOURCE, host, compiler, (), 2),
        key(SOURCE, host, fake(tmp_path / "b", version="fake 2.0")),
    }
    assert len(keys) == 7
    assert key(SOURCE, host, fake(tmp_path / "elsewhere")) == key(SOURCE, host, compiler)


def test_the_key_depends_on_the_abi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = fake(tmp_path)
    before = key(SOURCE, HOST, compiler)
    monkeypatch.setattr(cache_module, "ABI", cache_module.ABI + 1)
    assert key(SOURCE, HOST, compiler) != before


def test_a_key_is_the_same_in_another_process(tmp_path: Path) -> None:
    compiler = fake(tmp_path)
    code = (
        "import sys; from pathlib import Path\n"
        "from ingot.codegen.build import isa; from ingot.codegen.build.cache import key\n"
        "from ingot.codegen.build.toolchain import Toolchain\n"
        "print(key(sys.argv[1], isa.host(), Toolchain('x', ('x',), sys.argv[2], sys.argv[3])))"
    )
    command = (sys.executable, "-c", code, SOURCE, compiler.identity, compiler.target)
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    said = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    assert said.strip() == key(SOURCE, HOST, compiler)


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_bytes(file.read_bytes()[:-1]),
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(file.read_bytes() + b"\0"),
        lambda file: file.rename(file.with_name(file.name[:65] + "0" * 64 + ".so")),
        lambda file: file.rename(file.with_name(file.name[:64] + ".so")),
    ],
    ids=["cut", "empty", "longer", "another name", "a name without a hash"],
)
def test_a_damaged_entry_is_made_anew(damage: Callable[[Path], object], cache: Cache, tmp_path: Path) -> None:
    compiler = counting(tmp_path)
    damage(cache.library(SOURCE, HOST, compiler))
    assert cache.library(SOURCE, HOST, compiler).read_bytes() == LIBRARY
    assert calls(tmp_path) == 2
    assert cache.library(SOURCE, HOST, compiler).read_bytes() == LIBRARY
    assert calls(tmp_path) == 2


def test_an_entry_that_cannot_even_be_removed(cache: Cache, tmp_path: Path) -> None:
    entry = cache.library(SOURCE, HOST, fake(tmp_path))
    entry.unlink()
    entry.mkdir()
    assert cache.library(SOURCE, HOST, fake(tmp_path)).read_bytes() == LIBRARY


def test_every_flipped_bit_is_seen(cache: Cache, tmp_path: Path) -> None:
    compiler = counting(tmp_path)
    file = cache.library(SOURCE, HOST, compiler)
    folder = cache_module._Folder(file.parents[2], None, 1.0, cache_safety.read_secret(secret_path()))
    for bit in range(8 * len(LIBRARY)):
        changed = bytearray(LIBRARY)
        changed[bit // 8] ^= 1 << bit % 8
        _replace(file, bytes(changed))
        assert folder._look_up(file.name[:64]) is None and not file.exists()
        _replace(file, LIBRARY)
        found = folder._look_up(file.name[:64])
        assert found is not None and found.path == file and found.data == LIBRARY
    assert cache.library(SOURCE, HOST, compiler) == file and calls(tmp_path) == 1


def _replace(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    file.chmod(0o600)


def test_a_failure_is_not_remembered(cache: Cache, tmp_path: Path) -> None:
    with pytest.raises(CompilerFailed) as caught:
        cache.library(SOURCE, HOST, fake(tmp_path, "echo no >&2; exit 1"))
    assert cache.folder is not None and caught.value.kept is not None
    assert caught.value.kept.is_relative_to(cache.folder / "failed") and caught.value.kept.read_text() == SOURCE
    assert os.listdir(cache.folder / "work") == []
    with pytest.raises(CompilerKilled):
        cache.library(SOURCE, HOST, fake(tmp_path, f"{WRITES}; kill -9 $$"))
    assert cache.library(SOURCE, HOST, fake(tmp_path)).read_bytes() == LIBRARY


def test_settings(tmp_path: Path) -> None:
    assert Cache.from_settings(Settings((), tmp_path, False)).folder == tmp_path
    assert Cache.from_settings(Settings((), tmp_path, True)).folder is None


def test_a_cache_that_is_disabled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    compiler = counting(tmp_path)
    before = files(tmp_path)
    first, second = (Cache(None).library(SOURCE, HOST, compiler) for _ in range(2))
    assert first != second and first.read_bytes() == second.read_bytes() == LIBRARY and calls(tmp_path) == 2
    assert files(tmp_path) == sorted([*before, "calls"])


def test_without_a_cache_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor waited for until it is on a disk."""
    monkeypatch.setattr("os.fsync", lambda descriptor: pytest.fail("nobody reads it after this process"))
    compiler = counting(tmp_path)
    kept = cache_module._private()
    before = files(kept)
    assert [Cache(None).read_library(SOURCE, HOST, compiler) for _ in range(2)] == [LIBRARY, LIBRARY]
    assert calls(tmp_path) == 2 and files(kept) == before
    images = iter((b"first", b"second"))
    assert [Cache(None).read_image("text", ("nvrtc",), lambda: next(images)) for _ in range(2)] == [b"first", b"second"]


def test_a_relative_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    library = Cache(Path("here")).library(SOURCE, HOST, fake(tmp_path))
    assert library.is_absolute() and library.is_relative_to(tmp_path / "here")


# ---------------------------------------------------------------------- several processes


@pytest.mark.parametrize("real", [False, True], ids=["fake", "gcc"])
def test_eight_processes_compile_once(real: bool, cache: Cache, tmp_path: Path) -> None:
    if real:
        compiler = find(named("cc"))
        body = f'exec {compiler.command[0]} "$@"'
        wrapped = tmp_path / "wrapped"
        wrapped.write_text(f'#!/bin/sh\ncase "$*" in *model.c*) echo x >> {tmp_path}/calls;; esac\n{body}\n')
        wrapped.chmod(0o755)
        compiler = find(named(str(wrapped)))
    else:
        compiler = counting(tmp_path, f"sleep 0.3; {WRITES}")

    def ask() -> None:
        library = cache.library(SOURCE, HOST, compiler)
        assert ctypes.CDLL(str(library)).answer() == 42 if real else library.read_bytes() == LIBRARY

    children = []
    for _ in range(8):
        pid = fork()
        if pid == 0:
            os._exit(in_child(ask))
        children.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * 8
    assert calls(tmp_path) == 1


def test_a_lock_of_a_dead_process_holds_nobody_up(cache: Cache, tmp_path: Path) -> None:
    started = tmp_path / "started"
    pid = fork()
    if pid == 0:
        cache.library(SOURCE, HOST, fake(tmp_path / "slow", f"touch {started}; exec sleep 30"))
        os._exit(0)
    wait_for(started.exists)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    began = time.monotonic()
    assert cache.library(SOURCE, HOST, fake(tmp_path / "quick")).read_bytes() == LIBRARY
    assert time.monotonic() - began < 15


def test_without_locks(cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("filelock.FileLock.acquire", no_locks)
    assert cache.library(SOURCE, HOST, fake(tmp_path)).read_bytes() == LIBRARY


# ---------------------------------------------------------------------- killed


def test_killed_before_every_single_step(tmp_path: Path) -> None:
    """A process is killed right before the n-th thing that it asks of the system, for every n there is."""
    compiler, cache = fake(tmp_path), Cache(tmp_path / "cache")
    assert cache.folder is not None
    for number in itertools.count(1):
        code = in_child(lambda number=number: _ask_and_die(number, cache, compiler))
        assert code in (0, -signal.SIGKILL)
        # Whatever is there now is whole, and whoever comes next gets what is right.
        assert all(entry.read_bytes() == LIBRARY for entry in cache.folder.glob("libraries/*/*"))
        assert cache.library(SOURCE, HOST, compiler).read_bytes() == LIBRARY
        shutil.rmtree(cache.folder)
        if code == 0:
            break
    assert number > 40


# Calls that change something outside the process, or that take a file or a lock.
_STEPS = (
    "open", "mkdir", "replace", "rename", "unlink", "rmdir", "utime", "fsync", "fchmod", "chmod", "write", "flush",
    "close", "flock", "fork_exec", "sendfile",
)  # fmt: skip


def _ask_and_die(steps: int, cache: Cache, compiler: Toolchain) -> None:
    left = steps

    def count(_: object, event: str, called: object) -> None:
        nonlocal left
        if event == "c_call" and getattr(called, "__name__", None) in _STEPS:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)
    cache.library(SOURCE, HOST, compiler)
    sys.setprofile(None)


def _storm(folder: Path, kills: int, compiler: str) -> dict[str, float]:
    command = (sys.executable, "-m", "tests.codegen.build.cache_stress", str(folder), "--kills", str(kills))
    done = subprocess.run((*command, "--compiler", compiler), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


@pytest.mark.parametrize("compiler", ["fake", "cc"])
@pytest.mark.parametrize("kills", [30, pytest.param(1000, marks=pytest.mark.slow)])
def test_killed_at_random_moments_beside_eight_others(compiler: str, kills: int, tmp_path: Path) -> None:
    figures = _storm(tmp_path, kills, compiler)
    assert figures["kills"] == kills and figures["killed before the library was there"] > kills / 4
    assert figures["libraries checked by the others"] > kills
    assert figures["wrong"] == figures["failed"] == figures["of them wrong"] == 0
    assert figures["libraries left"] > 0 and figures["of them after a clean-up"] == 0


# ---------------------------------------------------------------------- clean-up


def test_the_least_used_go_first(tmp_path: Path) -> None:
    compiler, size = counting(tmp_path), len(LIBRARY)
    cache = Cache(tmp_path / "cache", limit=5 * size, recent=60.0)
    sources = [SOURCE.replace("42", str(number)) for number in range(10, 20)]
    made = [cache.library(source, HOST, compiler) for source in sources]
    assert all(file.exists() for file in made)  # all of them are recent
    now = time.time()
    for age, file in enumerate(reversed(made)):
        os.utime(file, (now - 1000 - age, now - 1000 - age))
    cache.library(sources[0], HOST, compiler)  # the oldest is used again
    cache.clean()
    # 90% of five are four: the one just used, and the three youngest.
    assert [file.exists() for file in made] == [True] + [False] * 6 + [True] * 3
    assert cache.library(sources[3], HOST, compiler).read_bytes() == ELF + sources[3].encode()


def test_a_clock_that_was_wrong_keeps_nothing_forever(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", limit=0)
    file = cache.library(SOURCE, HOST, fake(tmp_path))
    os.utime(file, (time.time() + 1e6, time.time() + 1e6))
    cache.clean()
    assert not file.exists()


def test_what_the_dead_left_goes_when_it_is_old(cache: Cache, tmp_path: Path) -> None:
    assert cache.folder is not None
    library = cache.library(SOURCE, HOST, fake(tmp_path))
    for name in ("old", "young"):
        (cache.folder / "work" / name / "deeper").mkdir(parents=True)
        (cache.folder / "work" / name / "deeper" / "model.c").touch()
        (cache.folder / "failed" / name).mkdir(parents=True)
        (cache.folder / "locks" / name).touch()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    (cache.folder / "work" / "old" / "link").symlink_to(outside)
    (cache.folder / "work" / "old link").symlink_to(outside)
    os.utime(cache.folder / "work" / "old link", (0, 0), follow_symlinks=False)
    for kind in ("work", "failed", "locks"):
        os.utime(cache.folder / kind / "old", (0, 0))
    cache.clean()
    assert os.listdir(cache.folder / "work") == os.listdir(cache.folder / "failed") == ["young"]
    assert "young" in os.listdir(cache.folder / "locks") and "old" not in os.listdir(cache.folder / "locks")
    assert (outside / "precious").exists() and library.exists()


def test_cleaning_up_where_there_is_nothing(tmp_path: Path) -> None:
    Cache(None).clean()
    Cache(tmp_path / "nothing").clean()
    assert os.listdir(tmp_path) == []
