"""Attention and scans with users' functions inside, against what torch has for them.

    python benchmarks/functions.py                 # everything; writes results/functions.json
    python benchmarks/functions.py --lengths 512   # some sizes only; writes nothing

Forward, float32, two threads. Ingot is `ingot.attention`; beside it stand the same sum written with whole matrices in
eager, `torch.compile(flex_attention)`, and `scaled_dot_product_attention` where the function is a mask that it takes.
Candidates take turns, each after a pause, for torch's threads spin on a core for a while after their work is done; a
time is the median of its turns. Results are judged by float64: the error of attention may be four times eager's own.
Compile times are cold: neither side may read its cache.
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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # not this folder: onnx.py would hide the package of its name
os.environ.setdefault("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")

import torch
import torch.nn.functional as F
from torch._higher_order_ops.associative_scan import associative_scan
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import ingot
from benchmarks import report
from benchmarks.models import THREADS
from ingot.closures import take_apart
from ingot.direct import _Attention, _Call
from ingot.timing import in_turn

SIZES = {512: (1, 8, 512, 64), 1024: (1, 8, 1024, 64), 2048: (1, 16, 2048, 64), 4096: (1, 16, 4096, 64)}
ROUNDS = {512: 5, 1024: 5, 2048: 3, 4096: 3}
PAUSE = 0.2  # seconds before each turn
TURN = 0.03  # seconds of calls that a turn has at least
JUDGED = 2  # heads whose results are compared with float64
WINDOW = 256

Run = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """A score function, a mask, and, if it can say the same, the arguments of scaled_dot_product_attention."""

    score: Any = None
    mask: Any = None
    plain: Callable[[int, int], dict[str, Any]] | None = None


def _cases(heads: int, length: int) -> dict[str, Case]:
    slopes = torch.tensor([2.0 ** -(8 * (h + 1) / heads) for h in range(heads)])
    table = torch.randn(heads, 2 * length)
    documents = torch.arange(length) // (length // 4)

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
    times = in_turn(runs, rounds, pause=PAUSE, least=TURN)
    return {name: 1e3 * statistics.median(found) for name, found in times.items()}


def _judge(case: Case, result: torch.Tensor, *given: torch.Tensor) -> None:
    """Raises unless a result is as near to float64 as eager's own is, or four times as far."""
    q, k, v = (x[:, :JUDGED] for x in given)
    exact = _eager(case, q.double(), k.double(), v.double())
    limit = 4 * float((_eager(case, q, k, v) - exact).abs().max()) + 1e-6
    error = float((result[:, :JUDGED] - exact).abs().max())
    assert error <= limit, f"an error of {error:.2g}, where {limit:.2g} is allowed"


def _attention(length: int) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    shape = SIZES[length]
    q, k, v = (torch.randn(shape) for _ in range(3))
    rows = []
    for name, case in _cases(shape[1], length).items():
        torch._dynamo.reset()
        blocks = create_block_mask(case.mask, None, None, length, length, device="cpu") if case.mask else None
        compiled = torch.compile(flex_attention, dynamic=False)
        ours = functools.partial(ingot.attention, q, k, v, case.score, case.mask)
        theirs = functools.partial(compiled, q, k, v, score_mod=case.score, block_mask=blocks)
        compile_torch, _ = _first(theirs)
        call = _Call(take_apart(case.score), take_apart(case.mask), None, None, False, False, False)
        tensors = [q, k, v, *call.score.tensors, *call.mask.tensors]
        compile_ours, _ = _first(functools.partial(ingot.compile, _Attention(call, q, k), tensors, cache=False))
        _judge(case, ours(), q, k, v)
        runs: dict[str, Run] = {"ingot": ours, "compiled flex": theirs}
        runs["eager"] = functools.partial(_eager, case, q, k, v)
        if case.plain is not None:
            options = case.plain(shape[1], length)
            runs["sdpa"] = functools.partial(F.scaled_dot_product_attention, q, k, v, **options)
        times = _medians(runs, ROUNDS[length])
        compiling = {"ingot": compile_ours, "compiled flex": compile_torch - times["compiled flex"] / 1e3}
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


def _scans() -> list[dict[str, Any]]:
    rows = []
    for shape in ((1, 4096, 64), (1, 4096, 1024), (8, 4096, 256)):
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
import resource, sys, torch, ingot
n = int(sys.argv[1])
q, k, v = (torch.randn(1, 2, n, 64) for _ in range(3))
small = [t[:, :, :64].contiguous() for t in (q, k, v)]
cap = lambda s, b, h, i, j: 20 * torch.tanh(s / 20)
seen = lambda b, h, i, j: i >= j
ingot.attention(*small, cap, seen)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
ingot.attention(q, k, v, cap, seen)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def _memory() -> list[dict[str, Any]]:
    """Bytes that a process has at its peak beyond what it had before a call of twice the length."""
    rows = []
    for length in (8192, 16384, 32768):
        command = [sys.executable, "-c", _PEAK, str(length)]
        said = subprocess.run(command, capture_output=True, text=True, check=True)
        rows.append({"length": length, "kib": int(said.stdout), "scores_kib": 2 * length * length * 4 // 1024})
    return rows


# ---------------------------------------------------------------------- the report


def _geomean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def _summary(rows: list[dict[str, Any]], scans: list[dict[str, Any]]) -> dict[str, float]:
    def ratio(row: dict[str, Any], other: str) -> float:
        return float(row["ms"][other] / row["ms"]["ingot"])

    trivial = [row for row in rows if row["function"] == "trivial"]
    found = {
        "compiled flex ÷ ingot, geomean": _geomean([ratio(row, "compiled flex") for row in rows]),
        "eager ÷ ingot, geomean": _geomean([ratio(row, "eager") for row in rows]),
        "sdpa ÷ ingot, geomean": _geomean([ratio(row, "sdpa") for row in rows if "sdpa" in row["ms"]]),
        "ingot ÷ sdpa where the function is trivial, the most": max(1 / ratio(row, "sdpa") for row in trivial),
        "compile: compiled flex ÷ ingot, geomean": _geomean(
            [row["compile_s"]["compiled flex"] / row["compile_s"]["ingot"] for row in rows]
        ),
    }
    longest = {row["function"]: row["ms"]["ingot"] for row in rows if row["shape"] == rows[-1]["shape"]}
    found[f"causal ÷ trivial at {rows[-1]['shape']}"] = longest["causal"] / longest["trivial"]
    if scans:
        found["loop of steps ÷ ingot, least"] = min(ratio(row, "loop of steps") for row in scans)
        found["eager associative_scan ÷ ingot, least"] = min(ratio(row, "eager associative_scan") for row in scans)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", nargs="*", type=int, default=list(SIZES))
    chosen = parser.parse_args()
    whole = chosen.lengths == list(SIZES)
    warnings.simplefilter("ignore")
    torch.set_num_threads(THREADS)
    with torch.no_grad():
        rows = [row for length in chosen.lengths for row in _attention(length)]
        scans = _scans()
    memory = _memory() if whole else []
    names = ["ingot", "compiled flex", "sdpa", "eager"]
    cells = [
        [row["shape"], row["function"], *(f"{row['ms'][n]:.1f}" if n in row["ms"] else "" for n in names),
         *(f"{row['compile_s'][n]:.2f}" for n in names[:2])]
        for row in rows
    ]  # fmt: skip
    print(report.table(["shape", "function", *(f"{n} ms" for n in names), "compile s", "flex compile s"], cells))
    for row in scans:
        print(f"scan {row['shape']}: " + ", ".join(f"{n} {t:.2f} ms" for n, t in row["ms"].items()))
    for row in memory:
        print(f"length {row['length']}: {row['kib']} KiB more at the peak; its scores would be {row['scores_kib']} KiB")
    found = _summary(rows, scans)
    for name, value in found.items():
        print(f"{name}: {value:.2f}")
    if whole:
        data = {"attention": rows, "scans": scans, "memory": memory, "summary": found}
        print(report.write("functions", data))


if __name__ == "__main__":
    main()
