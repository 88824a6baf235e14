"""benchmarks/cuda.py and cuda_start.py, as far as they need no GPU: files that are merged, and tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks import cuda, cuda_start
from benchmarks.support import cuda_table, inductor, marked_text

TIMES = {"call, ms": 1.0, "host, ms": 0.1, "back-to-back, ms": 0.5}
FIRST, SECOND = (row.name for row in cuda.ROWS[:2])


def result(**more: Any) -> dict[str, Any]:
    errors = {"Ingot": 0.1, "eager": 0.2, "Ingot, mean": 0.01, "eager, mean": 0.02, "inputs": 8}
    return {
        "compile": {"Ingot": 1.0},
        "launches": 3,
        "errors": errors,
        "Ingot": TIMES,
        "share of roofline": 0.5,
        **more,
    }


def test_rows_of_one_commit_are_merged_in_order(tmp_path: Path) -> None:
    path = tmp_path / "cuda.json"
    cuda.write_row(path, SECOND, result(), "GPU", "a" * 40)
    cuda.write_row(path, FIRST, result(), "GPU", "a" * 40)
    cuda.write_row(path, FIRST, {"failed": "no"}, "GPU", "a" * 40)
    found = json.loads(path.read_text())
    assert list(found["rows"]) == [FIRST, SECOND] and "failed" not in found["rows"][FIRST]
    assert found["commit"] == "a" * 40 and found["dirty"] is False and len(found["code"]) == 16


def test_rows_of_another_commit_are_dropped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cuda.json"
    cuda.write_row(path, FIRST, result(), "GPU", "a" * 40)
    cuda.write_row(path, SECOND, result(), "GPU", "b" * 40)
    assert list(json.loads(path.read_text())["rows"]) == [SECOND]
    assert "1 rows of other code are dropped" in capsys.readouterr().out


def test_the_ratio_is_to_the_better_mode() -> None:
    both = {"reduce-overhead": {**TIMES, "call, ms": 3.0}, "max-autotune": {**TIMES, "call, ms": 2.0}}
    assert cuda_table.better_mode(result(**both)) == "max-autotune"
    assert cuda_table.better_mode(result()) == ""
    data = {"device": "GPU", "dirty": False, "commit": "c" * 40, "machine": {"cpu": "CPU", "torch": "2"}}
    rows = {FIRST: result(**both), SECOND: result(**{"reduce-overhead": both["reduce-overhead"]})}
    text = cuda_table.tables({**data, "rows": rows})
    assert "| max-autotune | 2.000 | 0.500 | – | – | 2.00 (2) | 1.00 |" in text
    assert "| reduce-overhead † | 3.000 |" in text and "mean of 8 inputs" in text


def test_prepared_kernels_say_nothing_of_a_cold_compilation() -> None:
    spent = {"Ingot": 1.0, "Ingot, no GPU": 2.5, "reduce-overhead": 5.0}
    row = result(**{"compile": spent, "compile, prepared": {"max-autotune": 2.0}})
    data = {
        "device": "GPU",
        "dirty": False,
        "commit": "c",
        "machine": {"cpu": "CPU", "torch": "2"},
        "rows": {FIRST: row},
    }
    assert f"| {FIRST} | 1.0 | 5.0 | 5.0 (4) | 2.5 | 2.0 (4) |" in cuda_table.tables(data)
    del spent["Ingot, no GPU"]
    assert f"| {FIRST} | 1.0 | 5.0 | 5.0 (4) | – | – |" in cuda_table.tables(data)


class Counting(nn.Module):
    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * 1.001 + self.calls


def test_errors_are_means_over_inputs_and_state_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    row = cuda.Row("counting", Counting, lambda: (torch.randn(2, dtype=torch.bfloat16),), 1.0)
    monkeypatch.setattr(cuda, "_draw", lambda row: row.inputs())
    model = Counting().bfloat16()
    found = cuda.errors(row, model, lambda x: x * 1.001 + 1, 3)
    assert len(found["each"]["eager"]) == found["inputs"] == 3
    assert found["eager"] == pytest.approx(sum(found["each"]["eager"]) / 3)
    assert float(model.calls.abs().sum()) == 0 and found["Ingot"] < 0.01 > found["eager"]


def test_the_machine_settles_or_time_runs_out() -> None:
    assert inductor.settle(0.2, 0.05) >= 0


def test_workers_can_be_stopped_and_a_later_compilation_starts_new_ones() -> None:
    """Of whichever torch is installed: `async_compile` is not public."""
    inductor.stop_workers()
    workers = inductor._workers()
    assert not workers._pool_set and workers.AsyncCompile.process_pool.cache_info().currsize == 0


def test_caches_are_those_of_the_folder(tmp_path: Path) -> None:
    import os

    with inductor.empty_caches(tmp_path, tmp_path / "kernels"):
        assert Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).parent == tmp_path
        assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "kernels")
    assert os.environ.get("TRITON_CACHE_DIR") != str(tmp_path / "kernels")


def test_preparing_tells_what_became_of_each_row(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, time\nname = sys.argv[-1]\nif name == 'slow': time.sleep(60)\nsys.exit(name == 'bad')\n"
    )
    found = inductor.prepare(script, ["good", "bad", "slow"], tmp_path / "folder", 0.03)
    assert found == {"good": "prepared", "bad": "ended with 1: ", "slow": "cut off"}


def test_the_table_of_the_start(tmp_path: Path) -> None:
    who = ("Ingot", "torch, weights only", "torch, first call")
    results = {
        "device": "GPU",
        "commit": "d" * 40,
        "machine": {"torch": "2"},
        "seconds": {name: [1.0 + place] * 3 for place, name in enumerate(who)},
        "phases": {name: [{"import": 0.2, "load": 0.4}] * 3 for name in who},
        "file": 200e6,
        "weights": 100e6,
    }
    text = cuda_start.table(results)
    assert "| torch: imported, weights on the GPU | 2.00 | 0.20 | 0.40 | 2.0 (3) |" in text and ": 2.000." in text
    page = tmp_path / "page.md"
    page.write_text(f"{cuda_start.BEGIN}\n{cuda_start.END}\n")
    marked_text.replace(page, cuda_start.BEGIN, cuda_start.END, text)
    assert text in page.read_text()
