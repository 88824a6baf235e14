"""Random networks of one row, or a few: what becomes one kernel must compute what eager does."""

from __future__ import annotations

import copy
import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ingot.targets.cuda.schedule import streams
from ingot.targets.cuda.schedule.statements import StreamedChain, StreamedGemm
from tests.support.cuda_emulation.emulated_model import build_models
from tests.targets.cuda.streams.test_streamed_groups import Norm, schedule
from tests.targets.cuda.test_gemm_epilogues import randn

# What follows what, more often than not.
FOLLOWERS = {
    "norm": ["linear"] * 5 + ["add"],
    "linear": ["gate", "rotate"] * 3 + ["add", "norm", "tanh", "linear"],
    "gate": ["linear"] * 3 + ["norm", "add"],
    "add": ["norm", "linear", "tanh"],
}
ANY = ["norm", "norm", "linear", "gate", "rotate", "add", "tanh"]


class RandomRows(nn.Module):
    """Values one after another, each of the last or of an earlier one; some of them are results."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        choose = random.Random(seed)
        self.rows, self.layers = choose.choice([1, 1, 1, 2, 5]), nn.ModuleDict()
        self.widths = [choose.choice([8, 16, 24, 40])]
        self.steps: list[tuple[str, int, int]] = []
        for number in range(choose.randint(3, 7)):
            at = choose.choice([len(self.widths) - 1] * 3 + list(range(len(self.widths))))
            last = self.steps[-1][0] if self.steps and at == len(self.widths) - 1 else ""
            kinds = FOLLOWERS.get(last, ANY) if self.steps else ["norm", "norm", "linear"]
            self._add(choose.choice(kinds), at, str(number), choose)
        last_one = len(self.widths) - 1
        self.results = sorted({last_one, *(n for n in range(1, last_one) if choose.random() < 0.15)})

    def _add(self, kind: str, at: int, name: str, choose: random.Random) -> None:
        width, detail = self.widths[at], int(name)
        if kind == "norm":
            self.layers[name] = Norm(width)
        elif kind == "linear":
            columns = choose.choice([8, 16, 24, 40, 48, 80])
            self.layers[name], width = nn.Linear(width, columns, bias=choose.random() < 0.5), columns
        elif kind == "gate":
            detail, width = choose.randint(0, 3), width // 2
        elif kind == "rotate":
            detail = choose.choice([heads for heads in (1, 2, 4) if width % (2 * heads) == 0] or [0])
        elif kind == "add":
            detail = choose.choice([n for n, other in enumerate(self.widths) if other == width])
        if detail or kind != "rotate":
            self.steps.append((kind, at, detail))
            self.widths.append(width)

    def forward(self, x: torch.Tensor, factors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = [x]
        for kind, at, detail in self.steps:
            value = values[at]
            if kind in ("norm", "linear"):
                value = self.layers[str(detail)](value)
            elif kind == "gate":
                first, second = value.chunk(2, -1)
                value = [lambda p, q: F.silu(p) * q, lambda p, q: p * torch.sigmoid(q), torch.add, torch.sub][detail](
                    first, second[..., : first.shape[-1]]
                )
            elif kind == "rotate":
                heads = value.view(self.rows, detail, -1)
                first, second = heads.chunk(2, -1)
                turned = torch.cat((-second, first), -1)
                value = heads * factors[: heads.shape[-1]] + turned * factors[1 : heads.shape[-1] + 1]
                value = value.reshape(self.rows, -1)
            else:
                value = torch.tanh(value) if kind == "tanh" else value + values[detail]
            values.append(value)
        return tuple(values[n] for n in self.results)


@pytest.mark.parametrize("disabled", [(), ("chains",)], ids=["all", "without chains"])
def test_random_rows(monkeypatch: pytest.MonkeyPatch, disabled: tuple[str, ...]) -> None:
    monkeypatch.setattr(streams, "_LEAST_ELEMENTS", 1)
    models, lowered = [], []
    for seed in range(24):
        torch.manual_seed(seed)
        model = RandomRows(seed).bfloat16().eval()
        args = randn(model.rows, model.widths[0], seed=seed), randn(81, seed=seed + 1)
        program, _, module = schedule(model, args, disabled)
        models.append((model, args))
        lowered.append((program, module))
    wanted = StreamedGemm if disabled else StreamedChain
    assert sum(isinstance(step, wanted) for _, module in lowered for step in module.steps) >= 3
    for seed, ((model, args), run) in enumerate(zip(models, build_models(lowered), strict=True)):
        with torch.no_grad():
            exact, eager = copy.deepcopy(model).double()(*(arg.double() for arg in args)), model(*args)
        for mine, theirs, expected in zip(run(*args), eager, exact, strict=True):
            error, usual = (float((found.double() - expected).abs().max()) for found in (mine, theirs))
            assert error <= 3 * usual + 4e-3 * float(expected.abs().max()), (seed, error, usual, model.steps)
