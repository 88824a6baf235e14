"""Profiles: when each thread worked on which launch, and how long threads had nothing to do."""

from __future__ import annotations

import itertools
import json
import pathlib
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.artifacts.profiler import Profile, ProfileRow, ThreadInterval, idle_shares
from ingot.artifacts.roofline import Roofline
from ingot_runtime import load


class Layers(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(256, 256), nn.LayerNorm(256)) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Loop(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def body(i: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return i + 1, (x @ x).tanh()

        return torch.while_loop(lambda i, x: i < 40, body, (torch.tensor(0), x))[1]


def _check(profile: Profile) -> None:
    """Each thread does one thing at a time, within the launch; launches follow one another."""
    launches = [interval for interval in profile.intervals if interval.thread is None]
    for before, after in itertools.pairwise(launches):
        assert before.end <= after.begin
    for thread in range(profile.threads):
        own = [interval for interval in profile.intervals if interval.thread == thread]
        assert all(a.begin <= a.end <= b.begin for a, b in itertools.pairwise(own))
        for interval in own:
            assert any(
                around.row == interval.row and around.begin <= interval.begin and interval.end <= around.end
                for around in launches
            )


@pytest.mark.parametrize("threads", [1, 2])
def test_intervals_of_threads(threads: int) -> None:
    x = torch.randn(64, 256)
    compiled = ingot.compile(Layers(3).eval(), (x,), threads=threads)
    profile = compiled.profile(x, repeat=3)
    _check(profile)
    assert profile.threads == threads
    assert {interval.row for interval in profile.intervals} == set(range(len(profile.rows)))
    assert all(row.idle is not None and 0 <= row.idle < 1 for row in profile.rows)
    assert "idle" in str(profile)
    compiled.close()


def test_a_trace_is_written(tmp_path: pathlib.Path) -> None:
    x = torch.randn(64, 256)
    compiled = ingot.compile(Layers(2).eval(), (x,), threads=2)
    file = tmp_path / "trace.json"
    profile = compiled.profile(x, repeat=1, trace=file)
    events: list[dict[str, Any]] = json.loads(file.read_text())["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names == {2: "launches", 0: "thread 0", 1: "thread 1"}
    shown = [event for event in events if event["ph"] == "X"]
    assert len(shown) == len(profile.intervals)
    for event, interval in zip(shown, profile.intervals, strict=True):
        assert names[event["tid"]] == ("launches" if interval.thread is None else f"thread {interval.thread}")
        assert event["ts"] == interval.begin * 1e6 and event["dur"] == pytest.approx(interval.seconds * 1e6)
        row = profile.rows[interval.row]
        assert event["args"]["kernel"] == row.kernel and event["args"]["source"] == row.source
    assert all("idle" in event["args"] for event in shown if event["tid"] == 2)
    compiled.close()


def test_launches_in_a_loop_have_one_interval_for_each_time() -> None:
    x = torch.randn(8, 8)
    compiled = ingot.compile(Loop(), (x,), threads=1)
    profile = compiled.profile(x, repeat=1)
    _check(profile)
    counts = [
        sum(interval.row == row and interval.thread is None for interval in profile.intervals)
        for row in range(len(profile.rows))
    ]
    assert 40 in counts, "more than there was room for at first"
    compiled.close()


def test_a_file_without_torch_has_a_trace(tmp_path: pathlib.Path) -> None:
    x = torch.randn(4, 256)
    compiled = ingot.compile(Layers(1).eval(), (x,))
    compiled.save(tmp_path / "m.ingot")
    with load(tmp_path / "m.ingot", 1) as model:
        found = model.trace([x.numpy()], 0)
    assert {interval.thread for interval in found} == {-1, 0}
    compiled.close()


def test_idle_shares() -> None:
    def interval(row: int, thread: int | None, begin: float, end: float) -> ThreadInterval:
        return ThreadInterval(row, thread, begin, end)

    found = [interval(0, None, 0, 4), interval(0, 0, 0, 4), interval(0, 1, 1, 3), interval(2, None, 5, 6)]
    assert idle_shares(found, 3, 2) == [0.25, None, 1.0]


def test_of_a_device_launches_follow_one_another(tmp_path: pathlib.Path) -> None:
    rows = tuple(ProfileRow(f"k{i}", "add", "", "", 1e-3 * (i + 1), 0, 0, 0) for i in range(2))
    profile = Profile(rows, Roofline(0.0, 0.0))
    profile.chrome_trace(tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    shown = [(event["ts"], event["dur"], event["tid"]) for event in events if event["ph"] == "X"]
    assert shown == [(0.0, pytest.approx(1000), 1), (pytest.approx(1000), pytest.approx(2000), 1)]
    assert "idle" not in str(profile)
