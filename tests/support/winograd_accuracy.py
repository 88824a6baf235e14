"""The error of Winograd convolutions: `python -m tests.support.winograd_accuracy` prints docs/reports/winograd.md."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable

import torch
from torch import nn

from tests import progress
from tests.support.pipeline_fixtures import assemble, lowered

SHAPES = [
    (32, 48, 15, 19),
    (32, 256, 16, 16),
    (64, 64, 28, 28),
    (80, 80, 14, 14),
    (128, 128, 17, 14),
    (256, 256, 14, 14),
]
SEEDS = 12
INPUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "normal": lambda x: x,
    "above 0": lambda x: x.relu(),
    "around 4": lambda x: x + 4,
    "cubes": lambda x: x**3,
    "uniform": lambda x: torch.rand(x.shape),
}


def main() -> None:
    print("# Rounding errors of Winograd convolutions\n")
    print(
        "Written by `python -m tests.support.winograd_accuracy`: errors against float64 of a 3×3 Winograd convolution,"
    )
    print(f"over those of eager in float32, for {SEEDS} draws of each kind of image.\n")
    print("| in, out | image | largest errors, median | largest errors, most | root mean squares, most |")
    print("|---|---|---|---|---|")
    for channels, outs, *size in progress.count_done("shapes", SHAPES):
        torch.manual_seed(channels + outs)
        model = nn.Conv2d(channels, outs, 3, padding=1).eval()
        program, module = lowered(model, (torch.randn(1, channels, *size),))
        assert any(getattr(step, "algorithm", "") == "winograd" for step in module.steps)
        native, exact = assemble(program, module, flags=("-O2",)), copy.deepcopy(model).double()
        for kind, made in INPUTS.items():
            largest, mean = [], []
            for seed in range(SEEDS):
                torch.manual_seed(seed)
                x = made(torch.randn(1, channels, *size))
                with torch.no_grad():
                    right = exact(x.double())
                    ours, eager = ((y - right).abs() for y in (native(x), model(x)))
                largest.append(float(ours.max() / eager.max()))
                mean.append(float((ours.square().mean() / eager.square().mean()).sqrt()))
            row = f"{statistics.median(largest):.2f} | {max(largest):.2f} | {max(mean):.2f}"
            print(f"| {channels}, {outs} | {kind} | {row} |", flush=True)


if __name__ == "__main__":
    main()
