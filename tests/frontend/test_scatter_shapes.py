"""Values that do not fit the elements that they are written to: refused at capture, as in eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import ingot
from ingot.errors import CaptureError

X = torch.Tensor
MISMATCH = "shape mismatch|expected src to have a size equal to the slice"


def write(x: X, indices: tuple[X | None, ...], values: X) -> X:
    return torch.ops.aten.index_put.default(x, list(indices), values)


CASES: dict[str, Callable[[X, X], X]] = {
    "one index": lambda x, at: write(x, (at,), x.new_ones(2, 4)),
    "two dims": lambda x, at: write(x, (at, at), x.new_ones(3)),
    "apart": lambda x, at: write(x, (at, None, at), x.new_ones(3, 2)),
    "adjacent, not first": lambda x, at: write(x, (None, at), x.new_ones(2, 3)),
    "too many dims": lambda x, at: write(x, (at,), x.new_ones(1, 2, 3, 4)),
    "in place": lambda x, at: x.clone().index_put_((at,), x.new_ones(5)),
    "assigned": lambda x, at: _assign(x.clone(), at),
    "select_scatter": lambda x, at: x.select_scatter(x.new_ones(5), 0, 0),
    "slice_scatter": lambda x, at: x.slice_scatter(x.new_ones(1, 3, 4), 0, 0, 2),
    "diagonal_scatter": lambda x, at: x.diagonal_scatter(x.new_ones(4, 2)),
}


def _assign(x: X, at: X) -> X:
    x[at] = x.new_ones(3, 3, 4)
    return x


@pytest.mark.parametrize("name", CASES)
def test_values_that_do_not_fit_are_refused(name: str) -> None:
    args = torch.zeros(4, 3, 4), torch.tensor([0, 1])
    with pytest.raises((RuntimeError, IndexError), match=MISMATCH):
        CASES[name](*args)
    with pytest.raises(CaptureError, match=MISMATCH):
        ingot.capture(CASES[name], args)


def test_values_that_fit_are_taken() -> None:
    x, at = torch.zeros(4, 3, 4), torch.tensor([0, 1])
    for indices, shape in (((at,), (3, 1)), ((at, None, at), (2, 3)), ((None, at), (4, 1, 4)), ((None, None, at), (2,)),
                           ((at[:, None], at), (2, 2, 4))):  # fmt: skip
        program = ingot.capture(lambda x, values, *at: write(x, at, values), (x, torch.ones(shape), *indices))
        assert torch.equal(program(x, torch.ones(shape), *indices), write(x, indices, torch.ones(shape)))
