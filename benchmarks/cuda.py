"""Models in bfloat16 on a GPU: Ingot beside torch.compile.

    python benchmarks/cuda.py [--only NAME …] [--without torch.compile] [--json results/cuda.json]

Of each: one call with a synchronization behind it, the time between calls that follow one another, the time that the
host takes to queue one of these, compile time with empty caches, and the error against float64 beside eager's. Peers
take turns; medians.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch
from torch import nn

import ingot
from benchmarks import report
from benchmarks.cuda_models import ROWS, Row

# What this GPU does at most, measured by copies and by large products: bytes and operations a second.
BANDWIDTH, RATE = 4.3e12, 790e12
MODES = ("reduce-overhead", "max-autotune")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="rows whose name contains one of these")
    parser.add_argument("--without", nargs="*", default=[], help="peers to leave out: torch.compile, or its modes")
    parser.add_argument("--repeat", type=int, default=50)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = [row for row in ROWS if not given.only or any(part in row.name for part in given.only)]
    results = {}
    for row in rows:
        try:
            results[row.name] = measure(row, given.without, given.repeat)
        except Exception as failure:  # the other rows are still worth having
            results[row.name] = {"failed": f"{type(failure).__name__}: {failure}"[:2000]}
        print(json.dumps({row.name: results[row.name]}, indent=1), flush=True)
        if given.json:
            properties = torch.cuda.get_device_properties(0)
            report.write("cuda", {"device": properties.name, "rows": results}, given.json)


def measure(row: Row, without: list[str], repeat: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model = row.build().eval().to("cuda", torch.bfloat16)
    args = tuple(arg.to("cuda") for arg in row.inputs())
    found: dict[str, Any] = {}
    calls: dict[str, Callable[..., Any]] = {}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        began = time.perf_counter()
        compiled = ingot.compile(model, args, target="cuda", cache=False)
        found["compile"] = {"Ingot": time.perf_counter() - began}
        found["launches"] = compiled.launches
        calls["Ingot"] = compiled
        if "torch.compile" not in without:
            for mode in (mode for mode in MODES if mode not in without):
                torch._dynamo.reset()
                made = torch.compile(model, mode=mode, fullgraph=True)
                began = time.perf_counter()
                made(*args)
                torch.cuda.synchronize()
                found["compile"][mode] = time.perf_counter() - began
                calls[mode] = made
        calls |= dict(row.peers) or {"eager": model}
        found["errors"] = errors(model, compiled, args)
        for name, times in time_calls(calls, args, repeat).items():
            found[name] = times
        weights = sum(p.numel() * 2 for p in model.parameters())
        floor = max(weights / BANDWIDTH, row.flops / RATE)
        found["floor, ms"], found["share of roofline"] = floor * 1e3, floor * 1e3 / found["Ingot"]["back-to-back, ms"]
        del folder
    return found


def errors(model: nn.Module, compiled: Any, args: tuple[torch.Tensor, ...]) -> dict[str, float]:
    """The largest differences from float64, relative to its largest value. Of tensors whose scores would not fit into
    memory, those of a few heads."""
    if sum(arg.numel() for arg in args) > 5e6:
        args = tuple(arg[:1, :1] for arg in args)
        compiled = ingot.compile(model, args, target="cuda")
    got, eager = compiled(*args), model(*args)
    exact = copy.deepcopy(model).double()(*[arg.double() if arg.is_floating_point() else arg for arg in args])
    scale = exact.abs().max()
    return {
        "Ingot": float((got.double() - exact).abs().max() / scale),
        "eager": float((eager.double() - exact).abs().max() / scale),
        "Ingot, mean": float((got.double() - exact).abs().mean() / scale),
        "eager, mean": float((eager.double() - exact).abs().mean() / scale),
    }


def time_calls(
    calls: dict[str, Callable[..., Any]], args: tuple[torch.Tensor, ...], repeat: int
) -> dict[str, dict[str, float]]:
    single: dict[str, list[float]] = {name: [] for name in calls}
    host: dict[str, list[float]] = {name: [] for name in calls}
    chained: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(5):
            call(*args)
    torch.cuda.synchronize()
    for _ in range(repeat):
        for name, call in calls.items():
            began = time.perf_counter()
            call(*args)
            torch.cuda.synchronize()
            single[name].append(time.perf_counter() - began)
    for _ in range(5):
        for name, call in calls.items():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            began = time.perf_counter()
            for _ in range(20):
                call(*args)
            host[name].append((time.perf_counter() - began) / 20)
            end.record()
            torch.cuda.synchronize()
            chained[name].append(begin.elapsed_time(end) / 20)
    return {
        name: {
            "call, ms": statistics.median(single[name]) * 1e3,
            "host, ms": statistics.median(host[name]) * 1e3,
            "back-to-back, ms": statistics.median(chained[name]),
        }
        for name in calls
    }


if __name__ == "__main__":
    main()
