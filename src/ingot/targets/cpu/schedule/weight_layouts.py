"""Layouts of packed weights: one type per layout, each a view of the model's own tensor and what becomes of it.

A `WeightView` is strided, over the tensor's row-major elements. A `PanelView` has panels of columns, in the order in
which a product reads them: [groups, panels, depth…, width]; a panel's places behind the last column are zeros.

weight_packing.py has the code that fills each of them; `stored_shape` is the shape of what it fills.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ingot.lowering.index_expr import Size, product
from ingot.lowering.loop_module import WeightLayout


@dataclass(frozen=True, slots=True)
class WeightView:
    offset: Size
    shape: tuple[Size, ...]
    strides: tuple[Size, ...]


@dataclass(frozen=True, slots=True)
class PanelView:
    """`columns` are those of a group; the last dim of the shape is a panel's width."""

    offset: Size
    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    columns: int


@dataclass(frozen=True, slots=True)
class StridedLayout(WeightLayout):
    """The elements of a view, one after another."""

    view: WeightView

    def stored_shape(self) -> tuple[Size, ...]:
        return self.view.shape


@dataclass(frozen=True, slots=True)
class ScaledLayout(WeightLayout):
    """The elements of a view, `times` each of them."""

    view: WeightView
    times: float

    def stored_shape(self) -> tuple[Size, ...]:
        return self.view.shape


@dataclass(frozen=True, slots=True)
class ColumnSumsLayout(WeightLayout):
    """What all dims of a view but the first add up to, `times` that, as int32."""

    view: WeightView
    times: int

    def stored_shape(self) -> tuple[Size, ...]:
        return self.view.shape[:1]


@dataclass(frozen=True, slots=True)
class PanelLayout(WeightLayout):
    """Panels, of the elements less `minus`."""

    view: PanelView
    minus: int = 0

    def stored_shape(self) -> tuple[Size, ...]:
        return self.view.shape


@dataclass(frozen=True, slots=True)
class WinogradPanelLayout(WeightLayout):
    """Panels of [16, in, out], which the 3×3 taps of [out, in, 3, 3] become."""

    view: PanelView

    def stored_shape(self) -> tuple[Size, ...]:
        return self.view.shape


@dataclass(frozen=True, slots=True)
class InterleavedPanelLayout(WeightLayout):
    """Panels of which the last `run` dims of the depth are one run of terms, and `together` terms lie side by side:
    […, terms / together, width, together], zeros behind the last term."""

    view: PanelView
    run: int
    together: int

    def stored_shape(self) -> tuple[Size, ...]:
        *depth, width = self.view.shape
        terms = product(depth[-self.run :])
        return (*depth[: -self.run], (terms + self.together - 1) // self.together, width, self.together)


@dataclass(frozen=True, slots=True)
class CodeWordLayout(WeightLayout):
    """Integers of `bits` bits, each less `minus`. Those of the dim before the last lie in words of 32 bits, the
    first one lowest; each `group` of them begins with a word of its own: […, groups · words, width]."""

    view: WeightView | PanelView
    bits: int
    group: int
    minus: int

    def stored_shape(self) -> tuple[Size, ...]:
        *outer, terms, width = self.view.shape
        return (*outer, terms // self.group * -(-self.group * self.bits // 32), width)


PackedLayout: TypeAlias = (
    StridedLayout
    | ScaledLayout
    | ColumnSumsLayout
    | PanelLayout
    | WinogradPanelLayout
    | InterleavedPanelLayout
    | CodeWordLayout
)
