"""Products of matrices and convolutions over memory as it lies, whose sums go through an epilogue."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ingot.lowering.loop_ir import Convolution, Gemm, Loop, Map
from ingot.targets.base import Fault
from ingot.targets.reference.memory import Array, computed_type

if TYPE_CHECKING:
    from ingot.targets.reference.interpreter import Interpreter


def cut_view(flat: Array, offset: int, shape: Sequence[int], steps: Sequence[int], name: str) -> Array:
    """A strided part of a buffer, which must have all of it."""
    if 0 in shape:
        return np.empty(shape, flat.dtype)
    reach = [(size - 1) * step for size, step in zip(shape, steps, strict=True)]
    low, high = offset + sum(min(r, 0) for r in reach), offset + sum(max(r, 0) for r in reach)
    if low < 0 or high >= flat.size:
        raise Fault(f"it reads {name} from {low} to {high}, and {name} has {flat.size} elements")
    strides = [step * flat.itemsize for step in steps]
    return np.lib.stride_tricks.as_strided(flat[offset:], shape, strides, writeable=False)


def _multiply(a: Array, b: Array, dtype: str) -> Array:
    """A product of matrices in float64, or of integers in int64, as values of the sums' dtype."""
    wide = np.int64 if computed_type(dtype).kind in "iu" else np.float64
    with np.errstate(all="ignore"):
        return (a.astype(wide) @ b.astype(wide)).astype(computed_type(dtype))


def _round_sums(sums: Array, dtype: str) -> Array:
    """Sums in float64 as values of their dtype."""
    made = sums.astype(np.int64) if computed_type(dtype).kind in "iu" else sums
    return made.astype(computed_type(dtype))


def run_gemm(run: Interpreter, step: Gemm) -> None:
    m, n, k = (run.size(size) for size in (step.m, step.n, step.k))
    _check_batch(step.batch, step.epilogue)
    left = run.matrices(step.a, step.batch, m, k)
    right = run.matrices(step.b, step.batch, k, n)
    sums = [_multiply(a, b, step.dtype) for a, b in zip(left, right, strict=True)]
    run.run_epilogue(step.epilogue, np.stack(sums) if sums else np.empty(0, computed_type(step.dtype)))


def _check_batch(batch: Sequence[Loop], epilogue: Map) -> None:
    """The outer loops of an epilogue are those of its step: kernels open them once for both."""
    if tuple(epilogue.loops[: len(batch)]) != tuple(batch):
        raise Fault("the outer loops of its epilogue are not its own")


def run_convolution(run: Interpreter, step: Convolution) -> None:
    images, groups = run.size(step.images), step.groups
    size, out = (tuple(map(run.size, sizes)) for sizes in (step.size, step.out_size))
    shape = (images, groups * step.channels, *size)
    steps = [run.size(stride) for stride in step.x.strides]
    x = cut_view(np.ascontiguousarray(run.values(step.x.buffer)), run.size(step.x.offset), shape, steps, step.x.buffer)
    taps = (step.out_channels, step.channels, *step.kernel)
    steps = [run.size(stride) for stride in step.weight.strides]
    flat = np.ascontiguousarray(run.values(step.weight.buffer))
    weight = cut_view(flat, run.size(step.weight.offset), taps, steps, step.weight.buffer)
    sums = _convolve(x, weight, out, step.stride, [run.size(p) for p in step.padding], step.dilation, groups)
    run.run_epilogue(step.epilogue, _round_sums(np.moveaxis(sums, 1, -1), step.dtype))


def _convolve(
    x: Array,
    weight: Array,
    out: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Array:
    """[n, o, p…] in float64: a product of matrices for each tap."""
    images, channels, *size = x.shape
    outs, kernel = weight.shape[0], weight.shape[2:]
    reach = [(o - 1) * s + (k - 1) * d + 1 for o, s, k, d in zip(out, stride, kernel, dilation, strict=True)]
    before = [max(p, 0) for p in padding]
    after = [max(r - p - n, 0) for r, p, n in zip(reach, padding, size, strict=True)]
    margins = [(0, 0), (0, 0), *zip(before, after, strict=True)]
    padded = np.pad(x.astype(np.float64), margins)
    each = (groups, outs // groups)
    total = np.zeros((images, *each, math.prod(out)))
    for tap in np.ndindex(*kernel):
        starts = [b - p + t * d for b, p, t, d in zip(before, padding, tap, dilation, strict=True)]
        cut = [
            slice(b, b + (o - 1) * s + 1, s) if o else slice(0, 0) for b, o, s in zip(starts, out, stride, strict=True)
        ]
        window = padded[(slice(None), slice(None), *cut)].reshape(images, groups, channels // groups, math.prod(out))
        factors = weight[(slice(None), slice(None), *tap)].astype(np.float64).reshape(*each, -1)
        with np.errstate(all="ignore"):
            total += factors @ window
    return total.reshape(images, outs, *out)
