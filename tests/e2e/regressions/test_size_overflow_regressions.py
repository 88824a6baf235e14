"""Sizes of a call that int64_t cannot hold, in elements or in bytes only: a named error, ahead of any work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import ingot
import ingot_runtime
from ingot.codegen.checked_sizes import MOST_BYTES, SizeLimits, check_static_sizes, checked_text
from ingot.errors import CompileError
from ingot.lowering.index_expr import largest, symbol
from ingot.lowering.loop_ir import Buffer
from ingot.lowering.loop_module import Module


class Apply(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def squares(x: Tensor, depth: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(x.shape[0], x.shape[0], depth, dtype=dtype)


QUADRATIC: dict[str, Callable[[Tensor], Tensor]] = {
    "sort": lambda x: torch.arange(x.shape[0]).expand(x.shape[0], x.shape[0]).sort(-1)[0].sum(),
    "cumsum": lambda x: squares(x, 1).cumsum(0).sum(),
    "softmax": lambda x: torch.softmax(squares(x, 2), 0).cumsum(1).sum(),
    "part": lambda x: squares(x, 4).cumsum(0)[:1, :1].sum(),
    "output": lambda x: squares(x, 16),
    "wide output": lambda x: squares(x, 1, torch.float64),
    "flat output": lambda x: squares(x, 64).reshape(-1),
    "matmul": lambda x: (squares(x, 8) @ torch.ones(8, 8)).cumsum(0)[0, 0, 0],
}


@pytest.fixture(scope="module")
def compiled() -> Callable[[str], ingot.artifacts.compiled_model.CompiledModel]:
    made: dict[str, ingot.artifacts.compiled_model.CompiledModel] = {}

    def get(name: str) -> ingot.artifacts.compiled_model.CompiledModel:
        if name not in made:
            example = torch.zeros(5, dtype=torch.bool)
            made[name] = ingot.compile(Apply(QUADRATIC[name]), (example,), dynamic_shapes=({0: "n"},), threads=2)
        return made[name]

    return get


@pytest.mark.parametrize("n", [2**30, 2**31, 2**32, 2**32 + 1])
@pytest.mark.parametrize("name", QUADRATIC)
def test_a_size_that_overflows_is_out_of_memory(
    compiled: Callable[[str], ingot.artifacts.compiled_model.CompiledModel], name: str, n: int
) -> None:
    """2^60 elements and more: products wrap around to anything, 0 among it."""
    with pytest.raises(ingot_runtime.OutOfMemory, match="too large for any machine"):
        compiled(name)(torch.empty(n, dtype=torch.bool))


@pytest.mark.parametrize("name", QUADRATIC)
def test_small_sizes_still_run(
    compiled: Callable[[str], ingot.artifacts.compiled_model.CompiledModel], name: str
) -> None:
    for n in (1, 2, 7):
        x = torch.zeros(n, dtype=torch.bool)
        torch.testing.assert_close(compiled(name)(x), QUADRATIC[name](x))


def test_the_message_names_the_line(compiled: Callable[[str], ingot.artifacts.compiled_model.CompiledModel]) -> None:
    with pytest.raises(ingot_runtime.OutOfMemory, match=Path(__file__).name):
        compiled("cumsum")(torch.empty(2**32, dtype=torch.bool))


def test_a_size_that_a_step_finds_out_is_checked() -> None:
    def function(x: Tensor) -> Tensor:
        n = x.sum().item()
        torch._check(n >= 1)
        return torch.ones(n, n, 4).cumsum(0)[0, 0].sum()

    compiled = ingot.compile(Apply(function), (torch.tensor([2, 3]),), threads=1)
    assert compiled(torch.tensor([2, 3])) == 4
    for n in (2**30, 2**31, 2**32, 2**40):
        with pytest.raises(ingot_runtime.OutOfMemory):
            compiled(torch.tensor([n - 1, 1]))
    assert compiled(torch.tensor([1, 1])) == 4  # a run that failed leaves nothing behind


def test_a_saved_model_checks_too(
    tmp_path: Path, compiled: Callable[[str], ingot.artifacts.compiled_model.CompiledModel]
) -> None:
    compiled("cumsum").save(tmp_path / "m.ingot")
    with ingot_runtime.load(tmp_path / "m.ingot") as model, pytest.raises(ingot_runtime.OutOfMemory):
        model(torch.empty(2**32, dtype=torch.bool))


def test_static_sizes_are_checked_when_compiled() -> None:
    module = Module({"b0": Buffer("b0", "float32", (2**31, 2**31))}, (), (), (), (), {})
    with pytest.raises(CompileError, match="no machine can hold"):
        check_static_sizes(module, ["b0"])


def test_checked_text() -> None:
    n, m = symbol("n0"), symbol("n1")
    assert checked_text(7) == "7"
    assert checked_text(n * m * 4) == "ig_checked_mul(ig_checked_mul(n[0], n[1], &over), INT64_C(4), &over)"
    assert checked_text(n // m) == "ig_checked_div(n[0], n[1], &over)"
    assert checked_text(largest(n, m) - 1) == "ig_checked_add(ig_max(n[0], n[1]), INT64_C(-1), &over)"


def test_a_stricter_limit_wins() -> None:
    limits, n = SizeLimits(), symbol("n0")
    limits.add(n, None, 1)
    limits.add(n, MOST_BYTES, 2)
    limits.add(n, None, 3)
    limits.add(5, MOST_BYTES, 4)
    assert limits.sizes == {n: (MOST_BYTES, 2)}
