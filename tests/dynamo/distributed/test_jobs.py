"""Jobs of two processes under torchrun: compiled, they train as in eager."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[3]
# Those whose graphs torch.compile makes; training=True has no reports.
COMPILED = (
    "ddp_of_compiled", "compiled_ddp", "fsdp_of_compiled", "compiled_fsdp", "compiled_tensor_parallel"
)  # fmt: skip
WAYS = (*COMPILED, "ddp_of_trained", "fsdp_of_trained")
SECONDS = 600

pytestmark = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()), reason="torch without gloo"
)


def run(*ways: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "tests.support.distributed.worker", *ways]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([*sys.path, str(ROOT)])}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS)


@pytest.fixture(scope="module")
def lines() -> list[dict[str, Any]]:
    done = run(*WAYS)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("way", WAYS)
def test_a_job_trains_as_in_eager(lines: list[dict[str, Any]], way: str) -> None:
    found = [line for line in lines if line["way"] == way]
    assert sorted(line["rank"] for line in found) == [0, 1]
    for line in found:
        for name in ("losses", "norms"):
            torch.testing.assert_close(
                torch.tensor(line[name]), torch.tensor(line[f"{name} of eager"]), rtol=1e-5, atol=1e-6
            )
        if way in COMPILED:
            assert set(line["halves"]) == {"forward", "backward"} and all(line["native"])
        assert bool(sum(line["communications"])) == (way == "compiled_tensor_parallel")


@pytest.mark.parametrize("way", ["compiled_ddp", "compiled_tensor_parallel"])
def test_a_killed_process_ends_the_job(way: str) -> None:
    begin = time.monotonic()
    done = run(f"die:{way}")
    assert done.returncode != 0
    assert "Signal 9 (SIGKILL) received" in done.stderr and "rank      : 1" in done.stderr
    assert time.monotonic() - begin < SECONDS / 2  # nobody waits for it
