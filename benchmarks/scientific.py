"""Scientific programs: transforms, float64, integers. Ingot compared with eager and torch.compile on two threads.

    python benchmarks/scientific.py                     # everything; writes results/scientific.json
    python benchmarks/scientific.py float64 "k-means"   # some of it; writes nothing unless --json names a file

Candidates take turns, each after a pause; medians are compared. A transform is of float32, and its result is taken as
real and imaginary parts, so that none of the candidates returns what another one need not write; eager's transforms
are MKL's or pocketfft's, and torch.compile calls the same. The rate counts 5·n·log2(n) operations for a complex
transform and half of them for a real one. Programs of integers must give eager's numbers.
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
class Argument:
    """A random tensor: normal numbers, or integers from 0 to `below`."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float64
    below: int = 0

    def make(self, generator: torch.Generator) -> torch.Tensor:
        if self.below:
            return torch.randint(0, self.below, self.shape, generator=generator, dtype=self.dtype)
        return torch.randn(self.shape, generator=generator, dtype=self.dtype)


@dataclass(frozen=True)
class Case:
    """A function of tensors. `transforms` are the length, the number and the cost of each: 1 complex, ½ real."""

    function: Callable[..., torch.Tensor]
    arguments: tuple[Argument, ...]
    transforms: tuple[tuple[int, int, float], ...] = ()

    @property
    def operations(self) -> float:
        return sum(5 * n * math.log2(n) * count * cost for n, count, cost in self.transforms)


# ---------------------------------------------------------------------- transforms


def _transform(
    function: Callable[..., torch.Tensor], shapes: Sequence[tuple[int, ...]], *transforms: tuple[int, int, float]
) -> Case:
    return Case(function, tuple(Argument(shape, torch.float32) for shape in shapes), transforms)


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


TRANSFORMS = {
    "log-mel of 30 s, stft of 400": _transform(_log_mel, [(480_000,), (400,), (80, 201)], (400, 3001, 0.5)),
    "stft of 512, 8 × 2 s": _transform(
        lambda x, w: torch.stft(x, 512, 128, window=w, return_complex=True).abs(),
        [(8, 32_000), (512,)],
        (512, 8 * 251, 0.5),
    ),
    "long convolution, 64 × 2,048": _transform(_convolve, [(64, 2048), (64, 2048)], (4096, 3 * 64, 0.5)),
    "global filter, 8 × 14 × 14 × 384": _transform(
        _filter, [(8, 14, 14, 384), (14, 8, 384, 2)], (14, 8 * 14 * 384, 1.0), (14, 2 * 8 * 8 * 384, 1.0)
    ),
    "FNet, 512 × 768": _transform(_mix, [(1, 512, 768)], (768, 512, 0.5), (512, 768, 0.5)),
    "fft2, 16 × 224 × 224": _transform(
        lambda x: torch.view_as_real(torch.fft.fft2(torch.view_as_complex(x))),
        [(16, 224, 224, 2)],
        (224, 2 * 16 * 224, 1.0),
    ),
    "fft, 256 lines of 512": _transform(_complex, [(256, 512, 2)], (512, 256, 1.0)),
    "fft, 20 lines of 16,384": _transform(_complex, [(20, 16_384, 2)], (16_384, 20, 1.0)),
    "fft, one line of 65,536": _transform(_complex, [(65_536, 2)], (65_536, 1, 1.0)),
    "fft, 64 lines of 1,009, a prime": _transform(_complex, [(64, 1009, 2)], (1009, 64, 1.0)),
    "rfft, 64 lines of 1,000": _transform(
        lambda x: torch.view_as_real(torch.fft.rfft(x)), [(64, 1000)], (1000, 64, 0.5)
    ),
    "fft along the first dim, 256 × 500": _transform(lambda x: _complex(x, 0), [(256, 500, 2)], (256, 500, 1.0)),
}


# ---------------------------------------------------------------------- float64


def _squared_distances(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.square().sum(1, keepdim=True) - 2 * x @ y.T + y.square().sum(1)


def _mixture(x: torch.Tensor, means: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """The log-density of a mixture of Gaussians whose precisions have these triangular factors."""
    factors = factors.tril()
    scaled = torch.einsum("nkd,kde->nke", x[:, None] - means, factors)
    logs = factors.diagonal(dim1=1, dim2=2).abs().log().sum(1)
    return torch.logsumexp(logs - 0.5 * scaled.square().sum(-1), -1)


def _attract(bodies: torch.Tensor, masses: torch.Tensor) -> torch.Tensor:
    apart = bodies[None] - bodies[:, None]
    return (apart * (masses.abs()[None] / (apart.square().sum(-1) + 1e-3).pow(1.5))[..., None]).sum(1)


def _heat(field: torch.Tensor) -> torch.Tensor:
    for _ in range(20):
        inner = field[1:-1, 1:-1]
        around = field[2:, 1:-1] + field[:-2, 1:-1] + field[1:-1, 2:] + field[1:-1, :-2]
        field = torch.nn.functional.pad(inner + 0.2 * (around - 4 * inner), (1, 1, 1, 1))
    return field


def _lorenz(state: torch.Tensor) -> torch.Tensor:
    """Twenty steps of Runge and Kutta's method."""

    def slope(state: torch.Tensor) -> torch.Tensor:
        x, y, z = state.unbind(-1)
        return torch.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z], -1)

    for _ in range(20):
        a = slope(state)
        b = slope(state + 0.005 * a)
        c = slope(state + 0.005 * b)
        d = slope(state + 0.01 * c)
        state = state + 0.01 / 6 * (a + 2 * b + 2 * c + d)
    return state


def _kalman(measured: torch.Tensor, motion: torch.Tensor, sensor: torch.Tensor) -> torch.Tensor:
    """The states of many filters of four numbers over thirty steps, each measuring two."""
    count = measured.shape[1]
    state, spread = measured.new_zeros(count, 4, 1), torch.eye(4, dtype=measured.dtype).expand(count, 4, 4)
    for z in measured.unbind(0):
        state, spread = motion @ state, motion @ spread @ motion.T + 0.01 * torch.eye(4, dtype=measured.dtype)
        noise = sensor @ spread @ sensor.T + 0.1 * torch.eye(2, dtype=measured.dtype)
        (a, b), (c, d) = (row.unbind(-1) for row in noise.unbind(-2))
        inverse = torch.stack([d, -b, -c, a], -1).unflatten(-1, (2, 2)) / (a * d - b * c)[:, None, None]
        gain = spread @ sensor.T @ inverse
        state = state + gain @ (z[..., None] - sensor @ state)
        spread = spread - gain @ sensor @ spread
    return state


def _forest(rows: torch.Tensor, features: torch.Tensor, limits: torch.Tensor, leaves: torch.Tensor) -> torch.Tensor:
    """Trees of depth 6, whose nodes lie as in a heap."""
    trees = torch.arange(features.shape[0])
    at = torch.zeros(rows.shape[0], features.shape[0], dtype=torch.int64)
    for _ in range(6):
        goes_right = rows.gather(1, features[trees, at]) > limits[trees, at]
        at = 2 * at + 1 + goes_right
    return leaves[trees, at - 63].mean(1)


FLOAT64 = {
    "linear regression, 100,000 × 50": Case(
        lambda x, w, b: x @ w + b, (Argument((100_000, 50)), Argument((50,)), Argument(()))
    ),
    "scaling and PCA, 20,000 × 64 to 8": Case(
        lambda x, mean, scale, axes: ((x - mean) / (scale.abs() + 1)) @ axes.T,
        (Argument((20_000, 64)), Argument((64,)), Argument((64,)), Argument((8, 64))),
    ),
    "logistic regression, 50,000 × 30, 10 classes": Case(
        lambda x, w, b: torch.softmax(x @ w.T + b, 1), (Argument((50_000, 30)), Argument((10, 30)), Argument((10,)))
    ),
    "support vectors, RBF, 2,000 × 20, 500 vectors": Case(
        lambda x, v, w: torch.exp(-0.05 * _squared_distances(x, v)) @ w,
        (Argument((2000, 20)), Argument((500, 20)), Argument((500,))),
    ),
    "k-means, 50,000 × 16, 32 centers": Case(
        lambda x, c: _squared_distances(x, c).argmin(1), (Argument((50_000, 16)), Argument((32, 16)))
    ),
    "mixture of 16 Gaussians, 20,000 × 8": Case(
        _mixture, (Argument((20_000, 8)), Argument((16, 8)), Argument((16, 8, 8)))
    ),
    "nearest 5 of 5,000 × 16, 500 rows": Case(
        lambda x, y: _squared_distances(x, y).topk(5, largest=False).values, (Argument((500, 16)), Argument((5000, 16)))
    ),
    "forest of 100 trees, 5,000 × 20": Case(
        _forest,
        (Argument((5000, 20)), Argument((100, 63), torch.int64, 20), Argument((100, 63)), Argument((100, 64))),
    ),
    "forces of 1,000 bodies": Case(_attract, (Argument((1000, 3)), Argument((1000,)))),
    "heat, 512 × 512, 20 steps": Case(_heat, (Argument((512, 512)),)),
    "Lorenz, 10,000 orbits, 20 steps": Case(_lorenz, (Argument((10_000, 3)),)),
    "Kalman filters, 1,000 of 30 steps": Case(_kalman, (Argument((30, 1000, 2)), Argument((4, 4)), Argument((2, 4)))),
    "network of 64, 128, 128, 10, 1,000 rows": Case(
        lambda x, a, b, c: torch.relu(torch.relu(x @ a) @ b) @ c,
        (Argument((1000, 64)), Argument((64, 128)), Argument((128, 128)), Argument((128, 10))),
    ),
}


# ---------------------------------------------------------------------- integers


def _life(cells: torch.Tensor) -> torch.Tensor:
    for _ in range(10):
        rows = cells + cells.roll(1, 0) + cells.roll(-1, 0)
        around = rows + rows.roll(1, 1) + rows.roll(-1, 1) - cells
        cells = ((around == 3) | ((around == 2) & (cells == 1))).to(cells.dtype)
    return cells


def _mix_bits(x: torch.Tensor) -> torch.Tensor:
    for factor in (0x2545F4914F6CDD1D, 0x1B03738712FAD5C9):
        x = (x ^ (x >> 29)) * factor
        x = x ^ (x << 17)
    return x ^ (x >> 32)


def _count_bits(x: torch.Tensor) -> torch.Tensor:
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    return ((((x + (x >> 4)) & 0x0F0F0F0F) * 0x01010101) >> 24) & 0xFF


INTEGERS = {
    "game of life, 1,024 × 1,024, 10 steps": Case(_life, (Argument((1024, 1024), torch.int32, 2),)),
    "hashes of 1,000,000 numbers": Case(_mix_bits, (Argument((1_000_000,), torch.int64, 1 << 62),)),
    "bits of 1,000,000 numbers": Case(_count_bits, (Argument((1_000_000,), torch.int64, 1 << 32),)),
    "histogram of 1,000,000 bytes": Case(
        lambda x: torch.zeros(256, dtype=torch.int64).scatter_add(0, x, torch.ones_like(x)),
        (Argument((1_000_000,), torch.int64, 256),),
    ),
    "running sums, 1,000 × 1,000": Case(lambda x: x.cumsum(1), (Argument((1000, 1000), torch.int64, 100),)),
    "product of 256 × 256 int32": Case(
        lambda x, y: x @ y, (Argument((256, 256), torch.int32, 1000), Argument((256, 256), torch.int32, 1000))
    ),
    "places of 100,000 in 10,000": Case(
        lambda x, edges: torch.searchsorted(edges.sort().values, x),
        (Argument((100_000,), torch.int64, 1 << 40), Argument((10_000,), torch.int64, 1 << 40)),
    ),
    "sorting 64 × 2,048": Case(lambda x: x.sort(1).values, (Argument((64, 2048), torch.int64, 1 << 40),)),
    "mean color of 1,080 × 1,920 bytes": Case(
        lambda x: x.to(torch.int32).sum((0, 1), dtype=torch.int32) // (1080 * 1920),
        (Argument((1080, 1920, 3), torch.uint8, 256),),
    ),
}

GROUPS = {"transforms": TRANSFORMS, "float64": FLOAT64, "integers": INTEGERS}


# ---------------------------------------------------------------------- measuring


class Model(nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return self.function(*args)


def measure(case: Case, rounds: int, peers: Sequence[str]) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    args = [argument.make(generator) for argument in case.arguments]
    model = Model(case.function).eval()
    calls: dict[str, Callable[[], torch.Tensor]] = {}
    if "Ingot" in peers:
        compiled = ingot.compile(model, tuple(args), threads=THREADS)
        calls["Ingot"] = lambda: compiled(*args)
    if "eager" in peers:
        calls["eager"] = lambda: model(*args)
    if "torch.compile" in peers:
        torch._dynamo.reset()  # after some recompilations of one function it would run in eager
        inductor = torch.compile(model)
        calls["torch.compile"] = lambda: inductor(*args)
    with torch.no_grad():
        exact = model(*(x.double() if x.is_floating_point() else x for x in args))
        errors = {name: _relative_error(call(), exact) for name, call in calls.items()}
        times = time_interleaved(calls, rounds, pause=PAUSE, least=TURN)
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    others = [taken for name, taken in medians.items() if name != "Ingot"]
    row: dict[str, Any] = {"ms": {name: taken * 1e3 for name, taken in medians.items()}, "relative error": errors}
    if "Ingot" in medians:
        row["GFLOP/s"] = case.operations / medians["Ingot"] / 1e9 if case.transforms else None
        row["speedup"] = min(others) / medians["Ingot"] if others else None
    return row


def _relative_error(result: torch.Tensor, exact: torch.Tensor) -> float:
    """Of integers: the share that differs."""
    if not result.is_floating_point():
        return float((result != exact).double().mean())
    return float((result.double() - exact).norm() / exact.norm())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="groups, or parts of names; all where none is given")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--without", nargs="*", default=[], choices=PEERS[1:], help="peers to leave out")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(THREADS)
    peers = [peer for peer in PEERS if peer not in given.without]
    groups: dict[str, dict[str, Any]] = {}
    for group, cases in GROUPS.items():
        for name, case in cases.items():
            if given.cases and not any(part == group or part in name for part in given.cases):
                continue
            groups.setdefault(group, {})[name] = row = measure(case, given.rounds, peers)
            print(f"{name}: " + ", ".join(f"{peer} {row['ms'][peer]:.3f}" for peer in peers) + " ms", flush=True)
    summary = {}
    for group, rows in groups.items():
        print(report.table([f"{group}, ms", *peers, "over the better peer", "GFLOP/s"],
                           [_cells(name, row, peers) for name, row in rows.items()]))  # fmt: skip
        speedups = [row["speedup"] for row in rows.values() if row["speedup"]]
        summary[group] = {"geomean": report.geomean(speedups), "least": min(speedups, default=None)}
        print(f"geomean {report.geomean(speedups) or 0:.2f}, least {min(speedups, default=0):.2f}\n")
    if given.json or not given.cases:
        print(report.write("scientific", {"summary": summary, "groups": groups}, given.json))


def _cells(name: str, row: dict[str, Any], peers: Sequence[str]) -> list[str]:
    rate = "" if row["GFLOP/s"] is None else f"{row['GFLOP/s']:.1f}"
    return [name, *(f"{row['ms'][peer]:.3f}" for peer in peers), f"{row['speedup'] or 0:.2f}", rate]


if __name__ == "__main__":
    main()
