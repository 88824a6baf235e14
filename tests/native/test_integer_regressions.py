"""Casts between floats and integers, and integers that no float64 has."""

from __future__ import annotations

import pytest
import torch

from tests.native.building import build

X = torch.Tensor
INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("wide", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_casts_to_integers_and_back_forget_the_sign_of_zero(wide: torch.dtype) -> None:
    whole = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool)

    def model(x: X) -> list[X]:
        back = [x.to(d).to(wide) for d in whole]
        return [*back, *(1 / y for y in back), *(x.to(d).to(torch.int64) for d in whole)]

    x = torch.tensor([-0.0, -0.3, 0.0, 0.7, -1.5, 300.0, -200.0, 3e9, -3e9, NAN, INF, -INF, 1e19, -1e19] * 3).to(wide)
    got, expected = build(model, (x,))(x), model(x)
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
    for a, b in zip(got, expected, strict=True):
        assert torch.equal(a.signbit(), b.signbit())
