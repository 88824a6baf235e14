"""Each layout of a packed weight: what lies where, and that equal layouts of one weight are one buffer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ingot.codegen.entry_points import PlacedWeight
from ingot.lowering.dtypes import BYTES
from ingot.lowering.index_expr import product, require_static
from ingot.lowering.loop_ir import Buffer
from ingot.lowering.loop_module import PackedWeight, WeightLayout
from ingot.targets.cpu.codegen.weight_packing import winograd
from ingot.targets.cpu.schedule.weight_layouts import (
    CodeWordLayout,
    ColumnSumsLayout,
    InterleavedPanelLayout,
    PackedLayout,
    PanelLayout,
    PanelView,
    ScaledLayout,
    StridedLayout,
    WeightView,
    WinogradPanelLayout,
)
from ingot.targets.cpu.target import CPU
from tests.support.pipeline_fixtures import lowered

# [columns, terms], of which panels have 16 columns: the second one has 4 and zeros.
COLUMNS, TERMS, WIDTH = 20, 6, 16
PANELS = PanelView(0, (1, 2, TERMS, WIDTH), (0, WIDTH * TERMS, 1, TERMS), COLUMNS)


def stored(layout: PackedLayout, dtype: str, state: torch.Tensor) -> np.ndarray:
    """What the layout makes of a tensor, in its stored shape."""
    shape = tuple(map(require_static, layout.stored_shape()))
    size = require_static(product(shape)) * BYTES[dtype]
    placed = PlacedWeight(PackedWeight("w1", "state", layout), 0, size)
    module: Any = SimpleNamespace(buffers={"w1": Buffer("w1", dtype, shape, "weight")})
    program: Any = SimpleNamespace(state_dict={"state": state}, constants={})
    source: Any = SimpleNamespace(weights=(placed,), weights_size=size)
    made = CPU.pack_weights(program, module, source).array[:size].copy()
    # A tensor may be a part of another one's memory.
    program.state_dict["state"] = torch.cat([state.new_ones(37), state.reshape(-1)])[37:].view(state.shape)
    assert np.array_equal(CPU.pack_weights(program, module, source).array[:size], made)
    return torch.from_numpy(made).view(getattr(torch, dtype)).view(shape).float().numpy()


def panels(matrix: torch.Tensor) -> np.ndarray:
    """[columns, terms] as [1, panels, terms, width]."""
    whole = np.zeros((2 * WIDTH, TERMS), np.float32)
    whole[:COLUMNS] = matrix.float().numpy()
    return whole.reshape(1, 2, WIDTH, TERMS).swapaxes(2, 3)


def random_integers(low: int, high: int, *shape: int) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(0)).to(torch.int8)


def test_every_layout_is_tried_here() -> None:
    tried = {StridedLayout, ScaledLayout, ColumnSumsLayout, PanelLayout, WinogradPanelLayout, InterleavedPanelLayout}
    assert {*tried, CodeWordLayout} == set(CPU.layouts)
    assert all(issubclass(layout, WeightLayout) for layout in CPU.layouts)


def test_views() -> None:
    x = torch.randn(4, 5)
    expected = x.reshape(-1).as_strided((4, 5), (1, 4), 0).numpy()
    np.testing.assert_array_equal(stored(StridedLayout(WeightView(0, (4, 5), (1, 4))), "float32", x), expected)
    scaled = stored(ScaledLayout(WeightView(0, (4, 5), (5, 1)), 0.5), "float32", x)
    np.testing.assert_array_equal(scaled, (x * 0.5).numpy())


def test_column_sums() -> None:
    x = random_integers(-128, 128, 4, 5)
    found = stored(ColumnSumsLayout(WeightView(0, (4, 5), (5, 1)), -3), "int32", x)
    np.testing.assert_array_equal(found, -3 * x.int().sum(1).numpy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_panels(dtype: torch.dtype) -> None:
    """Halves are widened while they are packed."""
    x = torch.randn(COLUMNS, TERMS).to(dtype)
    np.testing.assert_array_equal(stored(PanelLayout(PANELS), "float32", x), panels(x))
    less = panels(x - 2)
    less[0, 1, :, COLUMNS - WIDTH :] = 0
    np.testing.assert_array_equal(stored(PanelLayout(PANELS, 2), "float32", x), less)


def test_terms_side_by_side() -> None:
    x = random_integers(-128, 128, COLUMNS, TERMS)
    found = stored(InterleavedPanelLayout(PANELS, 1, 4), "int8", x)
    assert found.shape == (1, 2, 2, WIDTH, 4)
    terms = found.swapaxes(3, 4).reshape(1, 2, 8, WIDTH)
    np.testing.assert_array_equal(terms[:, :, :TERMS], panels(x))
    assert not terms[:, :, TERMS:].any()


def test_winograds_matrices() -> None:
    x = torch.randn(WIDTH, 3, 3, 3)
    view = PanelView(0, (16, 1, 3, WIDTH), (3 * WIDTH, WIDTH, WIDTH, 1), WIDTH)
    np.testing.assert_array_equal(stored(WinogradPanelLayout(view), "float32", x)[:, 0], winograd(x).numpy())


@pytest.mark.parametrize(("bits", "minus"), [(4, 0), (4, 8), (8, 0)])
def test_codes(bits: int, minus: int) -> None:
    half = 1 << (bits - 1)
    x = random_integers(minus - half, minus + half, COLUMNS, TERMS)
    layout = CodeWordLayout(PANELS, bits, 3, minus)
    shape = tuple(map(require_static, layout.stored_shape()))
    assert shape == (1, 2, 2, WIDTH)  # two groups of three terms, a word each
    size = require_static(product(shape)) * 4
    placed = PlacedWeight(PackedWeight("w1", "state", layout), 0, size)
    module: Any = SimpleNamespace(buffers={"w1": Buffer("w1", "uint32", shape, "weight")})
    program: Any = SimpleNamespace(state_dict={"state": x}, constants={})
    source: Any = SimpleNamespace(weights=(placed,), weights_size=size)
    words = CPU.pack_weights(program, module, source).array[:size].copy().view(np.uint32).reshape(shape)
    for term in range(TERMS):
        code = (words[:, :, term // 3] >> np.uint32(bits * (term % 3))) & np.uint32((1 << bits) - 1)
        signed = (code.astype(np.int64) ^ half) - half
        found = signed.reshape(-1)[:COLUMNS] + minus
        np.testing.assert_array_equal(found, x[:, term].numpy())


def test_equal_layouts_of_one_weight_are_one_buffer() -> None:
    layer = nn.Linear(24, 40).eval()
    _, module = lowered(lambda a, b: (layer(a) * 2, layer(b) + 1), (torch.randn(20, 24), torch.randn(20, 24)))
    packed = [weight for weight in module.weights if weight.layout is not None]
    assert len(packed) == 1 and isinstance(packed[0].layout, PanelLayout)
