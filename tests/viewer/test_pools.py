"""Runs, pools, and deltas of lists of nodes."""

from __future__ import annotations

import random

import pytest

from ingot.viewer.pools import LinePool, Pool, decode_runs, encode_runs
from ingot.viewer.source_files import SourceFiles, shorten_paths
from ingot.viewer.stages.deltas import compare_stages, compare_steps


@pytest.mark.parametrize("indexes", [[], [3], [0, 1, 2], [5, 4, 3], [1, 1], [0, 1, 7, 8, 9, 2]])
def test_runs(indexes: list[int]) -> None:
    assert decode_runs(encode_runs(indexes)) == indexes


def test_runs_are_short() -> None:
    assert encode_runs(range(10, 4000)) == [10, 3990]


def test_a_pool_stores_equal_items_once() -> None:
    pool: Pool[str] = Pool()
    assert [pool.add("a", "A"), pool.add("b", "B"), pool.add("a", "other")] == [0, 1, 0]
    assert pool.items == ["A", "B"] and pool.keys == ["a", "b"] and pool.find("c") == -1


def test_lines_come_back_as_they_were() -> None:
    draw, pool = random.Random(0), LinePool()
    text = [draw.choice(["}", "{", "a", "b", "    c", ""]) for _ in range(200)]
    for _ in range(20):
        for _ in range(5):
            text[draw.randrange(len(text))] = draw.choice(["x", "y", "}"])
        links = [draw.randrange(-1, 3) for _ in text]
        runs = pool.add(text, links)
        assert pool.decode(runs) == text
        assert [pool.link[index] for index in decode_runs(runs)] == links


def test_a_text_that_did_not_change_takes_one_run() -> None:
    pool = LinePool()
    text = [line for number in range(100) for line in (f"map {number} {{", "  load", "}")]
    first = pool.add(text, [-1] * len(text))
    assert first == [0, 300]
    assert pool.add(text, [-1] * len(text)) == first
    text[150] = "map changed {"
    assert pool.add(text, [-1] * len(text)) == [0, 150, 300, 1, 151, 149]
    strings = pool.to_json()["strings"]
    assert len(strings) == 103  # each text once


def _node(kind: str, target: str, place: int) -> dict[str, object]:
    return {"kind": kind, "target": target, "place": place}


def test_a_node_that_changed_is_replaced_by_itself() -> None:
    nodes = [_node("operator", "aten.sum", 0), _node("operator", "aten.sum.dim_IntList", 0)]
    delta = compare_stages([("", "sum", 0)], [("", "sum", 1)], nodes)
    assert delta == {"added": [], "removed": [], "replaced": [{"before": [0], "after": [1]}]}


def test_a_node_is_replaced_by_those_of_its_place() -> None:
    nodes = [_node("operator", target, 4) for target in ("aten.softplus", "aten.exp", "aten.log1p")]
    delta = compare_stages([("", "softplus", 0)], [("", "exp", 1), ("", "log1p", 2)], nodes)
    assert delta["replaced"] == [{"before": [0], "after": [1, 2]}]


def test_a_node_that_moved_into_a_region_is_the_same() -> None:
    nodes = [_node("operator", "aten.linear", 2), _node("item", "getitem", 2), _node("operator", "aten.linear", 2)]
    delta = compare_stages([("", "linear", 0)], [("", "linear", 1), ("region", "linear", 2)], nodes)
    assert delta == {"added": [1, 1], "removed": [], "replaced": [{"before": [0], "after": [2]}]}


def test_nodes_without_a_place_are_added_and_removed() -> None:
    nodes = [_node("input", "x", -1), _node("operator", "aten.add", -1), _node("operator", "aten.sub", -1)]
    delta = compare_stages([("", "x", 0), ("", "add", 1)], [("", "x", 0), ("", "sub", 2)], nodes)
    assert delta == {"added": [2, 1], "removed": [1, 1], "replaced": []}


def test_steps_that_are_new_and_gone() -> None:
    assert compare_steps(["a", "b", "b", "c"], ["b", "a", "d", "b"]) == {"added": [2], "removed": [3]}
    assert compare_steps(["b"], ["b", "b"]) == {"added": [1], "removed": []}


def test_paths_keep_as_much_as_tells_them_apart() -> None:
    assert shorten_paths(["/a/b/model.py"]) == ["b/model.py"]
    assert shorten_paths(["/a/b/m.py", "/c/b/m.py", "/x/y.py"]) == ["a/b/m.py", "c/b/m.py", "x/y.py"]
    assert shorten_paths(["m.py", "/m.py"]) == ["m.py", "/m.py"]


def test_a_long_file_is_shown_around_its_named_lines(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "long.py"
    path.write_text("".join(f"line_{number} = 0\n" for number in range(1, 5001)))
    files = SourceFiles()
    files.add(str(path), 100)
    (shown,) = files.to_json()
    assert shown["text"] is None
    assert shown["lines"]["100"] == "line_100 = 0" and len(shown["lines"]) < 50
