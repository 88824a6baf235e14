"""Convolutions by tiles of their weights, whose rows are boxes of pixels: against float64; what fits, and what is
chosen."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ingot.errors import ScheduleError
from ingot.lowering.loop_module import Module
from ingot.targets.cuda.codegen.products import bulk_product
from ingot.targets.cuda.schedule.bulk import windows
from ingot.targets.cuda.schedule.bulk.tiles import BulkChoice
from ingot.targets.cuda.schedule.bulk.windows import choose_box
from ingot.targets.cuda.schedule.statements import GemmTile, ImplicitGemm, SiblingGemms
from ingot.targets.cuda.schedule.verifier import verify_schedule
from ingot.targets.cuda.schedule.weight_layouts import ReorderedLayout, SwizzledTiles
from ingot.targets.reference.interpreted_model import InterpretedModel
from tests.support.cuda_emulation.emulated_model import PackingTarget, build_models
from tests.support.cuda_emulation.kernels import build_text, check_cubin, write_kernels
from tests.support.cuda_emulation.toolkit import count, disassemble, needs_nvrtc
from tests.targets.cuda.test_gemm_epilogues import compare, lower_model, randn
from tests.targets.cuda.test_schedule import lower, print_pass

SMALL = GemmTile(64, 32, 128, 3, 4, 1)


def use_tile(monkeypatch: pytest.MonkeyPatch, tile: GemmTile, parts: int = 1) -> None:
    """Makes the pass choose a tile, and kernels have two blocks that take tiles in turn."""
    monkeypatch.setattr(windows, "choose_bulk_tile", lambda *_, **__: BulkChoice(tile, parts))
    monkeypatch.setattr(bulk_product, "PROCESSORS", 2)


def find_windows(module: Module) -> list[ImplicitGemm]:
    found: list[ImplicitGemm] = []
    for step in module.steps:
        members = step.steps if isinstance(step, SiblingGemms) else (step,)
        found += [one for one in members if isinstance(one, ImplicitGemm) and one.algorithm == "bulk"]
    return found


# Layers, and the sizes of their images.
LAYERS: list[tuple[Any, tuple[int, ...]]] = [
    (lambda: nn.Conv2d(64, 40, 3, padding=1), (2, 64, 9, 7)),
    (lambda: nn.Conv2d(64, 64, 3, stride=2, padding=1), (3, 64, 9, 8)),
    (lambda: nn.Conv2d(64, 32, 3, stride=2, padding=1, bias=False), (5, 64, 7, 10)),
    (lambda: nn.Conv2d(128, 48, 1, stride=2), (3, 128, 7, 6)),  # the shortcut of a block
    (lambda: nn.Conv2d(64, 24, (3, 2), stride=(1, 3), padding=(2, 0), dilation=(2, 1)), (1, 64, 8, 9)),
    (lambda: nn.Conv2d(128, 32, 5, padding=2), (1, 128, 3, 4)),  # windows that leave the image on all sides
    (lambda: nn.Conv2d(3, 32, 7, stride=2, padding=3), (2, 3, 19, 22)),  # two lines of 8 taps of 4 channels are a stage
    (lambda: nn.Conv1d(64, 16, 4, padding=2, stride=2), (4, 64, 21)),
    (lambda: nn.Conv1d(64, 72, 3, dilation=2), (1, 64, 90)),
]


@pytest.mark.parametrize("parts", [1, 2])
def test_layers(parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tiles for each of two blocks, with rows and columns that end inside one."""
    layers, lowered = [], []
    torch.manual_seed(3)
    forms = [(SMALL, (1, 2)), (GemmTile(128, 64, 128, 2, 8, 1), (1, 2)), (GemmTile(64, 64, 128, 2, 4, 1, 2), (1,))]
    for number, (make, shape) in enumerate(LAYERS):
        tile, fitting = forms[number % 3]
        layer = make()
        terms = -(-layer.weight[0].numel() // 64)
        if parts not in fitting or terms % parts:
            continue
        use_tile(monkeypatch, tile, parts)
        dtype = torch.float16 if number % 4 == 3 else torch.bfloat16
        layers.append((layer.to(dtype).eval(), (randn(*shape, dtype=dtype),)))
        lowered.append(lower_model(*layers[-1]))
        (step,) = find_windows(lowered[-1][1])
        assert step.split_k == parts and step.tile == tile
    assert len(layers) > 1
    for (model, args), run, (program, module) in zip(layers, build_models(lowered), lowered, strict=True):
        compare(model, args, run)
        compare(model, args, InterpretedModel(PackingTarget(), program, module))


class Stage(nn.Module):
    """The first block of a stage of ResNet, with its shortcut, and one behind it."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        wide = 2 * width
        self.narrow, self.middle = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.wide, self.shortcut = nn.Conv2d(width, wide, 1), nn.Conv2d(width, wide, 1, stride=2)
        self.second = nn.ModuleList(
            [nn.Conv2d(wide, width, 1), nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, wide, 1)]
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.relu(self.middle(torch.relu(self.narrow(x))))
        x = torch.relu(self.wide(y) + self.shortcut(x))
        y = x
        for layer in self.second[:2]:
            y = torch.relu(layer(y))
        return torch.relu(self.second[2](y) + x), y


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("last", [False, True])
def test_stage(batch: int, last: bool) -> None:
    """As the schedule chooses: results that two steps read, what is added at a pixel, images in either layout."""
    torch.manual_seed(0)
    x = randn(batch, 64, 9, 11)
    if last:
        x = x.contiguous(memory_format=torch.channels_last)
    model, args = Stage().to(torch.bfloat16).eval(), (x,)
    program, module = lower_model(model, args)
    assert len(find_windows(module)) == 3, str(module)
    verify_schedule(module, "bulk_windows")
    ((run),) = build_models([(program, module)])
    compare(model, args, run)


def test_the_pass_as_text(golden: Callable[[str, str], None]) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(64, 64, 3, stride=2, padding=1).to(torch.bfloat16).eval()
    module = lower(nn.Sequential(layer, nn.ReLU()), (randn(2, 64, 6, 6),))[1]
    golden("bulk_windows", print_pass(module, "bulk_windows"))


def test_residual_that_is_broadcast(monkeypatch: pytest.MonkeyPatch) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(64, 48, 3, padding=1)

        def forward(self, x: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.layer(x) + r)

    use_tile(monkeypatch, SMALL)
    torch.manual_seed(1)
    model = Model().to(torch.bfloat16).eval()
    every = [(randn(2, 64, 6, 5), randn(*shape)) for shape in ((1, 48, 6, 5), (2, 48, 1, 1), (2, 1, 6, 5))]
    lowered = [lower_model(model, args) for args in every]
    assert all(len(find_windows(module)) == 1 for _, module in lowered)
    for args, run in zip(every, build_models(lowered), strict=True):
        compare(model, args, run)


def test_images_that_the_run_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    use_tile(monkeypatch, SMALL)
    torch.manual_seed(2)
    model = nn.Conv2d(64, 40, 3, padding=1).to(torch.bfloat16).eval()
    images = torch.export.Dim("images", min=1, max=64)
    program, module = lower_model(model, (randn(4, 64, 5, 6),), dynamic_shapes=({0: images},))
    assert len(find_windows(module)) == 1
    ((run),) = build_models([(program, module)])
    for batch in (4, 1, 7):
        compare(model, (randn(batch, 64, 5, 6),), run)


def test_text_for_other_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same kernels without what only Hopper has."""
    layers, lowered = [], []
    torch.manual_seed(4)
    for (make, shape), (tile, parts) in zip(
        LAYERS[:4],
        ((SMALL, 1), (GemmTile(128, 64, 128, 2, 4, 1, 2), 1), (GemmTile(64, 96, 128, 2, 4, 1), 3), (SMALL, 2)),
        strict=True,
    ):
        use_tile(monkeypatch, tile, parts)
        layers.append((make().to(torch.bfloat16).eval(), (randn(*shape),)))
        lowered.append(lower_model(*layers[-1]))
        assert find_windows(lowered[-1][1])
    monkeypatch.setattr(
        "tests.support.cuda_emulation.emulated_model.build_text",
        lambda text: build_text(f"#define IG_EMULATED_PLAIN 1\n{text}"),
    )
    for (model, args), run in zip(layers, build_models(lowered), strict=True):
        for written in run._steps:
            kernels = tuple(
                (name, one if one.plain_shared is None else replace(one, shared=one.plain_shared))
                for name, one in written.kernels
            )
            object.__setattr__(written, "kernels", kernels)
        compare(model, args, run)


def test_layout() -> None:
    weight = torch.arange(20 * 64 * 3 * 2).float().view(20, 64, 3, 2)
    source = ReorderedLayout(0, (20, 3, 2, 64), (64 * 6, 2, 1, 6), (20, 3, 2, 64))
    layout = SwizzledTiles(0, 20, 64 * 6, 64 * 6, 1, 16, source)
    tiles = layout.spread(weight.reshape(-1))
    assert tiles.shape == layout.stored_shape() == (2, 6, 16, 64)
    for column, line, tap, channel in ((0, 0, 0, 0), (5, 2, 1, 9), (15, 1, 0, 63), (16, 0, 1, 40)):
        piece = (channel // 8) ^ column % 8
        found = tiles[column // 16, 2 * line + tap, column % 16, piece * 8 + channel % 8]
        assert found == weight[column, channel, line, tap]


def test_folded_lines() -> None:
    weight = torch.arange(4 * 3 * 7 * 7).float().view(4, 3, 7, 7)
    layout = ReorderedLayout(0, (4, 7, 7, 3), (147, 7, 1, 49), (4, 8, 8, 4), 2)
    made = layout.arrange(weight.reshape(-1))
    assert made.shape == layout.stored_shape() == (4, 4, 8, 8)
    for outer, line, tap, channel in ((0, 0, 0, 0), (3, 5, 6, 2), (1, 6, 3, 1)):
        assert made[outer, line // 2, tap, line % 2 * 4 + channel] == weight[outer, channel, line, tap]
    assert (made[:, 3, :, 4:] == 0).all() and (made[:, :, 7] == 0).all() and (made[..., 3] == 0).all()


def test_boxes() -> None:
    stride = (1, 1)
    assert choose_box(32, [56, 56], stride, 128) == (2, 8, 8)
    assert choose_box(32, [28, 28], stride, 128) == (8, 4, 4)
    assert choose_box(32, [14, 14], stride, 128) == (32, 2, 2)
    assert choose_box(1, [2, 200], (1, 2), 256) == (1, 2, 128)
    assert choose_box(4, [96], (1,), 64) == (2, 32)
    for images, pixels, rows in ((1, [7, 7], 128), (4, [14, 14], 64), (32, [7, 7], 128), (3, [1, 1], 64)):
        box = choose_box(images, pixels, (2, 2), rows)
        assert box[0] * box[1] * box[2] <= rows and all(one >= 1 for one in box)


def test_what_does_not_fit() -> None:
    def fits(layer: nn.Module, *shape: int, dtype: torch.dtype = torch.bfloat16) -> int:
        return len(find_windows(lower_model(layer.to(dtype).eval(), (randn(*shape, dtype=dtype),))[1]))

    assert fits(nn.Conv2d(64, 64, 3), 1, 64, 6, 6) == 1
    assert fits(nn.Conv2d(64, 64, 3), 1, 64, 6, 6, dtype=torch.float32) == 0
    assert fits(nn.Conv2d(48, 64, 3), 1, 48, 6, 6) == 0 and fits(nn.Conv2d(64, 60, 3), 1, 64, 6, 6) == 0
    assert fits(nn.Conv2d(128, 128, 3, groups=2), 1, 128, 6, 6) == 0
    assert fits(nn.Conv3d(64, 64, 3), 1, 64, 3, 4, 4) == 0
    assert fits(nn.Conv2d(64, 64, 3, stride=9), 1, 64, 20, 20) == 0


def test_rules() -> None:
    _, module = lower_model(nn.Conv2d(64, 64, 3, padding=1).to(torch.bfloat16).eval(), (randn(2, 64, 6, 6),))
    (step,) = find_windows(module)

    def refuse(message: str, **changes: Any) -> None:
        steps = tuple(replace(step, **changes) if one is step else one for one in module.steps)
        with pytest.raises(ScheduleError, match=message):
            verify_schedule(replace(module, steps=steps), "bulk_windows")

    verify_schedule(module, "bulk_windows")
    refuse("groups of four warps", tile=replace(SMALL, down=2))
    refuse("for each part", split_k=2, tile=SMALL)
    refuse("pixels is not the rows", box=(9, 9, 9))
    refuse("pixels is not the rows", box=(1, 1))
    refuse("are not a box", stride=(9, 1))
    refuse("elements", tile=replace(step.tile, columns=96), split_k=1)


@needs_nvrtc
def test_forms_compile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """For every architecture; on Hopper with its copies and products, and no registers that are spilled to memory."""
    for tile, parts in (
        (GemmTile(128, 128, 128, 6, 8, 1), 1),
        (GemmTile(256, 128, 128, 4, 8, 1), 1),
        (GemmTile(128, 64, 128, 4, 8, 1), 1),
        (GemmTile(64, 96, 128, 8, 4, 1), 3),
    ):
        use_tile(monkeypatch, tile, parts)
        layer = nn.Conv2d(64, 128, 3, stride=2, padding=1).to(torch.bfloat16).eval()
        module = lower_model(nn.Sequential(layer, nn.ReLU()), (randn(8, 64, 28, 28),))[1]
        (step,) = find_windows(module)
        text, _ = write_kernels(replace(module, steps=(step,)))
        cubins = check_cubin(text)
        assert cubins["sm_80"]
        (found,) = disassemble(cubins["sm_90a"], tmp_path).values()
        for name in ("HGMMA", "UTMALDG", "UBLKCP", "SYNCS"):
            assert re.search(rf"\b{name}\b", found), name
        assert count(found, "STL", "LDL") == 0, tile
