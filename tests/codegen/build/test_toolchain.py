from __future__ import annotations

import ctypes
import importlib.util
import os
import pickle
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from ingot.codegen.build import isa, toolchain
from ingot.codegen.build.toolchain import WARNINGS, Toolchain, find
from ingot.errors import (
    CompilerFailed,
    CompilerKilled,
    CompilerTimeout,
    NoCompiler,
    StorageError,
    UnsupportedMachine,
)
from tests.support.compilers import SOURCE, WRITES, fake, named, script
from tests.support.processes import wait_for

HOST = isa.host()
PARTS = """
int second(int);
#if !defined(IG_PART) || IG_PART == 0
int first(int x) { return 2 * x; }
int answer(void) { return second(20); }
#endif
#if !defined(IG_PART) || IG_PART == 1
int first(int);
int second(int x) { return first(x) + 2; }
#endif
"""


def _real() -> list[str]:
    found = [name for name in ("gcc", "clang") if shutil.which(name)]
    return found + ([f"{sys.executable} -m ziglang cc"] if importlib.util.find_spec("ziglang") else [])


@pytest.fixture(params=_real(), ids=lambda name: name.split()[-1 if " " not in name else -2])
def real(request: pytest.FixtureRequest) -> Toolchain:
    return find(named(request.param))


def _answer(library: Path) -> int:
    return int(ctypes.CDLL(str(library)).answer())


def _leftovers(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.startswith(("ingot-cc-", ".ingot-")))


# ---------------------------------------------------------------------- compilers that work


def test_a_library_is_made_and_answers(real: Toolchain, tmp_path: Path) -> None:
    library = tmp_path / "deep" / "er" / "model.so"
    said = real.compile_library(SOURCE, HOST, library, extra_flags=WARNINGS, work=tmp_path)
    assert _answer(library) == 42 and said == ""
    assert sorted(os.listdir(tmp_path)) == ["deep"] and os.listdir(library.parent) == ["model.so"]


@pytest.mark.parametrize("name", [name for name, one in isa.ISAS.items() if not isa.missing_features(one)])
def test_every_instruction_set_of_this_machine(real: Toolchain, name: str, tmp_path: Path) -> None:
    one = isa.find_isa(name)
    source = f"#define BYTES {max(16, one.vector_bits // 8)}\n" + (
        "typedef float vec __attribute__((vector_size(BYTES)));\n"
        "int answer(void) { vec a = {20}, b = {2}, c = {2}; volatile vec d = a * b + c; return (int)d[0]; }\n"
    )
    real.compile_library(source, one, tmp_path / "model.so")
    assert _answer(tmp_path / "model.so") == 42
    if one.vector_bits == 512 and shutil.which("objdump"):
        code = subprocess.run(("objdump", "-d", tmp_path / "model.so"), capture_output=True, text=True, check=True)
        assert "zmm" in code.stdout


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_parts(real: Toolchain, parts: int, tmp_path: Path) -> None:
    said = real.compile_library(PARTS, HOST, tmp_path / "model.so", parts=parts, extra_flags=WARNINGS)
    assert _answer(tmp_path / "model.so") == 42 and said == ""


def test_only_several_parts_have_numbers(tmp_path: Path) -> None:
    source = "#ifdef IG_PART\n#error in parts\n#endif\n" + SOURCE
    find().compile_library(source, HOST, tmp_path / "model.so")
    with pytest.raises(CompilerFailed, match="in parts"):
        find().compile_library(source, HOST, tmp_path / "model.so", parts=2)


def test_the_part_that_only_launches_is_not_optimized_much(tmp_path: Path) -> None:
    body = f"""echo "$words" >> {tmp_path}/words; {WRITES}"""
    compiler = fake(tmp_path / "bin", body)
    for extra in ((), ("-O2",)):
        compiler.compile_library(SOURCE, HOST, tmp_path / "m.so", parts=3, extra_flags=extra)
    found = {}
    for line in (tmp_path / "words").read_text().splitlines():
        words = line.split()
        levels = [word for word in words if word.startswith("-O")]  # the last one holds
        found[next((w for w in words if w.startswith("-DIG_PART=")), "link"), "-O2" in words] = levels[-1]
    assert [found[f"-DIG_PART={part}", False] for part in range(3)] == ["-O1", "-O3", "-O3"]
    assert [found[f"-DIG_PART={part}", True] for part in range(3)] == ["-O2", "-O2", "-O2"]


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("extra", [(), ("-g",)])
def test_the_same_bytes_in_another_folder(real: Toolchain, parts: int, extra: tuple[str, ...], tmp_path: Path) -> None:
    made = []
    for name in ("one", "another, with a longer name"):
        folder = tmp_path / name
        folder.mkdir()
        real.compile_library(PARTS, HOST, folder / f"{name}.so", parts=parts, extra_flags=extra, work=folder)
        made.append((folder / f"{name}.so").read_bytes())
    assert made[0] == made[1]
    assert str(tmp_path).encode() not in made[0]


def test_a_function_that_nothing_has_is_found_at_once(real: Toolchain, tmp_path: Path) -> None:
    with pytest.raises(CompilerFailed, match="no_such_function"):
        real.compile_library(
            "int no_such_function(void); int f(void) { return no_such_function(); }", HOST, tmp_path / "m"
        )


def test_warnings_are_handed_back(tmp_path: Path) -> None:
    source = "static int unused_one(void) { return 1; }\n" + SOURCE
    said = find().compile_library(source, HOST, tmp_path / "model.so", extra_flags=WARNINGS)
    assert "unused_one" in said and _answer(tmp_path / "model.so") == 42


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
@pytest.mark.parametrize("name", [name for name in ("gcc", "clang") if shutil.which(name)])
def test_sanitizers_may_be_asked_for(name: str, sanitizer: str, tmp_path: Path) -> None:
    flags = (f"-fsanitize={sanitizer}", "-g")
    find(named(name)).compile_library(SOURCE, HOST, tmp_path / "model.so", extra_flags=flags)
    assert (tmp_path / "model.so").stat().st_size > 0


def test_a_library_that_is_in_use_is_replaced_not_changed(tmp_path: Path) -> None:
    library = tmp_path / "model.so"
    find().compile_library(SOURCE, HOST, library)
    before, loaded = library.stat().st_ino, ctypes.CDLL(str(library))
    find().compile_library("int answer(void) { return 7; }\n", HOST, library)
    assert loaded.answer() == 42 and library.stat().st_ino != before


# ---------------------------------------------------------------------- finding one


def test_identity_does_not_tell_where_a_compiler_lies(tmp_path: Path) -> None:
    one, other = fake(tmp_path / "a"), fake(tmp_path / "b" / "c")
    assert one.command != other.command and one.identity == other.identity
    assert str(tmp_path) not in one.identity and "fake 1.0" in one.identity
    assert fake(tmp_path / "a", version="fake 1.1").identity != one.identity


def test_names_for_the_same_compiler_have_one_identity(tmp_path: Path) -> None:
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("needs gcc")
    (tmp_path / "my-cc").symlink_to(gcc)
    assert find(named(str(tmp_path / "my-cc"))).identity == find(named("gcc")).identity


def test_the_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("cc", "clang", "gcc"):
        script(tmp_path / name, "exit 1")
        assert find(named("")).name == name
    script(tmp_path / "mine", "exit 1")
    monkeypatch.setenv("CC", "mine --some-option")
    chosen = find()
    assert chosen.command == (str(tmp_path / "mine"), "--some-option") and "--some-option" in chosen.identity


def test_a_compiler_that_does_not_answer_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    (tmp_path / "gcc").write_text("#!/bin/sh\necho out of order >&2; exit 1\n")
    (tmp_path / "gcc").chmod(0o755)
    script(tmp_path / "clang", "exit 1")
    assert find(named("")).name == "clang"


def test_no_compiler_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NoCompiler) as caught:
        find(named(""))
    message = str(caught.value)
    assert "no C compiler was found" in message and "pip install ziglang" in message and "gcc" in message


@pytest.mark.parametrize("text", ["no-such-compiler", "'half quoted", "/", "-x"])
def test_what_cc_names_does_not_work(text: str) -> None:
    with pytest.raises(NoCompiler) as caught:
        find(named(text))
    assert repr(text) in str(caught.value) and "unset it" in str(caught.value)


def test_a_compiler_that_prints_garbage_when_it_is_asked(tmp_path: Path) -> None:
    cc = tmp_path / "cc"
    cc.write_text("#!/bin/sh\nhead -c 100000 /dev/urandom\n")
    cc.chmod(0o755)
    found = find(named(str(cc)))  # who it is does not matter as long as it can be identified again
    assert len(found.identity) < 1000
    with pytest.raises(CompilerFailed):
        found.compile_library(SOURCE, isa.find_isa("plain"), tmp_path / "model.so")


def test_a_compiler_that_never_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "_ASKING_SECONDS", 0.2)
    cc = tmp_path / "cc"
    cc.write_text("#!/bin/sh\nexec sleep 60\n")
    cc.chmod(0o755)
    with pytest.raises(NoCompiler, match="does not answer"):
        find(named(str(cc)))


@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="needs the package ziglang")
def test_ziglang_where_there_is_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    zig = find(named(""))
    assert zig.is_zig and zig.command[-2:] == ("ziglang", "cc") and zig.identity.startswith("zig ")
    zig.compile_library(SOURCE, HOST, tmp_path / "model.so")
    assert _answer(tmp_path / "model.so") == 42
    foreign = isa.find_isa("x86-64-v3" if HOST.architecture == "aarch64" else "aarch64")
    zig.compile_library(SOURCE, foreign, tmp_path / "foreign.so")
    machine_of_elf = (tmp_path / "foreign.so").read_bytes()[18:20]
    assert machine_of_elf == {"aarch64": b"\xb7\x00", "x86_64": b"\x3e\x00"}[str(foreign.architecture)]


def test_an_instruction_set_of_another_architecture(tmp_path: Path) -> None:
    foreign = isa.find_isa("x86-64" if HOST.architecture == "aarch64" else "aarch64")
    with pytest.raises(UnsupportedMachine) as caught:
        find(named("cc")).compile_library(SOURCE, foreign, tmp_path / "model.so")
    assert foreign.name in str(caught.value) and "ziglang" in str(caught.value)


# ---------------------------------------------------------------------- compilers that fail


def test_a_source_that_is_refused(real: Toolchain, tmp_path: Path) -> None:
    source = "int answer(void) { return fourty_two; }\n"
    library = tmp_path / "model.so"
    library.write_bytes(b"what was there before")
    with pytest.raises(CompilerFailed) as caught:
        real.compile_library(source, HOST, library, work=tmp_path, failed=tmp_path / "failed")
    error, message = caught.value, str(caught.value)
    assert type(error) is CompilerFailed
    assert "fourty_two" in message and "-O3" in message and "report it" in message
    assert error.kept == tmp_path / "failed" / "model.c" and str(error.kept) in message
    assert error.kept.read_text() == source and "fourty_two" in (tmp_path / "failed" / "said.txt").read_text()
    assert "-O3" in error.command and "fourty_two" in error.output
    assert library.read_bytes() == b"what was there before" and _leftovers(tmp_path) == []


def test_the_source_is_kept_where_no_place_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(CompilerFailed) as caught:
        find().compile_library("what?", HOST, tmp_path / "model.so")
    assert caught.value.kept is not None and caught.value.kept.read_text() == "what?"
    assert caught.value.kept.is_relative_to(tmp_path)


def test_a_failure_survives_pickling(tmp_path: Path) -> None:
    with pytest.raises(CompilerFailed) as caught:
        find().compile_library("what?", HOST, tmp_path / "model.so", failed=tmp_path)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value) and copy.kept == caught.value.kept and copy.command == caught.value.command


def test_headers_that_are_not_installed(tmp_path: Path) -> None:
    with pytest.raises(CompilerFailed) as caught:
        fake(
            tmp_path, "echo 'model.c:1:10: fatal error: stdint.h: No such file or directory' >&2; exit 1"
        ).compile_library(SOURCE, HOST, tmp_path / "model.so", failed=tmp_path)
    assert "libc6-dev" in str(caught.value)


@pytest.mark.parametrize(
    ("body", "kind", "says"),
    [
        ("exit 3", CompilerFailed, "exits with 3"),
        ("kill -9 $$", CompilerKilled, "SIGKILL"),
        ("kill -11 $$", CompilerKilled, "SIGSEGV"),
        ("echo 'gcc: fatal error: Killed signal terminated program cc1' >&2; exit 1", CompilerKilled, "memory"),
        ("echo 'clang: error: unable to execute command: Killed' >&2; exit 1", CompilerKilled, "memory"),
        ("sh -c 'kill -9 $$'; exit $?", CompilerKilled, "SIGKILL"),
        ("exit 0", CompilerFailed, "wrote no library"),
        ('echo nonsense > "$output"', CompilerFailed, "not a shared library"),
        (': > "$output"', CompilerFailed, "not a shared library"),
        ("head -c 300000 /dev/urandom; exit 1", CompilerFailed, "lines more"),
        ("head -c 300000 /dev/zero; exit 1", CompilerFailed, "exits with 1"),
        ("echo 'as: No space left on device' >&2; exit 1", StorageError, "No space left"),
        ("echo 'ld: cannot open output file: Read-only file system' >&2; exit 1", StorageError, "Read-only"),
    ],
)
@pytest.mark.parametrize("parts", [1, 2])
def test_ways_to_fail(body: str, kind: type[Exception], says: str, parts: int, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    compiler = fake(tmp_path, body)
    with pytest.raises(kind) as caught:
        compiler.compile_library(
            SOURCE, HOST, tmp_path / "model.so", work=work, failed=tmp_path / "failed", parts=parts
        )
    assert type(caught.value) is kind and says in str(caught.value)
    assert len(str(caught.value)) < 15_000 and all(c.isprintable() or c == "\n" for c in str(caught.value))
    assert not (tmp_path / "model.so").exists() and os.listdir(work) == []


def test_a_compiler_that_hangs_is_ended_with_all_it_runs(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    compiler = fake(tmp_path, f"sleep 1000 & echo $! >> {pids}; sleep 1000 & echo $! >> {pids}; wait")
    began = time.monotonic()
    with pytest.raises(CompilerTimeout, match=r"did not finish within 0\.5 s"):
        compiler.compile_library(SOURCE, HOST, tmp_path / "model.so", timeout=0.5, failed=tmp_path / "failed")
    assert time.monotonic() - began < 30
    wait_for(lambda: not any(_is_alive(int(pid)) for pid in pids.read_text().split()))
    assert (tmp_path / "failed" / "model.c").read_text() == SOURCE


def test_garbage_without_end(tmp_path: Path) -> None:
    with pytest.raises(CompilerTimeout):
        fake(tmp_path, "exec yes").compile_library(SOURCE, HOST, tmp_path / "model.so", timeout=0.5, failed=tmp_path)


def test_a_program_left_behind_holds_nobody_up(tmp_path: Path) -> None:
    began = time.monotonic()
    compiler = fake(tmp_path, f"sleep 20 & echo $! > {tmp_path}/pid; {WRITES}")
    compiler.compile_library(SOURCE, HOST, tmp_path / "model.so")
    assert time.monotonic() - began < 10 and (tmp_path / "model.so").exists()
    os.kill(int((tmp_path / "pid").read_text()), 9)


def test_when_one_part_fails_the_others_are_ended(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    body = f'if [ "$output" = part0.o ]; then while [ ! -s {pid} ]; do sleep 0.01; done; exit 5; fi\n'
    body += f"echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 1000"
    with pytest.raises(CompilerFailed, match="exits with 5"):
        fake(tmp_path, body).compile_library(SOURCE, HOST, tmp_path / "model.so", parts=2, failed=tmp_path / "failed")
    wait_for(lambda: not _is_alive(int(pid.read_text())))


def test_a_compiler_that_went_away(tmp_path: Path) -> None:
    compiler = fake(tmp_path)
    Path(compiler.command[0]).unlink()
    with pytest.raises(CompilerFailed, match="cannot be run"):
        compiler.compile_library(SOURCE, HOST, tmp_path / "model.so", failed=tmp_path)


def _is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and that nobody has asked about does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# ---------------------------------------------------------------------- disks


def test_folders_that_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "a file"
    file.touch()
    with pytest.raises(StorageError, match="a file") as caught:
        find().compile_library(SOURCE, HOST, file / "model.so")
    assert "TMPDIR" in str(caught.value)
    with pytest.raises(StorageError, match="no such") as caught:
        find().compile_library(SOURCE, HOST, tmp_path / "model.so", work=tmp_path / "no such")
    assert "does not exist" in str(caught.value)


def test_no_folder_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "no such")])
    with pytest.raises(StorageError, match="No usable temporary directory"):
        find().compile_library(SOURCE, HOST, tmp_path / "model.so")


@pytest.mark.parametrize("limit", [0, 10, 2_000, 9_000])
def test_a_disk_that_is_full(limit: int, tmp_path: Path) -> None:
    """Every file may grow to so many bytes: 0 stops the source, 10 the source half way, the others gcc's programs."""
    find()  # asked before there is a limit
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(StorageError) as caught:
            find().compile_library(SOURCE, HOST, tmp_path / "model.so", work=tmp_path, failed=tmp_path / "failed")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "make room" in str(caught.value)
    assert not (tmp_path / "model.so").exists() and _leftovers(tmp_path) == []
