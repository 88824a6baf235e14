"""The CUDA schedule: loop IR of its passes as text, numbers on the interpreter, and kernels in emulation."""

from __future__ import annotations

import collections
import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ingot
from ingot.compiler import run_cpu_pipeline
from ingot.lowering.loop_ir import LoopNest
from ingot.lowering.loop_ir_printer import print_steps
from ingot.lowering.loop_module import Module
from ingot.targets.cuda.target import CUDA
from tests.support.cuda_emulation.emulated_model import EmulatedModel
from tests.targets.cuda import schedule_sweep

Golden = Callable[[str, str], None]


class Cache(nn.Module):
    """A layer of a decoder for one token: a norm, keys and values written to their caches, attention, a gate."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, width: int = 32, heads: int = 2, length: int = 6) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.RMSNorm(width)
        self.parts = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.up = nn.Linear(width, 2 * width, bias=False)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, heads, length, width // heads))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        rows = self.norm(x)
        q, k, v = (part(rows).view(1, x.shape[1], self.heads, -1).transpose(1, 2) for part in self.parts)
        self.keys.index_copy_(2, at, k)
        self.values.index_copy_(2, at, v)
        mask = torch.arange(self.keys.shape[2])[None] <= at[:, None]
        y = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
        gate, up = self.up(y.transpose(1, 2).reshape(x.shape) + x).chunk(2, -1)
        return F.silu(gate) * up


class Updates(nn.Module):
    """State that is shifted, whose old value is read late, and that is scattered into."""

    scores: torch.Tensor
    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scores", torch.arange(6.0).view(3, 2))
        self.register_buffer("table", torch.zeros(4, 2))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        before = self.table.clone()
        self.table[at] = x
        self.scores.mul_(0.5).add_(x[:1])
        return self.table.sum(0) + before.prod(0)


def lower(model: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[ingot.Program, Module]:
    program = run_cpu_pipeline(ingot.capture(model, args), (), CUDA)
    return program, CUDA.lower(program, "float32")


def print_pass(module: Module, name: str) -> str:
    """The steps after the pass, the last time that it changed something."""
    found: list[str] = []

    def observe(ran: str, before: Module, after: Module) -> None:
        if ran == name and before.steps != after.steps:
            found.append(print_steps(after.steps, locations=False))

    CUDA.schedule(module, verify=True, observe=observe)
    assert found, f"{name} changed nothing"
    return found[-1]


def list_results(results: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return (results,) if isinstance(results, torch.Tensor) else results


def check_calls(model: nn.Module, calls: list[tuple[torch.Tensor, ...]], tolerance: float) -> Module:
    """Several calls by emulated kernels, and what they leave in the state, against eager in float64."""
    program, module = lower(copy.deepcopy(model), calls[0])
    scheduled = CUDA.schedule(module, verify=True)
    mine, exact = EmulatedModel(program, scheduled), copy.deepcopy(model).double()
    for args in calls:
        with torch.no_grad():
            expected = exact(*(a.double() if a.is_floating_point() else a for a in args))
        for one, other in zip(list_results(mine(*args)), list_results(expected), strict=True):
            torch.testing.assert_close(one.double(), other.double(), rtol=tolerance, atol=tolerance)
    return scheduled


def test_state_is_written_in_place(golden: Golden) -> None:
    torch.manual_seed(0)
    model, at = Updates(), torch.tensor([2, 0])
    args = (torch.randn(2, 2), at)
    golden("state_updates", print_pass(lower(model, args)[1], "state_updates"))
    check_calls(model, [args, (torch.randn(2, 2), torch.tensor([3, 1])), args], 1e-5)


def test_a_decoder_writes_its_caches_in_place() -> None:
    torch.manual_seed(0)
    model = Cache().eval()
    calls = [(torch.randn(1, 1, 32), torch.tensor([place])) for place in range(4)]
    scheduled = check_calls(model, calls, 1e-5)
    copies = [name for name, buffer in scheduled.buffers.items() if buffer.kind == "state"]
    text = print_steps(scheduled.steps, locations=False)
    for name in copies:
        stored = [line for line in text.splitlines() if f"store {name}[" in line]
        assert len(stored) == 1, text


@pytest.mark.parametrize("name", ["layer norm", "softmax", "mean and convert"])
def test_one_row_is_one_nest(name: str, golden: Golden) -> None:
    torch.manual_seed(0)
    width = 70
    models: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "layer norm": lambda x: F.layer_norm(x, (width,)),
        "softmax": lambda x: torch.softmax(x * 3, -1),
        "mean and convert": lambda x: (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)).bfloat16(),
    }

    class Row(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return models[name](x)

    args = (torch.randn(1, width),)
    scheduled = check_calls(Row(), [args], 1e-5 if name != "mean and convert" else 1e-2)
    assert [type(step) for step in scheduled.steps] == [LoopNest]
    golden(f"one row {name}", print_steps(scheduled.steps, locations=False))


def test_a_long_row_has_many_blocks() -> None:
    module = lower(nn.LayerNorm(40000), (torch.randn(1, 40000),))[1]
    assert not any(isinstance(step, LoopNest) for step in CUDA.schedule(module, verify=True).steps)


def test_random_state_programs() -> None:
    changed: collections.Counter[str] = collections.Counter()
    verdicts = [schedule_sweep.check_state(seed, changed) for seed in range(1000, 1040)]
    assert not [verdict.reason for verdict in verdicts if verdict.kind == "wrong"]
    assert changed["state_updates"] > 20


def test_random_networks() -> None:
    changed: collections.Counter[str] = collections.Counter()
    verdicts = [schedule_sweep.check_network(seed, changed) for seed in range(1000, 1006)]
    assert not [verdict.reason for verdict in verdicts if verdict.kind == "wrong"]
