"""Every run draws the same random numbers, whatever tests are chosen and however they are shared out: what fails here
fails everywhere. Other numbers are the business of the long suites, which say which seeds they used."""

import gc
import os
import random
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from ingot import torch_internals as internals

# Modules are verified in full after each scheduling pass, in processes that tests start too.
os.environ.setdefault("INGOT_CHECK", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files anew instead of comparing")


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


def pytest_collection_finish() -> None:
    """What imports made, hundreds of thousands of objects, stays: the garbage collector need not visit it again."""
    import hypothesis  # noqa: F401  # before: it looks for what refers to its generators, and frozen objects do not show

    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _modes_kept() -> Iterator[None]:
    """A module that torch.export made leaves grad mode and autocast as they are where a check inside it fails."""
    with internals.restore_modes():
        yield


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with the file golden/NAME.txt beside the test. `pytest --update-golden` writes the files of the
    tests that run; read the difference before you commit it."""

    def compare(name: str, text: str) -> None:
        path = Path(request.path).parent / "golden" / f"{name.replace(' ', '_')}.txt"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"{path} is missing: run this test with --update-golden"
        assert text == path.read_text(encoding="utf-8")

    return compare


@pytest.fixture(scope="session")
def compiled_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For what is compiled once a run, also when several workers share the run."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "compiled"
    folder.mkdir(exist_ok=True)
    return folder
