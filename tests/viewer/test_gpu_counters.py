"""Counters of a GPU in a view. Nsight Compute's part is played by a script that prints what ncu 2025.3 printed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import ingot
from ingot.cli import app
from ingot.errors import ViewError
from ingot.viewer.collection import ViewOptions, collect_program
from ingot.viewer.measured import gpu_counters
from tests.support.cuda_emulation.target import EMULATED, EmulatedDriver, open_driver

COLUMNS = "ID,Process ID,Process Name,Host Name,Kernel Name,Context,Stream,Block Size,Grid Size,Device,CC,Section Name"
HEAD = ",".join(f'"{name}"' for name in (*COLUMNS.split(","), "Metric Name", "Metric Unit", "Metric Value"))


def row(number: int, kernel: str, metric: str, unit: str, value: str) -> str:
    fields = (number, 554, "python3.12", "127.0.0.1", kernel, 1, 7, "(256, 1, 1)", "(1056, 1, 1)", 0, "9.0", "Command")
    return ",".join(f'"{field}"' for field in (*fields, metric, unit, value))


ROWS = [
    row(0, "k0", "dram__bytes_read.sum", "byte", "16,851,456"),
    row(0, "k0", "sm__throughput.avg.pct_of_peak_sustained_elapsed", "%", "60.00"),
    row(1, "k1", "dram__bytes_read.sum", "byte", "12,288"),
    row(2, "k0", "dram__bytes_read.sum", "byte", "1,000"),
    row(2, "k0", "sm__throughput.avg.pct_of_peak_sustained_elapsed", "%", "20.00"),
]
TABLE = "\n".join(["==PROF== Connected to process 554", "==PROF== Disconnected from process 554", HEAD, *ROWS, ""])


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where `ncu` prints `said` and keeps what it was called with in `arguments`."""
    folder = tmp_path / "tools"
    folder.mkdir()
    script = folder / "ncu"
    script.write_text(
        f"#!{sys.executable}\nimport json, pathlib, sys\nhere = pathlib.Path({str(folder)!r})\n"
        "json.dump(sys.argv[1:], open(here / 'arguments', 'w'))\nprint((here / 'said').read_text(), end='')\n"
    )
    script.chmod(0o755)
    (folder / "said").write_text(TABLE)
    monkeypatch.setattr(gpu_counters, "_TOOLS", (str(script),))
    return folder


def test_counters_are_read_by_kernel(tool: Path, tmp_path: Path) -> None:
    tables = {table.title: table for table in gpu_counters.count_file(tmp_path / "m.ingot")}
    assert tables["read from memory"].values == {"k0": 16852456.0, "k1": 12288.0}
    assert tables["read from memory"].unit == "byte"
    assert tables["multiprocessors, share of peak"].values == {"k0": 40.0}
    arguments = json.loads((tool / "arguments").read_text())
    assert arguments[-1] == str(tmp_path / "m.ingot")
    assert set(arguments[arguments.index("--metrics") + 1].split(",")) == set(gpu_counters.COUNTERS)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "may not read the GPU's counters"),
        ("==WARNING== No kernels were profiled.", "ran no kernel on a GPU"),
        ("==PROF== Connected\n==ERROR== Failed to find metric x", "Failed to find metric x"),
        ("", "Nsight Compute says: nothing"),
    ],
)
def test_why_there_are_none(tool: Path, tmp_path: Path, said: str, why: str) -> None:
    (tool / "said").write_text(said)
    with pytest.raises(ViewError, match=why):
        gpu_counters.count_file(tmp_path / "m.ingot")


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x).softmax(-1).cumsum(0)


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> EmulatedDriver:
    found = open_driver()
    monkeypatch.setenv("INGOT_CUDA_DRIVER", str(found.path))
    monkeypatch.setattr("ingot.viewer.collection._find_machine", lambda options: EMULATED)
    return found


@pytest.mark.usefixtures("tool", "emulated")
def test_a_view_of_a_program_has_counters() -> None:
    program = ingot.capture(Layers().eval(), (torch.randn(3, 8),))
    view = collect_program(program, ViewOptions(target="cuda", counters=True))
    assert "read from memory" in [table.title for table in view.counters], view.notes


@pytest.mark.usefixtures("tool")
def test_code_for_the_cpu_has_none() -> None:
    program = ingot.capture(Layers().eval(), (torch.randn(3, 8),))
    view = collect_program(program, ViewOptions(counters=True))
    assert not view.counters
    assert any("code for the CPU" in note for note in view.notes)


def test_a_missing_tool_is_said_before_work_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_counters, "_TOOLS", ("ncu-that-is-not-there",))
    done = CliRunner().invoke(app, ["view", "missing.module:factory", "--counters"])
    assert "Nsight Compute (ncu) is not installed" in done.output
    assert done.exit_code
