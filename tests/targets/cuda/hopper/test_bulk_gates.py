"""Gates in the kernels of products of many rows: every form against float64, what stays apart, and the rules."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ingot.errors import ScheduleError
from ingot.lowering.loop_module import Module
from ingot.targets.cuda.codegen.products import bulk_product
from ingot.targets.cuda.schedule.bulk import gates, products
from ingot.targets.cuda.schedule.bulk.tiles import BULK_TILES, BulkChoice
from ingot.targets.cuda.schedule.statements import GatedGemm, GemmTile, SiblingGemms
from ingot.targets.cuda.schedule.tiles import trim_stages
from ingot.targets.cuda.schedule.verifier import verify_schedule
from ingot.targets.cuda.schedule.weight_layouts import SwizzledTiles
from ingot.targets.reference.interpreted_model import InterpretedModel
from tests.support.cuda_emulation.emulated_model import EmulatedModel, PackingTarget, build_models
from tests.support.cuda_emulation.kernels import build_text, check_cubin, write_kernels
from tests.support.cuda_emulation.toolkit import count, disassemble, needs_nvrtc
from tests.targets.cuda.streams.test_streamed_groups import schedule
from tests.targets.cuda.test_gemm_epilogues import compare, lower_model, randn
from tests.targets.cuda.test_schedule import print_pass

Golden = Callable[[str, str], None]

SMALL = GemmTile(64, 32, 128, 3, 4, 1)


def use_tile(monkeypatch: pytest.MonkeyPatch, tile: GemmTile, parts: int = 1) -> None:
    """Makes the passes choose a tile, and kernels have two blocks that take tiles in turn."""
    for module in (products, gates):
        monkeypatch.setattr(module, "choose_bulk_tile", lambda *_, **__: BulkChoice(tile, parts))
    monkeypatch.setattr(bulk_product, "PROCESSORS", 2)


def silu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(gate) * up


def swapped(up: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """The halves the other way round, and one of them twice."""
    return torch.tanh(gate) * up + gate


class Gated(nn.Module):
    def __init__(self, terms: int, half: int, then: Any = silu, bias: bool = True) -> None:
        super().__init__()
        self.up, self.then = nn.Linear(terms, 2 * half, bias=bias), then

    def forward(self, x: torch.Tensor, *more: torch.Tensor) -> Any:
        return self.then(*self.up(x).chunk(2, -1), *more)


def find_gated(module: Module) -> list[GatedGemm]:
    return [step for step in module.steps if isinstance(step, GatedGemm)]


def make_gated(
    m: int, half: int, k: int, then: Any = silu, *, bias: bool = True, dtype: torch.dtype = torch.bfloat16
) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(m + half + k)
    return Gated(k, half, then, bias).to(dtype).eval(), (randn(m, k, dtype=dtype),)


def test_every_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and columns that end inside a tile, more steps than stages; kernels and interpreted steps."""
    layers, lowered = [], []
    for number, tile in enumerate((*BULK_TILES, SMALL, GemmTile(64, 80, 128, 2, 4, 1), GemmTile(64, 16, 128, 2, 4, 1))):
        tile = trim_stages(tile, 1 + number % 3)
        use_tile(monkeypatch, tile)
        m, half = tile.rows + 1 + 6 * number, tile.columns // 16 * 8 + 8 * (1 + number % 3)
        dtype = torch.float16 if number % 4 == 3 else torch.bfloat16
        then = swapped if number % 3 == 2 else silu
        made = make_gated(m, half, 64 * (tile.stages + 1 + number % 2), then, bias=number % 2 == 0, dtype=dtype)
        layers.append(made)
        lowered.append(lower_model(*made))
        assert [type(step) for step in lowered[-1][1].steps] == [GatedGemm], tile
    for (model, args), run, (program, module) in zip(layers, build_models(lowered), lowered, strict=True):
        compare(model, args, run)
        compare(model, args, InterpretedModel(PackingTarget(), program, module))


def test_blocks_of_a_cluster_share_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    layers, lowered = [], []
    forms = [(SMALL, 2), (GemmTile(64, 64, 128, 3, 4, 1), 4), (GemmTile(128, 32, 128, 2, 8, 1), 2)]
    forms += [(GemmTile(64, 96, 128, 2, 4, 1), 3), (GemmTile(128, 64, 128, 2, 4, 1), 4)]
    for tile, parts in forms:
        use_tile(monkeypatch, tile, parts)
        for m, steps in ((9, 1), (tile.rows + 1, 2)):
            made = make_gated(m, tile.columns - 8, 64 * parts * steps)
            layers.append(made)
            lowered.append(lower_model(*made))
            assert find_gated(lowered[-1][1])[0].steps[0].split_k == parts
    for (model, args), run in zip(layers, build_models(lowered), strict=True):
        compare(model, args, run)


def test_rows_that_the_run_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a Map that reads something else, at the same place."""
    use_tile(monkeypatch, SMALL)
    torch.manual_seed(2)
    model = Gated(64, 40, lambda gate, up, more: silu(gate, up) + more).bfloat16().eval()
    rows = torch.export.Dim("rows", min=0, max=512)
    program, module = lower_model(model, (randn(90, 64), randn(90, 40)), dynamic_shapes=({0: rows}, {0: rows}))
    assert len(find_gated(module)) == 1
    (run,) = build_models([(program, module)])
    for m in (90, 64, 130, 3, 2, 1):
        compare(model, (randn(m, 64), randn(m, 40)), run)
    assert run(randn(0, 64), randn(0, 40)).shape == (0, 40)


def test_rounding_is_that_of_two_kernels() -> None:
    """The product's result is rounded before the Map reads it: both forms give the same bits. (Not so of a sigmoid, for
    which epilogues have a shorter function.)"""
    model, args = make_gated(70, 96, 128, swapped)
    found = []
    for disabled in ((), ("bulk_gates",)):
        program, _, module = schedule(model, args, disabled)
        assert len(find_gated(module)) == (not disabled)
        found.append(EmulatedModel(program, module)(*args))
    assert torch.equal(*found)


class Layer(nn.Module):
    """The second half of a decoder's layer, with one weight for the gate and what it lets through, or one for each."""

    def __init__(self, width: int, hidden: int, joined: bool, bias: bool = False) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.up = nn.Linear(width, 2 * hidden if joined else hidden, bias=bias)
        self.gate = None if joined else nn.Linear(width, hidden, bias=bias)
        self.down = nn.Linear(hidden, width, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.norm(x)
        gate, up = self.up(rows).chunk(2, -1) if self.gate is None else (self.gate(rows), self.up(rows))
        return x + self.down(F.silu(gate) * up)


@pytest.mark.parametrize("joined", [False, True])
def test_layers(joined: bool, golden: Golden) -> None:
    """Separate weights stay siblings, in turn: their gate is an epilogue already."""
    for shape, hidden, bias in (((70, 64), 128, False), ((2, 19, 128), 1000, True)):
        torch.manual_seed(3)
        model, args = Layer(shape[-1], hidden, joined, bias).bfloat16().eval(), (randn(*shape),)
        program, lowered, module = schedule(model, args)
        assert len(find_gated(module)) == joined
        assert any(isinstance(step, SiblingGemms) for step in module.steps) != joined
        compare(model, args, EmulatedModel(program, module))
        compare(model, args, InterpretedModel(PackingTarget(), program, module))
        if joined and hidden == 128:
            golden("bulk_gates", print_pass(lowered, "bulk_gates"))


def test_what_stays_apart() -> None:
    """A result that is read twice or given back, halves that are not runs of 8, other columns, a pass that is off."""
    unequal = make_gated(70, 64, 128, lambda gate, up: (silu(gate, up), gate[:, 1:] * 2))
    strided = make_gated(70, 64, 128, lambda gate, up: torch.sigmoid(gate[:, 0::2]) * up[:, 0::2])
    turned = make_gated(70, 64, 128, lambda gate, up: gate * up.flip(-1))
    for model, args in (unequal, strided, turned, make_gated(70, 68, 128), make_gated(70, 64, 96)):
        program, module = lower_model(model, args)
        assert not find_gated(module)
        compare(model, args, EmulatedModel(program, module))
    model, args = make_gated(70, 64, 128)
    for disabled in ("bulk_gates", "bulk_products"):
        assert not find_gated(schedule(model, args, (disabled,))[2])


def test_text_for_other_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same kernels without what only Hopper has."""
    layers, lowered = [], []
    forms = [(SMALL, 2), (GemmTile(128, 48, 128, 2, 8, 1), 1), (GemmTile(128, 64, 128, 2, 4, 1, 2), 1)]
    for tile, parts in forms:
        use_tile(monkeypatch, tile, parts)
        layers.append(make_gated(tile.rows + 5, tile.columns - 8, 256))
        lowered.append(lower_model(*layers[-1]))
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
    """Runs of 8 columns of both halves in turn."""
    layout = SwizzledTiles(0, 48, 64, 64, 1, 32, pairs=24)
    tiles = layout.spread(torch.arange(48 * 64).float())
    assert tiles.shape == layout.stored_shape() == (2, 1, 32, 64)
    for place, column in ((0, 0), (7, 7), (8, 24), (16, 8), (24 + 3, 32 + 3), (32, 16), (47, 47)):
        piece = 2 ^ place % 8
        assert tiles[place // 32, 0, place % 32, piece * 8 + 5] == 64 * column + 21
    assert (tiles[1, :, 16:] == 0).all()


def test_rules() -> None:
    _, module = lower_model(*make_gated(70, 64, 256))
    (group,) = find_gated(module)
    step, gate = group.steps

    def refuse(why: str, made: GatedGemm) -> None:
        with pytest.raises(ScheduleError, match=why):
            verify_schedule(replace(module, steps=(made,)), "bulk_gates")

    def change(**changes: Any) -> GatedGemm:
        return replace(group, steps=(replace(step, **changes), gate))

    verify_schedule(module, "bulk_gates")
    turned: Any = (gate, step)
    refuse("a Map behind it", replace(group, steps=turned))
    refuse("hold pairs of columns", change(pairs=0))
    refuse("hold pairs of columns", change(algorithm="tensor"))
    refuse("is in memory", replace(group, local=()))
    refuse("does not read the result", replace(group, steps=(step, replace(gate, body=step.epilogue.body))))
    (store,) = gate.stores
    written = replace(gate, stores=(replace(store, buffer=step.a.buffer),))
    refuse("other blocks", replace(group, steps=(step, written)))
    refuse("groups of four warps", change(tile=replace(SMALL, down=2)))
    plain = replace(step, algorithm="tensor")
    with pytest.raises(ScheduleError, match="hold columns in pairs"):
        verify_schedule(replace(module, steps=(plain, gate)), "bulk_gates")


@needs_nvrtc
def test_forms_compile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """For every architecture, and on Hopper no registers that are spilled to memory."""
    in_turn = next(tile for tile in BULK_TILES if tile.turns > 1 and tile.columns == 128)
    wide = next(tile for tile in BULK_TILES if tile.columns == 176)
    for tile, parts in ((wide, 1), (BULK_TILES[0], 1), (in_turn, 1), (BULK_TILES[-1], 2)):
        use_tile(monkeypatch, tile, parts)
        text, _ = write_kernels(lower_model(*make_gated(300, 5632, 1024))[1])
        cubins = check_cubin(text)
        assert cubins["sm_80"]
        (found,) = disassemble(cubins["sm_90a"], tmp_path).values()
        assert re.search(r"\bHGMMA\b", found) and count(found, "STL", "LDL") == 0, tile
