"""`ingot.attention`: what is compiled when, what is read at each call, blocks, and memory in any order."""

from __future__ import annotations

import functools
import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

import ingot
from ingot.ops import attention
from ingot.ops.closure_key import decompose_closure
from tests.support.kernel_functions import Attending, attend

OFFSET = torch.tensor(0.5)


def operands(queries: int = 40, keys: int = 70, heads: int = 4) -> list[torch.Tensor]:
    torch.manual_seed(queries)
    return [torch.randn(2, h, n, 16) for h, n in ((4, queries), (heads, keys), (heads, keys))]


def check(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-5)


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every compile of a test, in a cache of its own."""
    seen: list[Any] = []
    original = attention._compile

    def watched(call: Any, tensors: Any) -> Any:
        seen.append(call)
        return original(call, tensors)

    monkeypatch.setattr(attention, "_CACHE", attention._Cache())
    monkeypatch.setattr(attention, "_compile", watched)
    return seen


def test_a_function_is_compiled_once_and_reads_its_tensors_at_each_call(compiles: list[Any]) -> None:
    q, k, v = operands()
    for seed in range(3):
        torch.manual_seed(seed)
        slopes = torch.randn(4)
        out = ingot.attention(q, k, v, lambda s, b, h, i, j, slopes=slopes: s + slopes[h] * (i - j))
        case = Attending(lambda s, b, h, i, j, t: s + t[h] * (i - j))
        check(out, attend(case, q, k, v, [slopes])[0])
    assert len(compiles) == 1
    for factor in (2.0, 3.0):
        check(
            ingot.attention(q, k, v, lambda s, b, h, i, j, f=factor: s * f),
            attend(Attending(lambda s, b, h, i, j, f=factor: s * f), q, k, v, [])[0],
        )
    assert len(compiles) == 3
    ingot.attention(*operands(41), lambda s, b, h, i, j, slopes=slopes: s + slopes[h] * (i - j))
    assert len(compiles) == 4


def test_what_a_function_may_close_over(compiles: list[Any]) -> None:
    """Cells, defaults, globals, bound methods, partial arguments, containers, other functions, modules."""

    class Bias(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(4))

        def score(self, s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return s + self.table[h] + OFFSET

    held = {"gains": [torch.rand(4) + 1]}

    def scaled(inner: Any, s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return inner(s, b, h, i, j) * held["gains"][0][h]

    bias = Bias()
    function = functools.partial(scaled, bias.score)
    assert {id(t) for t in decompose_closure(function).tensors} == {id(bias.table), id(OFFSET), id(held["gains"][0])}
    q, k, v = operands()
    out = ingot.attention(q, k, v, function)
    case = Attending(lambda s, b, h, i, j: (s + bias.table[h] + OFFSET) * held["gains"][0][h])
    check(out, attend(case, q, k, v, [])[0])
    out.sum().backward()
    assert bias.table.grad is not None and bias.table.grad.abs().sum() < 1e-3  # weights add up to 1 whatever the bias


def test_blocks_that_a_block_mask_does_not_list_are_hidden() -> None:
    q, k, v = operands(64, 96)
    counts, places = torch.tensor([[[1, 2]]]), torch.tensor([[[[2, 0, 1], [0, 1, 2]]]])
    blocks = BlockMask.from_kv_blocks(counts.int(), places.int(), BLOCK_SIZE=32)
    listed = torch.tensor([[False, False, True], [True, True, False]])
    case = Attending(None, lambda b, h, i, j: listed[i // 32, j // 32] & ((i + j) % 2 == 0))
    out = ingot.attention(q, k, v, mask_mod=lambda b, h, i, j: (i + j) % 2 == 0, block_mask=blocks)
    check(out, attend(case, q, k, v, [])[0])


def test_a_mask_that_differs_by_batch_and_head() -> None:
    q, k, v = operands(100, 100)
    ends = torch.tensor([60, 99])

    def mask(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (j < ends[b]) & (i - j < 10 * (h + 1)) & (i >= j)

    blocks = create_block_mask(mask, 2, 4, 100, 100, device="cpu", BLOCK_SIZE=32)
    expected = attend(Attending(None, mask), q, k, v, [])[0]
    check(ingot.attention(q, k, v, mask_mod=mask), expected)
    check(ingot.attention(q, k, v, block_mask=blocks), expected)


def test_memory_in_any_order_and_one_image_of_keys_for_all() -> None:
    q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in operands(heads=2))
    expected = attend(Attending(), q, k, v, [])[0]
    check(ingot.attention(q, k, v, enable_gqa=True), expected)
    shared = [t[:1].requires_grad_() for t in (k, v)]
    given = [q.clone().requires_grad_(), *shared]
    out = ingot.attention(*given, enable_gqa=True)
    exact = [t.detach().double().requires_grad_() for t in given]
    theirs = attend(Attending(), *exact, [])[0]
    wanted = torch.randn_like(out)
    ours = torch.autograd.grad(out, given, wanted)
    for a, b in zip(ours, torch.autograd.grad(theirs, exact, wanted.double()), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)


def test_scale_and_one_query_and_no_key() -> None:
    q, k, v = operands(1, 70)
    check(ingot.attention(q, k, v, scale=0.3), torch.softmax(q @ k.mT * 0.3, -1) @ v)
    out, lse = ingot.attention(q, k[:, :, :0], v[:, :, :0], return_lse=True)
    assert not out.any() and (lse == -torch.inf).all()


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (3, 1)])
@pytest.mark.parametrize("queries", [2, 50])
def test_one_image_or_one_head_and_what_follows(shape: tuple[int, int], queries: int) -> None:
    """What is done to the result becomes part of the kernel, whichever dims have one place only."""
    q, k, v = (torch.randn(*shape, n, 16) for n in (queries, 70, 70))
    given = [t.requires_grad_() for t in (q, k, v)]

    class Model(nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
            def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
                return s * (b + 1) + h * 0.1 * (i - j)

            out, lse = flex_attention(q, k, v, score, return_lse=True)
            return torch.relu(out) * 2 + q, lse

    exact = [t.detach().double().requires_grad_() for t in given]
    out, lse = attend(Attending(lambda s, b, h, i, j: s * (b + 1) + h * 0.1 * (i - j)), *exact, [])
    expected = torch.relu(out) * 2 + exact[0]
    compiled = ingot.compile(Model(), [t.detach() for t in given])
    for ours, theirs in zip(compiled(*(t.detach() for t in given)), (expected, lse), strict=True):
        torch.testing.assert_close(ours.double(), theirs.detach(), rtol=2e-5, atol=2e-5)
    trained = ingot.compile(Model(), given, training=True)
    wanted = torch.randn_like(q)
    gradients = torch.autograd.grad(trained(*given)[0], given, wanted)
    for a, b in zip(gradients, torch.autograd.grad(expected, exact, wanted.double()), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=2e-5, atol=2e-5)


def test_many_threads_call_at_once(compiles: list[Any]) -> None:
    q, k, v = operands()
    expected = attend(Attending(lambda s, b, h, i, j: s * 2), q, k, v, [])[0]
    found: list[torch.Tensor] = []
    threads = [
        threading.Thread(target=lambda: found.append(ingot.attention(q, k, v, lambda s, b, h, i, j: s * 2)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(compiles) == 1 and len(found) == 4
    for out in found:
        check(out, expected)


def test_a_backward_runs_twice_and_torchs_own_settings_stay_as_they_are() -> None:
    from torch._functorch import config

    before = config.donated_buffer
    q, k, v = operands()
    given = [t.requires_grad_() for t in (q, k, v)]
    out = ingot.attention(*given, lambda s, b, h, i, j: torch.tanh(s))
    assert config.donated_buffer == before
    wanted = torch.ones_like(out)
    first = torch.autograd.grad(out, given, wanted, retain_graph=True)
    second = torch.autograd.grad(out, given, wanted)
    assert config.donated_buffer == before
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)
