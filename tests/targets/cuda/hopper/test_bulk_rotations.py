"""Rotations in the kernels of products of many rows: every form against float64, what stays apart, and the rules."""

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
from ingot.lowering.loop_ir import Attention, Map
from ingot.lowering.loop_module import Module
from ingot.targets.cuda.schedule.bulk import rotations
from ingot.targets.cuda.schedule.bulk.tiles import BULK_TILES
from ingot.targets.cuda.schedule.statements import GatedGemm, GemmTile, MapGroup
from ingot.targets.cuda.schedule.tiles import trim_stages
from ingot.targets.cuda.schedule.verifier import verify_schedule
from ingot.targets.cuda.schedule.weight_layouts import SwizzledTiles
from ingot.targets.reference.interpreted_model import InterpretedModel
from tests.support.cuda_emulation.emulated_model import EmulatedModel, PackingTarget, build_models
from tests.support.cuda_emulation.kernels import build_text, check_cubin, write_kernels
from tests.support.cuda_emulation.toolkit import count, disassemble, needs_nvrtc
from tests.targets.cuda.hopper.test_bulk_gates import SMALL, use_tile
from tests.targets.cuda.streams.test_streamed_groups import schedule
from tests.targets.cuda.test_gemm_epilogues import compare, lower_model, randn
from tests.targets.cuda.test_schedule import print_pass

Golden = Callable[[str, str], None]


@pytest.fixture(autouse=True)
def fold_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where two kernels would be faster."""
    monkeypatch.setattr(rotations._RotationFolding, "is_faster", lambda *_: True)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def rotate_halves(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The halves by themselves: each column of the result reads its own column under a condition."""
    first, second = x.chunk(2, -1)
    cos, sin = cos[..., : first.shape[-1]], sin[..., : first.shape[-1]]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def rotate_neighbours(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Pairs of columns 2 · i and 2 · i + 1."""
    first, second = x[..., 0::2], x[..., 1::2]
    cos, sin = cos[..., : first.shape[-1]], sin[..., : first.shape[-1]]
    return torch.stack((first * cos - second * sin, second * cos + first * sin), -1).flatten(-2)


def rotate_part(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The first half of the depth only."""
    first, second = x.chunk(2, -1)
    half = first.shape[-1]
    return torch.cat((rotate(first, cos[..., :half], sin[..., :half]), second), -1)


class Heads(nn.Module):
    """The first half of a decoder's layer: queries, keys and values of one product, and attention of them."""

    def __init__(
        self, terms: int, heads: tuple[int, int, int], depth: int, then: Any = rotate, *, bias: bool = False
    ) -> None:
        super().__init__()
        self.heads, self.depth, self.then = heads, depth, then
        self.qkv = nn.Linear(terms, sum(heads) * depth, bias=bias)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
        parts = self.qkv(x).view(*x.shape[:-1], -1, self.depth).transpose(-2, -3)
        q, k, v = parts.split(self.heads, -3)
        return self.finish(self.then(q, cos, sin), self.then(k, cos, sin), v)

    def finish(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        q, k, v = (part if part.dim() == 4 else part[None] for part in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).contiguous()


class Parts(Heads):
    """What is rotated itself, as heads, in the order of memory that the product has or in theirs."""

    in_order = True

    def finish(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return (q + 0, k + 0, v * 1) if self.in_order else (q.contiguous(), k.contiguous(), v.contiguous())


def find_groups(module: Module) -> list[GatedGemm]:
    return [step for step in module.steps if isinstance(step, GatedGemm)]


def make_args(shape: tuple[int, ...], depth: int, dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, ...]:
    angles = torch.randn(shape[-2], depth // 2, generator=torch.Generator().manual_seed(1)).repeat(1, 2)
    return randn(*shape, dtype=dtype), angles.cos().to(dtype), angles.sin().to(dtype)


def make(model: type[Heads], shape: tuple[int, ...], *given: Any, **options: Any) -> tuple[nn.Module, tuple[Any, ...]]:
    torch.manual_seed(sum(shape))
    dtype = options.pop("dtype", torch.bfloat16)
    return model(shape[-1], *given, **options).to(dtype).eval(), make_args(shape, given[1], dtype)


def test_every_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and columns that end inside a tile, heads that end inside it too; kernels and interpreted steps."""
    layers, lowered = [], []
    for number, tile in enumerate((*BULK_TILES, SMALL, GemmTile(64, 80, 128, 2, 4, 1), GemmTile(64, 16, 128, 2, 4, 1))):
        tile = trim_stages(tile, 1 + number % 3)
        use_tile(monkeypatch, tile)
        heads = ((3, 1, 1), (2, 2, 2), (4, 2, 1))[number % 3]
        depth = (64, 16, 128, 32)[number % 4]
        m, terms = tile.rows + 1 + 6 * number, 64 * (tile.stages + 1 + number % 2)
        dtype = torch.float16 if number % 4 == 3 else torch.bfloat16
        made = make(Parts, (m, terms), heads, depth, bias=number % 2 == 0, dtype=dtype)
        layers.append(made)
        lowered.append(lower_model(*made))
        assert len(find_groups(lowered[-1][1])) == 1, tile
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
            layers.append(make(Parts, (m, 64 * parts * steps), (2, 1, 1), 32))
            lowered.append(lower_model(*layers[-1]))
            assert find_groups(lowered[-1][1])[0].steps[0].split_k == parts
    for (model, args), run in zip(layers, build_models(lowered), strict=True):
        compare(model, args, run)


@pytest.mark.parametrize("then", [rotate, rotate_halves])
def test_layers(then: Any, golden: Golden) -> None:
    """Heads of other counts and depths, batches; values that attention reads become a result of their own."""
    for shape, heads, depth in (
        ((1, 70, 128), (4, 2, 2), 64),
        ((1, 130, 64), (3, 1, 1), 128),
        ((2, 33, 64), (2, 2, 2), 64),
        ((70, 64), (6, 3, 3), 16),
    ):
        model, args = make(Heads, shape, heads, depth, then)
        program, lowered, module = schedule(model, args)
        (group,) = find_groups(module)
        assert group.steps[0].pairs == depth // 2 and len(group.gate_maps) == 3
        assert not any(isinstance(step, (Map, MapGroup)) for step in module.steps)
        (attention,) = (step for step in module.steps if isinstance(step, Attention))
        assert attention.v.buffer not in group.local
        compare(model, args, EmulatedModel(program, module))
        compare(model, args, InterpretedModel(PackingTarget(), program, module))
        if then is rotate and depth == 64 and shape[0] == 1:
            golden("bulk_rotations", print_pass(lowered, "bulk_rotations"))


def test_order_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results by heads, whose rows are apart, and large Maps, which no group holds."""
    monkeypatch.setattr(Parts, "in_order", False)
    for disabled in ((), ("map_groups",)):
        for shape, heads, depth in (((70, 64), (2, 1, 1), 64), ((2, 33, 128), (1, 1, 1), 32)):
            model, args = make(Parts, shape, heads, depth)
            program, _, module = schedule(model, args, disabled)
            assert len(find_groups(module)) == 1 and len(module.steps) == 1
            compare(model, args, EmulatedModel(program, module))


def test_rounding_is_that_of_two_kernels() -> None:
    """The product's result is rounded before the Maps read it: both forms give the same bits."""
    for dtype in (torch.bfloat16, torch.float16):
        model, args = make(Parts, (70, 128), (4, 2, 1), 64, bias=True, dtype=dtype)
        found = []
        for disabled in ((), ("bulk_rotations",)):
            program, _, module = schedule(model, args, disabled)
            assert len(find_groups(module)) == (not disabled)
            found.append(EmulatedModel(program, module)(*args))
        assert all(map(torch.equal, *found))


@pytest.mark.parametrize("kind", [Parts, Heads])
def test_rows_that_the_run_tells(monkeypatch: pytest.MonkeyPatch, kind: type[Heads]) -> None:
    use_tile(monkeypatch, SMALL)
    torch.manual_seed(2)
    model = kind(64, (2, 1, 1), 32).bfloat16().eval()
    rows = torch.export.Dim("rows", min=1, max=512)
    shapes = ({1: rows}, {0: rows}, {0: rows})
    program, module = lower_model(model, make_args((2, 90, 64), 32), dynamic_shapes=shapes)
    assert len(find_groups(module)) == 1
    (run,) = build_models([(program, module)])
    for m in (90, 64, 130, 3, 2, 1):
        compare(model, make_args((2, m, 64), 32), run)


def test_some_heads_are_rotated() -> None:
    """Queries only: attention reads keys and values as they are, from one copy."""

    class Queries(Heads):
        def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
            parts = self.qkv(x).view(*x.shape[:-1], -1, self.depth).transpose(-2, -3)
            q, k, v = parts.split(self.heads, -3)
            return self.finish(rotate(q, cos, sin), k, v)

    model, args = make(Queries, (1, 70, 64), (4, 2, 2), 32)
    program, _, module = schedule(model, args)
    (group,) = find_groups(module)
    assert len(group.gate_maps) == 2
    compare(model, args, EmulatedModel(program, module))


def test_some_heads_are_not_read() -> None:
    """One Map, of columns in the middle: others are stored nowhere."""

    class Keys(Parts):
        def finish(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
            return k + 0

    model, args = make(Keys, (70, 64), (2, 2, 1), 32)
    program, _, module = schedule(model, args)
    (group,) = find_groups(module)
    assert isinstance(group.steps[1], Map)
    compare(model, args, EmulatedModel(program, module))


def test_what_stays_apart() -> None:
    """Pairs that are neighbours, or of a part of the depth; halves that are not runs of 8; a result that is given back;
    a pass that is off."""

    class Kept(Heads):
        def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
            rows = self.qkv(x)
            return rows, rotate(rows.view(*x.shape[:-1], -1, self.depth).transpose(-2, -3), cos, sin)

    for kind, depth, then in (
        (Parts, 32, rotate_neighbours),
        (Parts, 32, rotate_part),
        (Parts, 24, rotate),
        (Kept, 32, rotate),
    ):
        model, args = make(kind, (70, 64), (2, 1, 1), depth, then)
        program, module = lower_model(model, args)
        assert not find_groups(module), then
        compare(model, args, EmulatedModel(program, module))
    model, args = make(Heads, (1, 70, 64), (2, 1, 1), 32)
    for disabled in ("bulk_rotations", "bulk_products"):
        assert not find_groups(schedule(model, args, (disabled,))[2])


def test_what_is_slower_stays_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    model, args = make(Parts, (512, 1024), (16, 4, 4), 64)
    for time, folds in ((2.0, True), (-100.0, False)):
        monkeypatch.setattr(rotations, "_LAUNCH_TIME", time)
        assert len(find_groups(lower_model(model, args)[1])) == folds


def test_text_for_other_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same kernels without what only Hopper has."""
    layers, lowered = [], []
    forms = [(SMALL, 2), (GemmTile(128, 48, 128, 2, 8, 1), 1), (GemmTile(128, 64, 128, 2, 4, 1, 2), 1)]
    for tile, parts in forms:
        use_tile(monkeypatch, tile, parts)
        layers.append(make(Parts, (tile.rows + 5, 256), (2, 1, 1), 32))
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
    """Runs of 8 columns of both halves of each group in turn."""
    layout = SwizzledTiles(0, 64, 64, 64, 1, 32, pairs=16)
    tiles = layout.spread(torch.arange(64 * 64).float())
    for place, column in ((0, 0), (7, 7), (8, 16), (16, 8), (24 + 3, 24 + 3), (32, 32), (40, 48), (63, 63)):
        piece = 2 ^ place % 8
        assert tiles[place // 32, 0, place % 32, piece * 8 + 5] == 64 * column + 21


def test_rules() -> None:
    _, module = lower_model(*make(Parts, (70, 256), (2, 1, 1), 32))
    (group,) = find_groups(module)
    step, gate = group.steps
    assert isinstance(gate, MapGroup)
    first, second, *_ = gate.steps

    def refuse(why: str, made: GatedGemm) -> None:
        with pytest.raises(ScheduleError, match=why):
            verify_schedule(replace(module, steps=(made,)), "bulk_rotations")

    def change(*maps: Map) -> GatedGemm:
        return replace(group, steps=(step, MapGroup(maps)))

    verify_schedule(module, "bulk_rotations")
    refuse("whole runs of 8", replace(group, steps=(replace(step, pairs=4), gate)))
    refuse("reads columns of other pairs", replace(group, steps=(replace(step, pairs=8), gate)))
    refuse("the same columns", change(first, replace(first, stores=second.stores)))
    refuse("the same place", change(replace(first, collides=True), second))
    refuse("is in memory", replace(group, local=()))
    refuse("does not read the result", change(first, replace(second, body=step.epilogue.body)))
    (store,) = second.stores
    refuse("other blocks", change(first, replace(second, stores=(replace(store, buffer=step.a.buffer),))))
    refuse("adds to", change(first, replace(second, stores=(replace(store, mode="add"),))))


@needs_nvrtc
def test_forms_compile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """For every architecture, and on Hopper no registers that are spilled to memory. Runs are stored whole."""
    narrow, wide, widest = (next(tile for tile in BULK_TILES if tile.columns == columns) for columns in (96, 176, 192))
    for tile, parts in ((narrow, 1), (wide, 1), (widest, 1), (BULK_TILES[-1], 2)):
        use_tile(monkeypatch, tile, parts)
        _, module = lower_model(*make(Parts, (512, 1024), (32, 8, 8), 64))
        text, _ = write_kernels(replace(module, steps=tuple(find_groups(module))))
        cubins = check_cubin(text)
        assert cubins["sm_80"]
        (found,) = disassemble(cubins["sm_90a"], tmp_path).values()
        assert re.search(r"\bHGMMA\b", found) and count(found, "STL", "LDL") == 0, tile
        assert not re.search(r"\bSTG\.E(\.U16|\.U8)\b", found), tile
