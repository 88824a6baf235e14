"""unflatten(): the hierarchy, its names, its state, and modules that can be used like any other."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import ingot
from ingot.interop.unflattened_modules import Unflattened


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


class Branches(nn.Module):
    """Control flow of every kind whose functions call modules, one inside another."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.fc, self.other = kind, nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "cond":
            return torch.cond(x.sum() > -1e6, self._inner, lambda x: self.other(x), (x,))
        if self.kind == "while_loop":
            start = (torch.zeros((), dtype=torch.int64), x)
            return while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, self.fc(x).sin()), start)[1]
        if self.kind == "scan":
            # Each result calls the module: through a carry that begins without gradient torch 2.11 has none.
            return scan(lambda carry, row: (self.fc(carry) + row, self.fc(carry) * 1.0), x[0] * 0, x)[1]
        return torch.ops.higher_order.map_impl(lambda row: (self.fc(row),), [x], [])[0]

    def _inner(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.mean() > 1e6, lambda x: self.fc(x), lambda x: self.fc(x) * self.other(x), (x,))


@pytest.mark.parametrize("kind", ["cond", "while_loop", "scan", "map"])
def test_gradients_reach_modules_that_control_flow_calls(kind: str) -> None:
    torch.manual_seed(0)
    model, x = Branches(kind), torch.randn(3, 4)
    program = ingot.capture(model, (x,))
    whole, parts = program.module(), program.unflatten()
    for rebuilt in (whole, parts):
        rebuilt(x).square().sum().backward()
    expected = {name: p.grad for name, p in whole.named_parameters()}
    assert any(grad is not None and grad.abs().sum() > 0 for grad in expected.values())
    for name, parameter in parts.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], msg=name)
    with torch.no_grad():
        torch.testing.assert_close(parts(x), ingot.capture(model, (x,))(x))
    again = ingot.capture(parts, (x,))
    torch.testing.assert_close(again(x), program(x))


def test_gradients_reach_a_module_put_in_the_place_of_one_that_a_branch_calls() -> None:
    torch.manual_seed(0)
    model, x = Branches("cond"), torch.randn(3, 4)
    parts = ingot.capture(model, (x,), preserve_module_call_signature=("fc",)).unflatten()
    parts.fc = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))
    parts(x).square().sum().backward()
    model.fc = parts.fc
    torch.testing.assert_close(parts(x), ingot.capture(model, (x,))(x))
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in parts.fc.parameters())
    assert all(p.requires_grad and isinstance(p, nn.Parameter) for p in parts.parameters())
