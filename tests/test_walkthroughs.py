"""The walk-throughs of docs/extending are followed step by step, and what they build works."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

import ingot
from tests.support.doc_pages import ROOT, Page

EXTENDING = ROOT / "docs" / "extending"
WALKTHROUGHS = {name: EXTENDING / f"adding_{name}.md" for name in ("an_operator", "a_pass", "a_target")}


def follow(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    monkeypatch.chdir(folder)
    with warnings.catch_warnings():
        return Page(WALKTHROUGHS[name]).run()


def test_adding_an_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = follow("an_operator", tmp_path, monkeypatch)
    assert "there is no rule" in str(made["refused"])
    model, compiled = made["model"], made["compiled"]
    assert isinstance(model, torch.nn.Module) and callable(compiled)
    x = torch.randn(9, 16)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    # The operator is fused: no kernel of its own beside those of the two products.
    assert compiled.kernels == 2  # type: ignore[attr-defined]
    assert made["report"].largest_difference < 1e-4  # type: ignore[attr-defined]
    assert (tmp_path / "block.onnx").exists()


def test_adding_a_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingot.passes.REGISTRY, "_rules", dict(ingot.passes.REGISTRY))  # the page registers a pass
    made = follow("a_pass", tmp_path, monkeypatch)
    assert "relu" in str(made["blamed"])
    cap_relu, double_negation = made["cap_relu"], made["double_negation"]
    assert callable(cap_relu) and ingot.passes.REGISTRY["double_negation"] is double_negation
    program = ingot.capture(lambda x: torch.cond(x.sum() > 0, torch.relu, torch.neg, (x,)), (torch.ones(3),))
    assert cap_relu(program.copy()) == 1  # in a branch, too


def test_adding_a_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = follow("a_target", tmp_path, monkeypatch)
    assert "'cpu'" in str(made["unknown"])
    kernels = [made[name].kernels for name in ("scheduled", "fused", "partly", "unscheduled")]  # type: ignore[attr-defined]
    assert kernels == sorted(kernels) and kernels[0] < kernels[-1]
    assert ingot.compile(torch.nn.ReLU(), (torch.ones(3),), target=made["FusingTarget"]()).kernels == 1  # type: ignore[operator]


def test_every_page_has_a_test() -> None:
    assert set(EXTENDING.glob("*.md")) == set(WALKTHROUGHS.values())
