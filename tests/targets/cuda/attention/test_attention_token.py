"""Few queries that share their keys, by clusters of blocks, emulated: one kernel, for Hopper and for others."""

from __future__ import annotations

import pytest
import torch

from ingot.lowering.loop_ir import Attention
from ingot.targets.cuda.schedule.attention_tiles import TOKEN_PARTS, TokenTile, find_token_tile
from tests.support.cuda_emulation.emulated_steps import EmulatedSteps
from tests.support.cuda_emulation.kernels import check_cubin, write_kernels
from tests.support.cuda_emulation.toolkit import needs_nvrtc
from tests.support.kernel_functions import Attending, attend
from tests.targets.cuda.attention.test_attention_bulk import emulate_plainly
from tests.targets.cuda.test_attention import (
    Attend,
    Decoding,
    Flexible,
    check,
    double,
    draw,
    draw_operands,
    kernels_of,
    run,
)


@pytest.mark.parametrize(
    ("dtype", "queries", "keys", "depth"),
    [
        (torch.bfloat16, 1, 1024, 64),
        (torch.float16, 4, 701, 128),
        (torch.bfloat16, 8, 257, 64),
        (torch.float16, 3, 2049, 128),
    ],
)
def test_lengths(dtype: torch.dtype, queries: int, keys: int, depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given = draw_operands(dtype, queries, keys, depth)
    exact = Attend()(*double(given))
    ours, emulated = run(Attend(), *given)
    check(ours, exact, dtype)
    (kernel,) = kernels_of(emulated)
    assert kernel.cluster == TOKEN_PARTS and kernel.grid.x == 2 * TOKEN_PARTS
    assert torch.equal(ours, run(Attend(), *given)[0])
    emulate_plainly(monkeypatch)
    check(run(Attend(), *given)[0], exact, dtype)


@pytest.mark.parametrize(("dtype", "depth"), [(torch.bfloat16, 64), (torch.float16, 128)], ids=str)
def test_grouped_heads_of_a_cache_with_padding(dtype: torch.dtype, depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (draw(2, *shape, depth, dtype=dtype) for shape in ((8,), (2, 300), (2, 300)))
    mask = draw(2, 8, 1, 300, dtype=dtype, seed=5)
    mask[..., 200:] = -torch.inf
    mask[1, :, :, :290] = -torch.inf
    exact = Decoding()(*double((q.flatten(1), k, v, mask)))
    ours, emulated = run(Decoding(), q.flatten(1), k, v, mask)
    check(ours, torch.where(exact.isnan(), 1, exact), dtype)
    (kernel,) = kernels_of(emulated)
    assert kernel.cluster == TOKEN_PARTS and kernel.grid.x == 2 * 2 * TOKEN_PARTS
    emulate_plainly(monkeypatch)
    check(run(Decoding(), q.flatten(1), k, v, mask)[0], torch.where(exact.isnan(), 1, exact), dtype)


def test_functions() -> None:
    case = Attending(lambda s, b, h, i, j: s * 1.5 + (j - i) * 0.25, None)
    given = draw_operands(torch.bfloat16, 5, 700, 64)
    (out, lse), emulated = run(Flexible(case, []), *given)
    exact = attend(case, *double(given), [])
    check(out, exact[0], torch.bfloat16)
    check(lse, exact[1], torch.float32)
    assert len(kernels_of(emulated)) == 1


def test_rows_that_see_nothing_are_zeros_and_nan_stays() -> None:
    q, k, v = draw_operands(torch.bfloat16, 6, 300, 64)
    mask = torch.ones(6, 300, dtype=torch.bool)
    mask[3] = False
    mask[4, :-1] = False
    q[0, 0, 5, 2] = torch.nan
    ours, emulated = run(Attend(), q, k, v, mask)
    assert len(kernels_of(emulated)) == 1
    assert (ours[:, :, 3] == 0).all()
    check(ours, torch.where(mask.any(1)[:, None], Attend()(*double((q, k, v)), mask), 0), torch.bfloat16)


def test_lengths_that_are_dynamic() -> None:
    keys = torch.export.Dim("keys", max=4096)
    emulated = EmulatedSteps({Attention})
    shapes = {"q": {}, "k": {2: keys}, "v": {2: keys}}
    compiled = emulated.compile(Attend(), draw_operands(torch.bfloat16, 2, 600, 64), dynamic_shapes=shapes)
    for length in (1, 255, 600, 2100):
        given = draw_operands(torch.bfloat16, 2, length, 64)
        check(compiled(*given), Attend()(*double(given)), torch.bfloat16, str(length))
    (kernel,) = kernels_of(emulated)
    assert kernel.cluster == TOKEN_PARTS


def test_choice() -> None:
    assert find_token_tile(64, 8, 4, 1024) == TokenTile(4, 4, True)
    assert find_token_tile(128, 16, 1, 1024) == TokenTile(1, 8, True)
    assert find_token_tile(64, 8, 4, 1 << 20) == TokenTile(4, 8, False)
    assert find_token_tile(128, 8, 8, 1024) == TokenTile(8, 4, False)
    assert find_token_tile(64, 8, 4, 1024, is_static=False) == TokenTile(4, 4, False)
    for sizes in ((64, 132, 4, 1024), (64, 8, 9, 1024), (96, 8, 4, 1024), (64, 8, 4, 255)):
        assert find_token_tile(*sizes) is None
    assert TokenTile(8, 4, False).memory_size(128) <= 48 << 10


@needs_nvrtc
@pytest.mark.parametrize(("queries", "depth"), [(4, 64), (1, 128), (8, 128)])
def test_cubins(queries: int, depth: int) -> None:
    emulated = EmulatedSteps({Attention})
    given = [torch.zeros(1, 8, length, depth, dtype=torch.bfloat16) for length in (queries, 1024, 1024)]
    text, _ = write_kernels(emulated.compile(Attend(), given).module)
    assert "using shape = ig_token_shape<" in text
    check_cubin(text)
