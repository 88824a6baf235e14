"""The CUDA target's strategy of lowering: what lowering asks a GPU for."""

from __future__ import annotations

from ingot.lowering.strategy import LoweringStrategy


class CudaStrategy(LoweringStrategy):
    """Products, convolutions and attention stay whole, over memory as it is."""

    attention_block = (64, 64)
    devices = frozenset({"cpu", "cuda"})
