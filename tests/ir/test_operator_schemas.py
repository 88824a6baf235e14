"""What torch_internals says of operators' schemas, beside calls of the operators."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ingot import torch_internals as internals

aten = torch.ops.aten


def test_arguments_by_name() -> None:
    op = aten.add.Tensor
    assert internals.argument_names(op) == ("self", "other", "alpha")
    assert internals.bind_arguments(op, (1, 2), {}) == {"self": 1, "other": 2}
    assert internals.fill_arguments(op, (1,), {"other": 2}) == {"self": 1, "other": 2, "alpha": 1}


def test_positions_that_are_left_out_are_none() -> None:
    assert internals.values_at(aten.add.out, [3, 0], (1, 2), {}) == [None, 1]


@pytest.mark.parametrize(
    ("op", "args", "kwargs"),
    [
        (aten.add_.Tensor, (torch.ones(3), torch.ones(3)), {}),
        (aten.add.out, (torch.ones(3), torch.ones(3)), {"out": torch.zeros(3)}),
        (aten._foreach_add_.Scalar, ([torch.ones(2), torch.ones(3)], 1), {}),
        (aten.sort.values, (torch.rand(4),), {"values": torch.zeros(4), "indices": torch.zeros(4).long()}),
        (aten.add.Tensor, (torch.ones(3), torch.ones(3)), {}),
        (aten.view.default, (torch.ones(4), [2, 2]), {}),
        (
            aten.batch_norm.default,
            (torch.rand(4, 3), None, None, torch.zeros(3), torch.ones(3), True, 0.5, 1e-5, False),
            {},
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, internals.OpOverload) else "",
)
def test_what_a_call_writes_is_what_changes(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    tensors = [t for t in _leaves([*args, *kwargs.values()]) if isinstance(t, torch.Tensor)]
    before = [t.clone() for t in tensors]
    op(*args, **kwargs)
    changed = {id(t) for t, was in zip(tensors, before, strict=True) if not torch.equal(t, was)}
    assert {id(t) for t in _leaves(internals.mutated_values(op, args, kwargs))} == changed


def _leaves(values: list[Any]) -> list[Any]:
    return [leaf for value in values for leaf in (_leaves(value) if isinstance(value, list) else [value])]


def test_results_that_are_arguments() -> None:
    assert internals.returned_positions(aten.add_.Tensor) == (0,)
    assert internals.returned_positions(aten.add.Tensor) == (None,)
    assert internals.returned_positions(aten.sort.values) == (3, 4)
    assert internals.aliased_positions(aten.view.default) == (0,)
    assert internals.mutated_positions(aten.view.default) == ()
