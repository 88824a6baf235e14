"""Histograms of errors that come batch by batch."""

from __future__ import annotations

import pytest
import torch

from ingot.quantization.error_histogram import SHOWN, ErrorCounter


@pytest.mark.parametrize("scales", [(1.0,), (1e-3, 1.0), (1.0, 1e-3), (1e-20, 1e3), (0.0, 0.5, 0.0), (3e-310, 1e300)])
def test_every_error_is_counted_in_its_bin(scales: tuple[float, ...]) -> None:
    torch.manual_seed(0)
    batches = [scale * torch.randn(3, 50, dtype=torch.float64) for scale in scales]
    counter = ErrorCounter()
    for batch in batches:
        counter.add(batch)
    found = counter.finish()
    assert found is not None and len(found.counts) == SHOWN and found.low == -found.high
    every = torch.cat([batch.reshape(-1) for batch in batches])
    assert sum(found.counts) == every.numel()
    largest = float(every.abs().max())
    assert found.high / 4 < largest <= found.high
    assert sum(found.counts[: SHOWN // 2]) == pytest.approx(int((every < 0).sum()), abs=int((every == 0).sum()))


def test_of_exact_layers_there_is_nothing_to_show() -> None:
    counter = ErrorCounter()
    counter.add(torch.zeros(5))
    counter.add(torch.tensor([float("nan"), float("inf")]))
    counter.add(torch.zeros(0))
    assert counter.finish() is None
    counter.add(torch.tensor([0.5]))
    found = counter.finish()
    assert found is not None and sum(found.counts) == 6
