"""What decompose puts in an operator's place: torch's own table, and our rules where that one does not serve.

Ours stand where torch's would write to a tensor, or where it leaves something out. They draw the same random numbers
as the operator does on the CPU, in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from ingot import torch_internals as internals
from ingot.ir.dialects import decompositions, is_composite
from ingot.ir.meta_kernels import shape_along_dim
from ingot.passes.decompositions.uint8_interpolate import resampled_bytes
from ingot.registry import Registry

aten = torch.ops.aten
Rule = Callable[..., Any]
_OWN: Registry[Any, Rule] = Registry("decomposition")
decomposes = _OWN.register


class Rules:
    """What to call in an operator's place, or None to leave it as it is. `kept` are operators to leave whole."""

    def __init__(self, kept: Collection[Any]) -> None:
        self._kept = kept
        self._table = decompositions()

    def get(self, op: Any, /) -> Rule | None:
        if op in self._kept or not is_composite(op):
            return None
        return _OWN.get(op) or self._table.get(op) or op.decompose


# ---------------------------------------------------------------------- draws

# What a unit that was dropped becomes in a self-normalizing network, but for the sign: selu's scale times its alpha.
_SATURATED = 1.7580993408473766


@decomposes(aten.feature_dropout.default)
def _feature_dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    return _drop(x, p, train, feature=True, alpha=False)


@decomposes(aten.alpha_dropout.default)
def _alpha_dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    return _drop(x, p, train, feature=False, alpha=True)


@decomposes(aten.feature_alpha_dropout.default)
def _feature_alpha_dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    return _drop(x, p, train, feature=True, alpha=True)


def _drop(x: torch.Tensor, p: float, train: bool, *, feature: bool, alpha: bool) -> torch.Tensor:
    """Drops units, or whole features; with `alpha`, so that mean and variance stay what they were."""
    if not train or p == 0:
        return x
    if p == 1:
        return x * 0
    shape = [*x.shape[:2], *([1] * (x.dim() - 2))]
    blank = aten.empty.memory_format(shape, dtype=x.dtype, device=x.device) if feature else torch.empty_like(x)
    kept: torch.Tensor = aten.bernoulli.p(blank, 1 - p)
    if not alpha:
        return x * (kept / (1 - p))
    scale = 1 / math.sqrt((_SATURATED * _SATURATED * p + 1) * (1 - p))
    return x * (kept * scale) + ((kept - 1) * (_SATURATED * scale) + _SATURATED * scale * p)


@decomposes(aten.rrelu.default)
def _rrelu(
    x: torch.Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, generator: Any = None
) -> torch.Tensor:
    if not training:
        return torch.nn.functional.leaky_relu(x, (lower + upper) / 2)
    slopes = torch.empty_like(x)
    drawn: tuple[torch.Tensor, ...] = aten.rrelu_with_noise_functional(x, slopes, lower, upper, True, generator)
    return drawn[0]


# ---------------------------------------------------------------------- padding


@decomposes(aten._pad_circular.default)
def _pad_circular(x: torch.Tensor, pad: Sequence[int]) -> torch.Tensor:
    """torch's writes to parts of an empty tensor; this one puts the parts side by side. A negative pad crops."""
    for index in range(len(pad) // 2):
        dim, (before, after) = x.dim() - 1 - index, pad[2 * index : 2 * index + 2]
        if before < 0 or after < 0:
            x = aten.slice.Tensor(x, dim, max(-before, 0), x.shape[dim] - max(-after, 0))
        size, parts = x.shape[dim], [x]
        if before > 0:
            parts.insert(0, aten.slice.Tensor(x, dim, size - before, size))
        if after > 0:
            parts.append(aten.slice.Tensor(x, dim, 0, after))
        x = torch.cat(parts, dim) if len(parts) > 1 else x
    return x


@decomposes(aten.roll.default)
def _roll(x: torch.Tensor, shifts: Any, dims: Any = ()) -> torch.Tensor:
    """torch's divides by the size of the dim, which may be 0 in a later call."""
    by = [shifts] if isinstance(shifts, int | torch.SymInt) else list(shifts)
    over = [dims] if isinstance(dims, int) else list(dims)
    if not over:
        return torch.roll(x.reshape(-1), by, [0]).reshape(x.shape)
    for dim, shift in zip(over, by, strict=True):
        size = x.shape[dim]
        divisor = torch.sym_max(size, 1)
        places = torch.arange(size, device=x.device) + (size - shift) % divisor
        x = torch.index_select(x, dim, torch.fmod(places, divisor))
    return x


# ---------------------------------------------------------------------- powers


@decomposes(aten.vander.default)
def _vander(x: torch.Tensor, N: int | None = None, increasing: bool = False) -> torch.Tensor:
    """torch's writes to parts of an empty tensor; this one concatenates the first column and the others."""
    count = x.shape[0] if N is None else N
    column = (x if x.is_floating_point() or x.is_complex() else x.to(torch.int64)).unsqueeze(-1)
    made = torch.ones_like(column)
    if isinstance(count, int) and count < 2:
        return made[:, :count]
    made = torch.cat((made, torch.cumprod(column.expand(x.shape[0], count - 1), -1)), -1)
    return made if increasing else made.flip(-1)


# ---------------------------------------------------------------------- numbers combined with half-precision tensors


@decomposes(aten.softshrink.default)
def _softshrink(x: torch.Tensor, lambd: Any = 0.5) -> torch.Tensor:
    """torch's rounds `lambd` to the tensor's dtype, which the operator does not."""
    usual = decompositions()[aten.softshrink.default]
    if x.dtype not in (torch.bfloat16, torch.float16):
        return usual(x, lambd)  # type: ignore[no-any-return]
    return usual(x.to(torch.float32), lambd).to(x.dtype)  # type: ignore[no-any-return]


@decomposes(aten.xlogy.Scalar_Self)
@decomposes(aten.xlogy.Scalar_Other)
def _xlogy(x: Any, y: Any) -> torch.Tensor:
    """torch's does not round the number to the tensor's dtype, which the operator does."""
    given: torch.dtype = (x if isinstance(x, torch.Tensor) else y).dtype
    dtype = given if given.is_floating_point else torch.get_default_dtype()
    x, y = (v if isinstance(v, torch.Tensor) else torch.scalar_tensor(v, dtype=dtype) for v in (x, y))
    return aten.xlogy.Tensor(x, y)  # type: ignore[no-any-return]


@decomposes(aten.threshold.default)
def _threshold(x: torch.Tensor, threshold: Any, value: Any) -> torch.Tensor:
    """torch's computes integers in floats; the operator converts both numbers to integers first."""
    if x.dtype.is_floating_point:
        return decompositions()[aten.threshold.default](x, threshold, value)  # type: ignore[no-any-return]
    limit, other = (torch.scalar_tensor(int(v), dtype=torch.int64).to(x.dtype) for v in (threshold, value))
    return torch.where(x <= limit, other, x)


# ---------------------------------------------------------------------- uint8 images


RESAMPLED: dict[Any, Rule] = {
    op: resampled_bytes(op, internals.all_decompositions()[op])
    for packet in (aten.upsample_bicubic2d, aten.upsample_bilinear2d)
    for op in (packet.default, packet.vec)
}
for _op, _rule in RESAMPLED.items():
    decomposes(_op)(_rule)


# ---------------------------------------------------------------------- parts


@decomposes(aten.split.Tensor)
def _split(x: torch.Tensor, size: Any, dim: int = 0) -> Any:
    """torch's returns an empty tensor as it came, which it then does not accept from a view."""
    if isinstance(x.shape[dim], int) and x.shape[dim] == 0:
        return aten.split_with_sizes.default(x, [0], dim)
    return decompositions()[aten.split.Tensor](x, size, dim)


@decomposes(aten.select_scatter.default)
def _select_scatter(x: torch.Tensor, part: torch.Tensor, dim: int, index: Any) -> torch.Tensor:
    """torch's asks whether the index is negative, which is unknown for a data-dependent number, and
    returns what both dtypes promote to, where the operator returns that of the tensor."""
    part = part.to(x.dtype)
    if not internals.is_symbolic(index):
        return decompositions()[aten.select_scatter.default](x, part, dim, index)  # type: ignore[no-any-return]
    size = x.shape[dim]
    places = torch.arange(size, device=x.device)
    shape = [1] * x.dim()
    shape[dim] = size
    here = torch.logical_or(places == index, places == index + size).reshape(shape)
    return torch.where(here, part.unsqueeze(dim), x)


# ---------------------------------------------------------------------- ranges


def _linspace(op: Any) -> Rule:
    """torch's rule computes integers in float32, from ends that were not truncated to integers before."""
    usual = decompositions()[op]

    def rule(start: Any, end: Any, steps: int, *, dtype: torch.dtype | None = None, **kwargs: Any) -> torch.Tensor:
        if dtype is None or dtype.is_floating_point or dtype.is_complex or dtype is torch.bool:
            return usual(start, end, steps, dtype=dtype, **kwargs)  # type: ignore[no-any-return]
        first, last = (
            v.to(dtype).to(torch.float64) if isinstance(v, torch.Tensor) else float(int(v)) for v in (start, end)
        )
        places = torch.arange(steps, dtype=torch.float64)
        step = (last - first) / max(steps - 1, 1)
        halves = (first + places * step, last - (steps - 1 - places) * step)
        return torch.where(places < steps // 2, *halves).to(dtype) if steps > 1 else halves[0].to(dtype)

    return rule


for _overload in ("default", "Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor"):
    decomposes(getattr(aten.linspace, _overload))(_linspace(getattr(aten.linspace, _overload)))


# ---------------------------------------------------------------------- recurrent layers


def _recurrent(op: Any) -> Rule:
    """torch's rule forgets the dropout between layers, so with one the layers are taken one by one."""

    def rule(
        x: torch.Tensor,
        state: Any,
        weights: Sequence[torch.Tensor],
        biases: bool,
        layers: int,
        dropout: float,
        train: bool,
        both_ways: bool,
        batch_first: bool,
    ) -> Any:
        if not train or dropout == 0 or layers == 1:
            with internals.disable_mkldnn():  # else an operator of one library, for float32 alone
                return decompositions()[op](x, state, weights, biases, layers, 0.0, train, both_ways, batch_first)
        several = isinstance(state, list | tuple)
        states = list(state) if several else [state]
        ways, each = 1 + both_ways, len(weights) // layers
        x = x.transpose(0, 1) if batch_first else x
        last: list[Sequence[torch.Tensor]] = []
        for layer in range(layers):
            own = [s[layer * ways : (layer + 1) * ways] for s in states]
            part = weights[layer * each : (layer + 1) * each]
            x, *ends = op(x, own if several else own[0], part, biases, 1, 0.0, train, both_ways, False)
            last.append(ends)
            x = torch.dropout(x, dropout, True) if layer < layers - 1 else x
        x = x.transpose(0, 1) if batch_first else x
        return (x, *(torch.cat(ends, 0) for ends in zip(*last, strict=True)))

    return rule


for _op in (aten.lstm.input, aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input):
    decomposes(_op)(_recurrent(_op))


# ---------------------------------------------------------------------- places


@decomposes(aten.take_along_dim.default)
def _take_along_dim(x: torch.Tensor, index: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    """torch's own rule reads sizes as plain numbers. With a dim it takes every index modulo the size of that dim."""
    if dim is None:
        return x.reshape(-1).gather(0, index.reshape(-1))
    shape = shape_along_dim(x, index, dim)
    dim = dim % x.dim()
    size = x.shape[dim]
    places = index if isinstance(size, int) and size == 0 else index.remainder(size)
    return x.expand([*shape[:dim], size, *shape[dim + 1 :]]).gather(dim, places.expand(shape))
