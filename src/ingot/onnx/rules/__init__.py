"""Rules, one file a family; importing this package fills `ingot.onnx.export.RULES`."""

from ingot.onnx.rules import (  # noqa: F401
    activations,
    attention,
    bags,
    control,
    factories,
    grouped,
    indexing,
    norms,
    pairs,
    pointwise,
    pooling,
    products,
    quantized,
    recurrent,
    reductions,
    resampling,
    running,
    sorting,
    views,
)
