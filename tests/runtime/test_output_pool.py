"""Memory of results: used again when nobody holds them, and never before."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import numpy as np
import pytest

from ingot_runtime.native import output_pool, page_allocator
from ingot_runtime.native.output_pool import WORTH, ResultMemory

FLOAT = np.dtype(np.float32)
SHAPE = (WORTH // 4 + 3,)


def _address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def test_a_dead_result_gives_its_memory_to_the_next() -> None:
    memory = ResultMemory(1)
    first = memory.empty(SHAPE, FLOAT)
    first[:] = 1
    where = _address(first)
    assert where % output_pool.LARGE == 0 and first.flags.writeable and first.flags.c_contiguous
    del first
    second = memory.empty((2, WORTH // 16), np.dtype(np.int64))
    assert _address(second) == where and second.shape == (2, WORTH // 16) and second.dtype == np.int64


@pytest.mark.parametrize("held", [lambda x: x, lambda x: x[5:9], lambda x: memoryview(x), lambda x: x.reshape(1, -1).T])
def test_what_someone_holds_is_never_touched(held: object) -> None:
    memory = ResultMemory(1)
    first = memory.empty(SHAPE, FLOAT)
    first[:] = 1
    view = held(first)  # type: ignore[operator]
    del first
    gc.collect()
    for _ in range(3):
        other = memory.empty(SHAPE, FLOAT)
        other[:] = 2
        assert np.asarray(view).min() == 1
        del other


def test_a_call_keeps_no_more_results_than_it_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(output_pool, "map_pages", lambda size: made.append(size) or page_allocator.map_pages(size))
    memory = ResultMemory(2)
    many = [memory.empty(SHAPE, FLOAT) for _ in range(5)]
    assert len(made) == 5
    many.clear()
    many = [memory.empty(SHAPE, FLOAT) for _ in range(3)]
    assert len(made) == 6  # two were kept


def test_results_of_several_sizes_find_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(output_pool, "map_pages", lambda size: made.append(size) or page_allocator.map_pages(size))
    memory = ResultMemory(2)
    for order in ((1, 8), (8, 1), (1, 8)):
        both = [memory.empty((n * WORTH,), np.dtype(np.uint8)) for n in order]
        del both
    assert len(made) == 2
    small = memory.empty((3 * WORTH,), np.dtype(np.uint8))  # neither one too small nor one far too large
    assert len(made) == 3 and small.size == 3 * WORTH


def test_a_model_that_is_closed_or_gone_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(output_pool, "map_pages", lambda size: made.append(size) or page_allocator.map_pages(size))
    memory = ResultMemory(1)
    result = memory.empty(SHAPE, FLOAT)
    memory.close()
    del result
    assert memory.empty(SHAPE, FLOAT).shape == SHAPE and len(made) == 2
    last = memory.empty(SHAPE, FLOAT)
    del memory
    last[:] = 3  # its memory is its own
    assert last.max() == 3


def test_small_results_are_left_to_numpy() -> None:
    assert ResultMemory(1).empty((10, 10), FLOAT).flags.owndata
    assert ResultMemory(1).empty((0, 1 << 40), FLOAT).shape == (0, 1 << 40)


def test_there_may_be_no_memory() -> None:
    with pytest.raises(MemoryError):
        ResultMemory(1).empty((1 << 50,), FLOAT)


def test_many_threads_never_share() -> None:
    memory, wrong = ResultMemory(2), []

    def work(number: int) -> None:
        for turn in range(40):
            mine = memory.empty(SHAPE, FLOAT)
            mine[::1024] = number * 100 + turn
            if not (mine[::1024] == number * 100 + turn).all():
                wrong.append((number, turn))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux tells")
def test_large_memory_is_of_this_process_alone() -> None:
    """Shared memory, which mmap gives unasked, has no large pages."""
    pages = page_allocator.map_pages(8 << 20)
    begin = np.frombuffer(pages, np.uint8).ctypes.data
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    found = [line[1] for line in lines if int(line[0].split("-")[0], 16) <= begin < int(line[0].split("-")[1], 16)]
    assert found == ["rw-p"]


def test_only_large_memory_is_offered_to_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """To offer it costs as much as a kernel that fills it, at each call."""
    offered: list[int] = []
    monkeypatch.setattr(output_pool, "HELD", 8 << 20)
    monkeypatch.setattr(output_pool._Pages, "may_be_taken_back", lambda pages: offered.append(pages.size))
    memory = output_pool.ResultMemory(2)
    for size in (2 << 20, 8 << 20, 9 << 20):
        memory.empty((size,), np.dtype(np.uint8))
    assert offered == [9 << 20]
