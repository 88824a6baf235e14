"""Copies that are views where a dynamic dim is 1: writes to either are seen by the other at those sizes alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot import passes
from ingot.passes.functionalize import functionalize
from tests.support.oracle import same_bits

Body = Callable[[torch.Tensor], Any]


class Model(nn.Module):
    def __init__(self, body: Body) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> Any:
        return self.body(x)


def _write_to_copy(x: torch.Tensor) -> Any:
    y = x.t().contiguous()
    y.mul_(2)
    return x + 1, y


def _write_to_source(x: torch.Tensor) -> Any:
    a = x + 0
    y = a.t().contiguous()
    a.mul_(2)
    return y * 1


def _reshape(x: torch.Tensor) -> Any:
    a = x * 2
    y = a.t().reshape(-1)
    a.add_(1)
    return y


def _flatten_and_slice(x: torch.Tensor) -> Any:
    a = x * 2
    y = a.t().flatten()
    y[1:3] = 7
    return a, y


def _view_of_the_copy(x: torch.Tensor) -> Any:
    a = x * 2
    z = a.t().contiguous()[1:]
    z.neg_()
    return a, z


def _view_of_the_source(x: torch.Tensor) -> Any:
    a = x * 2
    y = a.t().contiguous()
    a[:, 1].fill_(9)
    y[0].add_(1)
    return a, y


def _both_ways(x: torch.Tensor) -> Any:
    a = x * 2
    y = a.t().contiguous()
    y.add_(1)
    a.mul_(3)
    y.sub_(2)
    return a, y


def _copy_of_a_copy(x: torch.Tensor) -> Any:
    a = x * 2
    y = a.t().contiguous()
    z = y.t().reshape(-1)
    z.add_(1)
    a.mul_(3)
    return a, y, z


def _condition_in_a_branch(x: torch.Tensor) -> Any:
    a = x * 2
    y = a.t().contiguous()
    y.mul_(torch.cond(a.sum() > 0, lambda v: v * 2, lambda v: v - 1, (a,)).t())
    return a, y


BODIES = {
    body.__name__.strip("_"): body
    for body in (
        _write_to_copy, _write_to_source, _reshape, _flatten_and_slice, _view_of_the_copy, _view_of_the_source,
        _both_ways, _copy_of_a_copy, _condition_in_a_branch,
    )
}  # fmt: skip


def judge(model: nn.Module, program: ingot.Program, given: Sequence[torch.Tensor]) -> None:
    """Results and arguments afterwards are those of eager: of the program, made functional, and compiled."""
    functional = ingot.transform(program, [functionalize])
    for run in (program, functional, ingot.compile(program)):
        for x in given:
            ours, right = x.clone(), x.clone()
            expected = model(right)
            assert same_bits(run(ours), expected), (run, x.shape)
            assert same_bits(ours, right), (run, x.shape, "the argument")


@pytest.mark.parametrize("name", BODIES)
def test_one_dim(name: str) -> None:
    model = Model(BODIES[name])
    program = ingot.capture(model, (torch.randn(3, 4),), dynamic_shapes=({0: torch.export.Dim("rows", min=0)},))
    judge(model, program, [torch.randn(rows, 4) for rows in (1, 2, 5, 0)])


def test_two_dims_that_may_be_one() -> None:
    def body(x: torch.Tensor) -> Any:
        a = x * 2
        y = a.permute(2, 0, 1).contiguous()
        a.add_(1)
        y[0].mul_(2)
        return a, y

    model = Model(body)
    program = ingot.capture(model, (torch.randn(3, 4, 5),), dynamic_shapes=({0: "b", 1: "s", 2: "d"},))
    judge(model, program, [torch.randn(b, s, d) for b in (1, 2) for s in (1, 3) for d in (1, 4)])


def test_four_dims_that_must_all_be_one() -> None:
    def body(x: torch.Tensor) -> Any:
        a = x * 2
        y = a.permute(4, 0, 1, 2, 3).contiguous()
        a.add_(1)
        return a, y

    model = Model(body)
    shapes = {place: f"d{place}" for place in range(4)}
    program = ingot.capture(model, (torch.randn(2, 3, 4, 5, 6),), dynamic_shapes=(shapes,))
    judge(model, program, [torch.randn(1, 1, 1, 1, 6), torch.randn(2, 1, 1, 1, 6)])


def test_sizes_that_cannot_be_one_need_no_selection() -> None:
    model = Model(_write_to_source)
    program = ingot.capture(model, (torch.randn(3, 4),), dynamic_shapes=({0: torch.export.Dim("rows", min=2)},))
    functional = ingot.transform(program, [functionalize])
    assert torch.ops.aten.where.self not in {node.target for node in functional.graph.nodes}


def test_the_program_is_printed_with_a_selection_and_stays_as_it_is() -> None:
    program = ingot.capture(Model(_write_to_source), (torch.randn(3, 4),), dynamic_shapes=({0: "rows"},))
    functional = ingot.transform(program, [functionalize, passes.dce], check="numerics")
    text = str(functional)
    assert "aten.eq.Scalar(scalar_tensor, 0)" in text
    assert "aten.where.self(eq, " in text
    assert str(ingot.transform(functional, [functionalize])) == text


# ---------------------------------------------------------------------- random programs

_COPIES: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda v: v.transpose(0, -1).contiguous(),
    lambda v: v.transpose(0, -1).reshape(-1),
    lambda v: v.transpose(0, 1).flatten(0, 1),
    lambda v: v.movedim(0, -1).contiguous(),
)
_VIEWS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda v: v[..., :1],
    lambda v: v.transpose(0, -1),
    lambda v: v.unsqueeze(0),
    lambda v: v.select(-1, 0),
)
_WRITES: tuple[Callable[[torch.Tensor], Any], ...] = (
    lambda v: v.add_(1),
    lambda v: v.mul_(-2),
    lambda v: v[..., 0].fill_(3),
    lambda v: v.copy_(v.flip(0)),
)


def drawn(seed: int) -> Body:
    """A function that makes copies and views of what it has so far, and writes to some."""

    def body(x: torch.Tensor) -> Any:
        draws = random.Random(seed)
        known = [x * 1]
        for _ in range(draws.randint(3, 8)):
            chosen = draws.choice(known)
            if draws.random() < 0.5 and chosen.dim():
                draws.choice(_WRITES)(chosen)
            elif chosen.dim() >= 2:
                known.append(draws.choice((*_COPIES, *_VIEWS))(chosen))
        return tuple(known)

    return body


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed: int) -> None:
    model = Model(drawn(seed))
    program = ingot.capture(model, (torch.randn(3, 4, 5),), dynamic_shapes=({0: "b", 1: "s"},))
    judge(model, program, [torch.randn(b, s, 5) for b in (1, 2) for s in (1, 3)])
