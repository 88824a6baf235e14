"""A compiled model in a process with torch: called, saved, and loaded again by ingot.load."""

from __future__ import annotations

from collections import namedtuple
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ingot
import ingot_runtime
from ingot import compiler
from ingot.artifacts.loaded_model import LoadedModel

Pair = namedtuple("Pair", ["first", "second"])


class Nested(nn.Module):
    """Gives `shape` of its results, so that one class shows every way of nesting."""

    def __init__(self, shape: Any) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: torch.Tensor) -> Any:
        return self.shape(x)


def leaves(value: Any) -> list[Any]:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else None
    return [value] if parts is None else [leaf for part in parts for leaf in leaves(part)]


@pytest.mark.parametrize(
    ("shape", "names"),
    [
        (lambda x: x + 1, ["output"]),
        (lambda x: (x + 1, x * 2), ["0", "1"]),
        (
            lambda x: {"logits": x + 1, "cache": [{"keys": x * 2}, {"keys": x * 3}]},
            ["logits", "cache.0.keys", "cache.1.keys"],
        ),
        (lambda x: Pair(x + 1, None), ["first"]),
        (lambda x: (x + 1, 3, "text", x * 2), ["0", "3"]),
        (lambda x: {"a.b": x + 1, "a": {"b": x * 2}}, ["a.b", "a.b_2"]),
    ],
)
def test_results_are_named_by_their_place(shape: Any, names: list[str], tmp_path: Path) -> None:
    model, x = Nested(shape), torch.arange(6.0).reshape(2, 3)
    compiled = ingot.compile(model, (x,))
    compiled.save(tmp_path / "m.ingot")
    loaded = ingot_runtime.load(tmp_path / "m.ingot")
    assert [output.name for output in loaded.spec.outputs] == names
    assert loaded.self_test() < 1e-5
    want = leaves(model(x))
    for result in (compiled(x), ingot.load(tmp_path / "m.ingot")(x)):
        have = leaves(result)
        assert [type(leaf) for leaf in have] == [type(leaf) for leaf in want]
        for mine, theirs in zip(have, want, strict=True):
            assert torch.equal(mine, theirs) if isinstance(mine, torch.Tensor) else mine == theirs


def test_arguments_are_named_by_their_place(tmp_path: Path) -> None:
    def model(input: Any, cache: Any, *more: Any, mask: Any) -> Any:
        return input + cache["keys"][0] + more[0] + mask

    x = torch.ones(3)
    compiled = ingot.compile(model, (x, {"keys": [x]}, x), {"mask": x})
    compiled.save(tmp_path / "m.ingot")
    loaded = ingot_runtime.load(tmp_path / "m.ingot")
    assert [given.name for given in loaded.spec.inputs] == ["input", "cache.keys.0", "args.2", "mask"]
    assert compiled(x, {"keys": [x]}, x, mask=x).tolist() == [4, 4, 4]
    assert loaded.self_test() == 0


def test_load_of_a_compiled_file_is_called_with_tensors_and_with_arrays(tmp_path: Path) -> None:
    model, x = nn.Linear(4, 3).eval(), torch.randn(2, 4)
    ingot.compile(model, (x,), dynamic_shapes={"input": {0: "batch"}}).save(tmp_path / "m.ingot")
    loaded = ingot.load(tmp_path / "m.ingot")
    assert isinstance(loaded, LoadedModel)
    with loaded, torch.no_grad():
        for batch in (1, 2, 7):
            x = torch.randn(batch, 4)
            result = loaded(x)
            assert isinstance(result, torch.Tensor)
            torch.testing.assert_close(result, model(x))
            torch.testing.assert_close(loaded(input=x.requires_grad_()), model(x))
            array = loaded(x.detach().numpy())
            assert isinstance(array, np.ndarray)
            np.testing.assert_array_equal(array, result.numpy())
        assert "float32[batch, 4]" in repr(loaded)
        assert loaded.self_test() < 1e-5
        with pytest.raises(ingot.errors.InputError, match="float64"):
            loaded(x.detach().double())
    with pytest.raises(ingot_runtime.ClosedModel):
        loaded(x.detach())


def test_load_of_a_program_gives_the_program(tmp_path: Path) -> None:
    x = torch.randn(2, 4)
    ingot.capture(nn.Linear(4, 3), (x,)).save(tmp_path / "p.ingot")
    loaded = ingot.load(tmp_path / "p.ingot")
    assert isinstance(loaded, ingot.Program)
    compiled = ingot.compile(loaded)
    torch.testing.assert_close(compiled(x), loaded(x).detach())


def test_bfloat16_comes_back_as_torch_has_it(tmp_path: Path) -> None:
    x = torch.randn(5).bfloat16()
    compiled = ingot.compile(lambda x: x * 2, (x,))
    compiled.save(tmp_path / "m.ingot")
    for model in (compiled, ingot.load(tmp_path / "m.ingot")):
        result = model(x)
        assert result.dtype is torch.bfloat16 and torch.equal(result, x * 2)


def test_stages_are_reported_in_order() -> None:
    stages: list[str] = []

    @contextmanager
    def watch(stage: str) -> Any:
        stages.append(stage)
        yield

    compiler.compile(nn.ReLU(), (torch.ones(3),), on_stage=watch)
    assert stages == ["capture", "passes", "lower", "emit", "cc"]
