"""What a view holds: nodes, stages, deltas, links."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.errors import UnknownTarget, UnsupportedPrecision
from ingot.ir.program import Program
from ingot.viewer.collection import ViewOptions, collect_program
from tests.viewer import models
from tests.viewer.views import graph_stages, lines_of, links_of, nodes_of, print_view


def _capture(made: Any, dynamic: bool = True) -> Program:
    model, args, kwargs = made
    return ingot.capture(model, args, kwargs, dynamic_shapes={"x": {0: "batch"}} if dynamic else None)


@pytest.fixture(scope="module")
def gate() -> dict[str, Any]:
    return collect_program(_capture(models.gate()), ViewOptions(), reference="models:gate", origin="factory").to_json()


def test_a_view_of_a_branch_and_a_region(gate: dict[str, Any], golden: Callable[[str, str], None]) -> None:
    golden("gate", print_view(gate))


def test_a_view_is_plain_data_and_the_same_again(gate: dict[str, Any]) -> None:
    again = collect_program(_capture(models.gate()), ViewOptions(), reference="models:gate", origin="factory").to_json()
    for view in (gate, again):
        for stage in view["stages"]:
            stage["seconds"] = None
    assert json.dumps(gate, allow_nan=False) == json.dumps(again, allow_nan=False)


def test_stages_come_in_the_order_of_time(gate: dict[str, Any]) -> None:
    groups = [stage["group"] for stage in gate["stages"]]
    assert list(dict.fromkeys(groups)) == ["capture", "passes", "lowering", "schedule", "code"]
    names = [stage["name"] for stage in gate["stages"]]
    assert names[0] == "captured" and names[-1] == "model.c"
    assert {"autocast", "functionalize", "decompose", "lower", "map_fusion", "row_fusion"} <= set(names)


def test_applying_the_deltas_gives_every_stage(gate: dict[str, Any]) -> None:
    first, *others = graph_stages(gate)
    known = set(nodes_of(first))
    assert first["delta"] is None
    changed = 0
    for stage in others:
        delta = stage["delta"]
        gone = [*_runs(delta["removed"]), *(one for group in delta["replaced"] for one in group["before"])]
        made = [*_runs(delta["added"]), *(one for group in delta["replaced"] for one in group["after"])]
        assert len(set(gone)) == len(gone) and len(set(made)) == len(made)
        assert known >= set(gone) and not known & set(made)
        known = known - set(gone) | set(made)
        assert known == set(nodes_of(stage)), stage["name"]
        changed += bool(gone or made)
    assert changed >= 2


def test_applying_the_deltas_of_loops_gives_every_stage(gate: dict[str, Any]) -> None:
    stages = [stage for stage in gate["stages"] if stage["kind"] == "loop_ir"]
    for before, after in itertools.pairwise(stages):
        old, new = _runs(before["steps"]), _runs(after["steps"])
        kept = [one for place, one in enumerate(old) if place not in after["delta"]["removed"]]
        assert kept == [one for place, one in enumerate(new) if place not in after["delta"]["added"]]


def test_the_steps_of_a_stage_cover_its_text(gate: dict[str, Any]) -> None:
    for stage in gate["stages"]:
        if stage["kind"] == "loop_ir":
            lines = lines_of(gate, stage["texts"][0])
            at = stage["head"]
            for number in _runs(stage["steps"]):
                step = gate["steps"][number]
                assert lines[at][1].startswith("  ") and not lines[at][1].startswith("   ")
                assert {link for link, _ in lines[at : at + step["lines"]]} <= {*step["origins"], -1}
                at += step["lines"]
            assert [text for _, text in lines[at:]] == ["}"]


def test_the_texts_are_what_is_printed() -> None:
    program = _capture(models.mlp())
    data = collect_program(program, ViewOptions()).to_json()
    first, last = data["stages"][0], [stage for stage in data["stages"] if stage["kind"] == "loop_ir"][-1]
    assert "\n".join(text for _, text in lines_of(data, first["texts"][0])) == str(program)
    model, args, _ = models.mlp()
    compiled = ingot.compile(model, args, dynamic_shapes={"x": {0: "batch"}})
    assert "\n".join(text for _, text in lines_of(data, last["texts"][0])) + "\n" == compiled.loop_ir
    assert "\n".join(text for _, text in lines_of(data, data["stages"][-1]["texts"][0])) == compiled.source


@pytest.mark.parametrize("model", [models.Gate, models.Everything])
@pytest.mark.parametrize("dynamic", [False, True])
def test_every_printed_node_has_its_line(model: Callable[[], nn.Module], dynamic: bool) -> None:
    data = collect_program(_capture((model().eval(), (torch.ones(5, 4),), {}), dynamic), ViewOptions()).to_json()
    count = 0
    for stage in graph_stages(data):
        linked = {link: text for link, text in lines_of(data, stage["texts"][0]) if link >= 0}
        for index in nodes_of(stage):
            node = data["nodes"][index]
            if node["kind"] in ("operator", "call", "item", "size", "region"):
                assert linked[index].strip() == node["text"], stage["name"]
                assert node["name"] in node["text"] or node["type"] < 0, stage["name"]
                count += 1
    assert count > 100
    assert data["notes"] == [] and all(origin["nodes"] for origin in data["origins"])


def test_a_selection_goes_from_the_line_to_the_kernel(gate: dict[str, Any]) -> None:
    last = graph_stages(gate)[-1]
    linear = next(i for i in nodes_of(last) if gate["nodes"][i]["target"] == "aten.linear")
    origin = next(number for number, one in enumerate(gate["origins"]) if linear in one["nodes"])
    assert gate["origins"][origin]["place"] == gate["nodes"][linear]["place"]
    relu = next(i for i in nodes_of(last) if gate["nodes"][i]["target"] == "aten.relu")
    assert any(relu in one["inlined"] for one in gate["origins"])  # fused: it has no loop of its own
    kernel = next(number for number, one in enumerate(gate["kernels"]) if origin in one["origins"])
    found = gate["kernels"][kernel]
    lines = lines_of(gate, gate["stages"][-1]["texts"][0])
    assert {link for link, _ in lines[found["first"] : found["last"] + 1]} == {kernel}
    assert lines[found["first"]][1].startswith("/* linear.default  fc")
    module, file, line = gate["places"][gate["nodes"][linear]["place"]]
    assert gate["modules"][module]["path"] == "fc"
    assert "self.fc(x).relu()" in gate["files"][file]["text"][line - 1]


def test_every_link_leads_somewhere(gate: dict[str, Any]) -> None:
    assert len(links_of(gate)) == len(gate["lines"]["text"])
    for stage in gate["stages"]:
        pool = {"graph": gate["nodes"], "loop_ir": gate["origins"], "code": gate["kernels"]}[stage["kind"]]
        for text in stage["texts"]:
            assert all(-1 <= link < len(pool) for link, _ in lines_of(gate, text))


def test_constraints_name_the_line_that_asked() -> None:
    program = ingot.capture(models.Constrained(), (torch.ones(6, 4),), dynamic_shapes={"x": {0: "rows"}})
    data = collect_program(program, ViewOptions()).to_json()
    constraint = data["constraints"][0]
    _, file, line = data["places"][constraint["place"]]
    assert "rows" in constraint["text"]
    assert "x[3:4].squeeze(0)" in data["files"][file]["text"][line - 1]


def test_targets_and_precisions_that_there_are_not() -> None:
    program = _capture(models.mlp())
    with pytest.raises(UnknownTarget, match='give target="cpu"'):
        program.view(target="reference")
    with pytest.raises(UnsupportedPrecision, match="'float32' or 'bfloat16'"):
        collect_program(program, ViewOptions(precision="tf32"))
    with pytest.raises(ValueError, match="give None or 'numerics'"):
        program.view(check="structure")  # type: ignore[arg-type]


def test_passes_that_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_DISABLE_PASSES", "cse,map_fusion")
    names = [stage["name"] for stage in collect_program(_capture(models.mlp()), ViewOptions()).to_json()["stages"]]
    assert "cse" not in names and "map_fusion" not in names and "dce" in names


def test_a_view_for_a_gpu_needs_none() -> None:
    data = collect_program(_capture(models.gate()), ViewOptions(target="cuda")).to_json()
    last = data["stages"][-1]
    assert [text["language"] for text in last["texts"]] == ["cuda", "c"] and data["notes"] == []
    for number, kernel in enumerate(data["kernels"]):
        assert kernel["file"] == "model.cu" and kernel["origins"]
        lines = lines_of(data, last["texts"][0])[kernel["first"] : kernel["last"] + 1]
        assert {link for link, _ in lines} == {number} and "__global__" in lines[1][1]


def test_a_model_that_cannot_be_compiled_is_shown_as_far_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    from ingot.errors import UnsupportedOperator
    from ingot.targets.cpu.target import CPU

    def refuse(*args: Any) -> Any:
        raise UnsupportedOperator("there is no rule for it")

    monkeypatch.setattr(type(CPU), "lower", refuse)
    data = collect_program(_capture(models.mlp()), ViewOptions()).to_json()
    assert {stage["kind"] for stage in data["stages"]} == {"graph"}
    assert data["notes"] == ["UnsupportedOperator: there is no rule for it"]


def test_three_thousand_nodes_fit() -> None:
    program = ingot.capture(models.Deep(300).eval(), (torch.ones(4, 16),))
    data = collect_program(program, ViewOptions()).to_json()
    assert data["stages"][0]["counts"]["nodes"] >= 3000
    assert len(data["stages"]) >= 20
    size = len(json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode())
    assert size < 5_000_000, {key: len(json.dumps(value)) for key, value in data.items()}


def _runs(runs: list[int]) -> list[int]:
    return [index for first, count in zip(runs[::2], runs[1::2], strict=True) for index in range(first, first + count)]
