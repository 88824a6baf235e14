"""Weights in the layouts that kernels read, packed ahead of time."""

from __future__ import annotations

from collections.abc import Sequence

from ingot.lowering.builder import LoopBuilder
from ingot.lowering.index_expr import Size
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.tensor_views import Deferred, Index, Strided, TensorValue, contiguous_strides
from ingot.targets.cpu.schedule.statements import K_INTERLEAVE, OperandFormat
from ingot.targets.cpu.schedule.tiles import panel_width
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


def pack_panels(
    low: LoopBuilder, buffer: str, dtype: str, offset: Size, depth: Sequence[Size], steps: Sequence[Size],
    columns: Size,
    column_step: Size, groups: int = 1, group_step: Size | None = None, winograd: bool = False,
    width: int | None = None, factors: OperandFormat = "same", run: int = 1
) -> str:  # fmt: skip
    """A weight as [groups · panels][depth…][columns of a panel]: the order in which a product reads it.

    Groups lie `group_step` apart, or one after another as columns do. `factors` says how terms lie side by side:
    those of the last `run` dims of `depth`."""
    assert isinstance(columns, int) and isinstance(column_step, int)
    width = width or panel_width(columns)
    shape = (groups, -(-columns // width), *depth, width)
    between = columns * column_step if group_step is None else group_step
    view = PanelView(offset, shape, (between, width * column_step, *steps, column_step), columns)
    if factors != "same":
        return _derive(low, buffer, factors, InterleavedPanelLayout(view, run, K_INTERLEAVE[factors]))
    return _derive(low, buffer, dtype, WinogradPanelLayout(view) if winograd else PanelLayout(view))


def sum_columns(
    low: LoopBuilder, buffer: str, offset: Size, shape: Sequence[Size], strides: Sequence[Size], times: int
) -> TensorValue:
    """For each place of the first dim what a weight's integers add up to, `times` that."""
    layout = ColumnSumsLayout(WeightView(offset, tuple(shape), tuple(strides)), times)
    return TensorValue(shape[:1], "int32", Strided(_derive(low, buffer, "int32", layout), 0, (1,)))


def scale_vector(low: LoopBuilder, tensor: TensorValue, times: float) -> TensorValue:
    """A vector, `times` each element: computed ahead of time where it is a weight."""
    data = tensor.data
    if isinstance(data, Strided) and low.buffers[data.buffer].kind == "weight" and tensor.dtype == "float32":
        layout = ScaledLayout(WeightView(data.offset, tensor.shape, data.strides), times)
        name = _derive(low, data.buffer, "float32", layout)
        return TensorValue(tensor.shape, "float32", Strided(name, 0, contiguous_strides(tensor.shape)))

    def load(ops: BodyBuilder, index: Index) -> int:
        return ops.call("mul", ops.cast(tensor.load(ops, index), "float32"), ops.const(times, "float32"))

    return TensorValue(tensor.shape, "float32", Deferred(load, tensor.cost + 1))


def pack_scales(low: LoopBuilder, tensor: TensorValue, width: int, minus: int = 0) -> str:
    """Weights [columns, groups], each less `minus`, as float32 [panels][groups][columns of a panel]."""
    buffer, view = _columns(tensor, width)
    return _derive(low, buffer, "float32", PanelLayout(view, minus))


def pack_codes(low: LoopBuilder, codes: TensorValue, width: int, bits: int, group: int, minus: int) -> str:
    """A weight [columns, terms] of integers, each less `minus`, as panels of words: see `CodeWordLayout`."""
    buffer, view = _columns(codes, width)
    return _derive(low, buffer, "uint32", CodeWordLayout(view, bits, group, minus))


def pack_rows(low: LoopBuilder, codes: TensorValue, bits: int, minus: int) -> str:
    """A weight [rows, columns] of integers, each less `minus`, as words; each row begins a new word."""
    assert isinstance(codes.data, Strided) and isinstance(codes.shape[1], int)
    view = WeightView(codes.data.offset, (*codes.shape, 1), (*codes.data.strides, 1))
    return _derive(low, codes.data.buffer, "uint32", CodeWordLayout(view, bits, codes.shape[1], minus))


def reorder(
    low: LoopBuilder, buffer: str, dtype: str, offset: Size, shape: Sequence[Size], strides: Sequence[Size]
) -> TensorValue:
    """A weight in another order of its dims."""
    name = _derive(low, buffer, dtype, StridedLayout(WeightView(offset, tuple(shape), tuple(strides))))
    return TensorValue(shape, dtype, Strided(name, 0, contiguous_strides(shape)))


def _columns(tensor: TensorValue, width: int) -> tuple[str, PanelView]:
    assert isinstance(tensor.data, Strided) and isinstance(tensor.shape[0], int)
    columns, depth = tensor.shape[0], tensor.shape[1]
    column_step, step = tensor.data.strides
    shape, strides = (1, -(-columns // width), depth, width), (0, width * column_step, step, column_step)
    return tensor.data.buffer, PanelView(tensor.data.offset, shape, strides, columns)


def _derive(low: LoopBuilder, buffer: str, dtype: str, layout: PackedLayout) -> str:
    return low.derive_weight(buffer, dtype, layout.stored_shape(), layout)
