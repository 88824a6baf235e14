"""The default pipeline on models of the capture tests; each pass alone; passes in any order that dialects allow."""

from __future__ import annotations

import copy
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot import passes
from ingot.ir import pytree
from ingot.ir.dialects import CAPTURED, FUNCTIONAL
from ingot.ir.program import Program
from ingot.passes.instrumentation import differential_check
from ingot.passes.manager import info_of
from tests.passes.pipeline_zoo import capture_entry, modes_of, run_pipeline
from tests.passes.test_functional import Branches, UnderAutocast, Writes
from tests.support.zoo import ZOO, Entry, entry

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")

# What `make test` takes; `make test-slow` takes the whole zoo, and every model that a capture test writes down.
_STATIC = (
    "bert",
    "flaubert",
    "gpt2",
    "llama",
    "t5",
    "resnet",
    "convnext",
    "swin",
    "whisper",
    "mixtral",
    "clip",
    "fnet",
)
_DYNAMIC = ("bert", "gpt2", "resnet", "xmod")
EXACT = (passes.tracepoints, passes.autocast, passes.grad_mode, passes.insert_effect_tokens)
TO_FUNCTIONAL = passes.DEFAULT_PIPELINE[: passes.DEFAULT_PIPELINE.index(passes.functionalize) + 1]


def _marked() -> list[Any]:
    chosen = {"static": _STATIC, "dynamic": _DYNAMIC}
    return [
        pytest.param(
            item, mode, id=f"{item.name}-{mode}", marks=[] if item.name in chosen[mode] else [pytest.mark.slow]
        )
        for item in ZOO
        for mode in modes_of(item)
    ]


@pytest.mark.parametrize(("item", "mode"), _marked())
def test_default_pipeline(item: Entry, mode: str) -> None:
    run_pipeline(capture_entry(item, mode == "dynamic"))


@pytest.mark.slow
def test_default_pipeline_on_every_model_of_the_capture_tests() -> None:
    root = Path(__file__).resolve().parents[2]
    tests = [str(p) for p in sorted((root / "tests" / "capture").glob("test_*.py")) if p.name != "test_zoo.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.passes.pipeline_plugin", *tests]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:]


# ---------------------------------------------------------------------- models with one difficulty each


class Drops(nn.Module):
    """Draws of every kind, in training."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Dropout(0.3), nn.AlphaDropout(0.3), nn.RReLU(), nn.RReLU(0.2, 0.5).eval()])
        self.features = nn.ModuleList([nn.Dropout1d(0.4), nn.FeatureAlphaDropout(0.4)])

    def forward(self, x: torch.Tensor) -> Any:
        for layer in self.layers:
            x = layer(x) + 1
        y = x.expand(2, *x.shape)
        for layer in self.features:
            y = layer(y) * 2
        return x, y, torch.rand_like(x), torch.nn.functional.gumbel_softmax(x)


class Recurrent(nn.Module):
    """Dropout between layers, both ways, the batch first."""

    def __init__(self) -> None:
        super().__init__()
        options: Any = {"num_layers": 3, "dropout": 0.4, "bidirectional": True, "batch_first": True}
        self.lstm, self.gru, self.rnn = nn.LSTM(4, 3, **options), nn.GRU(4, 3, **options), nn.RNN(4, 3, **options)

    def forward(self, x: torch.Tensor) -> Any:
        x = x.unsqueeze(0)
        return self.lstm(x), self.gru(x), self.rnn(x)


class WrittenThroughDropout(nn.Module):
    """In eval a dropout is its argument, so what is written to one is written to both."""

    def forward(self, x: torch.Tensor) -> Any:
        drop = nn.functional.dropout
        base = x * 2
        same = drop(base, 0.1, False)
        same.view(-1).mul_(3)
        other = x * 3
        later = drop(other, 0.1, False)
        other.add_(1)
        return base, same, later, drop(x, 0.1, False) * 2


class Asserts(nn.Module):
    """one_hot is made of assertions, among others."""

    def forward(self, x: torch.Tensor) -> Any:
        return nn.functional.one_hot(x.abs().long().clamp(max=5), 6), x[x > 0].sum()


HAND_WRITTEN: list[Callable[[], nn.Module]] = [
    Writes,
    UnderAutocast,
    Branches,
    Drops,
    Recurrent,
    WrittenThroughDropout,
    Asserts,
]
every_model = pytest.mark.parametrize("build", HAND_WRITTEN)


def captured(build: Callable[[], nn.Module]) -> Program:
    torch.manual_seed(0)
    recurrent = build is Recurrent  # loops over its steps
    return ingot.capture(build(), (torch.randn(3, 4),), dynamic_shapes=None if recurrent else {"x": {0: "n"}})


@every_model
def test_default_pipeline_on_a_difficult_model(build: Callable[[], nn.Module]) -> None:
    run_pipeline(captured(build))


@every_model
@pytest.mark.parametrize("name", sorted(passes.REGISTRY))
def test_each_pass_alone_and_twice(build: Callable[[], nn.Module], name: str) -> None:
    chosen = passes.REGISTRY[name]
    if chosen is passes.legalize and build is Drops:
        pytest.skip("it serves native code, whose random numbers are its own")
    takes = info_of(chosen).takes
    first = [] if takes is not None and takes.accepts(CAPTURED) else [passes.functionalize]
    if takes is not None and not takes.accepts(FUNCTIONAL) and not takes.accepts(CAPTURED):
        first.append(passes.decompose)
    program = ingot.transform(captured(build), [*first, chosen], check="numerics")
    assert ingot.transform(program, [chosen]).history[-1].changes == 0


@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(s, marks=pytest.mark.slow) for s in range(12, 200))])
def test_passes_in_any_order_that_dialects_allow(seed: int) -> None:
    draw = random.Random(seed)
    program = start = captured(HAND_WRITTEN[seed % len(HAND_WRITTEN)])
    for _ in range(10):
        allowed = [p for name, p in sorted(passes.REGISTRY.items()) if _takes(p, program)]
        program = ingot.transform(program, [draw.choice(allowed)], check="numerics")
    core = run_pipeline(program)
    for leaves in differential_check.Reference(start).inputs:
        problem = differential_check._difference(
            differential_check._observe(start, leaves), differential_check._observe(core, leaves), exact=False
        )
        assert problem is None, f"{[step.name for step in core.history]}: {problem}"


def _takes(function: Callable[..., int], program: Program) -> bool:
    takes = info_of(function).takes
    return takes is None or takes.accepts(program.dialect)


# ---------------------------------------------------------------------- autocast


class Cast(nn.Module):
    """A model under autocast, and part of what it gives outside it."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.dtype = model, dtype

    def forward(self, **inputs: Any) -> Any:
        with torch.autocast("cpu", dtype=self.dtype):
            return self.model(**inputs)


_CAST = ("bert", "gpt2", "resnet")
_MORE = ("albert", "llama", "t5", "bart", "convnext", "swin", "vit", "whisper", "mixtral", "mamba", "clip")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("name", [*_CAST, *(pytest.param(name, marks=pytest.mark.slow) for name in _MORE)])
def test_regions_and_effects_are_exact_under_autocast(name: str, dtype: torch.dtype) -> None:
    item = entry(name)
    model, inputs = Cast(item.build(), dtype), item.inputs(item.sizes)
    program = ingot.capture(copy.deepcopy(model), (), inputs)
    cut = ingot.transform(program, EXACT, check="numerics")
    assert any(step.changes for step in cut.history)
    functional = ingot.transform(cut, [passes.functionalize], check="numerics")
    torch.manual_seed(0)
    with torch.no_grad():
        want = pytree.flatten(model(**inputs))[0]
    for made in (program, cut, functional):
        torch.manual_seed(0)
        with torch.no_grad():
            got = pytree.flatten(made(**inputs))[0]
        for mine, theirs in zip(got, want, strict=True):
            assert not isinstance(theirs, torch.Tensor) or torch.equal(mine, theirs)
    run_pipeline(program)
