"""Products by tiles of their weights: every form, against float64; what fits, and what the schedule chooses."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ingot.errors import ScheduleError
from ingot.lowering.loop_ir import Stmt
from ingot.lowering.loop_module import Module
from ingot.targets.cuda.codegen import weight_packing
from ingot.targets.cuda.codegen.products import bulk_product
from ingot.targets.cuda.schedule import weight_layouts
from ingot.targets.cuda.schedule.bulk import products
from ingot.targets.cuda.schedule.bulk.tiles import BULK_TILES, BulkChoice, choose_bulk_tile, count_bulk_bytes
from ingot.targets.cuda.schedule.statements import GemmTile, SiblingGemms, TiledGemm
from ingot.targets.cuda.schedule.tiles import SHARED_BYTES, trim_stages
from ingot.targets.cuda.schedule.verifier import verify_schedule
from ingot.targets.cuda.schedule.weight_layouts import ReorderedLayout, SwizzledTiles
from ingot.targets.cuda.target import CUDA
from ingot.targets.reference.interpreted_model import InterpretedModel
from tests.support.cuda_emulation.emulated_model import PackingTarget, build_models
from tests.support.cuda_emulation.kernels import build_text, check_cubin, write_kernels
from tests.support.cuda_emulation.toolkit import count, disassemble, needs_nvrtc
from tests.targets.cuda.test_gemm_epilogues import Layer, compare, lower_model, randn

SMALL = GemmTile(64, 32, 128, 3, 4, 1)


def use_tile(monkeypatch: pytest.MonkeyPatch, tile: GemmTile, parts: int = 1) -> None:
    """Makes the pass choose a tile, and kernels have two blocks that take tiles in turn."""
    monkeypatch.setattr(products, "choose_bulk_tile", lambda *_, **__: BulkChoice(tile, parts))
    monkeypatch.setattr(bulk_product, "PROCESSORS", 2)


def find_bulk(module: Module) -> list[TiledGemm]:
    found: list[TiledGemm] = []
    for step in module.steps:
        members: tuple[Stmt, ...] = step.steps if isinstance(step, SiblingGemms) else (step,)
        found += [one for one in members if isinstance(one, TiledGemm) and one.algorithm == "bulk"]
    return found


def add_rest(y: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    return y + r


def make_product(
    m: int, n: int, k: int, then: Any = None, dtype: torch.dtype = torch.bfloat16
) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(m + n + k)
    layer = Layer(k, n, then or F.gelu).to(dtype).eval()
    more = (randn(m, n, dtype=dtype, seed=2),) if then is add_rest else ()
    return layer, (randn(m, k, dtype=dtype), *more)


def test_every_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tiles for each of two blocks, with rows and columns that end inside one, and more steps than stages."""
    layers, lowered = [], []
    for number, tile in enumerate(BULK_TILES):
        tile = trim_stages(tile, 1 + number % 3)
        use_tile(monkeypatch, tile)
        m, n = 2 * tile.rows - 7, tile.columns + 16
        dtype = torch.float16 if number % 4 == 3 else torch.bfloat16
        made = make_product(m, n, 64 * (tile.stages + 1 + number % 2), add_rest if number % 2 else None, dtype)
        layers.append(made)
        lowered.append(lower_model(*made))
        assert len(find_bulk(lowered[-1][1])) == 1, tile
    for (model, args), run in zip(layers, build_models(lowered), strict=True):
        compare(model, args, run)


def test_blocks_of_a_cluster_share_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    layers, lowered = [], []
    forms = [
        (SMALL, 2),
        (GemmTile(64, 64, 128, 3, 4, 1), 4),
        (GemmTile(128, 32, 128, 2, 8, 1), 2),
        (GemmTile(64, 96, 128, 2, 4, 1), 3),
    ]
    forms += [(GemmTile(128, 64, 128, 2, 4, 1), 4)]  # two blocks of 64 rows of a group
    for tile, parts in forms:
        use_tile(monkeypatch, tile, parts)
        for m, steps in ((9, 1), (tile.rows + 1, 4)):
            made = make_product(m, 2 * tile.columns - 8, 64 * parts * steps, add_rest)
            layers.append(made)
            lowered.append(lower_model(*made))
            assert find_bulk(lowered[-1][1])[0].split_k == parts
    for (model, args), run in zip(layers, build_models(lowered), strict=True):
        compare(model, args, run)


class Siblings(nn.Module):
    """Queries, keys and values of one input, or a gate and what it lets through."""

    def __init__(self, gated: bool) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(128, n, bias=n != 40) for n in ((72, 72) if gated else (72, 40, 40)))
        self.gated = gated

    def forward(self, x: torch.Tensor) -> Any:
        made = [part(x) for part in self.parts]
        return F.silu(made[0]) * made[1] if self.gated else tuple(made)


@pytest.mark.parametrize("gated", [False, True])
def test_siblings(gated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(4)
    model, args = Siblings(gated).to(torch.bfloat16).eval(), (randn(70, 128),)
    layers, lowered = [], []
    for parts in (1,) if gated else (1, 2):
        use_tile(monkeypatch, SMALL, parts)
        lowered.append(lower_model(model, args))
        (group,) = lowered[-1][1].steps
        assert isinstance(group, SiblingGemms) and group.in_turn == gated
        assert len(find_bulk(lowered[-1][1])) == len(model.parts)
        layers.append((model, args))
    for run, (program, module) in zip(build_models(lowered), lowered, strict=True):
        compare(model, args, run)
        compare(model, args, InterpretedModel(PackingTarget(), program, module))


def test_dynamic_rows_and_views(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamic rows, from 0 on; rows inside a larger tensor; a weight that lies across its terms."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.across = nn.Linear(64, 40), nn.Parameter(torch.randn(64, 24) / 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([self.down(x[:, 64:128]), x[:, 64:128] @ self.across], 1)

    use_tile(monkeypatch, SMALL)
    torch.manual_seed(2)
    model = Model().to(torch.bfloat16).eval()
    rows = torch.export.Dim("rows", min=0, max=512)
    program, module = lower_model(model, (randn(90, 136),), dynamic_shapes=({0: rows},))
    assert len(find_bulk(module)) == 2
    ((run),) = build_models([(program, module)])
    for m in (90, 64, 129, 1, 0):
        if m:
            compare(model, (randn(m, 136),), run)
        else:
            assert run(randn(0, 136)).shape == (0, 64)


def test_what_does_not_fit() -> None:
    def count(m: int, n: int, k: int, dtype: torch.dtype = torch.bfloat16) -> int:
        return len(find_bulk(lower_model(*make_product(m, n, k, dtype=dtype))[1]))

    assert count(70, 64, 128) == 1 and count(70, 64, 128, torch.float16) == 1
    assert count(70, 64, 128, torch.float32) == 0
    assert count(70, 60, 128) == 0 and count(70, 64, 96) == 0  # runs of 8 columns, stages of 64 terms
    assert count(3, 64, 128) == 0  # a few rows are read once
    assert count(70, 8, 128) == 0  # most of a tile would be zeros


def test_text_for_other_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same kernels without what only Hopper has."""
    layers, lowered = [], []
    forms = [(SMALL, 2), (GemmTile(128, 48, 128, 2, 8, 1), 1), (GemmTile(128, 64, 128, 2, 4, 1, 2), 1)]
    for tile, parts in forms:
        use_tile(monkeypatch, tile, parts)
        made = make_product(tile.rows + 5, 2 * tile.columns - 8, 256, add_rest)
        layers.append(made)
        lowered.append(lower_model(*made))
    monkeypatch.setattr(
        "tests.support.cuda_emulation.emulated_model.build_text",
        lambda text: build_text(f"#define IG_EMULATED_PLAIN 1\n{text}"),
    )
    for (model, args), run in zip(layers, build_models(lowered), strict=True):
        for written in run._steps:
            kernels = tuple((name, replace(one, shared=one.plain_shared or 0)) for name, one in written.kernels)
            object.__setattr__(written, "kernels", kernels)
        compare(model, args, run)


def test_layout() -> None:
    flat = torch.arange(3 + 128 * 20).float()
    layout = SwizzledTiles(3, 20, 128, 1, 20, 16)
    tiles = layout.spread(flat)
    assert tiles.shape == layout.stored_shape() == (2, 2, 16, 64)
    for column, term in ((0, 0), (5, 9), (15, 127), (16, 64), (19, 3)):
        piece = (term % 64 // 8) ^ column % 8
        assert tiles[column // 16, term // 64, column % 16, piece * 8 + term % 8] == 3 + column + 20 * term
    assert (tiles[1, :, 4:] == 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("offset", [0, 3, 8])
def test_layout_of_any_memory(dtype: torch.dtype, offset: int) -> None:
    """Weights may be a part of other tensors' memory. Pieces are moved as numbers of 16 bytes: where elements do not
    lie at multiples of that, they are copied first."""
    numbers = torch.randn(40 + offset + 32 * 128).to(dtype)
    for begin in (0, 1, 16):
        flat = numbers[begin : begin + offset + 32 * 128]
        tiles = SwizzledTiles(offset, 32, 128, 128, 1, 16).spread(flat)
        matrix = flat[offset:].reshape(2, 16, 2, 8, 8).permute(0, 2, 1, 3, 4)
        for column in range(16):
            places = torch.arange(8) ^ column % 8
            assert torch.equal(tiles[:, :, column].reshape(2, 2, 8, 8), matrix[:, :, column, places])
        reordered = ReorderedLayout(offset, (30, 128), (128, 1), (32, 128)).arrange(flat)
        assert torch.equal(reordered[:30], flat[offset:].view(32, 128)[:30]) and not reordered[30:].any()


@pytest.mark.parametrize("is_full", [False, True])
def test_weights_of_a_device_are_laid_out_there(monkeypatch: pytest.MonkeyPatch, is_full: bool) -> None:
    """Unless it has no memory for that."""
    laid: list[str] = []

    def lay_out(weight: Any, buffer: Any, state: torch.Tensor) -> torch.Tensor:
        laid.append(weight.buffer)
        if is_full and laid.count(weight.buffer) == 1 and state.dtype is torch.bfloat16:
            raise torch.OutOfMemoryError("full")
        return weight_layouts.lay_out(weight, buffer, state)

    monkeypatch.setattr(weight_packing, "lies_on_device", lambda tensor: True)
    program, module = lower_model(*make_product(70, 64, 256))
    source = CUDA.emit(module)
    expected = CUDA.pack_weights(program, module, source).array.copy()
    monkeypatch.setattr(weight_packing, "lies_on_device", lambda tensor: False)
    assert np.array_equal(CUDA.pack_weights(program, module, source).array, expected)
    monkeypatch.setattr(weight_packing, "lies_on_device", lambda tensor: True)
    monkeypatch.setattr(weight_packing, "lay_out", lay_out)
    assert np.array_equal(CUDA.pack_weights(program, module, source).array, expected)
    assert len(laid) > len(set(laid)) if is_full else len(laid) == len(set(laid)) > 0


def test_rules() -> None:
    _, module = lower_model(*make_product(70, 64, 256))
    (step,) = find_bulk(module)

    def refuse(message: str, **changes: Any) -> None:
        with pytest.raises(ScheduleError, match=message):
            verify_schedule(replace(module, steps=(replace(step, **changes),)), "bulk_products")

    verify_schedule(module, "bulk_products")
    refuse("groups of four warps", tile=replace(SMALL, down=2))
    refuse("of an instruction", tile=replace(SMALL, columns=24))
    refuse("shared out among", split_k=3)
    refuse("shared memory", tile=replace(SMALL, stages=40))
    refuse("stages of 64", tile=replace(SMALL, columns=64), split_k=4, k=192)
    refuse("aligned", a=replace(step.a, rows=251))
    refuse("elements", tile=replace(SMALL, columns=48), split_k=1)


def test_choice() -> None:
    def choose(m: int, n: int, k: int, kind: str = "plain") -> tuple[int, int, int, int]:
        found = choose_bulk_tile(m, [n], k, kind, in_turn=False)
        assert found is not None and count_bulk_bytes(found.tile, found.parts) <= SHARED_BYTES
        return found.tile.rows, found.tile.columns, found.tile.turns, found.parts

    # What an H200 showed to be the fastest, or within a few hundredths of it.
    assert choose(128, 768, 768, "reads") == (64, 64, 1, 2)
    assert choose(128, 2304, 768) == (64, 64, 1, 2)
    assert choose(128, 3072, 768, "functions") == (64, 64, 1, 2)
    assert choose(128, 768, 3072, "reads") == (64, 64, 1, 4)
    assert choose(4096, 768, 768, "reads") == (128, 192, 1, 1)
    assert choose(4096, 768, 3072, "reads") == (128, 192, 1, 1)
    assert choose(4096, 2304, 768) == (128, 192, 2, 1)
    assert choose(512, 2048, 5632, "reads") == (128, 128, 1, 2)
    assert choose(512, 2048, 2048, "reads") == (128, 64, 1, 1)
    assert choose(784, 256, 1024) == (64, 64, 1, 2)
    assert choose(196, 512, 2048) == (128, 64, 1, 4)  # 32 clusters of four blocks do not run at once
    gates = choose_bulk_tile(512, [5632, 5632], 2048, "functions", in_turn=True)
    assert gates is not None and gates.tile.columns == 176
    assert choose_bulk_tile(512, [8], 64, "plain", in_turn=False) is None


@needs_nvrtc
def test_forms_compile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """For every architecture; on Hopper with its copies and products, and no registers that are spilled to memory."""
    in_turn = next(tile for tile in BULK_TILES if tile.turns > 1)
    for tile, parts, then in ((BULK_TILES[2], 1, F.gelu), (in_turn, 1, torch.relu), (BULK_TILES[-1], 2, add_rest)):
        use_tile(monkeypatch, tile, parts)
        text, _ = write_kernels(lower_model(*make_product(300, 384, 1024, then))[1])
        cubins = check_cubin(text)
        assert cubins["sm_80"]
        (found,) = disassemble(cubins["sm_90a"], tmp_path).values()
        for name in ("HGMMA", "UTMALDG", "UBLKCP", "SYNCS"):
            assert re.search(rf"\b{name}\b", found), name
        assert count(found, "STL", "LDL") == 0 and bool(re.search(r"\bUCGABAR", found)) == (parts > 1), tile
