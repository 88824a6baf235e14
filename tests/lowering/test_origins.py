"""Steps name the line that they compute: those that put results and new state into memory, too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import ingot
from ingot.compiler import run_cpu_pipeline
from ingot.lowering.loop_ir import Map
from ingot.lowering.lower import lower
from ingot_runtime.errors import IndexOutOfRange

LINES = Path(__file__).read_text().splitlines()


class Counting(nn.Module):
    counter: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("counter", torch.zeros(3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.counter.add_(1)  # the counter
        y.mul_(2)  # the argument
        first = torch.sin(x)  # the first result
        second = (x * 3).transpose(0, 1)  # the second result
        return first, second, x


class Inner(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.neg()  # the inner result


def mark(source: str) -> str:
    """The comment at the end of a line of this file, where a step says that it comes from."""
    return LINES[int(source.rpartition(":")[2]) - 1].partition("# ")[2] if source else ""


def test_results_and_new_state_carry_the_node_that_computes_them() -> None:
    program = run_cpu_pipeline(ingot.capture(Counting().eval(), (torch.randn(2, 3), torch.randn(4))))
    module = lower(program)
    kinds: dict[str, list[tuple[str, str]]] = {}
    for step in module.steps:
        assert isinstance(step, Map)
        (store,) = step.stores
        buffer = module.buffers[store.buffer]
        kinds.setdefault(buffer.kind, []).append((step.origin.op, mark(step.origin.source)))
    assert sorted(kinds["output"]) == [
        ("permute.default", "the second result"),
        ("sin.default", "the first result"),
        ("x", ""),
    ]
    assert kinds["state"] == [("add.Tensor", "the counter")]
    assert kinds["input"] == [("mul.Tensor", "the argument")]
    assert set(kinds["temporary"]) == {("add.Tensor", "the counter"), ("mul.Tensor", "the argument")}


def test_the_module_of_a_result_is_the_one_that_computes_it() -> None:
    model = nn.Sequential(nn.ReLU(), Inner())
    compiled = ingot.compile(model.eval(), (torch.randn(2, 3),))
    (row,) = compiled.profile(torch.randn(2, 3), repeat=1).rows
    assert (row.op, row.module, mark(row.source)) == ("neg.default", "1", "the inner result")
    assert str(row.source) in compiled.source
    compiled.close()


class Largest(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, _ = torch.topk(x, 2)  # the call
        return values, values


def test_one_result_of_several_carries_the_call() -> None:
    module = lower(run_cpu_pipeline(ingot.capture(Largest(), (torch.randn(2, 5),))))
    copied = module.steps[-1]
    assert isinstance(copied, Map) and module.buffers[copied.stores[0].buffer].kind == "output"
    assert (copied.origin.op, mark(copied.origin.source)) == ("topk.default", "the call")


class Picked(nn.Module):
    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return x[places]  # the index


def test_an_index_that_is_out_of_range_is_reported_at_its_line() -> None:
    compiled = ingot.compile(Picked(), (torch.randn(5), torch.tensor([1, 2])))
    with pytest.raises(IndexOutOfRange, match=r"test_origins\.py:\d+") as failure:
        compiled(torch.randn(5), torch.tensor([1, 9]))
    line = next(number for number, text in enumerate(LINES, 1) if text.endswith("# the index"))
    assert f"test_origins.py:{line}" in str(failure.value)
    compiled.close()
