"""The thread pool of generated code: every chunk once, the same results on any number of threads, and nothing that
another caller, a task inside a task, a fork or a lack of memory can break."""

import ctypes
import multiprocessing
import os
import shutil
import subprocess
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

HERE = Path(__file__).parent
POOL = HERE.parents[3] / "src" / "ingot" / "targets" / "cpu" / "codegen" / "c" / "thread_pool.h"
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
TIMEOUT = 240  # seconds, for what takes one or two on an idle machine

# A portable build waits on a condition variable; the sanitizers see it and the futex build alike.
BUILDS = {
    "plain": ["-O3"],
    "portable": ["-O3", "-DIG_POOL_PORTABLE"],
    "thread sanitizer": ["-O1", "-g", "-fsanitize=thread"],
    "thread sanitizer, portable": ["-O1", "-g", "-fsanitize=thread", "-DIG_POOL_PORTABLE"],
    "address and undefined": ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
}

# name: threads, rounds. More threads than any core count here, and just two.
SCENARIOS = {
    "open-close": [(2, 60), (6, 30)],
    "tiny": [(2, 10_000), (5, 2_000)],
    "cover": [(2, 600), (7, 600)],
    "callers": [(2, 400), (5, 200)],
    "pools": [(2, 400), (3, 200)],
    "nested": [(2, 1), (4, 1)],
    "asleep": [(2, 30), (8, 10)],
    "late": [(2, 8_000), (3, 500)],
    "fork": [(2, 1), (5, 1)],
    "fork-early": [(2, 1), (5, 1)],
}


def compiler() -> str:
    for name in (os.environ.get("CC", ""), "gcc", "clang", "cc"):
        if name and shutil.which(name):
            return name
    pytest.skip("no C compiler")


def build(output: Path, *flags: str, header: Path = POOL) -> Path:
    command = [compiler(), *WARNINGS, *flags, f"-I{header.parent}", str(HERE / "thread_pool_harness.c"), "-pthread"]
    done = subprocess.run([*command, "-o", str(output)], capture_output=True, text=True, timeout=TIMEOUT)
    if "-fsanitize" in " ".join(flags) and "cannot find" in done.stderr:
        pytest.skip(f"this compiler came without the sanitizer's library: {done.stderr}")
    assert done.returncode == 0, done.stderr
    return output


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The harness as a program, built once a kind."""
    folder = tmp_path_factory.mktemp("pool")
    built: dict[str, Path] = {}

    def program(kind: str) -> Path:
        if kind not in built:
            built[kind] = build(folder / kind.replace(" ", "-"), *BUILDS[kind])
        return built[kind]

    return program


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    path = build(tmp_path_factory.mktemp("pool") / "pool.so", "-O3", "-shared", "-fPIC", "-fvisibility=default")
    harness = ctypes.CDLL(str(path))
    pool, array, size = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64
    harness.pool_open.restype = pool
    harness.pool_close.argtypes = harness.pool_threads.argtypes = [pool]
    harness.check_nested.argtypes = [pool, ctypes.c_int]
    harness.check_cover.argtypes = [pool, size, size, size, ctypes.POINTER(ctypes.c_int)]
    harness.check_tiny.argtypes = [pool, ctypes.c_int, ctypes.c_int]
    harness.meets.argtypes = [pool, ctypes.c_int]
    harness.sum_chunks.argtypes = harness.sum_chunks_flushing.argtypes = [pool, array, array, size, size]
    harness.sum_chunks.restype = harness.sum_chunks_flushing.restype = None
    return harness


@contextmanager
def opened(library: ctypes.CDLL, threads: int) -> Iterator[int]:
    pool = library.pool_open(threads)
    assert pool
    try:
        yield pool
    finally:
        library.pool_close(pool)


def threads_used(library: ctypes.CDLL, pool: int, total: int, grain: int) -> int:
    used = ctypes.c_int()
    assert library.check_cover(pool, total, grain, 1000, ctypes.byref(used)) == 0
    return used.value


def run(program: Path, scenario: str, threads: int, rounds: int, seconds: float = TIMEOUT) -> tuple[int, str]:
    command = [str(program), scenario, str(threads), str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    return done.returncode, done.stdout + done.stderr


# ---- as a program: every scenario under every build ----


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("kind", BUILDS)
def test_scenario(programs: Callable[[str], Path], kind: str, scenario: str) -> None:
    if scenario.startswith("fork") and "thread" in kind:
        pytest.skip("the thread sanitizer itself does not know threads that start after a fork")
    if scenario == "fork-early" and "address" in kind:
        pytest.skip("the address sanitizer's own allocator stays locked in a child if a thread was just starting")
    for threads, rounds in SCENARIOS[scenario]:
        assert run(programs(kind), scenario, threads, rounds) == (0, "")


# What is changed in the pool, and a scenario that must notice. Without this, a quiet sanitizer proves nothing.
FAULTS = {
    "the gate opens without publishing the job": (
        "atomic_store(&pool->gate, number * IG_JOB | IG_OPEN)",
        "atomic_store_explicit(&pool->gate, number * IG_JOB | IG_OPEN, memory_order_relaxed)",
        ("thread sanitizer", "tiny"),
    ),
    "a worker leaves without publishing its results": (
        "atomic_fetch_sub(&pool->gate, 1)",
        "atomic_fetch_sub_explicit(&pool->gate, 1, memory_order_relaxed)",
        ("thread sanitizer", "tiny"),
    ),
    "the caller does not wait for the workers": ("    ig_join(pool);\n", "", ("thread sanitizer", "cover")),
    "two threads take one chunk": (
        "atomic_fetch_add_explicit(&lane->next, 1, memory_order_relaxed)",
        "lane->next; atomic_store(&lane->next, chunk + 1)",
        ("thread sanitizer", "cover"),
    ),
    "workers have no number of their own": (
        "(int)(lane - pool->lanes)",
        "((void)lane, 0)",
        ("plain", "cover"),
    ),
    "the last chunk is never short": (
        "left > job->grain ? begin + job->grain : job->total",
        "((void)left, begin + job->grain)",
        ("plain", "cover"),
    ),
    "two callers get the pool": ("owner == 2 * forks + 1 ||", "", ("thread sanitizer", "callers")),
    "closing does not wait for the threads": (
        "pthread_join(pool->lanes[worker].thread, NULL)",
        "pthread_detach(pool->lanes[worker].thread)",
        ("address and undefined", "open-close"),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_pool_is_noticed(tmp_path: Path, fault: str) -> None:
    old, new, (kind, scenario) = FAULTS[fault]
    text = POOL.read_text()
    assert text.count(old) == 1
    faulty = tmp_path / "thread_pool.h"
    faulty.write_text(text.replace(old, new))
    program = build(tmp_path / "faulty", *BUILDS[kind], "-Wno-error", header=faulty)
    # A race needs its moment: on a machine that gives this process one core, it may take a few runs.
    for attempt in range(20):
        try:
            if run(program, scenario, 2 + attempt % 3, 2_000, seconds=30) != (0, ""):
                return
        except subprocess.TimeoutExpired:
            return  # threads that wait for each other for good are noticed as well; without the fault it takes a second
    pytest.fail(f"not noticed: {fault}")


# ---- in this process: what Python can ask of it ----


def test_every_chunk_once_for_many_sizes(library: ctypes.CDLL) -> None:
    for threads in (1, 2, 3, 4, 7, 16):
        with opened(library, threads) as pool:
            assert library.pool_threads(pool) == threads
            for total in (-5, 0, 1, 2, 3, 7, 8, 9, 31, 64, 100, 1000, 4097):
                for grain in (1, 2, 3, 8, 64, 999, 1000, 1001, 2**62):
                    assert library.check_cover(pool, total, grain, 0, None) == 0, (threads, total, grain)


@settings(deadline=None, max_examples=200, derandomize=True)
@given(st.integers(0, 5_000), st.integers(1, 600), st.sampled_from([2, 5]))
def test_every_chunk_once(library: ctypes.CDLL, total: int, grain: int, threads: int) -> None:
    with opened(library, threads) as pool:
        assert library.check_cover(pool, total, grain, 3, None) == 0


def test_chunks_near_the_largest_integer(library: ctypes.CDLL) -> None:
    with opened(library, 3) as pool:
        for grain in (2**62, 2**61 + 1, 2**63 - 2):
            assert library.check_cover(pool, 2**63 - 1, grain, 0, None) == 0


def test_all_threads_take_part_at_once(library: ctypes.CDLL) -> None:
    for threads in (1, 2, 6):
        with opened(library, threads) as pool:
            assert library.meets(pool, threads)


def test_zero_is_one_thread_a_core(library: ctypes.CDLL) -> None:
    for threads in (0, -1):
        with opened(library, threads) as pool:
            assert library.pool_threads(pool) == len(os.sched_getaffinity(0))


def test_fewer_cores_for_this_process(library: ctypes.CDLL) -> None:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        with opened(library, 0) as pool:
            assert library.pool_threads(pool) == 1
        with opened(library, 3) as pool:  # crowded: three threads on one core
            assert library.check_tiny(pool, 200, 50) == 0
    finally:
        os.sched_setaffinity(0, cores)


def test_too_many_threads_are_as_many_as_there_can_be(library: ctypes.CDLL) -> None:
    with opened(library, 1_000_000) as pool:
        assert library.pool_threads(pool) == 1024


def test_threads_start_with_the_first_call_that_needs_them(library: ctypes.CDLL) -> None:
    def running() -> int:
        return len(os.listdir("/proc/self/task"))

    before = running()
    with opened(library, 4) as pool:
        assert threads_used(library, pool, 100, 100) == 1  # one chunk
        assert running() == before
        assert library.check_cover(pool, 100, 1, 0, None) == 0
        assert running() == before + 3
    assert running() == before


@pytest.mark.parametrize("allowed", [0, 1, 2])
def test_threads_that_cannot_start(library: ctypes.CDLL, allowed: int) -> None:
    library.allow_threads(allowed)
    try:
        with opened(library, 4) as pool:
            assert library.pool_threads(pool) == 4
            assert library.check_cover(pool, 1000, 3, 100, None) == 0
            assert library.meets(pool, allowed + 1)
            assert library.check_tiny(pool, 100, 0) == 0
            assert library.check_nested(pool, 1) == 0
    finally:
        library.allow_threads(2**30)


def test_out_of_memory(library: ctypes.CDLL) -> None:
    library.allow_memory(0)
    try:
        assert library.pool_open(2) is None
    finally:
        library.allow_memory(1)


@pytest.mark.parametrize("flushing", [False, True])
def test_results_do_not_depend_on_the_number_of_threads(library: ctypes.CDLL, flushing: bool) -> None:
    values = np.random.default_rng(7).normal(size=10_007).astype(np.float32)
    values[::3] *= np.float32(1e-40)  # subnormal: flushed to zero or not as the caller's thread says
    values[5_000:6_000] = np.float32(1e-44)
    grain = 64

    def sums(threads: int) -> NDArray[np.float32]:
        result = np.zeros(-(-len(values) // grain), np.float32)
        function = library.sum_chunks_flushing if flushing else library.sum_chunks
        with opened(library, threads) as pool:
            assert library.meets(pool, threads)  # workers run, with the modes of before
            function(pool, values.ctypes.data, result.ctypes.data, len(values), grain)
        return result

    expected = sums(1)
    assert (expected[80:92] == 0).all() == flushing
    for threads in (2, 3, 4, 8):
        assert sums(threads).tobytes() == expected.tobytes()


@pytest.mark.parametrize("pools", [1, 3])
def test_callers_in_several_python_threads(library: ctypes.CDLL, pools: int) -> None:
    open_pools = [library.pool_open(3) for _ in range(pools)]
    faults: list[int] = []

    def call(pool: int) -> None:
        for size in range(1, 200):
            faults.append(library.check_cover(pool, size, 1 + size % 4, 50, None))
        faults.append(library.check_nested(pool, 0))  # a call that finds the pool taken leaves it to what it calls
        faults.append(library.check_tiny(pool, 200, 50))

    callers = [threading.Thread(target=call, args=(open_pools[i % pools],), daemon=True) for i in range(6)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(TIMEOUT)
        assert not caller.is_alive()
    for pool in open_pools:
        library.pool_close(pool)
    assert faults == [0] * (6 * 201)


def works(library: ctypes.CDLL, pool: int) -> bool:
    if not library.meets(pool, 3) or library.check_tiny(pool, 300, 50):
        return False
    return library.check_nested(pool, 1) == 0


def answer(library: ctypes.CDLL, pool: int, end: Connection) -> None:
    end.send(works(library, pool))
    library.pool_close(pool)


def test_a_pool_in_a_process_that_multiprocessing_forks(library: ctypes.CDLL) -> None:
    context = multiprocessing.get_context("fork")
    with opened(library, 3) as pool:
        assert works(library, pool)
        for _ in range(3):
            here, there = context.Pipe()
            child = context.Process(target=answer, args=(library, pool, there))
            with warnings.catch_warnings():  # Python ≥ 3.12 warns of what this test is about
                warnings.simplefilter("ignore", DeprecationWarning)
                child.start()
            assert here.poll(TIMEOUT) and here.recv()
            child.join(TIMEOUT)
            assert child.exitcode == 0
        assert works(library, pool)


def test_forks_at_any_moment_of_another_thread(library: ctypes.CDLL) -> None:
    done = threading.Event()

    with opened(library, 3) as pool:

        def keep_busy() -> None:
            while not done.is_set():
                assert library.check_tiny(pool, 100, 7) == 0

        caller = threading.Thread(target=keep_busy, daemon=True)
        caller.start()
        try:
            for _ in range(30):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DeprecationWarning)
                    child = os.fork()
                if child == 0:  # nothing may return into pytest from here
                    code = 1
                    try:
                        code = 0 if works(library, pool) else 2
                    finally:
                        os._exit(code)
                assert os.waitpid(child, 0)[1] == 0
        finally:
            done.set()
            caller.join(TIMEOUT)
        assert not caller.is_alive()
        assert works(library, pool)
