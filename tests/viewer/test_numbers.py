"""Numbers that the user brings: files of every kind, and the names they are matched with."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import ingot
from ingot.errors import ViewError
from ingot.viewer.collection import ViewOptions, collect_program
from ingot.viewer.entry import view_program
from ingot.viewer.files.onnx_file import collect_onnx
from ingot.viewer.numbers import number_files
from ingot.viewer.numbers.csv_numbers import summary_of
from ingot.viewer.numbers.matching import add_numbers
from ingot.viewer.numbers.number_files import NumberTable, check_numbers, read_numbers
from ingot.viewer.page import export_page
from tests.viewer.browser import Data
from tests.viewer.models import Mlp

# As `ncu --csv --page raw` writes it: messages, a header, units, and a row per launch.
NCU = """==PROF== Connected to process 4242 (/usr/bin/python3)
==PROF== Profiling "k0": 0%....50%....100% - 9 passes
"ID","Process ID","Kernel Name","Context","Block Size","Device","dram__bytes.sum","sm__throughput.avg.pct",\
"gpu__time_duration.sum","launch__registers_per_thread.max"
"","","","","","","Mbyte","%","nsecond","register/thread"
"0","4242","k0(const float *, float *)","1","(128, 1, 1)","0","1.5","40","1,000","32"
"1","4242","k1","1","(128, 1, 1)","0","2","n/a","500","40"
"2","4242","k0(const float *, float *)","1","(128, 1, 1)","0","2.5","60","3,000","48"
"""


def read(folder: Path, text: str | bytes, name: str = "numbers.csv") -> list[NumberTable]:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_numbers([path])


def test_json_with_and_without_units(tmp_path: Path) -> None:
    data = {"latency": {"unit": "ms", "values": {"a": 1, "b": -2.5}}, "unit": {"values": 3.0, "unit": 4}}
    latency, other = read(tmp_path, json.dumps(data), "n.json")
    assert latency == NumberTable("latency", "ms", {"a": 1.0, "b": -2.5})
    assert other == NumberTable("unit", "", {"values": 3.0, "unit": 4.0}), "names that look like those of the form"


def test_a_table_of_any_tool(tmp_path: Path) -> None:
    tables = read(tmp_path, "\ufeffopset,node,time [ms],note,hits\n13,a,1.5,fast,\n13,b,2.5,,7\n")
    assert tables == [
        NumberTable("opset", "", {"a": 13.0, "b": 13.0}),
        NumberTable("time", "ms", {"a": 1.5, "b": 2.5}),
        NumberTable("hits", "", {"b": 7.0}),
    ]
    assert read(tmp_path, "what\tcycles\nk0\t12\n\nk1\t3e2\n") == [NumberTable("cycles", "", {"k0": 12, "k1": 300})]


def test_nsight_compute(tmp_path: Path) -> None:
    tables = {table.title: table for table in read(tmp_path, NCU)}
    assert list(tables) == [
        "dram__bytes.sum",
        "sm__throughput.avg.pct",
        "gpu__time_duration.sum",
        "launch__registers_per_thread.max",
    ]
    k0 = "k0(const float *, float *)"
    assert tables["dram__bytes.sum"] == NumberTable("dram__bytes.sum", "Mbyte", {k0: 4.0, "k1": 2.0}), "added"
    assert tables["sm__throughput.avg.pct"].values == {k0: 50.0}, "averaged; what was not measured is not there"
    assert tables["gpu__time_duration.sum"].values == {k0: 4000.0, "k1": 500.0}
    assert tables["launch__registers_per_thread.max"].values[k0] == 48, "the largest stays that"


def test_one_row_per_metric(tmp_path: Path) -> None:
    text = "ID,Kernel Name,Metric Name,Metric Unit,Metric Value\n"
    text += '0,k0,Duration,ns,"1,200"\n0,k0,Busy,%,50\n1,k0,Duration,ns,800\n'
    assert read(tmp_path, text) == [
        NumberTable("Duration", "ns", {"k0": 2000.0}),
        NumberTable("Busy", "%", {"k0": 50.0}),
    ]


@pytest.mark.parametrize(
    ("title", "unit", "how"),
    [
        ("cycles", "", "sum"),
        ("time", "ms", "sum"),
        ("bytes", "byte/second", "avg"),
        ("busy", "%", "avg"),
        ("x.avg.pct", "", "avg"),
        ("x.sum", "byte/second", "sum"),
        ("x.min", "", "min"),
        ("clock", "Ghz", "avg"),
        ("inst.per_second", "", "avg"),
    ],
)
def test_how_launches_become_one_number(title: str, unit: str, how: str) -> None:
    assert summary_of(title, unit) == how


@pytest.mark.parametrize(
    ("text", "name", "why"),
    [
        ("", "n.csv", "no rows"),
        ("name,time\n", "n.csv", "no rows"),
        ("name,time\na,nan\n", "n.csv", "line 2: 'nan' in 'time' is not a finite number"),
        ("name,time\na,1\nb,-inf\n", "n.csv", "line 3: '-inf'"),
        ("name,time\na,1e999\n", "n.csv", "not a finite number"),
        ("name,time\na,1\nb,fast\n", "n.csv", "line 3: 'fast' in 'time' is not a number"),
        ("name,time\na,1,2\n", "n.csv", "line 2 has 3 fields, and the header has 2"),
        ("name,time,time\na,1,2\n", "n.csv", "two columns are called 'time'"),
        ('name,time\n"a,1\n', "n.csv", "is not CSV"),
        ("name,time\n,1\nb,2\n", "n.csv", "line 2 has no name"),
        ("a,b\n1,2\n3,4\n", "n.csv", "no column holds names"),
        ("name,b\nx,y\nz,w\n", "n.csv", "no column beside 'name' holds numbers"),
        (b"\xff\xfe\x00", "n.csv", "not UTF-8"),
        (b"PK\x03\x04\x00\x00", "n.csv", "zero bytes"),
        ("{", "n.json", "not JSON"),
        ("[" * 100_000, "n.json", "not JSON"),
        ("[]", "n.json", "a list"),
        ("{}", "n.json", "empty"),
        ('{"t": 1}', "n.json", "'t' has a int"),
        ('{"t": {"a": NaN}}', "n.json", "NaN"),
        ('{"t": {"a": -Infinity}}', "n.json", "-Infinity"),
        ('{"t": {"a": 1e999}}', "n.json", "not a finite number"),
        ('{"t": {"a": 1' + "0" * 400 + "}}", "n.json", "not a finite number"),
        ('{"t": {"a": true}}', "n.json", "'a' in 't' is a truth value"),
        ('{"t": {"a": "1"}}', "n.json", "'a' in 't' is a text"),
        ('{"t": {"a": null}}', "n.json", "'a' in 't' is a null"),
        ('{"t": {"a": [1]}}', "n.json", "'a' in 't' is a list"),
        ('{"t": {"a": 1, "a": 2}}', "n.json", "'a' is there twice"),
        ('{"": {"a": 1}}', "n.json", "a title is empty"),
        ('{"t": {"unit": 3, "values": {}}}', "n.json", "the unit of 't'"),
        ('{"t": {"values": {}, "more": 1}}', "n.json", "'more' beside"),
        (json.dumps({"t" * 300: {"a": 1}}), "n.json", "300 characters"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, text: str | bytes, name: str, why: str) -> None:
    with pytest.raises(ViewError) as raised:
        read(tmp_path, text, name)
    assert why in str(raised.value) and str(tmp_path / name) in str(raised.value)


def test_files_that_are_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(number_files, "MOST_BYTES", 1 << 20)
    with pytest.raises(ViewError, match="more than 1 MiB"):
        read(tmp_path, "name,time\n" + "a,1\n" * 300_000)
    columns = ",".join(f"c{i}" for i in range(number_files.MOST_TITLES + 1))
    with pytest.raises(ViewError, match=r"2,001 kinds of numbers"):
        read(tmp_path, f"name,{columns}\na{',1' * (number_files.MOST_TITLES + 1)}\n")


def test_a_million_rows_are_read(tmp_path: Path, gate: Data) -> None:
    rows = "".join(f"other{i},{i}\n" for i in range(1_000_000))
    tables = read(tmp_path, f"name,time\nrelu,5\n{rows}")
    data = json.loads(json.dumps(gate))
    (note,) = add_numbers(data, tables)
    assert data["numbers"] == [{"title": "time", "unit": "", "nodes": {"relu": 5.0}, "modules": {}, "kernels": {}}]
    assert "1,000,000 names" in note and "'other0', 'other1'" in note and "999,995 more" in note
    assert len(export_page(data, "run();", "")) < 5_000_000, "a page holds what its model has"


def test_two_files_of_one_title(tmp_path: Path) -> None:
    for name in ("before.csv", "after.csv"):
        (tmp_path / name).write_text("name,time\na,1\n")
    tables = read_numbers([tmp_path / "before.csv", tmp_path / "after.csv", tmp_path / "after.csv"])
    assert [table.title for table in tables] == ["time", "time (after.csv)", "time (after.csv, 2)"]


def test_names_of_nodes_modules_and_kernels(gate: Data) -> None:
    data = json.loads(json.dumps(gate))
    kernel = data["kernels"][0]["name"]
    graphs = [graph for stage in data["stages"] for graph in stage["graphs"] if graph["path"]]
    inner = f"{graphs[0]['path']}/{data['nodes'][graphs[0]['nodes'][0]]['name']}"
    given = {"relu": 1, "fc": 2, f"{kernel}(float *, int)": 3, f"{kernel}.constprop.0": 9, inner: 4, "gone": 5}
    notes = add_numbers(data, check_numbers({"t": {"unit": "ms", "values": given}}))
    nodes = {"relu": 1.0, inner: 4.0}
    assert data["numbers"] == [
        {"title": "t", "unit": "ms", "nodes": nodes, "modules": {"fc": 2.0}, "kernels": {kernel: 3.0}}
    ]
    assert len(notes) == 1 and "1 name is" in notes[0] and "'gone'" in notes[0] and data["notes"][-1:] == notes


def test_a_node_of_an_early_stage_is_known(gate: Data) -> None:
    """`linear` is gone after decompose, and its number is still shown where it is."""
    data = json.loads(json.dumps(gate))
    assert add_numbers(data, check_numbers({"t": {"linear": 1.5}})) == []
    assert data["numbers"][0]["nodes"] == {"linear": 1.5}


def test_numbers_of_two_models(gate: Data) -> None:
    data = json.loads(
        json.dumps(gate | {"compare": gate | {"nodes": [n | {"name": "b_" + n["name"]} for n in gate["nodes"]]}})
    )
    assert add_numbers(data, check_numbers({"t": {"relu": 1, "b_relu": 2}})) == []
    assert data["numbers"][0]["nodes"] == {"relu": 1.0} and data["compare"]["numbers"][0]["nodes"] == {"b_relu": 2.0}


def test_an_onnx_node_has_two_names(tmp_path: Path) -> None:
    """Tools of ONNX know a node by its own name; the page calls it by its result, as programs do."""
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
    node = helper.make_node("Relu", ["x"], ["y"], name="/layer/Relu")
    onnx.save(helper.make_model(helper.make_graph([node], "g", value[:1], value[1:])), tmp_path / "m.onnx")
    data = collect_onnx(tmp_path / "m.onnx").to_json()
    assert add_numbers(data, check_numbers({"t": {"/layer/Relu": 1}, "u": {"y": 2}})) == []
    assert [table["nodes"] for table in data["numbers"]] == [{"/layer/Relu": 1.0}, {"y": 2.0}]
    assert [item.get("alias") for item in data["nodes"]][1] == "/layer/Relu"


def test_hostile_names_stay_text(gate: Data) -> None:
    data = json.loads(json.dumps(gate))
    hostile = "</script><script>alert(1)</script>"
    names: dict[str, float] = {hostile: 1, "__proto__": 2, "\ud800\x00\x1b[31m": 3, "x" * 10_000: 4, "": 5}
    notes = add_numbers(data, check_numbers({hostile: names, "relu": {"relu": 1}}))
    assert len(notes) == 1 and "\x1b" not in notes[0] and len(notes[0]) < 600
    page = export_page(data, "run();", "")
    assert "<script>alert" not in page and page.count("</script>") == 2


def test_one_note_for_columns_that_miss_the_same(gate: Data) -> None:
    data = json.loads(json.dumps(gate))
    notes = add_numbers(data, check_numbers({title: {"gone": 1, "relu": 2} for title in ("a", "b", "c")}))
    assert notes == ["Numbers 'a' and 2 more: 1 name is not those of nodes, modules or kernels: 'gone'."]


def test_from_python() -> None:
    program = ingot.capture(Mlp().eval(), (torch.ones(3, 4),))
    view = program.view(numbers={"latency": {"first": torch.tensor(1.5), "relu": 2}})
    assert view.data["numbers"][0]["modules"] == {"first": 1.5} and view.data["numbers"][0]["nodes"] == {"relu": 2.0}
    view.add_numbers({"energy": {"unit": "mJ", "values": {"nothing": 1.0}}})
    assert [table["title"] for table in view.data["numbers"]] == ["latency", "energy"] and "'nothing'" in view.data[
        "notes"
    ][-1]
    compiled = ingot.compile(program, threads=1)
    shown = compiled.view(numbers={"cycles": {"k0": 7}})
    assert shown.data["numbers"][0]["kernels"] == {"k0": 7.0}
    for wrong in ({"t": {"a": math.nan}}, {"t": 3}, {"t": {1: 2}}, [], {"t": {"a": torch.ones(2)}}):
        with pytest.raises(ViewError):
            given: Any = wrong
            view_program(program, numbers=given)


def test_wrong_numbers_stop_before_the_view_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    program = ingot.capture(Mlp().eval(), (torch.ones(3, 4),))
    monkeypatch.setattr("ingot.viewer.entry.collect_program", lambda *_: pytest.fail("the view was made"))
    with pytest.raises(ViewError, match="finite"):
        view_program(program, numbers={"t": {"a": math.inf}})


def test_a_view_has_room_for_numbers() -> None:
    data = collect_program(ingot.capture(Mlp().eval(), (torch.ones(3, 4),)), ViewOptions()).to_json()
    assert data["numbers"] == []
