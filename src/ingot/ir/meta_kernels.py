"""Meta kernels of some operators, where torch's own require more than the operators do.

Torch computes the shapes of a recurrent layer step by step, so that a number of steps that is not known is frozen at
the example's; take_along_dim and max_pool1d read their sizes as plain numbers. Its kernel of channel_shuffle returns a
view of one group, where the CPU kernel returns a copy.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ingot.registry import Registry

aten = torch.ops.aten
_KERNELS: Registry[Any, Callable[..., Any]] = Registry("fake kernel")
# Those that compute what the operator does, by other operators, for every size: a graph may hold them in its place.
COMPOSED: Registry[Any, Callable[..., Any]] = Registry("composition")


def on_fakes(operator: Any) -> Callable[..., Any]:
    """What to call in place of an operator, where all that counts are shapes and types."""
    rule: Callable[..., Any] = _KERNELS.get(operator, operator)
    return rule


def _recurrent(operator: Any) -> Callable[..., Any]:
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
        steps = x.shape[int(batch_first)]
        states = list(state) if isinstance(state, list | tuple) else [state]
        if not isinstance(steps, torch.SymInt):
            made, *last = operator(x, state, weights, biases, layers, dropout, train, both_ways, batch_first)
            if all(a.dim() == b.dim() for a, b in zip(last, states, strict=True)):
                return made, *last
            # torch 2.11 returns the states of an LSTM with projections with a dim too many.
            return made, *(torch.empty_like(part) for part in states)
        batch, width = x.shape[int(not batch_first)], states[0].shape[-1]
        made = x.new_empty((steps, batch, (1 + both_ways) * width))
        return (made.transpose(0, 1) if batch_first else made, *(torch.empty_like(part) for part in states))

    return rule


def shape_along_dim(x: torch.Tensor, index: torch.Tensor, dim: int) -> list[Any]:
    """The shape of what take_along_dim returns: broadcast, but for the dim, which is the index's own."""
    dim = dim % x.dim()
    shape: list[Any] = list(torch.logical_or(x.any(dim), index.any(dim)).shape)  # torch's own way to broadcast
    return [*shape[:dim], index.shape[dim], *shape[dim:]]


@_KERNELS.register(aten.take_along_dim.default)
def _take_along_dim(x: torch.Tensor, index: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    if dim is None or not any(isinstance(size, torch.SymInt) for size in (*x.shape, *index.shape)):
        made: torch.Tensor = aten.take_along_dim.default(x, index, dim)
        return made
    return x.new_empty(shape_along_dim(x, index, dim))


@_KERNELS.register(aten.native_dropout.default)
def _native_dropout(x: torch.Tensor, p: float, train: bool | None) -> Any:
    """On the CPU a dropout that does nothing copies; torch's rule for fakes returns its argument."""
    made, mask = aten.native_dropout.default(x, p, train)
    return (torch.empty_like(x) if made is x else made), mask


def _index_fill(operator: Any) -> Callable[..., Any]:
    """Of a tensor with holes, torch's rule for fakes returns a contiguous one, and the operator a copy in its order."""

    def rule(x: torch.Tensor, *args: Any) -> torch.Tensor:
        operator(x, *args)
        return x.clone()

    return rule


for _operator in (aten.index_fill.int_Scalar, aten.index_fill.int_Tensor):
    _KERNELS.register(_operator)(_index_fill(_operator))


def _pad(operator: Any) -> Callable[..., Any]:
    def rule(x: torch.Tensor, padding: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        for place, amount in enumerate(padding):
            if isinstance(amount, int) and amount < 0:
                # Torch cuts off before it pads, and its fake kernel looks at the result only.
                size = x.shape[x.dim() - 1 - place // 2]
                torch._check(size + amount >= 0, lambda: "negative padding cuts off more than there is")
                if "circular" in args:
                    # Where too little is left to go around once, torch's own kernel reads what it did not write yet.
                    torch._check(size + amount >= padding[place ^ 1], lambda: "circular padding goes around twice")
        return operator(x, padding, *args, **kwargs)

    return rule


def _upsample(operator: Any) -> Callable[..., Any]:
    def rule(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        for size in x.shape[1:]:  # torch's own kernels reject these, its fake ones do not
            torch._check(size > 0, lambda: "an image without elements cannot be resized")
        made: torch.Tensor = operator(x, *args, **kwargs)
        for size in made.shape[2:]:
            torch._check(size > 0, lambda: "an image cannot be resized to one without elements")
        return made

    return rule


def _choose(operator: Any) -> Callable[..., Any]:
    """Torch's own kernels raise for a choice among no elements, its fake ones do not."""

    def rule(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if operator in _CHOOSE_OF_ALL:
            torch._check(x.numel() > 0, lambda: "one of no elements cannot be chosen")
        elif x.dim():
            dim = args[0] if args else kwargs.get("dim", -1)
            if -x.dim() <= dim < x.dim():
                torch._check(x.shape[dim] > 0, lambda: "one of no elements cannot be chosen")
        return operator(x, *args, **kwargs)

    return rule


def _adaptive_pool(operator: Any) -> Callable[..., Any]:
    def rule(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        for size in x.shape[1:]:
            torch._check(size > 0, lambda: "pooling takes elements of every dim but the batch's")
        return operator(x, *args, **kwargs)

    return rule


@COMPOSED.register(aten.max_pool1d.default)
def _max_pool1d(
    x: torch.Tensor, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> torch.Tensor:
    """Torch pools along one dim by a kernel of its own, which takes sizes as plain numbers."""
    if not isinstance(x.shape[-1], torch.SymInt):
        alone: torch.Tensor = aten.max_pool1d.default(x, kernel, stride, padding, dilation, ceil_mode)
        return alone
    sides = [_items(kernel), _items(stride) or _items(kernel), _items(padding), _items(dilation)]
    flat = [[first, *side] for first, side in zip((1, 1, 0, 1), sides, strict=True)]
    made: torch.Tensor = aten.max_pool2d.default(x.unsqueeze(-2), *flat, ceil_mode).squeeze(-2)
    return made


def _shuffle_channels(operator: Any) -> Callable[..., Any]:
    def rule(x: torch.Tensor, groups: Any) -> torch.Tensor:
        made: torch.Tensor = operator(x, groups)
        return made.clone() if x.device.type == "cpu" else made

    return rule


def _items(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


@COMPOSED.register(aten.tensor_split.sections)
def _split_in_sections(x: torch.Tensor, sections: Any, dim: int = 0) -> Any:
    """Torch asks of each part whether it is one of the larger ones, which depends on the size."""
    if not x.dim() or type(sections) is not int or sections < 1 or not isinstance(x.shape[dim], torch.SymInt):
        return aten.tensor_split.sections(x, sections, dim)
    least, larger = x.shape[dim] // sections, x.shape[dim] % sections
    starts = [part * least + torch.sym_min(part, larger) if part else 0 for part in range(sections)]
    return [aten.slice.Tensor(x, dim, *ends) for ends in itertools.pairwise([*starts, x.shape[dim]])]


@COMPOSED.register(aten.tensor_split.indices)
def _split_at_indices(x: torch.Tensor, indices: Sequence[Any], dim: int = 0) -> Any:
    """Torch asks whether each place lies inside, which a slice between plain numbers does not."""
    if not x.dim() or not isinstance(x.shape[dim], torch.SymInt):
        return aten.tensor_split.indices(x, indices, dim)
    return [aten.slice.Tensor(x, dim, *ends) for ends in itertools.pairwise([0, *indices, sys.maxsize])]


_RESIZING = (
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d", "upsample_bilinear2d"),
    *("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_trilinear3d"),
    *("upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
)
_ADAPTIVE_POOLS = (
    aten.adaptive_avg_pool1d.default,
    aten.adaptive_avg_pool2d.default,
    aten.adaptive_avg_pool3d.default,
)
_CHOOSE_OF_DIM = (aten.max.dim, aten.min.dim, aten.median.dim, aten.nanmedian.dim, aten.mode.default)
_CHOOSE_OF_ALL = (aten.max.default, aten.min.default)
for _packet in (getattr(aten, name) for name in _RESIZING):
    for _operator in (_packet.default, _packet.vec):
        _KERNELS.add(_operator, _upsample(_operator))
for _operator in (aten.pad.default, aten.constant_pad_nd.default):
    _KERNELS.add(_operator, _pad(_operator))
for _operator in (*_CHOOSE_OF_DIM, *_CHOOSE_OF_ALL):
    _KERNELS.add(_operator, _choose(_operator))
for _operator in _ADAPTIVE_POOLS:
    _KERNELS.add(_operator, _adaptive_pool(_operator))
for _operator in (aten.channel_shuffle.default, aten.native_channel_shuffle.default):
    _KERNELS.add(_operator, _shuffle_channels(_operator))
for _operator in (aten.lstm.input, aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input):
    _KERNELS.add(_operator, _recurrent(_operator))
for _operator, _kernel in COMPOSED.items():
    _KERNELS.add(_operator, _kernel)
