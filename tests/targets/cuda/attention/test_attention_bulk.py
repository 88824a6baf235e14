"""Attention with a group of warps that copies by maps of tensors, emulated: every tile, for Hopper and for others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ingot.lowering.index_expr import symbol
from ingot.lowering.loop_ir import Loop, MatrixView
from ingot.targets.cuda.codegen import attention
from ingot.targets.cuda.codegen.attention_kernels.box_copies import find_box_copy
from ingot.targets.cuda.schedule import attention_tiles
from ingot.targets.cuda.schedule.attention_tiles import BulkTile, choose_producer_tile
from tests.support.cuda_emulation import kernels
from tests.support.cuda_emulation.kernels import write_kernels
from tests.support.kernel_functions import ATTENDING, Attending, attend
from tests.targets.cuda.test_attention import Attend, Flexible, check, double, draw, draw_operands, run

TILES: dict[str, tuple[int, BulkTile]] = {
    "64": (64, attention_tiles.BULK_64),
    "64, small": (64, attention_tiles.BULK_64_SMALL),
    "64, long": (64, attention_tiles.BULK_64_LONG),
    "64, long, body": (64, attention_tiles.BULK_64_LONG_BODY),
    "128": (128, attention_tiles.BULK_128),
    "128, small": (128, attention_tiles.BULK_128_SMALL),
}


def force_tile(monkeypatch: pytest.MonkeyPatch, tile: BulkTile) -> None:
    monkeypatch.setattr(attention, "choose_producer_tile", lambda *_, **__: tile)


def emulate_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that has no maps of tensors."""
    build = kernels.build_text
    monkeypatch.setattr(kernels, "build_text", lambda text: build(f"#define IG_EMULATED_PLAIN 1\n{text}"))


def run_bulk(function: Any, *args: torch.Tensor) -> Any:
    made, emulated = run(function, *args)
    assert "ig_attend_bulk<shape" in write_kernels(emulated.steps[-1][1])[0]
    return made


@pytest.mark.parametrize("name", TILES)
@pytest.mark.parametrize("causal", [False, True])
def test_tiles(name: str, causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    depth, tile = TILES[name]
    force_tile(monkeypatch, tile)
    dtype = torch.float16 if causal else torch.bfloat16
    model = Attend(is_causal=causal)
    queries, keys = (201, 201) if causal else (tile.rows + 1, 300)
    given = draw_operands(dtype, queries, keys, depth)
    check(run_bulk(model, *given), model(*double(given)), dtype)
    if not causal:
        emulate_plainly(monkeypatch)
        check(run_bulk(model, *given), model(*double(given)), dtype, "elsewhere")


@pytest.mark.parametrize(
    ("name", "case"),
    [("64", "alibi"), ("64", "window"), ("64, small", "soft cap"), ("64, long, body", "alibi"), ("128", "window")],
)
def test_functions(name: str, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    depth, tile = TILES[name]
    force_tile(monkeypatch, tile)
    given = ATTENDING[case]
    mask = given.mask
    if mask is not None:  # without the table of blocks, which other kernels are for
        given = Attending(lambda s, b, h, i, j, *_: torch.where((i >= j) & (i - j < 24), s, -torch.inf), None)
    tables = given.tables()
    dtype = torch.bfloat16 if case == "alibi" else torch.float16
    q, k, v = (draw(1, h, n, depth, dtype=dtype, seed=h) for h, n in ((4, 67), (2, 150), (2, 150)))
    out, lse = run_bulk(Flexible(given, tables), q, k, v)
    exact = attend(given, *double((q, k, v)), double(tables))
    check(out, exact[0], dtype, name)
    check(lse, exact[1], torch.float32, name)


class Projected(nn.Module):
    """Queries, keys and values of one projection, heads in groups, padded keys."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(2, (-1, 64)).transpose(1, 2) for t in x.split((256, 128, 128), 2))
        out = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
        return out.transpose(1, 2).flatten(2) * 2


@pytest.mark.parametrize("boolean", [False, True])
def test_projections_with_padding(boolean: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    force_tile(monkeypatch, attention_tiles.BULK_64)
    x = draw(2, 131, 512, dtype=torch.bfloat16)
    mask = torch.ones(2, 1, 1, 131, dtype=torch.bool)
    mask[0, ..., 77:] = False
    given = mask if boolean else torch.zeros(mask.shape, dtype=x.dtype).masked_fill(~mask, -torch.inf)
    exact = Projected()(x.double(), mask if boolean else given.double())
    if boolean:
        emulate_plainly(monkeypatch)
    check(run_bulk(Projected(), x, given), exact, x.dtype)


def test_rows_that_see_nothing_are_zeros_and_nan_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    for tile in (attention_tiles.BULK_64, attention_tiles.BULK_64_SMALL):
        force_tile(monkeypatch, tile)
        q, k, v = draw_operands(torch.bfloat16, 70, 200, 64)
        mask = torch.ones(70, 200, dtype=torch.bool)
        mask[3] = False
        mask[4, :-1] = False
        q[0, 0, 5, 2] = torch.nan
        ours = run_bulk(Attend(), q, k, v, mask)
        exact = Attend()(*double((q, k, v)), mask)
        assert (ours[:, :, 3] == 0).all()
        check(ours, torch.where(mask.any(1)[:, None], exact, 0), torch.bfloat16)


def test_choice() -> None:
    tiles = attention_tiles
    for sizes, causal, operations, expected in (
        ((64, 32, 1024, 1024), False, 0, tiles.BULK_64),
        ((64, 96, 512, 512), False, 4, tiles.BULK_64),
        ((64, 32, 16384, 16384), False, 0, tiles.BULK_64_LONG),
        ((64, 32, 4096, 4096), False, 8, tiles.BULK_64_LONG_BODY),
        ((64, 32, 512, 512), True, 0, tiles.BULK_64_SMALL),
        ((128, 32, 4096, 4096), True, 0, tiles.BULK_128),
        ((128, 16, 512, 512), True, 0, tiles.BULK_128_SMALL),
        ((64, 8, 64, 1024), False, 0, None),
        ((64, 32, 1024, 1024), False, 200, None),
        ((96, 32, 1024, 1024), False, 0, None),
    ):
        assert choose_producer_tile(*sizes, operations, causal=causal) == expected, sizes
    for depth, tile in TILES.values():
        assert tile.memory_size(depth) * tile.resident <= 227 << 10
        assert tile.plain_memory_size(depth) <= min(tiles.SHARED_LIMIT, tile.memory_size(depth))


def test_matrices_that_no_map_describes() -> None:
    batch = (Loop("i0", 3), Loop("i1", 8))
    i0, i1 = symbol("i0"), symbol("i1")
    copy = find_box_copy(MatrixView("b", i0 * 4096 + (i1 // 4) * 64 + 8, 128, 1), "float16", batch, (70, 64), 32)
    assert copy is not None and [str(place) for place in copy.coordinates] == ["i0", "((i1)//(4))"]
    assert copy.map.sizes == (64, 70, 3, 2) and copy.map.steps == (128, 4096, 64) and copy.map.offset == 8
    for offset, rows in ((i0 * 4 + i1 * 64, 64), (i0 * i1, 64), (i0 * 64, 0), (i0 * 64, 4), (symbol("n0") * 64, 64)):
        assert find_box_copy(MatrixView("b", offset, rows, 1), "float16", batch, (70, 64), 32) is None
