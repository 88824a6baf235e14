"""unflatten(): the hierarchy, its names, its state, and modules that can be used like any other."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import ingot
from ingot.program.unflatten import Unflattened


class Block(nn.Module):
    def __init__(self, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.norm = norm or nn.LayerNorm(8)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mlp(self.norm(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        shared = nn.LayerNorm(8)
        self.blocks = nn.ModuleList([Block(), Block(shared), Block(shared)])
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("table", torch.arange(8.0), persistent=False)

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.embed(ids) + self.table
        for block in self.blocks:
            x = block(x)
        return {"logits": self.head(x), "hidden": x}


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model().eval()


IDS = torch.tensor([[1, 2, 3], [4, 5, 10]])


def test_names_state_and_numbers(model: Model) -> None:
    unflattened = ingot.capture(model, (IDS,)).unflatten()
    assert list(unflattened.state_dict()) == sorted(unflattened.state_dict(), key=list(model.state_dict()).index) or (
        set(unflattened.state_dict()) == set(model.state_dict())
    )
    called = {name for name, module in model.named_modules() if name and not isinstance(module, nn.ModuleList)}
    assert called <= dict(unflattened.named_modules(remove_duplicate=False)).keys()
    assert unflattened.head.weight is unflattened.embed.weight, "tied weights stay tied"
    expected, got = model(IDS), unflattened(IDS)
    assert all(torch.equal(got[key], expected[key]) for key in expected)


def test_dynamic_sizes(model: Model) -> None:
    unflattened = ingot.capture(model, (IDS,), dynamic_shapes={"ids": {0: "batch", 1: "seq"}}).unflatten()
    for shape in ((1, 7), (5, 2), (3, 3)):
        ids = torch.randint(0, 11, shape)
        assert torch.equal(unflattened(ids)["logits"], model(ids)["logits"])


def test_parameters_can_be_replaced_and_trained(model: Model) -> None:
    unflattened = ingot.capture(copy.deepcopy(model), (IDS,)).unflatten()
    for module in (model, unflattened):
        module(IDS)["logits"].sum().backward()
    for name, parameter in model.named_parameters():
        assert torch.equal(unflattened.get_parameter(name).grad, parameter.grad), name
    with torch.no_grad():
        unflattened.blocks.get_submodule("0").mlp.get_submodule("0").weight.zero_()
        model.blocks[0].mlp[0].weight.zero_()
    assert torch.equal(unflattened(IDS)["logits"], model(IDS)["logits"])


def test_a_copy_is_independent(model: Model) -> None:
    unflattened = ingot.capture(model, (IDS,)).unflatten()
    copied = copy.deepcopy(unflattened)
    with torch.no_grad():
        copied.embed.weight.zero_()
    assert not torch.equal(copied(IDS)["logits"], unflattened(IDS)["logits"])
    assert torch.equal(unflattened(IDS)["logits"], model(IDS)["logits"])


def test_hooks_on_submodules_run(model: Model) -> None:
    unflattened = ingot.capture(model, (IDS,), preserve_module_call_signature=("blocks.1",)).unflatten()
    seen: list[tuple[int, ...]] = []
    unflattened.blocks.get_submodule("1").register_forward_hook(lambda m, args, out: seen.append(tuple(out.shape)))
    unflattened(IDS)
    assert seen == [(2, 3, 8)]


def test_a_preserved_submodule_can_be_called_by_itself(model: Model) -> None:
    unflattened = ingot.capture(model, (IDS,), preserve_module_call_signature=("blocks.0.norm",)).unflatten()
    norm = unflattened.get_submodule("blocks.0.norm")
    assert isinstance(norm, Unflattened)
    x = torch.randn(2, 3, 8)
    assert torch.equal(norm(x), model.blocks[0].norm(x))


def test_it_can_be_captured_again(model: Model) -> None:
    unflattened = ingot.capture(model, (IDS,)).unflatten()
    again = ingot.capture(unflattened, (IDS,))
    assert torch.equal(again(IDS)["logits"], model(IDS)["logits"])


def test_train_and_eval_switch_every_module() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, eps=1e-3, momentum=0.03), nn.Dropout(0.1)).eval()
    unflattened = ingot.capture(copy.deepcopy(model), (torch.randn(5, 4),)).unflatten()
    x = torch.randn(5, 4)
    for training in (True, False, True, False):
        model.train(training)
        unflattened.train(training)
        torch.manual_seed(1)
        expected = model(x)
        torch.manual_seed(1)
        assert torch.equal(unflattened(x), expected)
    for name, buffer in model.named_buffers():
        assert torch.equal(unflattened.get_buffer(name), buffer), name
