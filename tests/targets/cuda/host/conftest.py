"""The emulated driver, for every test here: what it holds when a test ends is what it held before."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.support.cuda_emulation.target import EmulatedDriver, open_driver


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedDriver]:
    found = open_driver()
    monkeypatch.setenv("INGOT_CUDA_DRIVER", str(found.path))
    gc.collect()
    before = (found.bytes, found.objects)
    yield found
    gc.collect()
    assert (found.bytes, found.objects) == before, "memory, streams or graphs are left on the device"
    assert found.depth == 0, "a context is still current"


@pytest.fixture(autouse=True)
def _several_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small maps stay kernels of their own: what the host does with several launches is tested here."""
    monkeypatch.setenv("INGOT_DISABLE_PASSES", "map_groups")
