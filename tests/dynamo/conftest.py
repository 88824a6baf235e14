"""The backend with a record of what it does, on a torch.compile that has forgotten what it compiled before."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest
import torch

from tests.dynamo.recording import Recording


@pytest.fixture
def recording() -> Iterator[Recording]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield Recording()
    torch._dynamo.reset()


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The warnings of the backend: what runs in eager, and why."""
    caplog.set_level(logging.WARNING, logger="ingot.dynamo")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "ingot.dynamo"]
