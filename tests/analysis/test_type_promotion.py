"""Type promotion, compared with torch.result_type and eager."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from ingot.analysis.type_promotion import dtype_of_number, promote_operands

DTYPES = (torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float64)
NUMBERS: tuple[Any, ...] = (True, 2, 0.5)


def test_two_operands_as_torch() -> None:
    tensors = [torch.zeros((1,) * rank, dtype=dtype) for dtype in DTYPES for rank in (0, 1, 2)]
    for a, b in itertools.product(tensors, [*tensors, *NUMBERS]):
        assert promote_operands([_kind(a), _kind(b)]) is torch.result_type(a, b), (a, b)


def test_three_operands_as_eager() -> None:
    for dtypes in itertools.product((torch.int32, torch.float16, torch.float32, torch.float64), repeat=3):
        for ranks in itertools.product((0, 1), repeat=3):
            given = [torch.ones((1,) * rank, dtype=dtype) for rank, dtype in zip(ranks, dtypes, strict=True)]
            expected = torch.addcmul(*given).dtype if any(d.is_floating_point for d in dtypes) else torch.int32
            assert promote_operands(map(_kind, given)) is expected, (dtypes, ranks)


def test_a_number_beside_nothing() -> None:
    assert promote_operands([]) is torch.float32
    assert [promote_operands([_kind(n)]) for n in NUMBERS] == [torch.bool, torch.int64, torch.get_default_dtype()]


def _kind(value: Any) -> tuple[torch.dtype, int | None]:
    return (value.dtype, value.dim()) if isinstance(value, torch.Tensor) else (dtype_of_number(value), None)
