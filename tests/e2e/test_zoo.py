"""The zoo, compiled: each architecture against float64 eager, at other sizes, and from a file without torch.

`make test` takes a dozen of different kinds; `make test-slow` takes all, and `python -m tests.support.zoo_sweep` writes
the table docs/reports/native_zoo.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.frontend.test_zoo import DYNAMIC_REFUSED, REFUSED
from tests.support.oracle import judge, quick_compiler, without_torch
from tests.support.zoo import ZOO, entry

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")

# Small, quick to compile, and of different kinds: encoders and decoders, convolutions, experts, recurrences, audio.
FAST = (
    *("dynamic:distilbert", "dynamic:gpt2", "dynamic:llama", "dynamic:bloom", "static:t5", "dynamic:mixtral"),
    *("dynamic:resnet", "static:mobilenet-v2", "static:convnext", "dynamic:vit", "static:mamba", "static:wav2vec2"),
)

# What capture takes and native code does not, by the error that says so.
NOT_COMPILED: dict[str, str] = {
    "fnet": "UnsupportedOperator",  # a Fourier transform
    "llama4": "UnsupportedOperator",  # complex numbers
    "deepseek-v2": "UnsupportedOperator",  # complex numbers
    "siglip2-vision": "UnsupportedOperator",  # resampling with antialias
    "idefics3": "UnsupportedOperator",  # a result of data-dependent size
    "smolvlm": "UnsupportedOperator",  # a result of data-dependent size
    "jetmoe": "PassError",  # splits by data-dependent sizes
}


def every() -> list[str]:
    """Every model that can be captured: static, and dynamic where it is one graph for several sizes."""
    captured = [e for e in ZOO if e.name not in REFUSED]
    dynamic = [f"dynamic:{e.name}" for e in captured if e.dynamic and e.name not in DYNAMIC_REFUSED]
    return [*dynamic, *(f"static:{e.name}" for e in captured)]


def parameters() -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.slow) for name in every() if name not in FAST]


def assert_right(name: str, folder: Path) -> None:
    kind, _, model = name.partition(":")
    verdict = judge(entry(model), kind, folder)
    if model in NOT_COMPILED:
        assert verdict.outcome == "refused" and verdict.detail.startswith(NOT_COMPILED[model])
        return
    assert verdict.outcome == "right", verdict.detail
    assert verdict.sizes or verdict.random


def test_a_dozen_of_different_kinds(tmp_path: Path) -> None:
    """In one test, since one process without torch runs all of their files."""
    for name in FAST:
        assert_right(name, tmp_path)
    assert len(list(tmp_path.glob("*.ingot"))) == len(FAST)
    assert without_torch(tmp_path) == []


@pytest.mark.parametrize("name", parameters())
def test_architecture(name: str, tmp_path: Path) -> None:
    with quick_compiler():
        assert_right(name, tmp_path)
    assert without_torch(tmp_path) == []
