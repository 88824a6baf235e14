"""`ingot verify --schedule`: every scheduling step of a model, interpreted before and after it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from ingot.cli import app
from ingot.lowering.loop_ir import Stmt
from ingot.lowering.loop_module import Module
from ingot.targets.cpu.schedule import pipeline
from ingot.targets.cpu.schedule.statements import PackedGemm

FACTORY = "tests.cli.factories:block"


def test_every_step_is_listed() -> None:
    done = CliRunner().invoke(app, ["verify", "--schedule", "--json", FACTORY])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["schedule"]
    assert [row["step"] for row in rows] == [*(name for name, _ in pipeline.SCHEDULE), "buffer_planning"]
    assert rows[-1]["steps_after"] < rows[0]["steps_before"]
    assert "buffer_planning" in CliRunner().invoke(app, ["verify", "--schedule", FACTORY]).stdout


def test_a_wrong_step_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(step: Stmt) -> Stmt:
        return replace(step, b=replace(step.b, width=17)) if isinstance(step, PackedGemm) else step

    def broken(module: Module) -> Module:
        return replace(module, steps=tuple(map(change, module.steps)))

    names = dict(pipeline.SCHEDULE)
    wrong = {**names, "loop_order": lambda module: broken(names["loop_order"](module))}
    monkeypatch.setattr(pipeline, "SCHEDULE", tuple((name, wrong[name]) for name, _ in pipeline.SCHEDULE))
    done = CliRunner().invoke(app, ["verify", "--schedule", FACTORY])
    assert done.exit_code != 0
    assert "'loop_order' changed what the module computes" in " ".join(done.output.split())


@pytest.mark.parametrize("options", [["--bisect"], ["--passes", "dce"]])
def test_ways_that_exclude_each_other(options: list[str]) -> None:
    assert CliRunner().invoke(app, ["verify", "--schedule", *options, FACTORY]).exit_code == 2
