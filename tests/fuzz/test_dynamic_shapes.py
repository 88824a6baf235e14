"""The generator of dynamic-shape programs: some fixed programs are right, and its oracle can say that one is not."""

from __future__ import annotations

import torch

from tests.fuzz import dynamic_shapes
from tests.fuzz.verdict import Verdict


def test_programs_depend_on_the_seed_alone() -> None:
    assert str(dynamic_shapes.make(7)) == str(dynamic_shapes.make(7))
    assert len({str(dynamic_shapes.make(seed)).split("\n", 1)[1] for seed in range(20)}) > 15


def test_some_programs() -> None:
    verdicts = dict(dynamic_shapes.check(list(range(16))))
    wrong = [verdict.reason for verdict in verdicts.values() if verdict.kind == "wrong"]
    assert not wrong, "\n".join(wrong)
    assert sum(verdict == Verdict("right") for verdict in verdicts.values()) > 8


def test_the_oracle_sees_what_differs() -> None:
    x = torch.randn(3)
    wide = x.double()
    assert not dynamic_shapes.compare([x], [wide], [x.clone()])
    for other in (x + 1e-2, x[:2], x.double(), torch.where(x > x.min(), x, torch.nan)):
        assert dynamic_shapes.compare([x], [wide], [other])
