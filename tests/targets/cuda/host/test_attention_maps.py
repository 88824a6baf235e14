"""Attention by what only Hopper has, through the host text: maps of tensors, and clusters of blocks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import ingot
from ingot.targets.cuda.codegen import attention
from ingot.targets.cuda.schedule import attention_tiles
from tests.support.cuda_emulation.target import EMULATED, EmulatedDriver


def attend_twice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Heads side by side in one tensor, then the result with another's."""
    q, k, v = (part.unflatten(2, (-1, 64)).transpose(1, 2) for part in x.split(128, 2))
    mixed = F.scaled_dot_product_attention(q, k, v)
    return F.scaled_dot_product_attention(mixed, y, y, is_causal=True)


@pytest.mark.parametrize(("capability", "tile"), [("90", "BULK_64"), ("90", "BULK_64_SMALL"), ("80", "BULK_64_LONG")])
def test_attention(driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch, capability: str, tile: str) -> None:
    monkeypatch.setenv("INGOT_EMULATED_CC", capability)
    monkeypatch.setattr(attention, "choose_producer_tile", lambda *_, **__: getattr(attention_tiles, tile))
    made = [torch.randn(2, 67, 384), torch.randn(2, 2, 67, 64)]
    compiled = ingot.compile(attend_twice, tuple(t.bfloat16() for t in made), target=EMULATED)
    before = driver.calls("cuTensorMapEncodeTiled")
    for factor in (1, 0.5, 0.25):  # a graph is built, then its nodes are given new maps
        given = [(t * factor).bfloat16() for t in made]
        exact = attend_twice(*(t.double() for t in given))
        torch.testing.assert_close(compiled(*given).double(), exact, rtol=1.2e-2, atol=1.2e-2)
    assert (driver.calls("cuTensorMapEncodeTiled") > before) is (capability == "90")
    compiled.close()


@pytest.mark.parametrize("capability", ["90", "80"])
def test_decoding(driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch, capability: str) -> None:
    def decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q * 2, k, v, enable_gqa=True) + 1

    monkeypatch.setenv("INGOT_EMULATED_CC", capability)
    given = tuple(torch.randn(1, heads, length, 64).half() for heads, length in ((8, 1), (2, 300), (2, 300)))
    compiled = ingot.compile(decode, given, target=EMULATED)
    torch.testing.assert_close(compiled(*given).double(), decode(*(t.double() for t in given)), rtol=4e-3, atol=4e-3)
    compiled.close()
