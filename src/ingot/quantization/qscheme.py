"""How a tensor is quantized: a Scheme says it, Parameters are its result for one tensor.

    number = clamp(round(value / scale) + zero_point, qmin, qmax)        rounded half to even
    value  = (number - zero_point) * scale

The arithmetic is float32, operation for operation that of torch's quantize and dequantize operators, so that what is
simulated in training is what a converted program computes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch

from ingot.passes.fold_batch_norm import rows_at_once

Granularity = Literal["tensor", "channel", "group", "token"]
SMALLEST = torch.finfo(torch.float32).eps


@dataclass(frozen=True, slots=True)
class Scheme:
    """How one tensor is quantized.

    `granularity`: one scale for the tensor, for each index along `axis` ("channel"), for each `group_size` values of a
    row ("group"), or for each row ("token"). `dynamic`: the scale is computed from the values at run time. `observer`:
    the name of an observer, which computes a static scale from data (see ingot.quantization.observers), or a function
    that creates one.
    """

    dtype: torch.dtype
    qmin: int
    qmax: int
    symmetric: bool = False
    granularity: Granularity = "tensor"
    axis: int = 0
    group_size: int = 0
    dynamic: bool = False
    observer: str | Callable[[Scheme], Any] = "minmax"

    def __post_init__(self) -> None:
        limits = torch.iinfo(self.dtype)
        if not limits.min <= self.qmin < self.qmax <= limits.max:
            raise ValueError(f"{self.dtype} does not hold the numbers from {self.qmin} to {self.qmax}")
        if self.granularity == "group" and self.group_size < 1:
            raise ValueError(f"groups of {self.group_size} neighbours: give a group_size of 1 or more")

    @property
    def steps(self) -> int:
        return self.qmax - self.qmin


def unsigned_scheme(**changes: Any) -> Scheme:
    """uint8 with a zero point: what activations are quantized to."""
    return Scheme(torch.uint8, 0, 255, **changes)


def signed_scheme(**changes: Any) -> Scheme:
    """int8, symmetric and without -128, so that a number and its negative are both there: weights."""
    return Scheme(torch.int8, -127, 127, symmetric=True, **changes)


@dataclass(frozen=True, slots=True, eq=False)
class Parameters:
    """Scales as float32 and zero points as int64: rank 0 for a tensor, rank 1 for channels, rank 2 for groups."""

    scale: torch.Tensor
    zero_point: torch.Tensor


Range: TypeAlias = tuple[torch.Tensor, torch.Tensor]


def parameters_of(low: torch.Tensor, high: torch.Tensor, scheme: Scheme) -> Parameters:
    """Scale and zero point for values between `low` and `high`. Zero is always one of the numbers."""
    scale = scale_of(low, high, scheme)
    if scheme.symmetric:
        zero = (scheme.qmin + scheme.qmax + 1) // 2
        return Parameters(scale, torch.full_like(scale, zero, dtype=torch.int64))
    zero_point = (scheme.qmin - torch.round(low.float().clamp(max=0.0) / scale)).clamp(scheme.qmin, scheme.qmax)
    return Parameters(scale, zero_point.to(torch.int64))


def scale_of(low: torch.Tensor, high: torch.Tensor, scheme: Scheme) -> torch.Tensor:
    """The scale alone."""
    low, high = low.float().clamp(max=0.0), high.float().clamp(min=0.0)
    scale = torch.maximum(-low, high) / (scheme.steps / 2) if scheme.symmetric else (high - low) / scheme.steps
    return scale.clamp_(min=SMALLEST)


def range_of(tensor: torch.Tensor, scheme: Scheme) -> Range:
    """The smallest and largest value of each part that has a scale of its own."""
    if scheme.granularity == "tensor" or tensor.dim() == 0:
        low, high = torch.aminmax(tensor)
    elif scheme.granularity == "channel":
        rows = tensor.transpose(0, scheme.axis).flatten(1)
        low, high = rows.amin(1), rows.amax(1)  # each several times faster than both at once
    elif scheme.granularity == "token":
        low, high = torch.aminmax(tensor, dim=-1, keepdim=True)
    else:
        low, high = torch.aminmax(tensor.unflatten(-1, (-1, scheme.group_size)), dim=-1)
    return low, high


def spread(parameters: Parameters, tensor: torch.Tensor, scheme: Scheme) -> Parameters:
    """Parameters in a shape that broadcasts against a tensor; against its groups, where groups have their own."""
    if scheme.granularity == "channel" and parameters.scale.dim():
        shape = [1] * tensor.dim()
        shape[scheme.axis] = -1
        return Parameters(parameters.scale.view(shape), parameters.zero_point.view(shape))
    if scheme.granularity == "group":
        return Parameters(parameters.scale.unsqueeze(-1), parameters.zero_point.unsqueeze(-1))
    return parameters


def quantize(tensor: torch.Tensor, parameters: Parameters, scheme: Scheme) -> torch.Tensor:
    """The integers of a tensor; by a multiplication, as torch's operators have it."""
    parts = tensor.unflatten(-1, (-1, scheme.group_size)) if scheme.granularity == "group" else tensor
    by = spread(parameters, tensor, scheme)
    inverse, shift = 1.0 / by.scale, by.zero_point if bool(by.zero_point.any()) else None
    return _round(parts, inverse, shift, scheme).to(scheme.dtype).reshape(tensor.shape)


def _round(parts: torch.Tensor, inverse: torch.Tensor, shift: torch.Tensor | None, scheme: Scheme) -> torch.Tensor:
    parts = parts.double() if scheme.steps >= 1 << 24 else parts  # beyond, float32 does not hold every number
    numbers = torch.mul(parts, inverse).round_()
    if shift is not None:
        numbers.add_(shift)
    return numbers.clamp_(scheme.qmin, scheme.qmax)


def quantize_rows(
    tensor: torch.Tensor, scheme: Scheme, factors: torch.Tensor | None = None
) -> tuple[torch.Tensor, Parameters]:
    """The integers of a tensor whose rows have scales of their own, and its parameters.

    With `factors`, one for each row, of the product with these. It is never made: its range is that of the row, times
    the factor, and its numbers are those of the row by a scale that the factor is part of. Rows are computed so many
    at a time that a cache holds them.
    """
    low, high = range_of(tensor, scheme)
    if factors is None:
        parameters = parameters_of(low, high, scheme)
        inverse = 1.0 / parameters.scale
    else:
        by_row = factors.double().view(-1, *[1] * (low.dim() - 1))
        low, high = low * by_row, high * by_row
        parameters = parameters_of(torch.minimum(low, high), torch.maximum(low, high), scheme)
        inverse = (by_row / parameters.scale).float()
    shaped = spread(Parameters(inverse, parameters.zero_point), tensor, scheme)
    shifted = bool(parameters.zero_point.any())
    made = torch.empty_like(tensor, dtype=scheme.dtype, memory_format=torch.contiguous_format)
    rows = rows_at_once(tensor)
    for start in range(0, len(tensor), rows):
        piece = tensor[start : start + rows]
        parts = piece.unflatten(-1, (-1, scheme.group_size)) if scheme.granularity == "group" else piece
        shift = shaped.zero_point[start : start + rows] if shifted else None
        numbers = _round(parts, shaped.scale[start : start + rows], shift, scheme)
        made[start : start + rows].copy_(numbers.view(piece.shape))
    return made, parameters


def dequantize(numbers: torch.Tensor, parameters: Parameters, scheme: Scheme) -> torch.Tensor:
    """What integers stand for, as float32."""
    parts = numbers.unflatten(-1, (-1, scheme.group_size)) if scheme.granularity == "group" else numbers
    by = spread(parameters, numbers, scheme)
    return ((parts.float() - by.zero_point) * by.scale).reshape(numbers.shape)


class _Rounding(torch.autograd.Function):
    """Quantized and dequantized in one; the gradient passes where the value was in range."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, low: int, high: int) -> Any:
        numbers = torch.round(x * (1.0 / scale)) + zero
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward((numbers >= low) & (numbers <= high))
        return (numbers.clamp_(low, high) - zero) * scale

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (inside,) = ctx.saved_tensors
        return gradients[0] * inside, None, None, None, None


_passed_through: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int, int], torch.Tensor] = _Rounding.apply


def simulate(tensor: torch.Tensor, parameters: Parameters, scheme: Scheme) -> torch.Tensor:
    """What is left of a tensor after it was quantized and dequantized; differentiable straight through."""
    parts = tensor.unflatten(-1, (-1, scheme.group_size)) if scheme.granularity == "group" else tensor
    by = spread(parameters, tensor, scheme)
    made = _passed_through(parts.float(), by.scale, by.zero_point, scheme.qmin, scheme.qmax)
    return made.reshape(tensor.shape).to(tensor.dtype)
