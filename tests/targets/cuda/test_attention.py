"""Attention's kernels, emulated, against eager in float64: lengths, depths, masks, views, functions, few queries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import ingot.targets.cuda.codegen.attention  # noqa: F401  registers the writer
from ingot.lowering.loop_ir import Attention
from ingot.lowering.loop_ir_verifier import verify_module
from ingot.targets.cuda.codegen.kernel import CudaKernel
from ingot.targets.cuda.kernel_selection.strategy import CudaStrategy
from ingot.targets.cuda.schedule import attention_tiles
from ingot.targets.cuda.schedule.grouped_heads import pack_grouped_heads
from ingot.targets.reference.interpreted_model import InterpretedModel
from ingot_runtime.errors import IndexOutOfRange
from tests.support.cuda_emulation.emulated_steps import EmulatedSteps
from tests.support.cuda_emulation.kernels import write_kernels
from tests.support.kernel_functions import ATTENDING, Attending, attend, masking, scoring

TOLERANCE = {torch.float64: 1e-12, torch.float32: 4e-6, torch.float16: 2e-3, torch.bfloat16: 1.2e-2}
LENGTHS = [(1, 1), (5, 16), (63, 65), (64, 127), (129, 128), (16, 200)]


def draw(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def draw_operands(
    dtype: torch.dtype, queries: int, keys: int, depth: int = 16, values: int | None = None, heads: int = 2
) -> list[torch.Tensor]:
    sizes = ((2, queries, depth), (heads, keys, depth), (heads, keys, values or depth))
    return [draw(1, h, n, width, dtype=dtype, seed=number) for number, (h, n, width) in enumerate(sizes)]


def double(values: Any) -> list[Any]:
    return [v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in values]


def check(ours: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype, name: str = "") -> None:
    assert ours.shape == exact.shape
    limit = TOLERANCE[dtype]
    torch.testing.assert_close(
        ours.double(), exact.double(), rtol=limit, atol=limit, equal_nan=True, msg=lambda text: f"{name}: {text}"
    )


def run(function: Any, *args: torch.Tensor, **options: Any) -> tuple[Any, EmulatedSteps]:
    """The function's result with its attention emulated, which it must hold."""
    emulated = EmulatedSteps({Attention})
    made = emulated.compile(function, args, **options)(*args)
    assert emulated.steps
    return made, emulated


def kernels_of(emulated: EmulatedSteps) -> list[CudaKernel]:
    _step, module = emulated.steps[-1]
    return [kernel for _, kernel in write_kernels(module)[1][0].kernels]


class Attend(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None) -> Any:
        return F.scaled_dot_product_attention(q, k, v, mask, **self.options)


@pytest.mark.parametrize(
    ("dtype", "depth", "values", "causal"),
    [
        (torch.bfloat16, 64, 64, False),
        (torch.bfloat16, 24, 8, True),
        (torch.float16, 40, 80, False),
        (torch.float16, 128, 128, True),
        (torch.bfloat16, 7, 13, False),
        (torch.bfloat16, 144, 200, True),
        (torch.float32, 64, 64, False),
        (torch.float32, 5, 20, True),
        (torch.float64, 8, 16, True),
    ],
)
def test_lengths_by_one_kernel(dtype: torch.dtype, depth: int, values: int, causal: bool) -> None:
    """The text is one for all lengths, which are dynamic: it is compiled once."""
    model = Attend(is_causal=causal)
    queries, keys = torch.export.Dim("queries", max=4096), torch.export.Dim("keys", max=4096)
    shapes = {"q": {2: queries}, "k": {2: keys}, "v": {2: keys}}
    emulated = EmulatedSteps({Attention})
    compiled = emulated.compile(model, draw_operands(dtype, 40, 70, depth, values), dynamic_shapes=shapes)
    for queries, keys in LENGTHS if max(depth, values) <= 128 else LENGTHS[:4]:
        given = draw_operands(dtype, queries, keys, depth, values)
        check(compiled(*given), model(*double(given)), dtype, f"{queries} × {keys}")
    assert emulated.steps


@pytest.mark.parametrize(
    ("dtype", "shape", "boolean"),
    [
        (torch.bfloat16, (1, 1, 65, 70), True),
        (torch.bfloat16, (1, 2, 1, 70), False),
        (torch.float32, (1, 1, 65, 70), False),
        (torch.float32, (1, 2, 1, 70), True),
    ],
    ids=str,
)
def test_masks(dtype: torch.dtype, shape: tuple[int, ...], boolean: bool) -> None:
    given = draw_operands(dtype, 65, 70, 32)
    mask = draw(*shape, dtype=dtype, seed=9)
    given.append(mask > 0 if boolean else mask)
    check(run(Attend(), *given)[0], Attend()(*double(given)), dtype)


def test_rows_that_see_nothing_are_zeros_and_nan_stays() -> None:
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        q, k, v = draw_operands(dtype, 20, 70)
        mask = torch.ones(20, 70, dtype=torch.bool)
        mask[3] = False
        mask[4, :-1] = False
        q[0, 0, 5, 2] = torch.nan
        k[0, 1, 9] = torch.inf
        ours, _ = run(Attend(), q, k, v, mask)
        exact = Attend()(*double((q, k, v)), mask)
        assert (ours[:, :, 3] == 0).all()
        check(ours[0, 0], torch.where(mask.any(1)[:, None], exact[0, 0], 0), dtype)
        assert ours[0, 1, :, :][mask[:, 9]].isnan().any()


@pytest.mark.parametrize(
    ("dtype", "depth", "values"),
    [(torch.bfloat16, 320, 512), (torch.float16, 16, 288), (torch.float32, 512, 272), (torch.bfloat16, 513, 8)],
)
def test_wide_rows(dtype: torch.dtype, depth: int, values: int) -> None:
    """Columns of values in parts, each with the scores once more; past what tiles hold, a query to each warp."""
    given = draw_operands(dtype, 20, 140, depth, values)
    case = Attending()
    (out, lse), _ = run(Flexible(case, []), *given)
    exact = attend(case, *double(given), [])
    check(out, exact[0], dtype)
    check(lse, exact[1], dtype)


@pytest.mark.parametrize("scale", [-0.25, 0.0, 2.0])
def test_scales(scale: float) -> None:
    given = draw_operands(torch.bfloat16, 20, 70)
    check(run(Attend(scale=scale), *given)[0], Attend(scale=scale)(*double(given)), torch.bfloat16)


class Layer(nn.Module):
    """Heads side by side, as projections leave them; more of the queries', and a sum behind."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out.transpose(1, 2).flatten(2) * 2 + more


@pytest.mark.parametrize(("dtype", "depth"), [(torch.bfloat16, 16), (torch.float16, 20), (torch.float32, 16)], ids=str)
def test_heads_side_by_side(dtype: torch.dtype, depth: int) -> None:
    given = [draw(2, 70, heads, depth, dtype=dtype, seed=heads) for heads in (4, 2, 2)]
    given.append(draw(2, 70, 4 * depth, dtype=dtype, seed=7))
    ours, _ = run(Layer(), *given)
    check(ours, Layer()(*double(given)), dtype)


def test_keys_that_lie_across() -> None:
    """Keys as a product has them, transposed; values with every second column."""

    def attend_across(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k.mT, v[..., ::2])

    for dtype in (torch.bfloat16, torch.float32):
        q, k, v = (draw(1, 2, *size, dtype=dtype, seed=3) for size in ((33, 32), (32, 70), (70, 48)))
        check(run(attend_across, q, k, v)[0], attend_across(*double((q, k, v))), dtype)


@pytest.mark.parametrize(
    ("dtype", "queries", "depth"),
    [(torch.bfloat16, 1, 48), (torch.float16, 7, 24), (torch.bfloat16, 16, 128), (torch.float32, 3, 40)],
)
def test_few_queries_split_their_keys(dtype: torch.dtype, queries: int, depth: int) -> None:
    given = draw_operands(dtype, queries, 530, depth)
    ours, emulated = run(Attend(), *given)
    check(ours, Attend()(*double(given)), dtype)
    main, combination = kernels_of(emulated)
    assert main.grid.x == 2 * 4 and combination.grid.x == 2 * queries
    again, _ = run(Attend(), *given)
    assert torch.equal(ours, again)


class Decoding(nn.Module):
    """One token: heads in groups over a cache of which a part is filled."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q = q.view(q.shape[0], 1, -1, k.shape[-1]).transpose(1, 2)
        out = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
        return out.transpose(1, 2).flatten(2) + 1


@pytest.mark.parametrize(
    ("dtype", "heads", "kept"), [(torch.bfloat16, 8, 2), (torch.float32, 6, 1), (torch.bfloat16, 34, 1)]
)
def test_heads_that_share_keys_are_rows_of_one_tile(dtype: torch.dtype, heads: int, kept: int) -> None:
    q, k, v = (draw(2, *shape, 16, dtype=dtype) for shape in ((heads,), (kept, 300), (kept, 300)))
    mask = draw(2, heads, 1, 300, dtype=dtype, seed=5)
    mask[..., 200:] = -torch.inf
    ours, emulated = run(Decoding(), q.flatten(1), k, v, mask)
    check(ours, Decoding()(*double((q.flatten(1), k, v, mask))), dtype)
    step, _ = emulated.steps[-1]
    assert isinstance(step, Attention)
    packed = pack_grouped_heads(step)
    assert packed.queries == (2 if heads == 34 else heads // kept)
    program = EmulatedSteps(())
    interpreted = program.compile(Decoding(), (q.flatten(1), k, v, mask))
    steps = tuple(pack_grouped_heads(s) if isinstance(s, Attention) else s for s in interpreted.module.steps)
    module = replace(interpreted.module, steps=steps)
    verify_module(module, "pack_grouped_heads", full=True)
    again = InterpretedModel(program, interpreted.program, module)(q.flatten(1), k, v, mask)
    check(again, interpreted(q.flatten(1), k, v, mask), dtype)


def test_split_keys_with_hidden_parts() -> None:
    """Parts of which a query sees nothing; also with the log of sums."""
    case = Attending(lambda s, b, h, i, j: s * 1.5, lambda b, h, i, j: (j < 100 + i) & (i != 2))
    given = draw_operands(torch.bfloat16, 5, 700, 32)
    (out, lse), emulated = run(Flexible(case, []), *given)
    exact = attend(case, *double(given), [])
    assert len(kernels_of(emulated)) == 2
    check(out, exact[0], torch.bfloat16)
    check(lse, exact[1], torch.bfloat16)


class Flexible(nn.Module):
    """A model that holds flex_attention."""

    def __init__(self, case: Attending, tables: list[torch.Tensor]) -> None:
        super().__init__()
        self.case, self.tables = case, tables

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        mask = masking(self.case, self.tables)
        blocks = None
        if mask is not None:
            blocks = create_block_mask(mask, q.shape[0], q.shape[1], q.shape[2], k.shape[2], device="cpu")
        score = scoring(self.case, self.tables)
        return flex_attention(q, k, v, score_mod=score, block_mask=blocks, enable_gqa=True, return_lse=True)


@pytest.mark.parametrize("name", ATTENDING)
def test_score_and_mask_functions(name: str) -> None:
    case = ATTENDING[name]
    torch.manual_seed(3)
    tables = case.tables()
    dtypes = (torch.bfloat16, torch.float32) if name in ("alibi", "empty rows") else (torch.bfloat16,)
    for dtype in dtypes:
        q, k, v = (draw(2, h, n, 24, dtype=dtype, seed=n) for h, n in ((4, 67), (2, 133), (2, 133)))
        (out, lse), _ = run(Flexible(case, tables), q, k, v)
        exact = attend(case, *double((q, k, v)), double(tables))
        check(out, exact[0], dtype, name)
        check(lse, exact[1], dtype, name)


def test_an_index_out_of_range_is_reported() -> None:
    table = torch.randn(60)
    case = Attending(lambda s, b, h, i, j: s + table[j])
    with pytest.raises(IndexOutOfRange):
        run(Flexible(case, []), *draw_operands(torch.bfloat16, 20, 70))


@pytest.mark.parametrize("width", [8, 64, 72, 128, 136, 256, 512])
@pytest.mark.parametrize("operations", [0, 40, 400])
def test_tiles_fit(width: int, operations: int) -> None:
    limit = attention_tiles.SHARED_LIMIT
    for points, queries in ((1, 1), (1, 40), (12, 128), (32, 512), (64, 16384)):
        columns = attention_tiles.split_columns(width)
        assert columns is not None
        tile = attention_tiles.choose_mma_tile(width, columns, points, queries, operations)
        assert tile.memory_size(width, columns) <= limit
        assert attention_tiles.MASK_BLOCK % (tile.tiles * attention_tiles.FRAGMENT) == 0
        assert attention_tiles.MASK_BLOCK % tile.keys == 0
    assert attention_tiles.choose_simt_tile(width, columns).memory_size(width, columns) <= limit
    if width <= attention_tiles.WIDEST_SUMS:
        for side in ("queries", "keys"):
            assert attention_tiles.choose_gradient_tile(width, width, side).memory_size(width, width) <= limit
        assert attention_tiles.choose_gradient_simt_tile(width, width).gradient_memory_size(width, width) <= limit


def test_blocks_of_masks_are_those_of_the_strategy() -> None:
    assert CudaStrategy.attention_block == (attention_tiles.MASK_BLOCK, attention_tiles.MASK_BLOCK)
