"""Attention and scans with users' functions inside, against what torch has for them.

    python benchmarks/functions.py                                       # everything; writes results/functions.json
    python benchmarks/functions.py --lengths 512 --functions causal      # some of it; writes nothing

Forward, float32, two threads. Ingot is `ingot.attention`; beside it stand the same sum written with whole matrices in
eager, `torch.compile(flex_attention)`, and `scaled_dot_product_attention` where the function is a mask that it takes.
Candidates take turns, each after a pause, for torch's threads spin on a core for a while after their work is done; a
time is the median of its turns. Results are judged by float64: the error of attention may be four times eager's own.
A compile time is that of the first call less that of a later one, for a function that neither side has met; neither may
read or write a cache on disk, and both have compiled something else before, so that no import is counted. Memory is
what a call adds to the process at its peak, by length, in a process of its own.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # Not this folder: onnx.py would hide the package of its name.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    os.environ.setdefault("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
    os.environ.setdefault("INGOT_DISABLE_CACHE", "1")

import torch
import torch.nn.functional as F
from torch._higher_order_ops.associative_scan import associative_scan
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import ingot
from benchmarks.models import THREADS
from benchmarks.support import report
from ingot.benchmarking import time_interleaved

LENGTHS = (512, 1024, 2048, 4096)
SCANS = ((1, 4096, 64), (1, 4096, 1024), (8, 4096, 256))
MEMORY = (512, 1024, 2048, 4096, 8192)
PAUSE = 0.2  # seconds before each turn
TURN = 0.03  # seconds of calls that a turn has at least
JUDGED = 2  # heads whose results are compared with float64
WINDOW = 256

Run = Callable[[], Any]
Row = dict[str, Any]


def _shape(length: int) -> tuple[int, int, int, int]:
    return (1, 8 if length <= 1024 else 16, length, 64)


@dataclass(frozen=True)
class Case:
    """A score function, a mask, and, if it can say the same, the arguments of scaled_dot_product_attention."""

    score: Any = None
    mask: Any = None
    plain: Callable[[int, int], dict[str, Any]] | None = None


def _cases(heads: int, length: int) -> dict[str, Case]:
    slopes = torch.tensor([2.0 ** -(8 * (h + 1) / heads) for h in range(heads)])
    table = torch.randn(heads, 2 * length)
    documents = torch.arange(length) // max(1, length // 4)

    def causal(b: Any, h: Any, i: Any, j: Any) -> Any:
        return i >= j

    def window(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (i >= j) & (i - j < WINDOW)

    def inside(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (documents[i] == documents[j]) & (i >= j)

    def dense(mask: Any) -> Callable[[int, int], dict[str, Any]]:
        places = torch.arange(length)
        return lambda h, n: {"attn_mask": mask(None, None, places[:, None], places[None, :])}

    def alibi(h: int, n: int) -> dict[str, Any]:
        places = torch.arange(n)
        return {"attn_mask": (-slopes[:, None, None] * (places[None, :] - places[:, None]).abs())[None]}

    return {
        "trivial": Case(plain=lambda h, n: {}),
        "causal": Case(mask=causal, plain=lambda h, n: {"is_causal": True}),
        "window": Case(mask=window, plain=dense(window)),
        "documents": Case(mask=inside, plain=dense(inside)),
        "alibi": Case(score=lambda s, b, h, i, j: s - slopes[h] * torch.abs(i - j), plain=alibi),
        "soft cap": Case(score=lambda s, b, h, i, j: 20 * torch.tanh(s / 20), mask=causal),
        "relative bias": Case(score=lambda s, b, h, i, j: s + table[h, i - j + length]),
    }


def _eager(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Every score in memory at once."""
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]))
    b, h, i, j = (torch.arange(n).view([-1 if d == e else 1 for e in range(4)]) for d, n in enumerate(scores.shape))
    if case.score is not None:
        scores = case.score(scores, b, h, i, j)
    if case.mask is not None:
        scores = scores.masked_fill(~case.mask(b, h, i, j), -math.inf)
    return torch.softmax(scores, -1) @ v


def _first(run: Run) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = run()
    return time.perf_counter() - begin, result


def _medians(runs: dict[str, Run], rounds: int) -> dict[str, float]:
    """Milliseconds of each."""
    times = time_interleaved(runs, rounds, pause=PAUSE, least=TURN)
    return {name: 1e3 * statistics.median(found) for name, found in times.items()}


def _judge(case: Case, result: torch.Tensor, *given: torch.Tensor) -> None:
    """Raises unless a result is as near to float64 as eager's own is, or four times as far."""
    q, k, v = (x[:, :JUDGED] for x in given)
    exact = _eager(case, q.double(), k.double(), v.double())
    limit = 4 * float((_eager(case, q, k, v) - exact).abs().max()) + 1e-6
    error = float((result[:, :JUDGED] - exact).abs().max())
    assert error <= limit, f"an error of {error:.2g}, where {limit:.2g} is allowed"


def _warm_up() -> None:
    """Both compilers once, on something that is measured nowhere."""
    q = torch.randn(1, 1, 16, 8)
    torch.compile(flex_attention, dynamic=False)(q, q, q, score_mod=lambda s, b, h, i, j: s + 1)
    ingot.attention(q, q, q, lambda s, b, h, i, j: s + 1)


def _attention(length: int, functions: list[str]) -> list[Row]:
    torch.manual_seed(0)
    shape = _shape(length)
    q, k, v = (torch.randn(shape) for _ in range(3))
    rows = []
    for name, case in _cases(shape[1], length).items():
        if name not in functions:
            continue
        torch._dynamo.reset()
        blocks = create_block_mask(case.mask, None, None, length, length, device="cpu") if case.mask else None
        compiled = torch.compile(flex_attention, dynamic=False)
        ours = functools.partial(ingot.attention, q, k, v, case.score, case.mask)
        theirs = functools.partial(compiled, q, k, v, score_mod=case.score, block_mask=blocks)
        first = {"ingot": _first(ours), "compiled flex": _first(theirs)}
        _judge(case, first["ingot"][1], q, k, v)
        runs: dict[str, Run] = {"ingot": ours, "compiled flex": theirs}
        runs["eager"] = functools.partial(_eager, case, q, k, v)
        if case.plain is not None:
            options = case.plain(shape[1], length)
            runs["sdpa"] = functools.partial(F.scaled_dot_product_attention, q, k, v, **options)
        times = _medians(runs, 5 if length <= 1024 else 3)
        compiling = {side: max(seconds - times[side] / 1e3, 1e-3) for side, (seconds, _) in first.items()}
        rows.append({"shape": "×".join(map(str, shape)), "function": name, "ms": times, "compile_s": compiling})
        print(f"  {rows[-1]['shape']}  {name}: " + ", ".join(f"{n} {t:.1f}" for n, t in times.items()), flush=True)
    return rows


# ---------------------------------------------------------------------- scans


def _combine(a: Any, b: Any) -> Any:
    return a[0] * b[0], b[0] * a[1] + b[1]


def _loop(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    state = b[:, 0]
    states = [state]
    for t in range(1, a.shape[1]):
        state = a[:, t] * state + b[:, t]
        states.append(state)
    return torch.stack(states, 1)


def _scans(shapes: Sequence[tuple[int, ...]]) -> list[Row]:
    rows = []
    for shape in shapes:
        a, b = torch.rand(shape), torch.randn(shape)
        scanned = functools.partial(associative_scan, _combine, (a, b), 1, combine_mode="generic")
        compiled = ingot.compile(
            lambda a, b: associative_scan(_combine, (a, b), 1, combine_mode="generic"), (a, b), threads=THREADS
        )
        torch.testing.assert_close(compiled(a, b)[1], _loop(a, b), rtol=1e-4, atol=1e-4)
        runs: dict[str, Run] = {
            "ingot": functools.partial(compiled, a, b),
            "eager associative_scan": scanned,
            "loop of steps": functools.partial(_loop, a, b),
        }
        rows.append({"shape": "×".join(map(str, shape)), "ms": _medians(runs, 5)})
    return rows


# ---------------------------------------------------------------------- memory

_PEAK = """
import sys, torch, ingot
from pathlib import Path
from torch.nn.attention.flex_attention import BlockMask, flex_attention

def said(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))

def model(q, k, v):
    return flex_attention(q, k, v, lambda s, b, h, i, j: 20 * torch.tanh(s / 20), blocks)

n, one = int(sys.argv[1]), torch.ones(1, 1, 1, dtype=torch.int32)
blocks = BlockMask.from_kv_blocks(one, one[..., None] - 1, BLOCK_SIZE=1 << 30, mask_mod=lambda b, h, i, j: i >= j,
                                  seq_lengths=(n, n))
q, k, v = (torch.randn(1, 8, n, 64) for _ in range(3))
compiled = ingot.compile(model, (q, k, v), threads=2)
Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
before = said("VmRSS")
compiled(q, k, v)
print(said("VmHWM") - before)
"""


def _memory(lengths: Sequence[int]) -> list[Row]:
    """KiB that a process has at its peak, in a call, beyond what it had before: results, tiles, scratch."""
    rows = []
    for length in lengths:
        command = [sys.executable, "-c", _PEAK, str(length)]
        said = subprocess.run(command, capture_output=True, text=True, check=True)
        rows.append({"length": length, "kib": int(said.stdout), "scores_kib": 8 * length * length * 4 // 1024})
    return rows


# ---------------------------------------------------------------------- the report


@dataclass(frozen=True)
class Figure:
    """What was found, beside what is needed: at least that much, or at most."""

    name: str
    found: float
    least: float | None = None
    most: float | None = None

    @property
    def holds(self) -> bool:
        return (self.least is None or self.found >= self.least) and (self.most is None or self.found <= self.most)

    def __str__(self) -> str:
        needed = f"at least {self.least}" if self.least is not None else f"at most {self.most}"
        asked = (
            "" if self.least is None and self.most is None else f" (needed: {needed}{'' if self.holds else ', MISSED'})"
        )
        return f"{self.name}: {self.found:.2f}{asked}"


def _geomean(values: Sequence[float]) -> float:
    found = report.geomean(values)
    assert found is not None
    return found


def _summary(rows: list[Row], scans: list[Row], memory: list[Row]) -> list[Figure]:
    def ratios(some: list[Row], other: str) -> list[float]:
        return [row["ms"][other] / row["ms"]["ingot"] for row in some if other in row["ms"]]

    compiling = [row["compile_s"]["compiled flex"] / row["compile_s"]["ingot"] for row in rows]
    found = [
        Figure("forward, compiled flex ÷ ingot, geomean", _geomean(ratios(rows, "compiled flex")), least=1.5),
        Figure("forward, eager ÷ ingot, geomean", _geomean(ratios(rows, "eager"))),
        Figure("compile, compiled flex ÷ ingot, geomean", _geomean(compiling), least=10),
    ]
    masks = ratios(rows, "sdpa")
    if masks:
        found.append(Figure("forward, sdpa ÷ ingot where it can say the same, geomean", _geomean(masks)))
    trivial = [row for row in rows if row["function"] == "trivial"]
    if trivial:
        found.append(Figure("ingot ÷ sdpa, trivial, the most", max(1 / r for r in ratios(trivial, "sdpa")), most=1.2))
    longest = {row["function"]: row["ms"]["ingot"] for row in rows if row["shape"] == rows[-1]["shape"]}
    if {"causal", "trivial"} <= set(longest):
        share = longest["causal"] / longest["trivial"]
        found.append(Figure(f"causal ÷ trivial at {rows[-1]['shape']}", share, most=0.6))
    if scans:
        found.append(Figure("scan, loop of steps ÷ ingot, the least", min(ratios(scans, "loop of steps")), least=5))
        eager = min(ratios(scans, "eager associative_scan"))
        found.append(Figure("scan, eager associative_scan ÷ ingot, the least", eager, least=2))
    if len(memory) > 1:
        # A linear need grows as the length does, and that is 1; a quadratic one grows so many times as the length does.
        first, last = memory[0], memory[-1]
        growth = (last["kib"] / first["kib"]) / (last["length"] / first["length"])
        name = f"memory at {last['length']} ÷ at {first['length']}, by length"
        found.append(Figure(name, growth, most=1.25))
    return found


def main(arguments: Sequence[str] | None = None) -> list[Figure]:
    parser = argparse.ArgumentParser(description=__doc__)
    names = list(_cases(1, 8))
    parser.add_argument("--lengths", nargs="*", type=int, default=list(LENGTHS))
    parser.add_argument("--functions", nargs="*", choices=names, default=names)
    parser.add_argument("--scans", nargs="*", default=["×".join(map(str, shape)) for shape in SCANS])
    parser.add_argument("--memory", nargs="*", type=int, default=list(MEMORY))
    chosen = parser.parse_args(arguments)
    whole = chosen == parser.parse_args([])
    warnings.simplefilter("ignore")
    torch.set_num_threads(THREADS)
    with torch.no_grad():
        _warm_up()
        rows = [row for length in chosen.lengths for row in _attention(length, chosen.functions)]
        scans = _scans([tuple(map(int, text.split("×"))) for text in chosen.scans])
    memory = _memory(chosen.memory)
    sides = ["ingot", "compiled flex", "sdpa", "eager"]
    cells = [
        [row["shape"], row["function"], *(f"{row['ms'][n]:.1f}" if n in row["ms"] else "" for n in sides),
         *(f"{row['compile_s'][n]:.2f}" for n in sides[:2])]
        for row in rows
    ]  # fmt: skip
    print(report.table(["shape", "function", *(f"{n} ms" for n in sides), "compile s", "flex compile s"], cells))
    for row in scans:
        print(f"scan {row['shape']}: " + ", ".join(f"{n} {t:.2f} ms" for n, t in row["ms"].items()))
    for row in memory:
        print(f"length {row['length']}: {row['kib']} KiB more at the peak; its scores would be {row['scores_kib']} KiB")
    found = _summary(rows, scans, memory)
    print(*found, sep="\n")
    if whole:
        summary = [{**asdict(figure), "holds": figure.holds} for figure in found]
        print(report.write("functions", {"summary": summary, "attention": rows, "scans": scans, "memory": memory}))
    return found


if __name__ == "__main__":
    main()
