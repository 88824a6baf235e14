"""Operators that a replay records without running them: the graph is the one that running all of them gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import nn
from torch.nn import functional as F

import ingot
from ingot.compiler import run_cpu_pipeline
from ingot.errors import IngotError
from ingot.ir import metadata
from ingot.ir.outlining import graph_modules
from ingot.passes.retracing.retrace import Replay
from ingot.passes.retracing.tracer import ReplayRecorder
from ingot.targets.registry import find_target
from tests.passes.random_programs import programs


def describe(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        sizes = [str(size) for size in (*value.shape, *value.stride(), value.storage_offset())]
        return type(value).__name__, value.dtype, sizes, value.device, value.requires_grad, value.is_neg()
    return [describe(item) for item in value] if isinstance(value, list | tuple) else str(value)


def list_nodes(program: ingot.Program) -> list[Any]:
    """Every node with its type, and which of the values share memory."""
    storages: dict[int, int] = {}
    found: list[Any] = [str(program)]
    for module in graph_modules(program.graph_module):
        for node in module.graph.nodes:
            value = metadata.value_of(node)
            shared = [
                storages.setdefault(tensor.untyped_storage()._cdata, len(storages))
                for tensor in metadata.tensors_in(value)
            ]
            rest = {key: str(item) for key, item in node.meta.items() if key != "val"}
            found.append((node.op, node.name, str(node.args), str(node.kwargs), describe(value), shared, rest))
    return found


def compare(program: ingot.Program, monkeypatch: pytest.MonkeyPatch, target: str = "cuda") -> int:
    """Checks a program; returns how many calls were not run."""
    made = []
    repeated: list[Any] = []
    record = ReplayRecorder.repeat

    def repeat(self: ReplayRecorder, func: Any, *rest: Any) -> torch.Tensor:
        repeated.append(func)
        return record(self, func, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(ReplayRecorder, "repeat", repeat)
        for repeats in (False, True):
            patched.setattr(Replay, "repeats", repeats)
            try:
                made.append(list_nodes(run_cpu_pipeline(program, (), find_target(target))))
            except IngotError as error:
                made.append([str(error)])
            assert repeats or not repeated
    assert made[0] == made[1]
    return len(repeated)


class Mixed(nn.Module):
    """Tied weights, views, dropout that goes away, attention, a constant, and a result that is not dense."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.second.weight = self.first.weight
        self.norm, self.drop = nn.LayerNorm(16), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.drop(F.gelu(self.first(x))) + (torch.arange(16) * 2 + 1)
        heads = self.second(y).unflatten(-1, (2, 8)).transpose(1, 2)
        z = F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(2)
        return self.norm(z + x), y.mT + 1, y.expand(3, *y.shape)[1] * 2, F.softmax(z.double(), -1)


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(F.relu(self.norm(self.conv(x))), 2).mean((2, 3)).relu()


class Cast(nn.Module):
    """What autocast does to a call depends on where the call is."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = self.linear(x)
        return self.linear(y.float()) + y


CASES: dict[str, tuple[nn.Module, torch.Tensor, Any]] = {
    "mixed": (Mixed(), torch.randn(2, 5, 16), None),
    "mixed, of any batch": (Mixed(), torch.randn(2, 5, 16), ({0: torch.export.Dim("b", min=2, max=9)},)),
    "images": (Images(), torch.randn(2, 3, 12, 12), None),
    "channels last": (Images(), torch.randn(2, 3, 12, 12).to(memory_format=torch.channels_last), None),
    "autocast": (Cast(), torch.randn(4, 16), None),
}


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("name", CASES)
def test_models(monkeypatch: pytest.MonkeyPatch, name: str, target: str) -> None:
    model, x, dynamic = CASES[name]
    count = compare(ingot.capture(model.eval(), (x,), dynamic_shapes=dynamic), monkeypatch, target)
    assert count or dynamic is not None


def test_another_default_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that follows from torch's default is found anew."""
    program = ingot.capture(lambda x: F.dropout(x, 0.5, training=False) / 2 + x, (torch.ones(3, dtype=torch.int64),))
    torch.set_default_dtype(torch.float64)
    try:
        assert compare(program, monkeypatch) == 0
    finally:
        torch.set_default_dtype(torch.float32)


@settings(max_examples=30, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(drawn=programs.programs(small=True))
def test_random_programs(drawn: programs.Program) -> None:
    text = programs.source(drawn)
    model = programs.build(text, drawn.training)
    try:
        program = programs.capture(text, model, drawn.dynamic, drawn.preserve)
    except IngotError:
        return
    with pytest.MonkeyPatch.context() as monkeypatch:
        compare(program, monkeypatch)
