"""A handful of the zoo as ONNX files; `make test-slow` takes all, and `make report-onnx-zoo` writes the table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.e2e.test_zoo import every
from tests.onnx.zoo_sweep import judge
from tests.support.oracle import Wrong, worst_ratio
from tests.support.zoo import entry
from tests.support.zoo_page import left_of, page, read

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


def test_rounding_tolerance_is_capped() -> None:
    """Draws in which a decision fell otherwise have errors as large as the values, and excuse nothing."""
    exact = torch.tensor([1.0, 2.0], dtype=torch.float64)
    single, got = exact.float() + torch.tensor([2e-6, 0.0]), exact.float() + torch.tensor([4e-5, 0.0])
    with pytest.raises(Wrong):
        worst_ratio(got, single, exact, "one draw")
    assert 1 < worst_ratio(got, single, exact, "an unlucky draw", own=[1.2e-5]) < 4
    with pytest.raises(Wrong):
        worst_ratio(exact.float() + 1e-3, single, exact, "another decision", own=[1.0])


def test_the_page_tells_of_every_model() -> None:
    row = {"name": "a", "kind": "static", "outcome": "right", "detail": "", "ratio": 1.5, "sizes": 4, "random": False}
    wrong = {**row, "name": "b", "outcome": "wrong", "detail": "one | two\n    of (no matter)"}
    names = ["static:a", "static:b", "dynamic:a"]
    text = page("The zoo", ["About."], [row, wrong], names, done="Made", maker="maker", column=("more", lambda _: "x"))
    assert "| static | 1 | 0 | 1 | 0 |\n| dynamic | 0 | 0 | 0 | 0 |" in text
    assert "(4 is allowed): 1.50, a (static)." in text
    assert "## Not made\n\n| model | kind | outcome | why |\n|---|---|---|---|\n| b | static | wrong |" in text
    assert "1 of 3: dynamic:a." in text
    assert text.endswith(
        "| model | kind | sizes | error | more |\n|---|---|---|---|---|\n| a | static | 4 | 1.50 | x |\n"
    )


def test_a_journal_is_gone_on_with(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    assert left_of(["static:a"], journal) == ["static:a"]
    rows = [{"name": "a", "kind": "static", "outcome": outcome} for outcome in ("failed", "right")]
    journal.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert left_of(["static:a", "dynamic:a"], journal) == ["dynamic:a"]
    assert [row["outcome"] for row in read(journal)] == ["right"]
