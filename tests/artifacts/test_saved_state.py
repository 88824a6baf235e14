"""Saving a compiled model runs it once through torch, on copies: no state changes, and the bytes are the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import ingot
import ingot_runtime


class Counting(nn.Module):
    counter: torch.Tensor
    cache: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("counter", torch.zeros(3))
        self.register_buffer("cache", torch.zeros(4, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.counter.add_(1)
        self.cache[1:2] = x
        x.mul_(2)
        return self.linear(x) + self.counter + self.cache.sum(0)


def copies(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def assert_same(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> None:
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]), name


@pytest.mark.parametrize("with_program", [False, True])
def test_saving_changes_no_state_and_gives_the_same_bytes(tmp_path: Path, with_program: bool) -> None:
    model, x = Counting().eval(), torch.randn(1, 3)
    given = x.clone()
    program = ingot.capture(model, (x,))
    compiled = ingot.compile(program)
    owners = (model.state_dict(), program.state_dict, compiled.program.state_dict)
    before = [copies(state) for state in owners]
    files = [tmp_path / f"{number}.ingot" for number in range(3)]
    for file in files[:2]:
        compiled.save(file, program=with_program)
        for expected, state in zip(before, owners, strict=True):
            assert_same(expected, state)
    assert torch.equal(x, given)
    program(x.clone())  # the program's state is not that of the compiled model
    compiled(x.clone())  # whose own state is not what it begins with
    compiled.save(files[2], program=with_program)
    assert len({file.read_bytes() for file in files}) == 1
    ingot_runtime.load(files[2]).self_test()
    compiled.close()


class CountingInAttribute(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = torch.zeros(3)  # not registered: a constant of the program, and written all the same

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return x + self.count


def test_a_tensor_attribute_that_forward_writes_is_state(tmp_path: Path) -> None:
    compiled = ingot.compile(CountingInAttribute(), (torch.zeros(3),))
    assert [compiled(torch.zeros(3)).tolist() for _ in range(2)] == [[1.0] * 3, [2.0] * 3]
    compiled.save(tmp_path / "m.ingot")
    model = ingot_runtime.load(tmp_path / "m.ingot")
    model.self_test()
    assert model(torch.zeros(3)).tolist() == [1.0] * 3
