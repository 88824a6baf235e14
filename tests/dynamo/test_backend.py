"""torch.compile(model, backend="ingot"): native code where there can be, eager where there cannot, never wrong."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import threading
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

from ingot import dynamo
from ingot.dynamo.native_graph import REPACKS
from tests.dynamo.recording import Recording, close

ROOT = Path(__file__).parent.parent.parent


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16))
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None, *, flip: bool = False) -> Any:
        y = self.head(self.body(x))
        y = y if scale is None else y * scale
        return {"logits": y.flip(-1) if flip else y, "rows": x.shape[0]}


# ---------------------------------------------------------------------- graphs that are compiled


@torch.no_grad()
def test_a_small_model(recording: Recording, said: Any) -> None:
    model = Net().eval()
    compiled = torch.compile(model, backend=recording)
    for _ in range(3):
        x = torch.randn(3, 8)
        have, want = compiled(x), model(x)
        assert have.keys() == want.keys() and have["rows"] == 3
        close(have["logits"], want["logits"])
    assert recording.native == [True] and not said()


@torch.no_grad()
def test_keyword_arguments(recording: Recording) -> None:
    model = Net().eval()
    compiled = torch.compile(model, backend=recording)
    x, scale = torch.randn(3, 8), torch.randn(4)
    for kwargs in ({"scale": scale}, {"scale": scale, "flip": True}, {}):
        close(compiled(x, **kwargs)["logits"], model(x, **kwargs)["logits"])
    assert recording.native == [True] * 3


@torch.no_grad()
def test_a_graph_break_makes_two_graphs(recording: Recording) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.sin(x) + 1
        torch._dynamo.graph_break()
        return y.exp() if y.sum() > 0 else y - 1

    x = torch.rand(6)
    close(torch.compile(function, backend=recording)(x), function(x))
    assert len(recording.native) >= 2 and all(recording.native)


@torch.inference_mode()
def test_inference_mode(recording: Recording) -> None:
    model, x = Net().eval(), torch.randn(2, 8)
    compiled = torch.compile(model, backend=recording)
    for _ in range(2):
        close(compiled(x)["logits"], model(x)["logits"])
    assert recording.native == [True]


def test_without_parameters_no_mode_is_needed(recording: Recording) -> None:
    compiled = torch.compile(lambda x: torch.tanh(x).sum(-1), backend=recording)
    x = torch.randn(4, 5)
    close(compiled(x), torch.tanh(x).sum(-1))
    assert recording.native == [True]


@torch.no_grad()
def test_threads_and_options(recording: Recording) -> None:
    model, x = Net().eval(), torch.randn(3, 8)
    compiled = torch.compile(model, backend=recording, options={"threads": 1, "cache": True})
    want = compiled(x)["logits"]
    wrong: list[Any] = []

    def call() -> None:
        with torch.no_grad():
            for _ in range(20):
                if not torch.equal(compiled(x)["logits"], want):
                    wrong.append(1)

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong and recording.native == [True]
    with pytest.raises(ValueError, match="no option thread; it has threads"):
        dynamo.compile_graph(fx.symbolic_trace(nn.ReLU()), (x,), options={"thread": 1})


# ---------------------------------------------------------------------- sizes


@torch.no_grad()
def test_a_dim_marked_dynamic(recording: Recording) -> None:
    model = Net().eval()
    compiled = torch.compile(model, backend=recording)
    x = torch.randn(3, 8)
    torch._dynamo.mark_dynamic(x, 0)
    close(compiled(x)["logits"], model(x)["logits"])
    for rows in (2, 5, 40):
        x = torch.randn(rows, 8)
        have = compiled(x)
        assert have["rows"] == rows
        close(have["logits"], model(x)["logits"])
    assert recording.native == [True]


@torch.no_grad()
def test_everything_dynamic(recording: Recording) -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, int]:
        joined = torch.cat([a, b], dim=1)
        return joined.reshape(-1).softmax(0), joined.shape[1] * 2

    compiled = torch.compile(function, backend=recording, dynamic=True)
    for rows, left, right in ((2, 3, 4), (5, 6, 7), (3, 9, 2)):
        a, b = torch.randn(rows, left), torch.randn(rows, right)
        have, want = compiled(a, b), function(a, b)
        close(have[0], want[0])
        assert have[1] == want[1]
    assert recording.native == [True]


@torch.no_grad()
def test_a_size_seen_to_change(recording: Recording) -> None:
    """torch.compile's default: fixed at first, dynamic once it has seen another size."""
    model = Net().eval()
    compiled = torch.compile(model, backend=recording)
    for rows in (3, 4, 5, 6):
        x = torch.randn(rows, 8)
        close(compiled(x)["logits"], model(x)["logits"])
    assert recording.native == [True, True]


@torch.no_grad()
def test_a_number_that_no_tensor_tells(recording: Recording, said: Any) -> None:
    compiled = torch.compile(lambda x, n: x * n, backend=recording, dynamic=True)
    x = torch.randn(4)
    for n in (3, 5, 7):
        close(compiled(x, n), x * n)
    if not all(recording.native):
        assert "is dynamic but is not the size of any tensor input" in said()[0]


# ---------------------------------------------------------------------- writes


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("cache", torch.zeros(3, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.cache.mul_(2).add_(x.sum(0))
        return x * self.weight * self.count + self.cache.sum()


@torch.no_grad()
def test_buffers_written_in_place(recording: Recording) -> None:
    model = Counts().eval()
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend=recording)
    memory = model.count.data_ptr(), model.cache.data_ptr()
    for _ in range(3):
        x = torch.randn(2, 4)
        close(compiled(x), eager(x))
        close(model.cache, eager.cache)
        assert model.count.item() == eager.count.item()
    model.count.fill_(10)
    eager.count.fill_(10)
    close(compiled(x), eager(x))
    assert memory == (model.count.data_ptr(), model.cache.data_ptr())
    assert recording.native == [True]


@torch.no_grad()
def test_batch_norm_in_training(recording: Recording) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend=recording)
    for _ in range(2):
        x = torch.randn(2, 3, 8, 8)
        close(compiled(x), eager(x))
        close(model[1].running_mean, eager[1].running_mean)
        close(model[1].running_var, eager[1].running_var)
        assert model[1].num_batches_tracked == eager[1].num_batches_tracked


@torch.no_grad()
def test_an_argument_written_in_place(recording: Recording) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x.sum() + y

    x, y = torch.randn(3, 4), torch.randn(4)
    other = x.clone()
    close(torch.compile(function, backend=recording)(x, y), function(other, y))
    close(x, other)
    strided = torch.randn(4, 3).t()
    other = strided.clone()
    close(torch.compile(function, backend=recording)(strided, y), function(other, y))
    close(strided, other)
    assert all(recording.native)


@torch.no_grad()
def test_a_result_that_is_an_argument_is_that_argument(recording: Recording) -> None:
    x = torch.randn(3, 4)
    memory, want = x.data_ptr(), x * 2
    result, total = torch.compile(lambda x: (x.mul_(2), x.sum()), backend=recording)(x)
    assert result.data_ptr() == memory and torch.equal(result, want)
    close(total, want.sum())
    assert recording.native == [True]


@torch.no_grad()
def test_weights_that_change(recording: Recording, said: Any) -> None:
    model = Net().eval()
    compiled = torch.compile(model, backend=recording)
    x = torch.randn(3, 8)
    close(compiled(x)["logits"], model(x)["logits"])
    model.head.weight.mul_(3)
    close(compiled(x)["logits"], model(x)["logits"])
    model.load_state_dict(Net().state_dict())
    close(compiled(x)["logits"], model(x)["logits"])
    model.head.weight = nn.Parameter(torch.randn(4, 16))
    close(compiled(x)["logits"], model(x)["logits"])
    assert all(recording.native) and not said()
    for _ in range(REPACKS + 2):
        model.head.weight.mul_(1.1)
        close(compiled(x)["logits"], model(x)["logits"])
    assert len(said()) == 1 and "keep changing" in said()[0]


# ---------------------------------------------------------------------- graphs that are not


@torch.no_grad()
def test_an_operator_without_a_rule(recording: Recording, said: Any) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.linalg.eigvals(x).abs()
        torch._dynamo.graph_break()
        return y.exp()

    x = torch.randn(3, 3)
    compiled = torch.compile(function, backend=recording)
    for _ in range(2):
        close(compiled(x), function(x))
    assert recording.native[0] is False and recording.native[-1] is True
    assert len(said()) == 1
    assert "aten.linalg_eig" in said()[0] and "in eager" in said()[0] and Path(__file__).name in said()[0]


@torch.no_grad()
def test_a_call_that_native_code_refuses_runs_in_eager(said: Any) -> None:
    x = torch.randn(3, 4)
    graph = fx.symbolic_trace(lambda x: (x * 2,))
    native = dynamo.compile_graph(graph, (x,))
    other = torch.randn(5, 4)
    for _ in range(2):
        assert torch.equal(native(other)[0], other * 2)
    assert torch.equal(native(x)[0], x * 2)
    assert len(said()) == 1 and "compiled" in said()[0]


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, said: Any) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    x = torch.ones(3)
    assert dynamo.compile_graph(fx.symbolic_trace(lambda x: (x * 2,)), (x,))(x)[0].tolist() == [2, 2, 2]
    assert "no-such-compiler" in said()[0]


# ---------------------------------------------------------------------- the entry point


def test_torch_finds_the_backend_by_name(tmp_path: Path) -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["torch_dynamo_backends"]
    folder = tmp_path / "ingot_test-0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: ingot-test\nVersion: 0\n")
    entries = "".join(f"{name} = {target}\n" for name, target in declared.items())
    (folder / "entry_points.txt").write_text(f"[torch_dynamo_backends]\n{entries}")
    script = (
        "import logging, torch\n"
        "logging.basicConfig(level=logging.INFO)\n"
        "assert 'ingot' in torch.compiler.list_backends()\n"
        "model = torch.nn.Linear(4, 2)\n"
        "x = torch.ones(3, 4)\n"
        "with torch.no_grad():\n"
        "    torch.testing.assert_close(torch.compile(model, backend='ingot')(x), model(x))\n"
    )
    paths = [str(tmp_path), *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    done = subprocess.run((sys.executable, "-c", script), capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert "is native code" in done.stderr and "eager" not in done.stderr


@pytest.mark.parametrize("needs_gradient", [False, True])
def test_sizes_that_are_rounded_down_products(needs_gradient: bool) -> None:
    def enlarge(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=1.7, mode="bilinear") * 2

    compiled = torch.compile(enlarge, backend="ingot", dynamic=True)
    for size in ((1, 3, 8, 9), (2, 3, 5, 7)):
        x = torch.randn(size, requires_grad=needs_gradient)
        torch.testing.assert_close(compiled(x), enlarge(x))
