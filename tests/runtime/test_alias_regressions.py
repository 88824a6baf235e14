"""Arguments whose memory is not what they say: lazy signs, elements that share memory, arguments that share memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot import passes
from ingot.dynamo import compile_graph
from ingot_runtime import InputError, load


def negative(n: int) -> torch.Tensor:
    """A tensor with the negative bit set."""
    x = torch.complex(torch.arange(n) - 1.5, torch.arange(n) - 1.0).conj().imag
    assert x.is_neg()
    return x


class Scales(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.register_buffer("scale", negative(n))
        self.weight = nn.Parameter(negative(n))

    def forward(self, x: torch.Tensor) -> Any:
        return torch.relu(x), x * self.scale, x + self.weight, x @ self.weight


class Doubles(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        x.mul_(2)
        return x + y


def test_a_lazy_sign_is_read(tmp_path: Any) -> None:
    model, x = Scales(4), negative(4)
    want = model(x)
    compiled = ingot.compile(model, (torch.randn(4),), threads=1)
    compiled.save(tmp_path / "m.ingot")
    program = ingot.capture(model, (torch.randn(4),))
    program.save(tmp_path / "p.ingot")
    calls = [compiled, ingot.load(tmp_path / "m.ingot"), program, ingot.load(tmp_path / "p.ingot")]
    calls.append(ingot.compile(model, (x,), threads=1))
    calls.append(torch.compile(model, backend=compile_graph))
    for call in calls:
        for got, expected in zip(call(x), want, strict=True):
            torch.testing.assert_close(got, expected)
    results = load(tmp_path / "m.ingot")(x=x)
    for got, expected in zip(results, want, strict=True):
        torch.testing.assert_close(torch.as_tensor(got), expected.detach())


def test_what_is_written_must_be_its_own() -> None:
    example = (torch.randn(4), torch.randn(4))
    compiled = ingot.compile(Doubles(), example, threads=1)
    functional = ingot.transform(ingot.capture(Doubles(), example), [passes.functionalize])
    memory = torch.randn(7)
    for call in (compiled, functional):
        for x, y, words in (
            (torch.randn(1).expand(4), torch.randn(4), "share memory"),
            (memory[:4], memory[3:], "share memory"),
            (memory[:4], memory[:4], "share memory"),
        ):
            with pytest.raises((InputError, ingot.errors.InputError), match=words):
                call(x, y)
        call(memory[:4], torch.randn(1).expand(4))  # what is only read may overlap
        x, y = memory[::2].clone(), torch.randn(4)
        strided = torch.zeros(8)[::2].copy_(x)
        torch.testing.assert_close(call(strided, y), x * 2 + y)
        torch.testing.assert_close(strided, x * 2)
    with pytest.raises(InputError, match="read-only"):
        compiled(negative(4), torch.randn(4))
