"""Single operators of which native code has none, in terms of others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ingot.dynamo.late_forms import late_form
from ingot.errors import UnsupportedOperator, format_error

aten = torch.ops.aten


@late_form("prims::copy_strided")
def copy_strided(x: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """The same values: where a result lies in memory is seen to when it is returned."""
    return x.clone()


@late_form("aten::lerp")
def lerp(start: torch.Tensor, end: torch.Tensor, weight: torch.Tensor | float) -> torch.Tensor:
    """From the nearer end, as torch does."""
    change = end - start
    if isinstance(weight, torch.Tensor):
        is_near = weight.abs() < 0.5
        return torch.where(is_near, start, end) - change * torch.where(is_near, -weight, 1 - weight)
    return start + change * weight if abs(weight) < 0.5 else end - change * (1 - weight)


@late_form("aten::view_copy")
def view_copy(x: torch.Tensor, kind: torch.dtype | Sequence[int]) -> torch.Tensor:
    return x.view(kind).clone() if isinstance(kind, torch.dtype) else x.reshape(kind).clone()


@late_form("quantized::embedding_bag_byte_unpack")
def unpack_rows(packed: torch.Tensor) -> torch.Tensor:
    """Rows of bytes; the last 8 bytes of each are its scale and its offset."""
    scales = packed[..., -8:].contiguous().view(torch.float32)
    return packed[..., :-8].float() * scales[..., :1] + scales[..., 1:]


@late_form("aten::_weight_int8pack_mm")
def multiply_int8_weight(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return (x.float() @ weight.t().float() * scales.float()).to(x.dtype)


@late_form("aten::_amp_update_scale")
def update_loss_scale(
    scale: torch.Tensor, tracker: torch.Tensor, found_inf: torch.Tensor, growth: float, backoff: float, interval: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The scale of a loss falls after a step that was not finite, and grows after so many that were."""
    is_bad = found_inf != 0
    steps = tracker + 1
    grows = steps == interval
    grown = scale * growth
    larger = torch.where(grows & grown.isfinite(), grown, scale)
    return torch.where(is_bad, scale * backoff, larger), torch.where(is_bad | grows, 0, steps).to(tracker.dtype)


@late_form("aten::repeat_interleave.Tensor")
def repeat_interleave(repeats: torch.Tensor, *, output_size: int | None = None) -> torch.Tensor:
    """How often each number comes: 0 so many times, then 1, and so on."""
    if output_size is None:
        raise UnsupportedOperator(
            format_error("aten.repeat_interleave has no native code.", why="the size of its result is in its argument")
        )
    ends = repeats.cumsum(0)
    is_right = (repeats >= 0).all() & (repeats.sum() == output_size)
    aten._assert_async.msg(is_right, "repeats are not negative, and output_size is their sum")
    places = torch.arange(output_size, device=repeats.device, dtype=ends.dtype)
    return torch.searchsorted(ends, places, right=True).to(repeats.dtype)


@late_form("aten::multinomial")
def multinomial(weights: torch.Tensor, count: int, replacement: bool = False, *, generator: Any = None) -> torch.Tensor:
    """Numbers of categories. What eager refuses fails an assertion, and eager is asked."""
    if generator is not None:
        raise UnsupportedOperator(format_error("aten.multinomial has no native code.", why="it has its own generator"))
    weights = weights.double()
    totals = weights.sum(-1, keepdim=True)
    is_right = (weights >= 0).all() & totals.isfinite().all() & (totals > 0).all()
    aten._assert_async.msg(is_right, "weights are finite, and one of them is positive")
    if not replacement:
        aten._assert_async.msg(((weights > 0).sum(-1) >= count).all(), "there are as many weights as samples")
        waits = (-torch.log1p(-torch.rand_like(weights))).clamp(min=1e-300)
        return torch.topk(weights / waits, count, -1)[1]
    ends = weights.cumsum(-1)
    last = ends[..., -1:]
    drawn = torch.rand((*weights.shape[:-1], count), dtype=torch.float64, device=weights.device) * last
    found = torch.searchsorted(ends, drawn, right=True)
    return torch.minimum(found, torch.searchsorted(ends, last.contiguous()))  # rounded up to the last end
