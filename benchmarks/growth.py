"""How compile time, code and run time grow with a model's depth and with its batch.

    python benchmarks/growth.py    # a Llama of 4, 16 and 64 layers; batch 1, 2, 4 and 8; writes results/growth.json

Compiled cold, the least of three; run time is a median. Identical layers share their kernels, so the number of kernels
must not grow with depth, and compile time grows by what capture and passes take for a layer.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # not this folder: onnx.py would hide the package of its name

import torch
import transformers

import ingot
from benchmarks import report
from benchmarks.models import THREADS, Plain

LAYERS = (4, 16, 64)
BATCHES = (1, 2, 4, 8)
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
    main()
