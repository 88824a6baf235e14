"""Rules, one file a family; importing this package fills `ingot.onnx.export.RULES`."""

from ingot.onnx.rules import (  # noqa: F401
    activations,
    attention,
    factories,
    indexing,
    norms,
    pointwise,
    products,
    reductions,
    views,
)
