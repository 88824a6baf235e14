"""Rules, one file per family; importing this package fills `ingot.onnx.registry.RULES`."""

from ingot.onnx.rules import (  # noqa: F401
    complex,
    control_flow,
    creation,
    cumulative,
    error_function,
    grouped_matmul,
    indexing,
    math,
    pointwise,
    quantization,
    reductions,
    select_and_clamp,
    sorting,
    views,
)
from ingot.onnx.rules.nn import (  # noqa: F401
    activations,
    attention,
    embedding_bag,
    interpolate,
    matmul_conv,
    normalization,
    pooling,
    rnn,
)
