"""What running a model adds to its view: numbers of every stage, values, times, memory, and what quantization loses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot import quantize
from ingot.errors import ScheduleError
from ingot.ir.program import Program
from ingot.viewer.collection import ViewOptions, collect_program
from ingot.viewer.measured import numeric_checks
from ingot.viewer.measured.numeric_checks import compare_results, summarize_values
from ingot.viewer.measured.quantization_data import describe_quantization
from tests.viewer import models
from tests.viewer.views import graph_stages, nodes_of


def _capture(made: Any, dynamic: bool = False) -> Program:
    model, args, kwargs = made
    return ingot.capture(model, args, kwargs, dynamic_shapes={"x": {0: "batch"}} if dynamic else None)


@pytest.fixture(scope="module")
def gate() -> dict[str, Any]:
    return collect_program(_capture(models.gate(), True), ViewOptions(numerics=True, profile=True)).to_json()


def test_every_stage_agrees_with_the_one_before(gate: dict[str, Any]) -> None:
    first, *others = gate["stages"]
    assert first["check"] is None
    assert all(stage["check"]["agrees"] for stage in others), [stage["check"] for stage in others]
    assert {stage["kind"] for stage in others if stage["check"]["difference"] == 0} >= {"graph", "loop_ir"}
    assert gate["stages"][-1]["check"]["largest"] > 0
    assert gate["notes"] == []


def test_a_stage_that_computes_something_else_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    from ingot.passes import cse
    from ingot.passes.manager import _INFO

    def break_bias(program: Program) -> int:
        for node in program.graph.nodes:
            if node.target is torch.ops.aten.relu.default:
                node.target = torch.ops.aten.neg.default
        return 1

    import ingot.pipelines as pipelines

    _INFO[break_bias] = _INFO[cse]
    monkeypatch.setattr(pipelines, "NATIVE", tuple(break_bias if p is cse else p for p in pipelines.NATIVE))
    try:
        data = collect_program(_capture(models.mlp()), ViewOptions(numerics=True)).to_json()
    finally:
        del _INFO[break_bias]
    wrong = [stage["name"] for stage in data["stages"] if stage["check"] and not stage["check"]["agrees"]]
    assert wrong == ["cse"]
    check = next(stage["check"] for stage in data["stages"] if stage["name"] == "cse")
    assert check["difference"] > 0 and check["where"].startswith("result") and "differs by" in check["text"]
    apart = dict(zip(check["nodes"][::2], check["nodes"][1::2], strict=True))
    named = {data["nodes"][node]["name"]: difference for node, difference in apart.items()}
    assert named["x"] == 0 and named["relu"] > 0, "the node that began to differ"
    assert all(difference >= 0 for difference in named.values())


def test_values_that_are_too_many_to_keep_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numeric_checks, "_MOST_KEPT", 0)
    data = collect_program(_capture(models.gate(), True), ViewOptions(numerics=True)).to_json()
    checks = [stage["check"] for stage in data["stages"] if stage["check"]]
    assert all(check["agrees"] for check in checks) and not any(check.get("nodes") for check in checks)


def test_values_of_the_nodes(gate: dict[str, Any]) -> None:
    first = graph_stages(gate)[0]
    by_name = {gate["nodes"][index]["name"]: gate["stats"].get(str(index)) for index in nodes_of(first)}
    assert by_name["x"]["min"] == by_name["x"]["max"] == by_name["x"]["mean"] == 1 and by_name["x"]["std"] == 0
    relu = by_name["relu"]
    assert relu["count"] == 40 and relu["min"] == 0 and relu["zeros"] > 0 and relu["nan"] == relu["inf"] == 0
    assert sum(relu["histogram"]["counts"]) == 40
    assert any(by_name[name] is not None for name in ("mul", "sub"))  # of the branch that was taken


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (torch.tensor([]), {"count": 0, "min": None, "histogram": None}),
        (
            torch.tensor([float("nan"), float("inf"), 2.0]),
            {"nan": 1, "inf": 1, "min": 2.0, "max": 2.0, "histogram": None},
        ),
        (torch.tensor([True, False]), {"zeros": 1, "mean": 0.5}),
        (torch.tensor([1, 3]), {"min": 1.0, "max": 3.0, "std": 1.0}),
        (torch.tensor([3e38, -3e38]), {"min": -3e38}),
        (torch.tensor([1.7e308, -1.7e308], dtype=torch.float64), {"histogram": None}),
    ],
)
def test_a_summary_of_values(value: torch.Tensor, expected: dict[str, Any]) -> None:
    found = summarize_values(value)
    for key, one in expected.items():
        assert found[key] == (pytest.approx(one, rel=1e-6) if isinstance(one, float) else one)


def test_values_without_an_order_have_no_summary() -> None:
    assert summarize_values(torch.ones(2, dtype=torch.complex64)) is None
    assert summarize_values(torch.eye(2).to_sparse()) is None


def test_differences() -> None:
    old, new = {"result 0": torch.tensor([1.0, 100.0])}, {"result 0": torch.tensor([1.0, 100.001])}
    within = compare_results(old, new, False, torch.float32)
    assert within["agrees"] and within["difference"] == pytest.approx(0.001, rel=1e-2) and within["largest"] == 100
    assert not compare_results(old, new, True, torch.float32)["agrees"]
    assert not compare_results(old, {"result 0": torch.tensor([1.0, float("nan")])}, False, None)["agrees"]
    assert compare_results({}, {}, True, None)["agrees"]


def test_the_profile_is_in_the_order_of_the_launches(gate: dict[str, Any]) -> None:
    profile = gate["profile"]
    assert len(profile["launches"]) == sum(kernel["launches"] for kernel in gate["kernels"])
    for launch in profile["launches"]:
        assert launch["seconds"] >= 0 and (launch["idle"] is None or 0 <= launch["idle"] <= 1)
        assert gate["kernels"][launch["kernel"]] and gate["origins"][launch["origin"]]
    assert profile["seconds"] == pytest.approx(sum(launch["seconds"] for launch in profile["launches"]))
    assert profile["limits"]["flops"] > 0 and profile["limits"]["bytes"] > 0


def test_the_profile_says_when_each_thread_worked() -> None:
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)).eval()
    program = ingot.capture(model, (torch.randn(512, 512),))
    profile = collect_program(program, ViewOptions(profile=True, threads=2)).to_json()["profile"]
    assert {launch for launch, _, _, _ in profile["intervals"]} == set(range(len(profile["launches"])))
    assert {-1, 0} <= {thread for _, thread, _, _ in profile["intervals"]} <= {-1, 0, 1}
    begins = [begin for _, _, begin, _ in profile["intervals"]]
    assert begins == sorted(begins) and all(begin <= end for _, _, begin, end in profile["intervals"])


def test_the_memory_plan(gate: dict[str, Any]) -> None:
    assert gate["memory"]["dynamic"] and gate["memory"]["size"] is None
    assert all(buffer["slot"] is not None and buffer["bytes"] > 0 for buffer in gate["memory"]["buffers"])
    static = collect_program(_capture(models.mlp()), ViewOptions()).to_json()["memory"]
    for one in static["buffers"]:
        assert one["offset"] >= 0 and one["offset"] + one["bytes"] <= static["size"]
        assert 0 <= one["first"] <= one["last"] < static["steps"]
        for other in static["buffers"]:
            apart = one["last"] < other["first"] or other["last"] < one["first"]
            below = one["offset"] + one["bytes"] <= other["offset"] or other["offset"] + other["bytes"] <= one["offset"]
            assert one is other or apart or below


def test_a_program_without_an_example_is_not_run() -> None:
    program = _capture(models.mlp())
    program.example_inputs = None
    data = collect_program(program, ViewOptions(numerics=True, profile=True)).to_json()
    assert data["profile"] is None and not data["stats"]
    assert "no example inputs" in data["notes"][0]
    assert data["stages"][-1]["kind"] == "code"


def test_loops_that_cannot_be_interpreted_are_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    from ingot.targets.reference.schedule_check import ScheduleCheck

    def refuse(*args: Any) -> Any:
        raise ScheduleError("no rule for this step")

    monkeypatch.setattr(ScheduleCheck, "run", refuse)
    data = collect_program(_capture(models.mlp()), ViewOptions(numerics=True)).to_json()
    assert any("no rule for this step" in note for note in data["notes"])
    assert data["stages"][-1]["check"]["agrees"]


class Noise(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.randn_like(x)


def test_random_numbers_are_not_compared_with_those_of_torch() -> None:
    program = ingot.capture(Noise(), (torch.ones(4, 8),))
    data = collect_program(program, ViewOptions(numerics=True)).to_json()
    assert all(stage["check"] is None or stage["check"]["agrees"] for stage in data["stages"])
    assert data["stages"][-1]["check"] is None


def test_products_in_bfloat16_agree_to_its_rounding() -> None:
    program = ingot.capture(nn.Linear(64, 64).eval(), (torch.randn(2, 64),))
    data = collect_program(program, ViewOptions(numerics=True, precision="bfloat16")).to_json()
    assert all(stage["check"]["agrees"] for stage in data["stages"][1:])
    assert data["stages"][-1]["check"]["difference"] > 1e-6


def test_what_each_quantized_layer_loses() -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).eval()
    batches = [torch.randn(8, 16) for _ in range(3)]
    program = ingot.capture(model, (batches[0],))
    prepared = quantize.prepare(program, quantize.int8_static())
    quantize.calibrate(prepared, batches, progress=False)
    made = quantize.convert(prepared)
    view = collect_program(made, ViewOptions(numerics=True))
    found = describe_quantization(view, quantize.report(program, made, batches, show=False))
    assert [layer["operator"] for layer in found["layers"]] == ["linear", "linear"]
    node_size = dict(zip((layer["name"] for layer in found["layers"]), (32, 4), strict=True))
    assert found["text"].endswith(" dB") and found["result"] > 10
    for layer in found["layers"]:
        node = view.nodes.items[layer["node"]]
        assert node["name"] == layer["name"] and node["target"] == "aten.linear"
        assert layer["own"] > 10 and layer["values"]["counts"]
        for errors in (layer["own_errors"], layer["total_errors"]):
            assert errors["low"] == -errors["high"] and sum(errors["counts"]) == 3 * 8 * node_size[layer["name"]]
