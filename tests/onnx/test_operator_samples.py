"""A slice of torch's operator samples as ONNX models; `make opinfo-onnx` takes all and writes the report."""

from __future__ import annotations

import pytest
import torch

from tests.onnx.samples import outcome_of
from tests.support.operator_samples.samples import cases

# One or more of each family of rules.
OPS = (
    *("add", "floor_divide", "remainder", "pow", "atan2", "clamp", "where", "bitwise_left_shift", "nan_to_num"),
    *("sum", "var", "amax", "argmin", "logsumexp", "cumprod", "any", "linalg.vector_norm"),
    *("index_put", "gather", "scatter_reduce.mean", "masked_scatter", "slice_scatter", "take_along_dim"),
    *("nn.functional.avg_pool2d", "nn.functional.max_pool2d", "nn.functional.adaptive_avg_pool2d"),
    *("nn.functional.interpolate.bicubic", "nn.functional.grid_sample", "nn.functional.embedding_bag"),
    *("nn.functional.conv_transpose2d", "nn.functional.group_norm", "nn.functional.scaled_dot_product_attention"),
    *("sort", "topk", "unique", "cdist", "roll", "as_strided", "fft.rfft2", "nn.functional.softplus"),
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16], ids=lambda d: str(d)[6:])
def test_samples(dtype: torch.dtype) -> None:
    passed, wrong = 0, []
    for case in cases(OPS, [dtype], ("plain",), 2):
        outcome = outcome_of(case)
        if outcome is None:
            continue
        passed += outcome.kind == "passed"
        if outcome.kind in ("wrong", "crashed"):
            wrong.append(f"{case}: {outcome.reason}")
    assert not wrong, "\n".join(wrong)
    assert passed > 30
