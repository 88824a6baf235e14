"""Transforms of torch.func: inside a model they are compiled; around compiled code they are refused by name."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, jvp, vmap

import ingot
from ingot.errors import InputError
from tests.autograd.test_trainable_model import compiled, mlp

X = torch.Tensor


def plain() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


@pytest.mark.parametrize("kind", ["vmap of grad", "jvp"])
def test_transforms_inside_have_gradients(kind: str) -> None:
    model, x = plain(), torch.randn(6, 4)

    def function(x: X) -> X:
        if kind == "jvp":
            value, slope = jvp(model, (x,), (x.cos(),))
            return (value * slope).sum()
        slopes: X = vmap(grad(lambda row: model(row).sum()))(x)
        return slopes.square().sum()

    found = []
    for call in (ingot.compile(function, (x,), training=True, threads=1), function):
        model.zero_grad()
        call(x).backward()
        found.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(*found)


def test_per_sample_gradients_through_torch_compile() -> None:
    model, x = plain(), torch.randn(6, 4)
    parameters = {name: tensor.detach() for name, tensor in model.named_parameters()}

    def loss(parameters: dict[str, X], row: X) -> X:
        result: X = functional_call(model, parameters, (row[None],))
        return result.square().sum()

    def function(x: X) -> dict[str, X]:
        made: dict[str, X] = vmap(grad(loss), (None, 0))(parameters, x)
        return made

    torch.testing.assert_close(torch.compile(function, backend="ingot", fullgraph=True)(x), function(x))


def test_transforms_around_compiled_code_are_refused_by_name() -> None:
    model, x = mlp(), torch.randn(6, 4)
    trained = compiled(model, x)
    parameters = {name: tensor.detach() for name, tensor in model.named_parameters()}
    with pytest.raises(InputError, match=r"0\.weight is a Tensor without memory"):
        grad(lambda p: functional_call(trained, p, (x,)).sum())(parameters)
    with pytest.raises(InputError, match=r"torch\.func"):
        vmap(trained)(x[:, None])
    torch.testing.assert_close(functional_call(trained, parameters, (x,)), functional_call(model, parameters, (x,)))
