"""program.module(): state under its own names, training, and lossless train() and eval()."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import ingot


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4, eps=1e-3, momentum=0.03)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(self.norm(self.conv(x)).relu().mean((2, 3))))


@pytest.fixture(params=["captured in train", "captured in eval", "exported in train", "exported in eval"])
def pair(request: pytest.FixtureRequest) -> tuple[Net, nn.Module]:
    torch.manual_seed(0)
    how, mode = request.param.split(" in ")
    model, x = Net().train(mode == "train"), torch.randn(2, 3, 8, 8)
    if how == "captured":
        return model, ingot.capture(copy.deepcopy(model), (x,)).module()
    return model, ingot.from_exported(torch.export.export(copy.deepcopy(model), (x,))).module()


def agree(model: nn.Module, module: nn.Module, x: torch.Tensor) -> None:
    torch.manual_seed(7)
    expected = model(x)
    torch.manual_seed(7)
    assert torch.equal(module(x), expected)


def test_state_is_the_model_s(pair: tuple[Net, nn.Module]) -> None:
    model, module = pair
    assert list(module.state_dict()) == list(model.state_dict())
    assert module.training == model.training


def test_train_and_eval_any_number_of_times(pair: tuple[Net, nn.Module]) -> None:
    model, module = pair
    before = str(module.graph_module.graph)
    started = module.training
    for training in (True, False, False, True, False, True):
        model.train(training)
        module.train(training)
        agree(model, module, torch.randn(2, 3, 8, 8))
    module.train(started)
    assert str(module.graph_module.graph) == before, "no literal was lost on the way"
    for name, buffer in model.named_buffers():
        assert torch.equal(module.get_buffer(name), buffer), name


def test_the_literals_survive(pair: tuple[Net, nn.Module]) -> None:
    _, module = pair
    for training in (True, False):
        module.train(training)
        nodes = {n.target: n for n in module.graph_module.graph.nodes}
        norm = nodes[torch.ops.aten.batch_norm.default]
        assert norm.args[5:8] == (training, 0.03, 1e-3)
        assert nodes[torch.ops.aten.dropout.default].args[1:] == (0.1, training)


def test_it_trains_like_the_model(pair: tuple[Net, nn.Module]) -> None:
    model, module = pair
    model.train()
    module.train()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, module)]
    for step in range(3):
        x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(step))
        for m, optimizer in zip((model, module), optimizers, strict=True):
            torch.manual_seed(step)
            optimizer.zero_grad()
            m(x[:2]).square().sum().backward()
            optimizer.step()
    for name, parameter in model.named_parameters():
        assert torch.equal(module.get_parameter(name), parameter), name


def test_conversion_to_another_dtype(pair: tuple[Net, nn.Module]) -> None:
    model, module = pair
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    agree(model.double().eval(), module.double().eval(), x)


def test_a_loaded_state_dict_is_used(pair: tuple[Net, nn.Module]) -> None:
    model, module = pair
    other = Net()
    module.load_state_dict(other.state_dict())
    model.load_state_dict(other.state_dict())
    agree(model.eval(), module.eval(), torch.randn(2, 3, 8, 8))
