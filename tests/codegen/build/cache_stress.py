"""Processes killed at random moments while they compile through a cache that eight others use.

    python -m tests.codegen.build.cache_stress FOLDER --kills 1000 --compiler gcc     prints figures as JSON
    python -m tests.codegen.build.cache_stress FOLDER --kills 1000 --write FILE       docs/reports/cache.md

A victim asks for a library that nobody has made, and is killed (SIGKILL) after a random time of up to 1.3 compilations.
Eight others never stop to ask for that library and for earlier ones, and check everything they get: with a script that
writes its source into the library, the bytes; with a real compiler, what the library answers. The cache is so small
that libraries are also being removed all the while. Only a victim that was still at work when it was killed counts.

The numbers in "wrong" and "failed" must be 0: libraries that answered something else, and processes that raised.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import random
import signal
import struct
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from ingot.codegen.build import isa
from ingot.codegen.build.cache import Cache, key
from ingot.codegen.build.toolchain import Toolchain, find
from tests import progress
from tests.support.compilers import ELF, WRITES, fake, named

OTHERS = 8
_EARLIER = 24  # how many rounds back the others ask
_FIRST = -5  # the libraries below 0 are those that are timed
_ROUND, _ASKED, _WRONG, _FAILED = range(4)


class Shared:
    """Numbers that forked processes share: the round, then three counters for each of the others."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 8 * 4 * (OTHERS + 1))

    def get(self, who: int, what: int) -> int:
        return int(struct.unpack_from("q", self._memory, 8 * (4 * who + what))[0])

    def put(self, who: int, what: int, value: int) -> None:
        struct.pack_into("q", self._memory, 8 * (4 * who + what), value)

    def total(self, what: int) -> int:
        return sum(self.get(who, what) for who in range(OTHERS))

    @property
    def round(self) -> int:
        return self.get(OTHERS, _ROUND)

    @round.setter
    def round(self, value: int) -> None:
        self.put(OTHERS, _ROUND, value)


def source_of(number: int) -> str:
    return f"int answer(void) {{ return {number}; }}\n"


def is_right(library: Path, number: int, real: bool) -> bool:
    if real:
        return int(ctypes.CDLL(str(library)).answer()) == number
    return library.read_bytes() == ELF + source_of(number).encode()


def storm(folder: Path, kills: int, compiler: Toolchain, *, real: bool, seed: int = 0) -> dict[str, float | int]:
    """Runs until `kills` victims were killed at work; gives the figures."""
    cache = Cache(folder / "cache", limit=_size_of_one(folder, compiler) * _EARLIER, recent=5.0)
    chosen = random.Random(seed)
    shared, began = Shared(), time.monotonic()
    shared.round = 1
    others = [_fork(lambda who=who: _other(who, cache, compiler, shared, real)) for who in range(OTHERS)]
    took = _measure(cache, compiler)
    killed = unfinished = late = 0
    try:
        with progress.open_bar("kills", kills) as step:
            while killed < kills:
                number = shared.round + 1
                place = key(source_of(number), isa.host(), compiler)
                victim = _fork(lambda number=number: cache.library(source_of(number), isa.host(), compiler))
                # The others come to the same library a little later, and find it being made.
                time.sleep(chosen.uniform(0, took * 0.2))
                shared.round = number
                time.sleep(chosen.uniform(0, took * 1.1))
                os.kill(victim, signal.SIGKILL)
                there = any((folder / "cache" / "libraries" / place[:2]).glob(f"{place}*"))
                if os.waitstatus_to_exitcode(os.waitpid(victim, 0)[1]) == -signal.SIGKILL:
                    killed += 1
                    step()
                    unfinished += not there
                else:
                    late += 1
    finally:
        for other in others:
            os.kill(other, signal.SIGTERM)
        for other in others:
            os.waitpid(other, 0)
    return {
        "kills": killed,
        "killed before the library was there": unfinished,
        "victims that were done before": late,
        "libraries checked by the others": shared.total(_ASKED),
        "wrong": shared.total(_WRONG),
        "failed": shared.total(_FAILED),
        "seconds": round(time.monotonic() - began, 1),
        **_look_at(cache, compiler, shared.round, real),
    }


def _look_at(cache: Cache, compiler: Toolchain, rounds: int, real: bool) -> dict[str, int]:
    """What the storm left: every library, by its name and by what it answers, and the files of the dead."""
    assert cache.folder is not None
    numbers = {key(source_of(number), isa.host(), compiler): number for number in range(_FIRST, rounds + 1)}
    left = sorted(cache.folder.glob("libraries/*/*"))
    right = [file for file in left if is_right(file, numbers[file.name.partition(".")[0]], real)]
    work = cache.folder / "work"
    strays = len(os.listdir(work))
    deadline = time.monotonic() + 30
    while os.listdir(work) and time.monotonic() < deadline:  # a compiler whose caller was killed may still be at it
        for name in os.listdir(work):
            os.utime(work / name, (0, 0))
        cache.clean()
    return {
        "libraries left": len(left),
        "of them wrong": len(left) - len(right),
        "work folders of the dead": strays,
        "of them after a clean-up": len(os.listdir(cache.folder / "work")),
    }


def _other(who: int, cache: Cache, compiler: Toolchain, shared: Shared, real: bool) -> None:
    chosen, parent = random.Random(who), os.getppid()
    while os.getppid() == parent:
        number = max(1, shared.round - int(chosen.choice((0, 0, chosen.uniform(0, _EARLIER)))))
        try:
            right = is_right(cache.library(source_of(number), isa.host(), compiler), number, real)
            shared.put(who, _WRONG, shared.get(who, _WRONG) + (not right))
        except Exception:
            traceback.print_exc()
            shared.put(who, _FAILED, shared.get(who, _FAILED) + 1)
        shared.put(who, _ASKED, shared.get(who, _ASKED) + 1)
        time.sleep(0.01)


def _fork(work: Callable[[], object]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _size_of_one(folder: Path, compiler: Toolchain) -> int:
    compiler.compile_library(source_of(0), isa.host(), folder / "one.so")
    return (folder / "one.so").stat().st_size


def _measure(cache: Cache, compiler: Toolchain) -> float:
    """The seconds of a compilation while the others are at work."""
    times = []
    for number in range(_FIRST, 0):
        began = time.monotonic()
        cache.library(source_of(number), isa.host(), compiler)
        times.append(time.monotonic() - began)
    return sorted(times)[len(times) // 2]


def run(folder: Path, kills: int, name: str) -> dict[str, float | int]:
    """The figures for a compiler by its name, or for "fake": a script that takes 20 ms."""
    folder.mkdir(parents=True, exist_ok=True)
    real = name != "fake"
    compiler = find(named(name)) if real else fake(folder, f"sleep 0.01; {WRITES}; sleep 0.01")
    return storm(folder, kills, compiler, real=real)


def write_report(figures: dict[str, dict[str, float | int]]) -> str:
    kinds = [name for name in next(iter(figures.values())) if name != "seconds"]
    lines = [
        "# The cache under `kill -9`",
        "",
        "Written by `python -m tests.codegen.build.cache_stress`. Processes compile a library that is in no cache yet,",
        "and are killed at a random moment. Eight other processes ask for the same library and for earlier ones all",
        "the while, in a cache so small that entries are being removed, and check every library that they get.",
        "",
        f"| | {' | '.join(figures)} |",
        f"|---|{'---|' * len(figures)}",
        *(f"| {kind} | {' | '.join(f'{row[kind]:,}' for row in figures.values())} |" for kind in kinds),
        "",
        "`make test` does 30 of each, and kills one process before each call by which a compilation changes a file.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--compiler", default="fake", help="a C compiler, or fake: a script that takes no time")
    parser.add_argument("--write", type=Path, help="run both kinds of compiler and write a report")
    given = parser.parse_args()
    if given.write:
        shown = {"a script that takes 20 ms": "fake", "the C compiler": "cc"}
        figures = {title: run(given.folder.resolve() / name, given.kills, name) for title, name in shown.items()}
        given.write.write_text(write_report(figures), encoding="utf-8")
    else:
        print(json.dumps(run(given.folder.resolve(), given.kills, given.compiler), indent=2))


if __name__ == "__main__":
    main()
