"""What users may say to torch.compile, and what they hear."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn

from ingot import dynamo
from ingot.errors import IngotError
from tests.dynamo.recording import Recording, close


@torch.no_grad()
def test_options(recording: Recording) -> None:
    model, x = nn.Linear(64, 64).eval(), torch.randn(32, 64)
    exact = torch.compile(model, backend=recording, options={"threads": 1, "cache": False, "disable_passes": "cse"})
    close(exact(x), model(x))
    torch._dynamo.reset()
    rounded = torch.compile(model, backend=recording, options={"precision": "bfloat16"})(x)
    torch.testing.assert_close(rounded, model(x), rtol=2e-2, atol=2e-2)
    assert (rounded - model(x)).abs().max() > 1e-4  # its weights are bfloat16
    assert recording.native == [True, True]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"thread": 1}, "no option thread; it has threads"),
        ({"threads": 0}, "threads is 0"),
        ({"precision": "float8"}, "precision is 'float8'"),
        ({"disable_passes": ["nothing"]}, "no optional pass 'nothing'"),
    ],
)
def test_wrong_options(options: dict[str, Any], says: str) -> None:
    with pytest.raises((ValueError, IngotError), match=says):
        dynamo.compile_graph(fx.symbolic_trace(nn.ReLU()), (torch.ones(2),), options=options)


@torch.no_grad()
def test_fullgraph_and_explain(recording: Recording) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(broken, backend=recording, fullgraph=True)(torch.ones(3))
    torch._dynamo.reset()
    close(torch.compile(torch.sin, backend=recording, fullgraph=True)(torch.ones(3)), torch.ones(3).sin())
    assert torch._dynamo.explain(broken)(torch.ones(3)).graph_count == 2


@torch.no_grad()
def test_dynamic_false_compiles_each_size(recording: Recording) -> None:
    compiled = torch.compile(lambda x: x.sin() + 1, backend=recording, dynamic=False)
    for size in (3, 4, 5):
        close(compiled(torch.ones(size)), torch.ones(size).sin() + 1)
    assert recording.native == [True] * 3


@torch.no_grad()
def test_messages(recording: Recording, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="ingot.dynamo")
    torch.compile(lambda x: x.sin() + 1, backend=recording)(torch.ones(3))
    texts = [record.getMessage() for record in caplog.records if record.name == "ingot.dynamo"]
    assert texts == ["A graph of 2 operations is native code, 1 kernels."]


def test_the_next_process_compiles_nothing(tmp_path: Path) -> None:
    """Of inference and of training: the libraries come from the cache."""
    script = (
        "import sys, torch\n"
        "from torch import nn\n"
        "from ingot.dynamo import compile_graph\n"
        "torch.manual_seed(0)\n"
        "model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4))\n"
        "reports = []\n"
        "compiled = torch.compile(model, backend=compile_graph, options={'on_graph': reports.append})\n"
        "x = torch.randn(3, 8)\n"
        "compiled(x).sum().backward()\n"
        "model.eval()\n"
        "with torch.no_grad():\n"
        "    torch.testing.assert_close(compiled(x), model(x))\n"
        "assert len(reports) == 3 and all(report.is_native for report in reports), reports\n"
    )
    environment = {
        **os.environ,
        "INGOT_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    for number in range(2):
        logs = {**environment, "INGOT_LOGS": "cache"}
        done = subprocess.run((sys.executable, "-c", script), capture_output=True, text=True, env=logs, check=False)
        assert done.returncode == 0, done.stderr
        found = (done.stderr.count("] miss: "), done.stderr.count("] hit: "))
        assert found == ((3, 0) if number == 0 else (0, 3)), done.stderr
