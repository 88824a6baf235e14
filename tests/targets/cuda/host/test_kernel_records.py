"""When a GPU ran which kernel. CUPTI's part is played by the emulated driver, where kernels take 600 ns each."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path

import pytest
import torch
from torch import nn

import ingot
from ingot.artifacts.profiler import place_records
from ingot_runtime.device_model import DeviceModel
from ingot_runtime.native import cuda_activity
from ingot_runtime.native.cuda_activity import KernelRecord, KernelRecorder
from tests.support.cuda_emulation.target import EMULATED, EmulatedDriver


@pytest.fixture
def recorder(driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> KernelRecorder:
    made = KernelRecorder(ctypes.CDLL(str(driver.path)))
    monkeypatch.setattr(cuda_activity, "find_recorder", lambda: made)
    return made


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).softmax(-1)).cumsum(0)


@pytest.mark.usefixtures("recorder")
def test_a_profile_says_when_each_launch_ran(tmp_path: Path) -> None:
    x = torch.randn(5, 8)
    compiled = ingot.compile(Layers().eval(), (x,), target=EMULATED)
    profile = compiled.profile(x, repeat=2, trace=tmp_path / "t.json")
    assert len(profile.rows) >= 3
    assert [interval.row for interval in profile.intervals] == list(range(len(profile.rows)))
    assert [interval.begin for interval in profile.intervals] == pytest.approx(
        [1e-6 * n for n in range(len(profile.rows))]
    )
    assert all(interval.seconds == pytest.approx(6e-7) for interval in profile.intervals)
    assert all(interval.thread is None for interval in profile.intervals)
    assert all(row.idle is None for row in profile.rows)
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert [event["name"] for event in events if event["ph"] == "M"].count("thread_name") == 1
    compiled.close()


@pytest.mark.usefixtures("recorder")
def test_kernels_of_a_loop_are_placed_again() -> None:
    class Repeats(nn.Module):
        def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
            def more(i: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
                return i < n

            def step(i: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                return i + 1, x.cumsum(0)

            return torch._higher_order_ops.while_loop(more, step, (torch.zeros((), dtype=torch.int64), x))[1]

    args = torch.randn(4, 3), torch.tensor(3)
    compiled = ingot.compile(Repeats(), args, target=EMULATED)
    profile = compiled.profile(*args, repeat=1)
    counts = [sum(interval.row == row for interval in profile.intervals) for row in range(len(profile.rows))]
    assert max(counts) >= 3
    compiled.close()


def test_records_are_placed_in_order() -> None:
    def record(name: str, begin: int) -> KernelRecord:
        return KernelRecord(name, begin, begin + 5)

    found = place_records(
        [record("k0", 100), record("k7", 110), record("k1", 120), record("k0", 140)], ["k0", "k1", "k0"]
    )
    assert [interval.row for interval in found] == [0, 1, 2]
    assert [interval.begin for interval in found] == pytest.approx([0, 20e-9, 40e-9])


def test_without_records_launches_follow_one_another(
    driver: EmulatedDriver, recorder: KernelRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(5, 8)
    compiled = ingot.compile(Layers().eval(), (x,), target=EMULATED)
    monkeypatch.setenv("INGOT_EMULATED_FAULT", "cuptiActivityEnable")
    assert compiled.profile(x, repeat=1).intervals == ()
    monkeypatch.delenv("INGOT_EMULATED_FAULT")
    monkeypatch.setattr(cuda_activity, "find_recorder", lambda: None)
    assert compiled.profile(x, repeat=1).intervals == ()
    compiled.close()


def test_calls_that_are_not_recorded_leave_nothing(recorder: KernelRecorder) -> None:
    x = torch.randn(5, 8)
    compiled = ingot.compile(Layers().eval(), (x,), target=EMULATED)
    assert isinstance(compiled.model, DeviceModel)
    compiled(x)
    with recorder.record() as records:
        pass
    assert records == []
    with recorder.record() as records:
        compiled(x)
    assert len(records) == compiled.launches
    assert [record.begin for record in records] == sorted(record.begin for record in records)
    compiled.close()
