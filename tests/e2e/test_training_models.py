"""Twelve models train as they do in eager: losses and final state within float noise, at two sizes, with autocast."""

from __future__ import annotations

import pytest

from tests.support.training import gradient_sweep
from tests.support.training.comparison import compare
from tests.support.training.models import MODELS
from tests.support.training.report import STEPS

# Those that are compiled in seconds.
FAST = ("mlp with batch norm", "gcn", "vae", "autograd function")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in MODELS]
)
def test_the_first_steps_are_those_of_eager(name: str) -> None:
    verdict = compare(MODELS[name], 5, sizes=MODELS[name].sizes)
    assert verdict.holds and verdict.graphs == 2, verdict


def test_the_first_steps_under_autocast_are_those_of_eager() -> None:
    verdict = compare(MODELS["mlp with batch norm"], 5, sizes=(16,), autocast=True)
    assert verdict.holds, verdict


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in MODELS]
)
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by torch.compile itself
def test_one_code_for_all_sizes_takes_the_steps_of_eager(name: str) -> None:
    verdict = compare(MODELS[name], 5, sizes=MODELS[name].sizes, dynamic=True)
    assert verdict.holds and verdict.graphs == 2, verdict


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_all_steps_are_those_of_eager(name: str) -> None:
    for sizes in (MODELS[name].sizes[:1], MODELS[name].sizes):
        verdict = compare(MODELS[name], STEPS, sizes=sizes)
        assert verdict.holds and verdict.learns, verdict
    verdict = compare(MODELS[name], STEPS, sizes=MODELS[name].sizes[:1], autocast=True)
    assert verdict.holds and verdict.learns, verdict


@pytest.mark.parametrize("operator", ["nn.functional.conv2d", "nn.functional.gelu", "index_add", "linalg.det"])
def test_gradients_of_operator_samples(operator: str) -> None:
    outcomes = [row["outcome"] for row in gradient_sweep.run(operator, 1)]
    assert outcomes in (["passed"], ["refused"])
