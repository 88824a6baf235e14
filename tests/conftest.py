"""Every run draws the same random numbers, whatever tests are chosen and however they are shared out: what fails here
fails everywhere. Other numbers are the business of the long suites, which say which seeds they used."""

import random
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from ingot import torch_internals as internals


def _seed(name: str) -> None:
    seed = zlib.crc32(name.encode())
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def pytest_collectstart(collector: pytest.Collector) -> None:
    _seed(collector.nodeid)  # a module is about to be imported: its parameters may hold weights


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _seed(item.nodeid)


@pytest.fixture(autouse=True)
def _modes_kept() -> Iterator[None]:
    """A module that torch.export made leaves grad mode and autocast as they are where a check inside it fails."""
    with internals.restore_modes():
        yield
