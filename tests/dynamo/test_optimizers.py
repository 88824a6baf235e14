"""Steps of optimizers through torch.compile: few kernels, the numbers of eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.dynamo.recording import Recording

OPTIMIZERS: dict[str, tuple[Callable[[Any], torch.optim.Optimizer], int]] = {
    "SGD": (lambda p: torch.optim.SGD(p, lr=0.1), 1),
    "SGD with momentum": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01), 2),
    "AdamW": (lambda p: torch.optim.AdamW(p, lr=0.01), 8),
    "AdamW with a tensor for its rate": (lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01)), 8),
    "Adam, foreach": (lambda p: torch.optim.Adam(p, lr=0.01, foreach=True, amsgrad=True), 8),
    "SGD, foreach": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True), 2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_eager_s_in_few_kernels(recording: Recording, name: str) -> None:
    make, kernels = OPTIMIZERS[name]
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(4)))
    eager = copy.deepcopy(model)
    optimizer, other = make(model.parameters()), make(eager.parameters())
    step = torch.compile(lambda: optimizer.step(), backend=recording)
    for _ in range(20):
        for parameter, copied in zip(model.parameters(), eager.parameters(), strict=True):
            parameter.grad = torch.randn_like(parameter)
            copied.grad = parameter.grad.clone()
        step()
        other.step()
    torch.testing.assert_close(list(model.parameters()), list(eager.parameters()), rtol=1e-4, atol=1e-5)
    assert recording.reports and all(recording.native), recording.reports
    assert recording.reports[-1].kernels <= kernels < recording.reports[-1].operations


def test_lists_of_tensors(recording: Recording) -> None:
    """What each functional operator on lists computes."""
    a, b = [torch.rand(3) + 1, torch.rand(2, 2) + 1], [torch.rand(3) + 1, torch.rand(2, 2) + 1]

    def function(a: list[torch.Tensor], b: list[torch.Tensor]) -> list[list[torch.Tensor]]:
        each: Any = torch
        return [
            each._foreach_add(a, b, alpha=2),
            each._foreach_add(a, 3),
            each._foreach_sub(a, [1.0, 2.0]),
            each._foreach_mul(a, torch.tensor(2.0)),
            each._foreach_div(a, b),
            each._foreach_addcmul(a, b, b, value=0.5),
            each._foreach_addcdiv(a, b, a, [0.5, 2.0]),
            each._foreach_maximum(a, 1.5),
            each._foreach_minimum(a, b),
            each._foreach_pow(2.0, a),
            each._foreach_lerp(a, b, 0.25),
            each._foreach_norm(a, 1),
            each._foreach_sqrt(a),
            each._foreach_clamp_min(a, [1.2, 1.4]),
        ]

    have, want = torch.compile(function, backend=recording)(a, b), function(a, b)
    torch.testing.assert_close(have, want, rtol=1e-5, atol=1e-6)
    assert recording.native == [True], recording.reports
