"""The gradient of associative scans, in memory that is linear in their length.

With y[0] = x[0] and y[t] = f(y[t-1], x[t]), the gradient runs back along the same chain:

    g[t] = ∂y[t] + carried            the gradient of y[t], by itself and by y[t+1]
    carried, ∂x[t] = vjp f(y[t-1], x[t]) of g[t]

which is a scan whose combine function is the vjp of the user's. torch's own gradient holds a matrix of all pairs of
places instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from ingot import torch_internals as internals

hop = torch.ops.higher_order


def is_ours(xs: Sequence[torch.Tensor], additional: Sequence[Any]) -> bool:
    """Whether what the function closes over fits each element: then its gradient does, too."""
    shape = torch.broadcast_shapes(*(x.shape[1:] for x in xs))
    if any(x.shape[1:] != shape or not x.is_floating_point() for x in xs):
        return False
    for more in additional:
        if not isinstance(more, torch.Tensor) or (more.requires_grad and not _fits(more, shape)):
            return False
    return True


def _fits(more: torch.Tensor, shape: torch.Size) -> bool:
    try:
        return bool(torch.broadcast_shapes(more.shape, shape) == shape)
    except RuntimeError:
        return False


def scan_differentiable(
    combine: fx.GraphModule, xs: Sequence[torch.Tensor], additional: Sequence[Any]
) -> list[torch.Tensor]:
    """What requires a gradient among `additional` is scanned too, the same at every position: its gradient is a sum."""
    shape = xs[0].shape
    kept = [number for number, more in enumerate(additional) if more.requires_grad]
    spread = [additional[number].expand(shape) for number in kept]
    others = [more for number, more in enumerate(additional) if number not in kept]
    results = _Scanned.apply(combine, len(xs), tuple(kept), *xs, *spread, *others)  # type: ignore[no-untyped-call]
    return list(results)


class _Scanned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, combine: Any, count: int, kept: tuple[int, ...], *tensors: torch.Tensor) -> Any:
        xs, spread, others = tensors[:count], tensors[count : count + len(kept)], tensors[count + len(kept) :]
        additional = list(others)
        for number, more in zip(kept, spread, strict=True):
            additional.insert(number, more[0])
        ys = hop.associative_scan(combine, list(xs), tuple(additional))
        ctx.combine, ctx.count, ctx.kept = combine, count, kept
        ctx.save_for_backward(*tensors, *ys)
        return tuple(ys)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        count, kept = ctx.count, len(ctx.kept)
        saved = ctx.saved_tensors
        tensors, ys = saved[:-count], saved[-count:]
        xs, spread, others = tensors[:count], tensors[count : count + kept], tensors[count + kept :]
        given = [torch.zeros_like(y) if g is None else g for g, y in zip(gradients, ys, strict=True)]

        def back(x: torch.Tensor, low: int, high: int | None) -> torch.Tensor:
            return x[low:high].flip(0)

        start = [torch.zeros(y.shape[1:], dtype=y.dtype) for y in ys]
        along = [back(y, 0, -1) for y in ys] + [back(t, 1, None) for t in (*xs, *spread, *given)]
        step = _vjp(ctx.combine, count, ctx.kept, [*start, *(x[0] for x in along), *others])
        out = hop.scan(step, start, along, tuple(others))
        carried, rest = out[:count], [x.flip(0) for x in out[count:]]
        first = [(c + g[0])[None] for c, g in zip(carried, given, strict=True)]
        of_xs = [torch.cat([f, r]) for f, r in zip(first, rest[:count], strict=True)]
        of_spread = [torch.cat([torch.zeros_like(r[:1]), r]) for r in rest[count:]]
        return None, None, None, *of_xs, *of_spread, *[None] * len(others)


def _vjp(combine: fx.GraphModule, count: int, kept: tuple[int, ...], example: Sequence[torch.Tensor]) -> fx.GraphModule:
    """The step of the scan back, as a graph: (carried, y before, x, spread, ∂y, others) → (carried, ∂x, ∂spread)."""

    def step(*tensors: torch.Tensor) -> Any:
        groups = iter(tensors)

        def take(n: int) -> list[torch.Tensor]:
            return [next(groups) for _ in range(n)]

        carried, before, x, spread, asked = take(count), take(count), take(count), take(len(kept)), take(count)
        others = list(groups)

        def forward(*inputs: torch.Tensor) -> Any:
            additional = list(others)
            for number, more in zip(kept, inputs[2 * count :], strict=True):
                additional.insert(number, more)
            return tuple(internals.TracesOfGradients(combine).run(*inputs[: 2 * count], *additional))

        total = tuple(c + a for c, a in zip(carried, asked, strict=True))
        _, pull, *_ = torch.func.vjp(forward, *before, *x, *spread)
        # torch's scan wants results that share no memory, and a state that always lies in the same order.
        return [g.clone(memory_format=torch.contiguous_format) for g in pull(total)]

    return internals.graph_of(step, example)
