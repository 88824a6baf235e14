"""A handful of the zoo as ONNX files; `make long` takes all, and `make report-onnx-zoo` writes the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.native.test_zoo import every
from tests.onnx.zoo import judge
from tests.zoo import entry

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")

# Small, and of different kinds: encoders and decoders, convolutions, experts, recurrences, audio.
FAST = ("dynamic:bert", "static:t5", "dynamic:resnet", "dynamic:mixtral", "static:wav2vec2")


def names() -> list[object]:
    return [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in every()]


@pytest.mark.parametrize("name", names())
def test_architecture(name: str, tmp_path: Path) -> None:
    kind, _, model = name.partition(":")
    verdict = judge(entry(model), kind, tmp_path)
    assert verdict.outcome == "right", verdict.detail
    assert verdict.sizes
