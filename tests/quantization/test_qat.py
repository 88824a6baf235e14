"""Quantization-aware training: the situations of torchao's tests, and what it gets wrong."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.quantize import PreparedProgram, convert, int8_dynamic, int8_static, int8_weight_only, prepare_qat
from tests.quantization.qat_scenarios import Situation, situations

aten = torch.ops.aten
SITUATIONS = [s for s in situations() if s.dims == 2 or s.activation == "relu"]


def qat(model: nn.Module, x: torch.Tensor, recipe: Any = None) -> PreparedProgram:
    return prepare_qat(ingot.capture(model.train(), (x,)), recipe or int8_static()).train()


def steps(module: nn.Module, batches: list[torch.Tensor], rate: float = 0.05) -> None:
    optimizer = torch.optim.SGD(module.parameters(), rate)
    for batch in batches:
        optimizer.zero_grad()
        module(batch).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("situation", SITUATIONS, ids=str)
def test_what_was_trained_is_what_is_converted(situation: Situation) -> None:
    groups = 2 if situation.bias else 1
    model = situation.model(eps=1e-3, momentum=0.03, channels=4, groups=groups)
    conv = getattr(nn, f"Conv{situation.dims}d")
    model = nn.Sequential(*model, nn.Dropout(0.1), conv(4, 4, 1))
    torch.manual_seed(3)
    x = situation.batch(4)
    module = qat(model, x)
    steps(module, [situation.batch(4) for _ in range(3)])
    module.eval()
    program = convert(module)
    program.verify()
    targets = [str(n.target) for n in program.graph.nodes if n.op == "call_function"]
    assert not any("batch_norm" in t or "dropout" in t for t in targets)
    assert [t.split(".")[1] for t in targets].count("quantize_per_tensor") == 2
    first = next(n for n in program.graph.nodes if str(n.target).startswith("aten.conv"))
    ones = [1] * situation.dims
    assert first.args[3:5] == ([2 * n for n in ones], ones)  # stride and padding
    if groups > 1:
        assert first.args[6] == groups
    with torch.no_grad():
        simulated, converted = module(x), program(x)
    weight = model[-1].weight.abs().sum(1).max()
    step = max(float(n.args[1]) for n in program.graph.nodes if "quantize_per_tensor" in str(n.target))
    off = (simulated - converted).abs()
    assert off.max() <= 1.01 * step * weight  # of what is quantized last, one step
    assert (off > 1e-5).float().mean() < 0.02


def test_training_computes_the_fused_convolution_by_hand() -> None:
    """The first step against the formula, written out: eps and momentum are the model's own."""
    situation = Situation(2, False, True, "relu")
    model = situation.model(eps=1e-3, momentum=0.03)
    conv, norm = model[0], model[1]
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2.0)
        norm.bias.normal_()
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2.0)
    x = situation.batch()
    factor = (norm.weight / torch.sqrt(norm.running_var + 1e-3)).detach().view(-1, 1, 1, 1)
    weight = (conv.weight * factor).detach()
    scale = weight.abs().amax((1, 2, 3), keepdim=True) / 127
    fused = torch.round(weight / scale).clamp(-127, 127) * scale / factor
    low, high = x.min(), x.max()
    step = (high - low) / 255
    zero = torch.round(-low / step)
    seen = (torch.round(x / step) + zero).clamp(0, 255)
    y = nn.functional.conv2d((seen - zero) * step, fused, conv.bias, stride=2, padding=1)
    mean, var = y.mean((0, 2, 3)), y.var((0, 2, 3), unbiased=False)
    running = 0.97 * norm.running_mean + 0.03 * mean
    expected = (y - mean.view(-1, 1, 1)) / torch.sqrt(var.view(-1, 1, 1) + 1e-3)
    expected = torch.relu(expected * norm.weight.view(-1, 1, 1) + norm.bias.view(-1, 1, 1))
    module = qat(model, x)
    got = module(x)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(module.get_buffer("1.running_mean"), running, rtol=1e-4, atol=1e-5)


def test_a_factor_of_zero_gives_no_nan() -> None:
    """A residual branch often begins with gamma 0; torchao divides by it."""
    situation = Situation(2, False, False, "none")
    model = situation.model()
    nn.init.zeros_(model[1].weight)
    x = situation.batch()
    module = qat(model, x)
    loss = module(x).square().mean() + module(x).sum()
    loss.backward()
    gradients = [p.grad for p in module.parameters()]
    assert all(g is not None and torch.isfinite(g).all() for g in gradients)
    assert torch.isfinite(convert(module.eval())(x)).all()


def test_train_and_eval_are_lossless() -> None:
    """eps 1e-3, momentum 0.03, dropout 0.1: any number of switches later they are what they were."""
    model = nn.Sequential(*Situation(2, False, True, "relu").model(eps=1e-3, momentum=0.03), nn.Dropout(0.1))
    x = torch.randn(4, 3, 8, 8)
    module = qat(model, x)
    module(x)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}

    def literals() -> list[Any]:
        wanted = (aten.batch_norm.default, aten.dropout.default)
        nodes = [n for n in module.graph_module.graph.nodes if n.target in wanted]
        return [(*n.args[5:],) if n.target is wanted[0] else n.args[1:] for n in nodes]

    assert literals() == [(True, 0.03, 1e-3, True), (0.1, True)]
    for _ in range(3):
        module.eval()
        assert literals() == [(False, 0.03, 1e-3, True), (0.1, False)]
        first, second = module(x), module(x)
        assert torch.equal(first, second)
        module.train()
        assert literals() == [(True, 0.03, 1e-3, True), (0.1, True)]
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def test_state_dict_brings_a_module_back() -> None:
    situation = Situation(2, False, True, "relu6")
    x = situation.batch()
    module = qat(situation.model(), x)
    steps(module, [situation.batch() for _ in range(2)])
    other = qat(situation.model(), x)
    other.load_state_dict(copy.deepcopy(module.state_dict()))
    assert torch.equal(module.eval()(x), other.eval()(x))
    assert torch.equal(convert(module)(x), convert(other)(x))


@pytest.mark.parametrize("recipe", [int8_static(), int8_dynamic(), int8_weight_only()], ids=lambda r: r.name)
def test_it_learns(recipe: Any) -> None:
    """Gradients go through rounding: a small network fits noise with what it is given."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    x, y = torch.randn(64, 8), torch.randint(0, 4, (64,))
    module = qat(model, x, recipe)
    optimizer = torch.optim.Adam(module.parameters(), 0.02)
    losses = []
    for _ in range(30):
        loss = nn.functional.cross_entropy(module(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.7 * losses[0]
    program = convert(module.eval())
    program.verify()
    torch.testing.assert_close(program(x), module(x), rtol=0.01, atol=0.05)


def test_autocast() -> None:
    situation = Situation(2, False, False, "relu")
    model = nn.Sequential(*situation.model(), nn.Flatten(), nn.Linear(48, 5))
    x = situation.batch()
    module = qat(model, x)
    with torch.autocast("cpu", torch.bfloat16):
        result = module(x)
    assert result.dtype is torch.bfloat16
    result.float().square().mean().backward()
    assert all(p.grad is not None and p.grad.dtype is torch.float32 for p in module.parameters())
    program = convert(module.eval())
    program.verify()
    assert program(x).dtype is torch.float32


def test_data_parallel(tmp_path: Any) -> None:
    """Two processes over gloo see different batches and end with the same parameters and the same program."""
    command = [sys.executable, "-m", "tests.quantization.data_parallel", str(tmp_path)]
    workers = [subprocess.Popen([*command, str(rank)], cwd=Path(__file__).parents[2]) for rank in (0, 1)]
    assert [worker.wait(120) for worker in workers] == [0, 0]
    one, other = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    start = dict(Situation(2, False, True, "relu").model().named_parameters())
    for name, parameter in start.items():
        assert torch.equal(one[name], other[name])
        assert not torch.equal(one[name], parameter.detach())
    assert torch.equal(one["result"], other["result"])


def test_in_place_sums_and_activations_train() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.last = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.conv(x)
            y += x
            return self.last(nn.functional.relu_(y))

    x = torch.randn(2, 3, 6, 6)
    module = qat(Block(), x)
    steps(module, [x, x])
    program = convert(module.eval())
    program.verify()
    names = [str(n.target).split(".")[1] for n in program.graph.nodes if n.op == "call_function"]
    assert names.count("quantize_per_tensor") == 3
    torch.testing.assert_close(program(x), module(x), rtol=1e-4, atol=1e-4)
