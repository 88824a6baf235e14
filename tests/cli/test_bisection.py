"""Switches of passes, and `ingot verify --bisect`, with passes that are broken on purpose."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import ingot
from ingot import compiler, passes, pipelines
from ingot.cli import app
from ingot.errors import PassError
from ingot.ir.program import Program
from ingot.lowering.loop_body import BodyBuilder, rewrite
from ingot.lowering.loop_ir import Map, Op
from ingot.lowering.loop_module import Module
from ingot.targets.cpu.kernel_selection.choices import KERNELS
from ingot.targets.cpu.schedule import pipeline as schedules
from ingot.targets.cpu.schedule.statements import GemmGroup, PackedGemm
from ingot.targets.cpu.target import CPU
from tests.cli.factories import block

REFERENCE = "tests.cli.factories:block"


def run(*options: str) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(app, ["verify", "--bisect", "--json", REFERENCE, *options])
    return done.exit_code, json.loads(done.stdout)


def doubled(map_: Map) -> Map:
    """An epilogue that adds every number to itself where it should not."""

    def twice(op: Op, operands: tuple[int, ...], ops: BodyBuilder) -> int | None:
        if op.name != "accumulator":
            return None
        value = ops.emit(op.name, (), op.dtype)
        return ops.call("add", value, value)

    ops, results = rewrite(map_.body, replace=twice)
    return replace(map_, body=ops.finish(results))


def break_schedule(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    def after(run: Callable[[Module], Module]) -> Callable[[Module], Module]:
        def wrong(module: Module) -> Module:
            made = run(module)
            (place, *_) = [n for n, step in enumerate(made.steps) if isinstance(step, PackedGemm | GemmGroup)]
            step = made.steps[place]
            first = step.steps[0] if isinstance(step, GemmGroup) else step
            assert isinstance(first, PackedGemm)
            replaced = replace(first, epilogue=doubled(first.epilogue))
            new = replace(step, steps=(replaced, *step.steps[1:])) if isinstance(step, GemmGroup) else replaced
            return replace(made, steps=(*made.steps[:place], new, *made.steps[place + 1 :]))

        return wrong

    made = tuple((name, after(run) if name == broken else run) for name, run in schedules.SCHEDULE)
    monkeypatch.setattr(schedules, "SCHEDULE", made)


def test_what_is_right_is_said_to_be() -> None:
    code, data = run()
    assert code == 0 and data["right"] and data["pass"] is None
    assert data["tried"] == ["without none: right"]


@pytest.mark.parametrize("broken", ["epilogue_fusion", "siblings"])
def test_a_broken_scheduling_pass_is_named(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    break_schedule(monkeypatch, broken)
    code, data = run()
    assert code == 1 and data["pass"] == broken and data["right_without_it"]
    assert data["difference"].startswith("result ") and "differs by" in data["difference"]
    assert len(data["tried"]) < 9


def test_a_broken_pass_over_the_graph_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(program: Program) -> int:
        for node in program.graph.nodes:
            if node.target is torch.ops.aten.relu.default:
                node.target = torch.ops.aten.neg.default
        return passes.cse(program)

    wrong.__name__ = "cse"
    made = tuple(wrong if item is passes.cse else item for item in pipelines.NATIVE)
    monkeypatch.setattr(pipelines, "NATIVE", made)
    code, data = run()
    assert code == 1 and data["pass"] == "cse"


def test_a_pass_that_breaks_the_module_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def dropped(module: Module) -> Module:
        return replace(module, steps=module.steps[1:])

    made = tuple((name, dropped if name == "pairs" else run) for name, run in schedules.SCHEDULE)
    monkeypatch.setattr(schedules, "SCHEDULE", made)
    code, data = run()
    assert code == 1 and data["pass"] == "pairs" and "no step before it writes" in data["difference"]


def test_what_is_wrong_in_any_case_is_laid_at_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = CPU.lower

    def wrong(program: Program, *options: Any) -> Module:
        module = whole(program, *options)
        first = next(n for n, step in enumerate(module.steps) if isinstance(step, PackedGemm))
        step = module.steps[first]
        assert isinstance(step, PackedGemm)
        new = replace(step, epilogue=doubled(step.epilogue))
        return replace(module, steps=(*module.steps[:first], new, *module.steps[first + 1 :]))

    monkeypatch.setattr(CPU, "lower", wrong)
    code, data = run()
    assert code == 1 and data["pass"] is None
    text = CliRunner().invoke(app, ["verify", "--bisect", REFERENCE]).stdout
    assert "wrong: result" in text and "none of the optional ones" in text


# ---------------------------------------------------------------------- switches


def test_every_pass_can_be_left_out() -> None:
    torch.manual_seed(0)
    model, args, _ = block()
    with torch.no_grad():
        expected = model(*args)
        compiled = ingot.compile(model, args, disable_passes=compiler.OPTIONAL_PASSES)
        torch.testing.assert_close(compiled(*args), expected, rtol=1e-4, atol=1e-5)
        fused = ingot.compile(model, args)
    assert compiled.kernels > fused.kernels
    assert compiled.source != fused.source  # which is what the cache goes by


def test_unknown_passes_are_refused_with_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    model, args, _ = block()
    with pytest.raises(PassError, match=r"no optional pass 'pear'[\s\S]*pairs, siblings"):
        ingot.compile(model, args, disable_passes={"pear"})
    monkeypatch.setenv("INGOT_DISABLE_PASSES", "pairs, apples")
    with pytest.raises(PassError, match="no optional pass 'apples'"):
        ingot.compile(model, args)


def test_the_environment_switches_passes_off(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[frozenset[str]] = []
    whole = CPU.schedule

    def watched(module: Module, disabled: frozenset[str], **options: Any) -> Module:
        seen.append(disabled)
        return whole(module, disabled, **options)

    monkeypatch.setattr(CPU, "schedule", watched)
    monkeypatch.setenv("INGOT_DISABLE_PASSES", "pairs, strips")
    ingot.compile(nn.Linear(3, 3), (torch.randn(2, 3),), disable_passes="cse")
    assert seen == [frozenset({"pairs", "strips", "cse"})]


def test_names_are_unique() -> None:
    assert len(set(compiler.OPTIONAL_PASSES)) == len(compiler.OPTIONAL_PASSES)
    assert set(KERNELS) <= set(compiler.OPTIONAL_PASSES)
