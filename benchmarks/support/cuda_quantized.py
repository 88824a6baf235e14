"""One token of Llama with weights of 8 and 4 bits on a GPU, beside the same model in bfloat16.

python benchmarks/cuda.py --quantized [--only NAME …] [--without torch.compile] [--json results/cuda_quantized.json]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

import ingot
from benchmarks.support.cuda_models import QUANTIZED_ROWS, QuantizedRow

# The function of cuda.py that times calls: of each, by its name, times in milliseconds.
Timer = Callable[[dict[str, Callable[..., Any]], tuple[torch.Tensor, ...], int], dict[str, dict[str, float]]]


def measure_rows(
    only: list[str], without: list[str], repeat: int, timer: Timer, bandwidth: float,
    record: Callable[[str, dict[str, Any]], None]
) -> None:  # fmt: skip
    """Each row, given to `record` by its name."""
    for row in (row for row in QUANTIZED_ROWS if not only or any(part in row.name for part in only)):
        try:
            result = measure(row, without, repeat, timer, bandwidth)
        except Exception as failure:  # the other rows are still worth having
            result = {"failed": f"{type(failure).__name__}: {failure}"[:2000]}
        record(row.name, result)


def measure(row: QuantizedRow, without: list[str], repeat: int, timer: Timer, bandwidth: float) -> dict[str, Any]:
    """A model with integers for weights, beside the same one in bfloat16, and how far it is from eager's integers."""
    torch.manual_seed(0)
    model = row.build().eval().to("cuda", torch.bfloat16)
    args = tuple(arg.to("cuda") for arg in row.inputs())
    found: dict[str, Any] = {}
    with torch.no_grad():
        plain = ingot.compile(model, args, target="cuda", cache=False)
        program = ingot.quantize.convert(ingot.quantize.prepare(ingot.capture(model, args), row.recipe()))
        began = time.perf_counter()
        compiled = ingot.compile(program, target="cuda", cache=False)
        found["compile"] = {"Ingot": time.perf_counter() - began}
        found["launches"], found["weight bytes"] = compiled.launches, compiled.weight_bytes
        calls: dict[str, Callable[..., Any]] = {"Ingot": compiled, "Ingot, bfloat16": plain}
        if "torch.compile" not in without:
            calls["reduce-overhead, bfloat16"] = torch.compile(model, mode="reduce-overhead", fullgraph=True)
        got, exact = compiled(*args).double(), program(*args).double()
        found["difference from eager"] = float((got - exact).abs().max() / exact.abs().max())
        found |= timer(calls, args, repeat)
        floor = compiled.weight_bytes / bandwidth
        found["floor, ms"], found["share of roofline"] = floor * 1e3, floor * 1e3 / found["Ingot"]["back-to-back, ms"]
    return found
