"""Trains a model compiled and in eager, and judges whether both are the same training.

Three runs see the same batches: eager in float64, eager as it is, and the compiled model. Float arithmetic in another
order gives another curve; how far, eager's own distance from float64 says. The compiled model may be `TIMES` as far
from it. A run under autocast is compared with eager without it, in the same way.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import ingot
from ingot.dynamo import GraphReport
from tests.support.training.models import Batch, Entry

# How many times eager's own error is still noise, and what is noise where eager happens to be exact.
TIMES = 8.0
FLOOR = 1e-5
AUTOCAST_FLOOR = 2e-3


@dataclass(frozen=True)
class Curve:
    """The losses of a run, and the state that it ends with."""

    losses: torch.Tensor
    state: dict[str, torch.Tensor]


@dataclass(frozen=True)
class Verdict:
    """The distances of compiled and eager losses and final states from the reference, each relative to its size."""

    first: float
    last: float
    loss: float
    loss_of_eager: float
    state: float
    state_of_eager: float
    floor: float
    graphs: int
    native: bool = True

    @property
    def holds(self) -> bool:
        loss, state = (
            ours <= TIMES * max(theirs, self.floor)
            for ours, theirs in ((self.loss, self.loss_of_eager), (self.state, self.state_of_eager))
        )
        return loss and state and self.native

    @property
    def learns(self) -> bool:
        return self.last < 0.9 * self.first


def compare(
    entry: Entry, steps: int, *, sizes: Sequence[int], autocast: bool = False, dynamic: bool = False
) -> Verdict:
    """Trains for so many steps, with batches of the sizes in turn. `dynamic` trains through torch.compile, with one
    code for all sizes; otherwise with `training=True`."""
    torch.manual_seed(0)
    model = entry.model().train()
    draws = torch.Generator().manual_seed(1)
    batches = [entry.batch(sizes[step % len(sizes)], draws) for step in range(steps)]
    exact, eager = copy.deepcopy(model), copy.deepcopy(model)
    cast = torch.autocast("cpu", dtype=torch.bfloat16) if autocast else nullcontext()
    reports: list[GraphReport] = []
    trained: Any
    if dynamic:
        torch._dynamo.reset()
        options = {"threads": 1, "on_graph": reports.append}
        trained = torch.compile(model, backend="ingot", dynamic=True, options=options)
    else:
        with cast:  # its first call is compiled as the others are
            trained = ingot.compile(model, batches[0], training=True, threads=1)
    ours = _train(trained, model, batches, entry.rate, autocast)
    theirs = _train(eager, eager, batches, entry.rate, autocast)
    if autocast:
        truth = _train(exact, exact, batches, entry.rate, False)
    else:
        wide = [tuple(x.double() if x.is_floating_point() else x for x in batch) for batch in batches]
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            truth = _train(exact, exact.double(), wide, entry.rate, False)
        finally:
            torch.set_default_dtype(before)
    graphs = len(reports) if dynamic else len(trained.graphs)
    if not dynamic:
        trained.close()
    floor = AUTOCAST_FLOOR if autocast else FLOOR
    return Verdict(
        float(truth.losses[: len(sizes)].mean()), float(truth.losses[-len(sizes) :].mean()),
        _distance(ours.losses, truth.losses), _distance(theirs.losses, truth.losses),
        _farthest(ours, truth), _farthest(theirs, truth), floor, graphs,
        all(report.is_native for report in reports),
    )  # fmt: skip


def _train(call: Any, model: nn.Module, batches: Sequence[Batch], rate: float, autocast: bool) -> Curve:
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9)
    losses: list[float] = []
    for batch in batches:
        optimizer.zero_grad()
        cast: AbstractContextManager[object] = (
            torch.autocast("cpu", dtype=torch.bfloat16) if autocast else nullcontext()
        )
        with cast:
            loss = call(*batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return Curve(
        torch.tensor(losses, dtype=torch.float64),
        {name: value.detach().double() for name, value in model.state_dict().items()},
    )


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)) if b.numel() else 0.0


def _farthest(a: Curve, b: Curve) -> float:
    assert a.state.keys() == b.state.keys()
    scale = max(float(value.abs().max()) for value in b.state.values() if value.numel())
    return max(
        float((a.state[name] - b.state[name]).abs().max()) / max(float(b.state[name].abs().max()), 1e-2 * scale)
        for name in b.state
        if b.state[name].numel()
    )
