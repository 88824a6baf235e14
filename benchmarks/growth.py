"""How compile time, code and run time grow with a model's depth and with its batch.

    python benchmarks/growth.py          # a Llama of 4, 16 and 64 layers; batch 1, 2, 4 and 8: results/growth.json
    python benchmarks/growth.py chains   # 300, 1,000 and 3,000 small layers in a chain: results/growth-chains.json

Compiled cold, the least of three; run time is a median. Identical layers share their kernels, so the number of kernels
must not grow with depth, and compile time grows by what capture and passes take for a layer. Each chain is compiled in
a process of its own, after a short one that imports everything.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # not this folder: onnx.py would hide the package of its name

import torch
import transformers
from torch import nn

import ingot
from benchmarks.models import THREADS, Plain
from benchmarks.support import report

LAYERS = (4, 16, 64)
BATCHES = (1, 2, 4, 8)
CHAINS = (300, 1000, 3000)
KINDS = ("linear", "convolution")
SMALL = {"hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 4, "num_key_value_heads": 4,
         "vocab_size": 1000}  # fmt: skip


def main() -> None:
    torch.set_num_threads(THREADS)
    depth = [_measured(layers, 1) for layers in LAYERS]
    batch = [_measured(4, size) for size in BATCHES]
    headers = ["layers", "batch", "compile s", "kernels", "ms", "ms a layer", "ms an item"]
    print(report.table(headers, [_cells(row) for row in (*depth, *batch)]))
    compile_growth = (depth[-1]["compile_s"] / depth[0]["compile_s"]) / (LAYERS[-1] / LAYERS[0])
    run_growth = (depth[-1]["ms"] / depth[0]["ms"]) / (LAYERS[-1] / LAYERS[0])
    batch_growth = (batch[-1]["ms"] / batch[0]["ms"]) / (BATCHES[-1] / BATCHES[0])
    found = {"compile over depth": compile_growth, "run over depth": run_growth, "run over batch": batch_growth}
    for name, value in found.items():
        print(f"{name}: {value:.2f} of linear growth")
    print(report.write("growth", {"depth": depth, "batch": batch, "of_linear": found}))


class Block(nn.Module):
    """A convolution, its batch norm, and what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.convolution(x)) + x)


def chains() -> None:
    rows = []
    for kind in KINDS:
        for layers in CHAINS:
            command = (sys.executable, __file__, "chain", kind, str(layers))
            rows.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    stages = [*rows[0]["stages"]]
    cells = [
        [row["kind"], str(row["layers"]), f"{row['compile_s']:.2f}", f"{row['compile_s'] / row['layers'] * 1e3:.2f}"]
        + [f"{row['stages'][stage]:.2f}" for stage in stages]
        for row in rows
    ]
    print(report.table(["chain of", "layers", "compile s", "ms a layer", *stages], cells))
    each = {(row["kind"], row["layers"]): row["compile_s"] / row["layers"] for row in rows}
    found = {kind: each[kind, CHAINS[-1]] / each[kind, CHAINS[0]] for kind in KINDS}
    for kind, value in found.items():
        print(f"{kind}: a layer of {CHAINS[-1]:,} takes {value:.2f} of what one of {CHAINS[0]:,} takes")
    print(report.write("growth-chains", {"chains": rows, "of_linear": found}))


def _chain(kind: str, layers: int) -> dict[str, Any]:
    """Compiles a chain in this process: the seconds of each stage and of all."""
    torch.manual_seed(0)
    torch.set_num_threads(THREADS)
    made: list[nn.Module] = []
    for _ in range(layers):
        made += [nn.Linear(16, 16), nn.ReLU()] if kind == "linear" else [Block()]
    model, x = nn.Sequential(*made).eval(), torch.randn((4, 16) if kind == "linear" else (1, 16, 8, 8))
    ingot.compile(model[:4], (x,), threads=THREADS, cache=False)
    stages: dict[str, float] = {}

    @contextlib.contextmanager
    def watch(stage: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        stages[stage] = stages.get(stage, 0) + time.perf_counter() - begin

    with torch.no_grad():
        begin = time.perf_counter()
        ingot.compile(model, (x,), threads=THREADS, cache=False, on_stage=watch)
        seconds = time.perf_counter() - begin
    return {"kind": kind, "layers": layers, "compile_s": seconds, "stages": stages}


def _measured(layers: int, batch: int) -> dict[str, Any]:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SMALL, num_hidden_layers=layers)
    model = Plain(transformers.LlamaForCausalLM(config), use_cache=False).eval()
    inputs = (torch.randint(0, 1000, (batch, 64)),)
    seconds = []
    with torch.no_grad():
        for _ in range(3):
            begin = time.perf_counter()
            compiled = ingot.compile(model, inputs, threads=THREADS, cache=False)
            seconds.append(time.perf_counter() - begin)
        times = []
        for _ in range(30):
            begin = time.perf_counter()
            compiled(*inputs)
            times.append(time.perf_counter() - begin)
    kernels = len({row.kernel for row in compiled.profile(*inputs, repeat=1).rows})
    return {"layers": layers, "batch": batch, "compile_s": min(seconds), "kernels": kernels,
            "ms": statistics.median(times) * 1e3}  # fmt: skip


def _cells(row: dict[str, Any]) -> list[str]:
    ms = row["ms"]
    return [str(row["layers"]), str(row["batch"]), f"{row['compile_s']:.2f}", str(row["kernels"]), f"{ms:.2f}",
            f"{ms / row['layers']:.3f}", f"{ms / row['batch']:.2f}"]  # fmt: skip


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["chains"]:
            chains()
        case ["chain", kind, layers]:
            print(json.dumps(_chain(kind, int(layers))))
        case _:
            main()
