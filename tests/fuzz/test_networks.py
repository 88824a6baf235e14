"""Random networks: a few of them, that the judge can say no, and that a seed is one network."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path

import torch
from torch import nn

from tests.fuzz import networks
from tests.fuzz import networks_native as native
from tests.fuzz.grammars.networks_rules import RULES
from tests.fuzz.networks_judge import RoundedEitherWay, difference, run_until_finite

SEEDS = range(1, 15)


def test_networks() -> None:
    verdicts = dict(networks.check(SEEDS))
    assert sorted(verdicts) == list(SEEDS)
    assert not [verdict.reason for verdict in verdicts.values() if verdict.kind == "wrong"]
    assert sum(verdict.kind == "right" for verdict in verdicts.values()) >= len(SEEDS) - 2


def test_a_network_with_other_weights_is_wrong() -> None:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        one = next(
            found
            for found in map(networks.prepare, map(networks.make, range(20, 40)))
            if isinstance(found, networks.Candidate)
            and found.network.mode == "float32"
            and any(parameter.numel() > 20 for parameter in found.model.parameters())
        )
        one.model = copy.deepcopy(one.model)
        for parameter in (*one.model.parameters(), *one.wide.parameters()):
            parameter.mul_(1.01)
    ((seed, verdict),) = networks.check_batch([one])
    assert seed == one.network.seed and verdict.kind == "wrong"
    assert "is off by" in verdict.reason and "class Net(nn.Module)" in verdict.reason


def test_networks_share_a_library(tmp_path: Path) -> None:
    """Names that models share would make every batch fall apart into single files, which costs most of the time."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        found = [
            one for one in map(networks.prepare, map(networks.make, SEEDS[:5])) if isinstance(one, networks.Candidate)
        ]
    parts = [part for one in found for part in one.parts]
    native.compile_parts(parts, tmp_path, optimize=False)
    assert len({id(part.loaded) for part in parts}) == 1 and parts[0].loaded is not None


def test_what_the_judge_sees() -> None:
    exact = torch.linspace(-1, 1, 7, dtype=torch.float64)
    eager = exact.float()
    assert difference(eager.clone(), eager, exact, 2.0**-24) == ""
    off = eager.clone()
    off[3] += 1e-4
    assert "is off by" in difference(off, eager, exact, 2.0**-24)
    assert difference(off, eager, exact, 2.0**-24, spread=lambda: 1e-4) == ""
    off[3] = float("nan")
    said = difference(off, eager, exact, 2.0**-24)
    assert said == "has nan or inf in 1 of 7 places, eager in 0, float64 in 0"


def test_eager_may_be_the_one_with_nan() -> None:
    """A convolution of torch's that reads memory which nothing wrote; float64 then decides, at every place."""
    exact = torch.linspace(-1, 1, 7, dtype=torch.float64)
    eager = torch.full([7], float("nan"))
    assert difference(exact.float(), eager, exact, 2.0**-24) == ""
    off = exact.float()
    off[3] += 1e-4
    assert "is off by 0.0001" in difference(off, eager, exact, 2.0**-24)
    off[3] = float("inf")
    assert "has nan or inf in 1 of 7 places" in difference(off, eager, exact, 2.0**-24)


def test_eager_that_contradicts_itself_is_asked_again() -> None:
    class Flickers(nn.Module):
        calls = 0

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
            self.calls += 1
            return (x / (self.calls != 1),)

    x = torch.ones(2)
    model = Flickers()
    assert torch.equal(run_until_finite(model, [x], model(x), [x])[0], x)
    assert run_until_finite(lambda x: (x / 0,), [x], [x / 0], [x])[0].isinf().all()


def test_what_eager_does_not_decide() -> None:
    """An error that rounding explains, a shape that eager does not keep to (twice), and eager that fails."""
    verdicts = dict(networks.check((365, 3149, 3501, 6612)))
    assert {seed: verdict.reason for seed, verdict in verdicts.items() if verdict.kind != "right"} == {}


def test_exact_results_are_not_moved() -> None:
    x = torch.tensor([0.5, 1.0, 3.0])
    with RoundedEitherWay(0):
        exact, rounded = torch.relu(x * 2), x.repeat(100) / 3
    assert torch.equal(exact, torch.tensor([1.0, 2.0, 6.0]))
    wide = x.double().repeat(100) / 3
    assert 0 < difference_in_units(rounded, wide) <= 2


def difference_in_units(mine: torch.Tensor, exact: torch.Tensor) -> float:
    return float(((mine.double() - exact).abs() / exact.abs()).max()) / torch.finfo(mine.dtype).eps


def test_a_seed_is_one_network() -> None:
    assert [str(networks.make(seed)) for seed in (3, 4)] == [str(networks.make(seed)) for seed in (3, 4)]
    assert len({str(networks.make(seed)) for seed in range(10)}) == 10
    assert "class Net(nn.Module):" in str(networks.make(3))
    assert len(RULES) > 20


def test_refusals_group() -> None:
    first, second = ValueError("The dim 'h' of x0 is 3\nwhere: <network 3>:7"), ValueError("The dim 'w' of x1 is 12")
    assert networks.reason_of(first).startswith(networks.reason_of(second)[:20])
