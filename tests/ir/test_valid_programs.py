"""Programs that break no invariant: the verifier takes them, and changes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ingot
from ingot import torch_internals as internals
from ingot.errors import VerifyError
from ingot.ir import metadata
from ingot.ir.program import Program
from ingot.ir.verifier import verify
from tests.ir.test_verifier import node
from tests.support.zoo import entry


def branch(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.shape[0] > 3, lambda x: x + 1, lambda x: x * x.shape[0], (x,))


def nested_branch(x: torch.Tensor) -> torch.Tensor:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.max() > 1, lambda x: x.exp(), lambda x: x.log1p(), (x,))

    return torch.cond(x.sum() > 0, inner, lambda x: x.clone(), (x,))


def loop(x: torch.Tensor) -> Any:
    from torch._higher_order_ops.while_loop import while_loop

    return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2 + x), (torch.tensor(0), x))


def scanned(x: torch.Tensor) -> Any:
    from torch._higher_order_ops.scan import scan

    return scan(lambda c, a: (c + a, c * a), torch.zeros(4), x)


def mapped(x: torch.Tensor) -> torch.Tensor:
    from torch._higher_order_ops.map import map as over_rows

    total = x.sum()
    return over_rows(lambda row: row.cumsum(0) + total, x)


def autocast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x.t()
        with torch.autocast("cpu", enabled=False):
            z = x @ x.t()
        return y @ y + z


def regions(x: torch.Tensor) -> torch.Tensor:
    higher = torch.ops.higher_order
    y = higher.wrap_with_autocast("cpu", torch.bfloat16, True, None, lambda x: x @ x.t(), x)
    return higher.wrap_with_set_grad_enabled(False, lambda y: y * 2, y)


def without_grad(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = x * 2
    return x + y


def in_place(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y.t_()
    y.unsqueeze_(0).squeeze_(0)
    y[0] = 1
    torch.add(y, 1, out=y)
    x.mul_(2)
    return y + y.relu_()


def nonzero(x: torch.Tensor) -> Any:
    rows = torch.nonzero(x[0])
    return rows + 1, x[x > 0], torch.unique(rows), rows.shape[0] * 2


def item(x: torch.Tensor) -> torch.Tensor:
    count = x.sum().long().item()
    torch._check(count >= 0)
    torch._check(count <= 10)
    x.add_(1)
    other = x.sum().long().item()
    torch._check(other >= 0)
    return torch.zeros(count), torch.ones(other + 2 * count)


def state_free() -> torch.Tensor:
    return torch.arange(3) + 1


FUNCTIONS = (
    branch, nested_branch, loop, scanned, mapped, autocast, regions, without_grad, in_place, nonzero, item,
)  # fmt: skip


def facts(program: Program) -> Any:
    """What the shape environment knows."""
    fakes = (t for n in program.graph.nodes for t in metadata.tensors_in(metadata.value_of(n)))
    env = next(t for t in fakes if isinstance(t, internals.FakeTensor)).fake_mode.shape_env
    sizes = [s for n in program.graph.nodes for t in metadata.tensors_in(metadata.value_of(n)) for s in t.shape]
    return (
        len(env.guards),
        env.num_deferred_runtime_asserts,
        dict(env.replacements),
        {str(s): str(env.bound_sympy(s.node.expr)) for s in sizes if internals.is_symbolic(s)},
        list(env.pending_fresh_unbacked_symbols),
    )


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_verifies_and_changes_nothing(function: Callable[..., Any], dynamic: bool) -> None:
    x = torch.rand(3, 4, generator=torch.Generator().manual_seed(0))
    program = ingot.capture(function, (x.clone(),), dynamic_shapes={"x": {0: "rows"}} if dynamic else None)
    text, known, expected = str(program), facts(program), program(x.clone())
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        verify(program)
        assert torch.is_autocast_enabled("cpu") and not torch.is_grad_enabled()
    verify(program)
    assert (str(program), facts(program)) == (text, known)
    assert not torch.is_autocast_enabled("cpu") and torch.is_grad_enabled()
    torch.testing.assert_close(program(x.clone()), expected)


def test_a_program_without_inputs() -> None:
    program = ingot.capture(state_free)
    verify(program)
    metadata.set_value(node(program, "add"), metadata.value_of(node(program, "add")).float())
    with pytest.raises(VerifyError, match=re.escape("add claims to be f32[3], but computes i64[3]")):
        verify(program)


def test_an_unknown_size_is_one_size() -> None:
    """A run may call u0 otherwise, not by two names."""
    program = ingot.capture(nonzero, (torch.rand(3, 4),))
    found = node(program, "nonzero")
    value = metadata.value_of(found)
    metadata.set_value(found, value.new_empty((5, 1)))
    with pytest.raises(VerifyError, match=re.escape("nonzero claims to be i64[5, 1], but computes i64[u0, 1]")):
        verify(program)
    metadata.set_value(found, value.new_empty((value.shape[0] * 2, 1)))
    with pytest.raises(VerifyError, match=re.escape("but computes i64[u0, 1]")):
        verify(program)


def test_symbol_bound_by_later_node() -> None:
    """Where x[k:] is recorded nobody knows yet that k is at most 6; where it is checked the next line has shown it."""

    def function(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        k = n.item()
        return x[k:].sum(), x.narrow(0, 0, k).sum()

    verify(ingot.capture(function, (torch.rand(6), torch.tensor(2))))


def test_the_dtype_of_a_region_is_checked_under_its_autocast() -> None:
    program = ingot.capture(autocast, (torch.rand(3, 4),))
    program.graph.erase_node(node(program, "exit_autocast_1"))
    enter = node(program, "enter_autocast")
    enter.args = ("cpu", torch.float16, True, True)
    with pytest.raises(VerifyError, match=re.escape("matmul claims to be bf16[3, 3], but computes f16[3, 3]")):
        verify(program)
    assert not torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") is torch.bfloat16


NAMES = (
    "albert", "bart", "bert", "clip", "convnext", "deberta", "distilbert", "gpt2", "llama", "mixtral", "opt", "resnet",
    "t5", "vit", "wav2vec2",
)  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", NAMES)
def test_the_zoo_verifies(name: str, dynamic: bool) -> None:
    item = entry(name)
    inputs = item.inputs(item.sizes)
    program = ingot.capture(item.build(), (), inputs, dynamic_shapes=item.dynamic if dynamic else None)
    verify(program)
    verify(program)
    program(**inputs)
