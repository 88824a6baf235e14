"""Models in bfloat16 on a GPU: Ingot compared with torch.compile.

    python benchmarks/cuda.py [--only NAME …] [--without torch.compile] [--json results/cuda.json] [--commit HASH]
    python benchmarks/cuda.py --prepare FOLDER [--only NAME …] [--minutes 5]     kernels of max-autotune, in parallel
    python benchmarks/cuda.py --prepared FOLDER …                                measures with these at hand
    python benchmarks/cuda.py --quantized [--json results/cuda_quantized.json]   one token with weights of 8 and 4 bits

Of each: one call with a synchronization behind it, the time between calls that follow one another, the time that the
host takes to queue one of these, compile time with empty caches, and the error against float64, with eager's, over
several inputs. Peers take turns; medians. Processes that compile for torch are ended before anything is timed.

Rows are merged into a file that names the same commit and the same code; rows of other code are dropped from it.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch
from torch import nn

import ingot
from benchmarks.support import cuda_quantized, inductor, report
from benchmarks.support.cuda_models import ROWS, Row
from tests.targets.cuda.gpu.code_digest import digest_code

# What this GPU does at most, measured by copies and by large products: bytes and operations a second.
BANDWIDTH, RATE = 4.3e12, 790e12
# Inputs that errors are measured at, and calls of each peer before anything is timed.
INPUTS, WARM_UP = 8, 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="rows whose name contains one of these")
    parser.add_argument("--without", nargs="*", default=[], help="peers to leave out: torch.compile, or its modes")
    parser.add_argument("--repeat", type=int, default=50)
    parser.add_argument("--inputs", type=int, default=INPUTS, help="inputs that errors are measured at")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit", help="the commit of this tree, where git does not know it")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no row after this time")
    parser.add_argument("--prepare", type=Path, metavar="FOLDER", help="compile in max-autotune, and measure nothing")
    parser.add_argument("--prepared", type=Path, metavar="FOLDER", help="where that was done")
    parser.add_argument("--fill", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--compile-only", action="store_true", help="print compile times as JSON; needs no GPU")
    parser.add_argument("--quantized", action="store_true", help="rows with weights of 8 and 4 bits, and no others")
    parser.add_argument("--list", action="store_true", help="print the names of the rows, and measure nothing")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = [row for row in ROWS if not given.only or any(part in row.name for part in given.only)]
    end = time.monotonic() + 60 * given.minutes
    if given.list:
        print("\n".join(row.name for row in rows))
        return
    if given.prepare:
        minutes = min(given.minutes, 9)
        for name, outcome in inductor.prepare(Path(__file__), [r.name for r in rows], given.prepare, minutes).items():
            print(f"{name}: {outcome}", flush=True)
        return
    if given.fill:
        for row in rows:
            fill(row)
        return
    if given.compile_only:
        print(json.dumps({row.name: time_compilation(row) for row in rows}))
        return

    def record(name: str, result: dict[str, Any]) -> None:
        print(json.dumps({name: result}, indent=1), flush=True)
        if given.json:
            write_row(given.json, name, result, torch.cuda.get_device_properties(0).name, given.commit)

    if given.quantized:
        cuda_quantized.measure_rows(given.only, given.without, given.repeat, time_calls, BANDWIDTH, record)
        return
    kernels = given.prepared / inductor.KERNELS if given.prepared else None
    apart = compile_without_gpu(rows)
    for row in rows:
        if time.monotonic() > end:
            print(f"{row.name}: no time was left", flush=True)
            continue
        try:
            result = measure(row, given.without, given.repeat, given.inputs, kernels)
            if row.name in apart:
                result["compile"]["Ingot, no GPU"] = apart[row.name]
        except Exception as failure:  # the other rows are still worth having
            result = {"failed": f"{type(failure).__name__}: {failure}"[:2000]}
        record(row.name, result)


def write_row(path: Path, name: str, result: dict[str, Any], device: str, commit: str | None) -> None:
    """Enters a row into the file, beside those of the same commit and code; a failure does not replace a result."""
    state = {**report.commit(commit), "code": digest_code()}
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    is_same = known.get("device") == device and all(known.get(key) == value for key, value in state.items())
    rows = dict(known.get("rows", {})) if is_same else {}
    if known and not is_same:
        print(f"{path.name}: {len(known.get('rows', {}))} rows of other code are dropped", flush=True)
    if "failed" not in result or name not in rows:
        rows[name] = result
    ordered = {row.name: rows[row.name] for row in ROWS if row.name in rows}
    report.write("cuda", {**state, "device": device, "rows": ordered}, path)


def build(row: Row) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    return row.build().eval().to("cuda", torch.bfloat16), _draw(row)


def _draw(row: Row) -> tuple[torch.Tensor, ...]:
    return tuple(arg.to("cuda") for arg in row.inputs())


def fill(row: Row) -> None:
    """Compiles a row in the mode max-autotune: Triton's cache then has the kernels of all candidates."""
    model, args = build(row)
    with torch.no_grad():
        torch.compile(model, mode="max-autotune", fullgraph=True)(*args)
        torch.cuda.synchronize()


def time_compilation(row: Row) -> float:
    """Seconds to compile a row whose tensors are on the CPU, for every architecture that a file has by default."""
    torch.manual_seed(0)
    model, args = row.build().eval().to(torch.bfloat16), row.inputs()
    with torch.no_grad():
        began = time.perf_counter()
        ingot.compile(model, args, target="cuda", cache=False)
        return time.perf_counter() - began


def compile_without_gpu(rows: Sequence[Row]) -> dict[str, float]:
    """The same in a process that sees no GPU, by name; empty where that process fails."""
    names = [row.name for row in rows]
    command = [sys.executable, __file__, "--compile-only", "--only", *names]
    done = subprocess.run(command, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True)
    if done.returncode:
        print(f"without a GPU: {done.stderr[-1000:]}", flush=True)
        return {}
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return {name: found[name] for name in names}


def measure(
    row: Row, without: list[str], repeat: int, inputs: int = INPUTS, kernels: Path | None = None
) -> dict[str, Any]:
    torch._dynamo.reset()
    model, args = build(row)
    found: dict[str, Any] = {}
    calls: dict[str, Callable[..., Any]] = {}
    with tempfile.TemporaryDirectory(prefix="ingot-bench-") as folder, torch.no_grad():
        began = time.perf_counter()
        compiled = ingot.compile(model, args, target="cuda", cache=False)
        found["compile"] = {"Ingot": time.perf_counter() - began}
        found["launches"] = compiled.launches
        calls["Ingot"] = compiled
        if "torch.compile" not in without:
            for mode in (mode for mode in inductor.MODES if mode not in without):
                is_prepared = kernels is not None and mode == "max-autotune"
                inductor.start_workers()
                with inductor.empty_caches(Path(folder), kernels if is_prepared else None):
                    made = torch.compile(model, mode=mode, fullgraph=True)
                    began = time.perf_counter()
                    made(*args)
                    torch.cuda.synchronize()
                    kind = "compile, prepared" if is_prepared else "compile"
                    found.setdefault(kind, {})[mode] = time.perf_counter() - began
                    for _ in range(3):  # whatever is compiled or captured later has its caches, too
                        made(*args)
                calls[mode] = made
        calls |= dict(row.peers) or {"eager": model}
        found["errors"] = errors(row, model, compiled, inputs)
        inductor.stop_workers()
        found["busy cores"] = inductor.settle()
        for name, times in time_calls(calls, args, repeat).items():
            found[name] = times
        weights = sum(p.numel() * 2 for p in model.parameters())
        floor = max(weights / BANDWIDTH, row.flops / RATE)
        found["floor, ms"], found["share of roofline"] = floor * 1e3, floor * 1e3 / found["Ingot"]["back-to-back, ms"]
    return found


def errors(row: Row, model: nn.Module, compiled: Any, inputs: int) -> dict[str, Any]:
    """The largest and the mean differences from float64, relative to its largest value: means over several inputs, and
    those of each. Of tensors whose scores would not fit into memory, those of a few heads.

    Every call of eager begins with the state of the first one. Ingot's keeps its own, and a row's inputs differ in
    numbers alone: a call writes to the same places as the one before it.
    """
    cut = sum(arg.numel() for arg in _draw(row)) > 5e6
    wide = copy.deepcopy(model).double()
    each: dict[str, list[float]] = {}
    for number in range(inputs):
        torch.manual_seed(100 + number)
        args = _draw(row)
        if cut:
            args = tuple(arg[:1, :1].contiguous() for arg in args)
            if not number:
                compiled = ingot.compile(model, args, target="cuda")
        with _state_kept(wide):
            exact = wide(*[arg.double() if arg.is_floating_point() else arg for arg in args])
        scale = exact.abs().max()
        for name, call in (("Ingot", compiled), ("eager", model)):
            with _state_kept(model):
                apart = (call(*args).double() - exact).abs()
            each.setdefault(name, []).append(float(apart.max() / scale))
            each.setdefault(f"{name}, mean", []).append(float(apart.mean() / scale))
    del wide, exact, apart
    gc.collect()
    torch.cuda.empty_cache()
    means = {name: statistics.fmean(values) for name, values in each.items()}
    return {**means, "inputs": inputs, "each": each}


@contextlib.contextmanager
def _state_kept(model: nn.Module) -> Iterator[None]:
    """Buffers have the same values behind it as before it."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    yield
    for buffer, values in before:
        buffer.copy_(values)


def time_calls(
    calls: dict[str, Callable[..., Any]], args: tuple[torch.Tensor, ...], repeat: int
) -> dict[str, dict[str, float]]:
    single: dict[str, list[float]] = {name: [] for name in calls}
    host: dict[str, list[float]] = {name: [] for name in calls}
    chained: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(WARM_UP):
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
