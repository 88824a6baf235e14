"""FFTs: Ingot compared with eager, whose transforms are MKL's or pocketfft's, and torch.compile, which calls the same.

    python benchmarks/transforms.py                     # everything; writes results/transforms.json
    python benchmarks/transforms.py stft "one line"     # some of it; writes nothing unless --json names a file

Float32, two threads. Candidates take turns, each after a pause; medians are compared. A transform's result is taken as
real and imaginary parts, so that none of them returns what another one need not write. The rate counts 5·n·log2(n)
operations for a complex transform and half of them for a real one.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # Not this folder: onnx.py would hide the package of its name.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch
from torch import nn

import ingot
from benchmarks.models import THREADS
from benchmarks.support import report
from ingot.benchmarking import time_interleaved

PAUSE, TURN = 0.1, 0.03  # seconds before a turn, and of counted calls in it at least
PEERS = ("Ingot", "eager", "torch.compile")


@dataclass(frozen=True)
class Case:
    """A function of real tensors. `transforms` are the length, the number and the cost of each: 1 complex, ½ real."""

    function: Callable[..., torch.Tensor]
    shapes: tuple[tuple[int, ...], ...]
    transforms: tuple[tuple[int, int, float], ...]

    @property
    def operations(self) -> float:
        return sum(5 * n * math.log2(n) * count * cost for n, count, cost in self.transforms)


def _complex(pairs: torch.Tensor, dim: int = -1) -> torch.Tensor:
    return torch.view_as_real(torch.fft.fft(torch.view_as_complex(pairs), dim=dim))


def _log_mel(x: torch.Tensor, window: torch.Tensor, filters: torch.Tensor) -> torch.Tensor:
    """What speech models begin with: 30 seconds, 3,001 frames of 400."""
    spectrum = torch.stft(x, 400, 160, window=window, return_complex=True)
    return (filters @ (spectrum.real.square() + spectrum.imag.square())).clamp(min=1e-10).log10()


def _convolve(x: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    n = 2 * x.shape[-1]
    return torch.fft.irfft(torch.fft.rfft(x, n) * torch.fft.rfft(kernel, n), n)[..., : x.shape[-1]]


def _filter(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A global filter over images whose channels lie next to each other."""
    spectrum = torch.fft.rfft2(x, dim=(1, 2), norm="ortho") * torch.view_as_complex(weight)
    return torch.fft.irfft2(spectrum, s=x.shape[1:3], dim=(1, 2), norm="ortho")


def _mix(x: torch.Tensor) -> torch.Tensor:
    """FNet's mixing of tokens."""
    return torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real


CASES: dict[str, Case] = {
    "log-mel of 30 s, stft of 400": Case(_log_mel, ((480_000,), (400,), (80, 201)), ((400, 3001, 0.5),)),
    "stft of 512, 8 × 2 s": Case(
        lambda x, w: torch.stft(x, 512, 128, window=w, return_complex=True).abs(),
        ((8, 32_000), (512,)),
        ((512, 8 * 251, 0.5),),
    ),
    "long convolution, 64 × 2,048": Case(_convolve, ((64, 2048), (64, 2048)), ((4096, 3 * 64, 0.5),)),
    "global filter, 8 × 14 × 14 × 384": Case(
        _filter, ((8, 14, 14, 384), (14, 8, 384, 2)), ((14, 8 * 14 * 384, 1.0), (14, 2 * 8 * 8 * 384, 1.0))
    ),
    "FNet, 512 × 768": Case(_mix, ((1, 512, 768),), ((768, 512, 0.5), (512, 768, 0.5))),
    "fft2, 16 × 224 × 224": Case(
        lambda x: torch.view_as_real(torch.fft.fft2(torch.view_as_complex(x))),
        ((16, 224, 224, 2),),
        ((224, 2 * 16 * 224, 1.0),),
    ),
    "fft, 256 lines of 512": Case(_complex, ((256, 512, 2),), ((512, 256, 1.0),)),
    "fft, 20 lines of 16,384": Case(_complex, ((20, 16_384, 2),), ((16_384, 20, 1.0),)),
    "fft, one line of 65,536": Case(_complex, ((65_536, 2),), ((65_536, 1, 1.0),)),
    "fft, 64 lines of 1,009, a prime": Case(_complex, ((64, 1009, 2),), ((1009, 64, 1.0),)),
    "rfft, 64 lines of 1,000": Case(lambda x: torch.view_as_real(torch.fft.rfft(x)), ((64, 1000),), ((1000, 64, 0.5),)),
    "fft along the first dim, 256 × 500": Case(lambda x: _complex(x, 0), ((256, 500, 2),), ((256, 500, 1.0),)),
}


class Model(nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return self.function(*args)


def measure(case: Case, rounds: int, peers: Sequence[str]) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    args = [torch.randn(shape, generator=generator) for shape in case.shapes]
    model = Model(case.function).eval()
    calls: dict[str, Callable[[], torch.Tensor]] = {}
    if "Ingot" in peers:
        compiled = ingot.compile(model, tuple(args), threads=THREADS)
        calls["Ingot"] = lambda: compiled(*args)
    if "eager" in peers:
        calls["eager"] = lambda: model(*args)
    if "torch.compile" in peers:
        inductor = torch.compile(model)
        calls["torch.compile"] = lambda: inductor(*args)
    with torch.no_grad():
        exact = model(*(x.double() for x in args))
        errors = {name: float((call().double() - exact).norm() / exact.norm()) for name, call in calls.items()}
        times = time_interleaved(calls, rounds, pause=PAUSE, least=TURN)
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    others = [taken for name, taken in medians.items() if name != "Ingot"]
    row: dict[str, Any] = {"ms": {name: taken * 1e3 for name, taken in medians.items()}, "relative error": errors}
    if "Ingot" in medians:
        row["GFLOP/s"] = case.operations / medians["Ingot"] / 1e9
        row["speedup"] = min(others) / medians["Ingot"] if others else None
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="parts of names; all where none is given")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--without", nargs="*", default=[], choices=PEERS[1:], help="peers to leave out")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(THREADS)
    peers = [peer for peer in PEERS if peer not in given.without]
    chosen = [name for name in CASES if not given.cases or any(part in name for part in given.cases)]
    rows: dict[str, Any] = {}
    for name in chosen:
        rows[name] = row = measure(CASES[name], given.rounds, peers)
        print(f"{name}: " + ", ".join(f"{peer} {row['ms'][peer]:.3f}" for peer in peers) + " ms", flush=True)
    cells = [
        [name, *(f"{row['ms'][peer]:.3f}" for peer in peers), f"{row['speedup'] or 0:.2f}", f"{row['GFLOP/s']:.1f}"]
        for name, row in rows.items()
    ]
    print(report.table(["ms", *peers, "speedup over the better peer", "GFLOP/s"], cells))
    speedups = [row["speedup"] for row in rows.values() if row["speedup"]]
    print(f"geomean {report.geomean(speedups) or 0:.2f}, least {min(speedups, default=0):.2f}")
    if given.json or not given.cases:
        summary = {"geomean": report.geomean(speedups), "least": min(speedups, default=None)}
        print(report.write("transforms", {"summary": summary, "rows": rows}, given.json))


if __name__ == "__main__":
    main()
