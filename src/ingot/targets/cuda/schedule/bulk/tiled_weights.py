"""The weights of a module with those that a pass lays out in tiles, each once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from ingot.lowering.loop_ir import Buffer, Stmt
from ingot.lowering.loop_module import Module, PackedWeight
from ingot.targets.cuda.schedule.weight_layouts import SwizzledTiles


@dataclass
class TiledWeights:
    """A module's buffers and weights, with those that the pass makes."""

    module: Module
    buffers: dict[str, Buffer]
    weights: dict[str, PackedWeight]
    made: dict[tuple[str, SwizzledTiles], str] = field(default_factory=dict)

    @classmethod
    def create(cls, module: Module) -> Self:
        return cls(module, dict(module.buffers), {weight.buffer: weight for weight in module.weights})

    def add(self, buffer: str, layout: SwizzledTiles, word: str) -> str:
        """The buffer of a weight's tensor in this layout, which is called after the weight's own and the word."""
        source = self.weights[buffer].source
        name = self.made.get((source, layout))
        if name is None:
            name = f"{buffer}_{word}{len(self.made)}"
            self.made[source, layout] = name
            self.buffers[name] = Buffer(name, self.buffers[buffer].dtype, layout.stored_shape(), "weight")
            self.weights[name] = PackedWeight(name, source, layout)
        return name

    def finish(self, steps: Sequence[Stmt]) -> Module:
        return replace(self.module, steps=tuple(steps), buffers=self.buffers, weights=tuple(self.weights.values()))
