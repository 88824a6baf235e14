"""Memory asked for ahead of time: as large as it must be, whatever was guessed; given back where nobody takes it."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from ingot.codegen.build import page_prefault
from ingot.codegen.build.page_prefault import Pages


@pytest.fixture(autouse=True)
def always_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_prefault, "WORTH", 1)
    monkeypatch.setattr(page_prefault, "cores", lambda: 2)


@pytest.mark.parametrize("guessed", [0, 1, 100_000, 40 << 20])
@pytest.mark.parametrize("size", [1, 4096, 70_001, 3 << 20, 90 << 20])
def test_as_large_as_it_must_be(guessed: int, size: int) -> None:
    with Pages(guessed) as ahead:
        memory = ahead.take(size)
    assert memory.shape == (size,) and not memory.any()
    memory[:] = 7  # it is ours, also outside
    other = Pages(0).take(size)
    assert not np.shares_memory(memory, other)


def test_nobody_asks_for_memory_after_the_end() -> None:
    before = threading.active_count()
    with pytest.raises(ValueError, match="of the model"), Pages(1 << 30):
        raise ValueError("of the model")
    assert threading.active_count() == before


def test_it_can_be_taken_once() -> None:
    with Pages(1 << 20) as ahead:
        first, second = ahead.take(1000), ahead.take(1000)
    first[:] = 1
    assert not second.any()
