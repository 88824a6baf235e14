"""An example argument → a fake, with symbols where its dims are dynamic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import sympy
import torch

from ingot import torch_internals as internals
from ingot.frontend.dynamic_shapes import DimSpec, DynamicShapeSpec

if TYPE_CHECKING:
    from ingot.frontend.guards import GuardRecorder


def make_fake(
    tensor: torch.Tensor,
    specs: Mapping[int, DimSpec],
    declared: DynamicShapeSpec,
    mode: internals.FakeTensorMode,
    watch: GuardRecorder,
) -> torch.Tensor:
    """A fake like the example, with symbols where its dims are dynamic, and strides that follow."""
    env = watch.env
    sizes: list[sympy.Expr] = []
    for dim, size in enumerate(tensor.shape):
        spec = specs.get(dim)
        if spec is None:
            sizes.append(sympy.Integer(size))
            continue
        root = declared.roots[spec.name]
        if root.symbol is None:
            low, high = root.range
            root.symbol = internals.new_symbol(env, root.name, root.hint, low, high)
            watch.roots[root.symbol] = root
        sizes.append(spec.scale * root.symbol + spec.offset)
    strides = _follow_strides(tensor, sizes)
    watch.paused = True  # what torch asks while it makes the fake says nothing about the model
    try:
        return internals.fake_sized(
            mode, tensor, [internals.symint(env, s) for s in sizes], [internals.symint(env, s) for s in strides]
        )
    finally:
        watch.paused = False


def _follow_strides(tensor: torch.Tensor, sizes: Sequence[sympy.Expr]) -> list[sympy.Expr]:
    """The strides of a dense tensor of these sizes in the example's order of dims; a stride of 0 stays."""
    strides: list[sympy.Expr] = [sympy.S.Zero] * tensor.dim()
    if tensor.numel() == 0 or tensor.is_contiguous():
        order = list(reversed(range(tensor.dim())))
    else:
        order = sorted(range(tensor.dim()), key=lambda d: (tensor.stride(d), tensor.shape[d], -d))
    step: sympy.Expr = sympy.S.One
    for dim in order:
        if tensor.stride(dim) == 0 and tensor.shape[dim] > 1:
            continue
        strides[dim] = step
        step = step * sizes[dim]
    return strides
