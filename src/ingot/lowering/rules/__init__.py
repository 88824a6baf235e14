"""Lowering rules, one file per family; importing this package fills `ingot.lowering.lower.RULES`."""

from ingot.lowering.rules import (  # noqa: F401
    bit_views,
    boolean_indexing,
    control_flow,
    creation,
    cumulative,
    elementwise_composite,
    fourier,
    histogram,
    indexing,
    per_token_quantization,
    pointwise,
    quantization,
    random,
    reductions,
    scan,
    scatter,
    sorting,
    views,
)
from ingot.lowering.rules.linalg import (  # noqa: F401
    factorization,
    grouped_matmul,
    matmul,
    qr_svd,
)
from ingot.lowering.rules.nn import (  # noqa: F401
    attention,
    convolution,
    embedding_bag,
    flex_attention,
    flex_attention_backward,
    normalization,
    pooling,
    rnn,
)
