"""Rules, one file a family; importing this package fills `ingot.lowering.lower.RULES`."""

from ingot.lowering.rules import (  # noqa: F401
    attention,
    control,
    convolution,
    factories,
    grouped,
    indexing,
    norms,
    pointwise,
    pooling,
    products,
    recurrent,
    reductions,
    views,
)
