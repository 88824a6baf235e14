"""The main job, on two models of full size: compiled, compared with eager, saved, and run where there is no torch.

make demo                          ResNet-50 and BERT-base, with random weights
python examples/demo.py --small    the same stages with models of a few layers
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from transformers import BertConfig, BertModel, ResNetConfig, ResNetForImageClassification

import ingot
from ingot.benchmarking import time_interleaved

Inputs = dict[str, torch.Tensor]
console = Console(highlight=False, soft_wrap=True)

# What a server would run: numpy and ingot_runtime. torch cannot be imported here at all.
WITHOUT_TORCH = """
import sys, time
sys.modules["torch"] = None
begin = time.perf_counter()
import numpy as np, ingot_runtime
file, inputs, outputs = sys.argv[1:]
model = ingot_runtime.load(file)
result = model(**np.load(inputs))
seconds = time.perf_counter() - begin
wanted = np.load(outputs)
worst = max(float(np.abs(result[name] - wanted[name]).max()) for name in wanted.files)
assert worst < 1e-3, worst
print(f"{seconds:.2f} s from start to result, largest difference {worst:.1e}")
"""


def resnet(small: bool) -> tuple[nn.Module, Inputs]:
    """A ResNet-50, which is transformers' default, and one image."""
    config = ResNetConfig(hidden_sizes=[16, 32, 64, 128], depths=[1, 1, 1, 1], embedding_size=16) if small else None
    size = 64 if small else 224
    return ResNetForImageClassification(config or ResNetConfig()), {"pixel_values": torch.randn(1, 3, size, size)}


def bert(small: bool) -> tuple[nn.Module, Inputs]:
    """A BERT-base, which is transformers' default, and a sentence of 128 tokens."""
    config = BertConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128)
    ids = torch.randint(0, 1000, (1, 128))
    return BertModel(config if small else BertConfig()), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def milliseconds(calls: dict[str, Callable[[], object]], repeat: int) -> dict[str, float]:
    """The median of each kind of call. They take turns, each timed call after an untimed one of its own kind."""
    return {name: 1e3 * statistics.median(taken) for name, taken in time_interleaved(calls, repeat).items()}


@contextmanager
def progress(what: str) -> Iterator[None]:
    """Says what is done, and then how long it took."""
    begin = time.perf_counter()
    yield
    console.print(f"  {what}: {time.perf_counter() - begin:.2f} s")


def show(name: str, model: nn.Module, inputs: Inputs, folder: Path, repeat: int) -> list[str]:
    """Takes one model through all stages, and gives its row of the table."""
    console.rule(name, align="left")
    model.eval()

    begin = time.perf_counter()
    compiled = ingot.compile(model, (), inputs)
    first = compiled(**inputs)
    compiling = time.perf_counter() - begin
    lines = compiled.source.count("\n")
    console.print(
        f"  from the model to its first result: {compiling:.2f} s, {compiled.kernels} kernels, {lines:,} lines of C"
    )

    expected = model(**inputs)
    worst = 0.0
    for have, want in zip(first.to_tuple(), expected.to_tuple(), strict=True):
        torch.testing.assert_close(have, want, rtol=1e-3, atol=1e-3)
        worst = max(worst, (have - want).abs().max().item())
    console.print(f"  equal to eager: largest difference {worst:.1e}")

    with progress(f"timing {repeat} calls, compared with eager"):
        times = milliseconds({"ingot": lambda: compiled(**inputs), "eager": lambda: model(**inputs)}, repeat)

    file = folder / f"{name}.ingot"
    with progress("saving"):
        compiled.save(file)
    compiled.close()
    np.savez(folder / "inputs.npz", **{key: value.numpy() for key, value in inputs.items()})
    np.savez(folder / "outputs.npz", **{key: value.numpy() for key, value in expected.items()})
    command = (sys.executable, "-c", WITHOUT_TORCH, str(file), str(folder / "inputs.npz"), str(folder / "outputs.npz"))
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), check=False)
    if done.returncode != 0:
        raise SystemExit(f"the saved file does not run without torch:\n{done.stderr}")
    console.print(f"  the saved file in a process without torch: {done.stdout.strip()}\n")
    return [name, *(f"{times[kind]:.1f} ms" for kind in ("ingot", "eager")), f"{compiling:.1f} s", megabytes(file)]


def megabytes(file: Path) -> str:
    """The size of a file."""
    return f"{file.stat().st_size / 1e6:.1f} MB"


@torch.no_grad()
def main() -> None:
    """Runs the demo."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--small", action="store_true", help="models of a few layers")
    parser.add_argument("--repeat", type=int, default=5, help="timed calls of each kind")
    options = parser.parse_args()
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    threads = torch.get_num_threads()
    table = Table("model", "Ingot", "eager", "compile", "file", title=f"batch 1, float32, {threads} threads, medians")
    with tempfile.TemporaryDirectory() as folder:
        for name, make in (("resnet", resnet), ("bert", bert)):
            table.add_row(*show(name, *make(options.small), Path(folder), options.repeat))
    console.print(table)


if __name__ == "__main__":
    main()
