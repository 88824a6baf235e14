"""The generator of dynamic-shape programs: some fixed programs are right, and its oracle can say that one is not."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.export import Dim

import ingot
from tests.fuzz import dynamic_shapes
from tests.fuzz.dynamic_shapes_native import compile_parts, lower_part, run_part


def test_programs_depend_on_the_seed_alone() -> None:
    assert str(dynamic_shapes.make(7)) == str(dynamic_shapes.make(7))
    assert len({str(dynamic_shapes.make(seed)).split("\n", 1)[1] for seed in range(20)}) > 15


def test_some_programs() -> None:
    verdicts = dict(dynamic_shapes.check(list(range(16))))
    wrong = [verdict.reason for verdict in verdicts.values() if verdict.kind == "wrong"]
    assert not wrong, "\n".join(wrong)
    assert sum(verdict.kind == "right" for verdict in verdicts.values()) > 8


def test_bad_indices_of_an_empty_tensor_read_nothing(tmp_path: Path) -> None:
    """torch gives no address for a tensor without elements, so that a read of place 0 ends the process."""

    class Model(nn.Module):
        def forward(self, a: torch.Tensor) -> torch.Tensor:
            return a[torch.tensor([0, 3])].sum() + a.gather(0, torch.tensor([[1, 0]])).sum()

    shapes = {"a": {0: Dim("n", min=0, max=9)}}
    part = lower_part(ingot.capture(Model(), (torch.randn(5, 2),), dynamic_shapes=shapes))
    compile_parts([part], tmp_path)
    for size in (0, 3):
        message = run_part(part, [torch.randn(size, 2)])
        assert isinstance(message, str) and "index is out of range" in message


def test_the_oracle_sees_what_differs() -> None:
    x = torch.randn(3)
    wide = x.double()
    assert not dynamic_shapes.compare([x], [wide], [x.clone()])
    for other in (x + 1e-2, x[:2], x.double(), torch.where(x > x.min(), x, torch.nan)):
        assert dynamic_shapes.compare([x], [wide], [other])
