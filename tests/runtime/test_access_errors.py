"""Files that cannot be read or written, memory that is not there, copies of what holds native code: named errors, and
nothing half-written is left behind."""

from __future__ import annotations

import copy
import os
import pickle
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ingot
import ingot_runtime
from ingot.errors import IngotError, StorageError
from ingot_runtime import CopyError, MissingFile, MissingFolder, UnreadableFile, UnwritableFile
from ingot_runtime.cli_run import write_results
from ingot_runtime.files import write_file


@pytest.fixture(scope="module")
def compiled() -> ingot.artifacts.compiled_model.CompiledModel:
    return ingot.compile(nn.Linear(32, 32).eval(), (torch.randn(2, 32),), threads=1)


@pytest.fixture(scope="module")
def saved(compiled: ingot.artifacts.compiled_model.CompiledModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "m.ingot"
    compiled.save(path)
    return path


@pytest.fixture
def writers(compiled: ingot.artifacts.compiled_model.CompiledModel) -> dict[str, Callable[[Any], Any]]:
    profile = compiled.profile(torch.randn(2, 32), repeat=1)
    return {
        "program": compiled.program.save,
        "compiled": compiled.save,
        "onnx": lambda path: ingot.export_onnx(compiled.program, path, verify=False),
        "trace": profile.chrome_trace,
        "results": lambda path: write_results(path, {"x": np.zeros(4000)}),
        "text": lambda path: write_file(path, "x" * 10_000, "the text"),
    }


NAMES = ["program", "compiled", "onnx", "trace", "results", "text"]


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file of this process may be longer than 100 bytes."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("place", ["missing/m", "folder", "file/m"])
def test_a_place_that_cannot_be_written(
    name: str, place: str, tmp_path: Path, writers: dict[str, Callable[[Any], Any]]
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("as it was")
    with pytest.raises(IngotError) as caught:
        writers[name](tmp_path / place)
    assert str(tmp_path / place) in str(caught.value) and ".tmp" not in str(caught.value)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"] and not os.listdir(tmp_path / "folder")


@pytest.mark.parametrize("name", NAMES)
def test_a_full_disk(name: str, tmp_path: Path, writers: dict[str, Callable[[Any], Any]], full_disk: None) -> None:
    (tmp_path / "m").write_text("as it was")
    with pytest.raises(IngotError, match=r"larger than this process may write|File too large"):
        writers[name](tmp_path / "m")
    assert os.listdir(tmp_path) == ["m"] and (tmp_path / "m").read_text() == "as it was"


def test_errors_are_those_of_python_too(tmp_path: Path, compiled: ingot.artifacts.compiled_model.CompiledModel) -> None:
    with pytest.raises(MissingFolder) as folder:
        compiled.program.save(tmp_path / "no" / "m.ingot")
    assert isinstance(folder.value, FileNotFoundError) and folder.value.filename == str(tmp_path / "no" / "m.ingot")
    with pytest.raises(StorageError):
        compiled.save(tmp_path / "no" / "m.ingot")
    with pytest.raises(UnwritableFile, match="null"):
        compiled.program.save("a\0b")


@pytest.mark.parametrize("load", [ingot.load, ingot_runtime.load, ingot_runtime.open_container])
def test_a_file_that_cannot_be_read(load: Callable[[Any], Any], tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="there is no such file") as caught:
        load(tmp_path / "no.ingot")
    assert isinstance(caught.value, FileNotFoundError) and isinstance(caught.value, ingot_runtime.FileError)
    with pytest.raises(UnreadableFile, match="it is a folder"):
        load(tmp_path)
    with pytest.raises(UnreadableFile, match="null"):
        load("a\0b")


def test_an_access_error_crosses_processes(tmp_path: Path) -> None:
    with pytest.raises(MissingFile) as caught:
        ingot_runtime.open_container(tmp_path / "no.ingot")
    error = pickle.loads(pickle.dumps(caught.value))
    assert type(error) is MissingFile and str(error) == str(caught.value)
    assert (error.errno, error.filename) == (caught.value.errno, caught.value.filename)


def test_a_copy_of_a_compiled_model_is_a_model_of_its_own(
    compiled: ingot.artifacts.compiled_model.CompiledModel,
) -> None:
    x = torch.randn(2, 32)
    other = copy.deepcopy(compiled)
    assert other.model is not compiled.model and other.source is compiled.source
    assert torch.equal(other(x), compiled(x))
    other.close()
    assert torch.equal(copy.copy(compiled)(x), compiled(x))
    holder = nn.ModuleDict()
    holder.native = compiled
    assert torch.equal(copy.deepcopy(holder).native(x), compiled(x))


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x + self.count


def test_what_cannot_be_copied_says_so(compiled: ingot.artifacts.compiled_model.CompiledModel, saved: Path) -> None:
    stateful = ingot.compile(Counter(), (torch.zeros(1),), threads=1)
    drawing = ingot.compile(nn.Dropout(), (torch.zeros(9),), threads=1)
    loaded, model = ingot.load(saved), ingot_runtime.load(saved)
    for one in (stateful, drawing, loaded, model):
        with pytest.raises(CopyError, match="native code"):
            copy.deepcopy(one)
    for one in (compiled, stateful, loaded, model):
        with pytest.raises(CopyError, match=r"save\(path\)"):
            pickle.dumps(one)
    trained = ingot.compile(nn.Linear(3, 3), (torch.randn(1, 3),), training=True)
    with pytest.raises(CopyError, match="compile the model again"):
        pickle.dumps(trained)
