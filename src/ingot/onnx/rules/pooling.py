"""Pooling and resampling."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ingot.onnx.export import Exporter, Unsupported, exports
from ingot.onnx.rules.products import spread
from ingot.onnx.values import Size, Tensor, is_known
from ingot.program.metadata import value_of

aten = torch.ops.aten


class Windows:
    """Windows over the last dims: how long, how far apart, and how many torch makes of them."""

    def __init__(
        self, ex: Exporter, x: Tensor, count: int, kernel: Any, stride: Any, padding: Any, dilation: Any
    ) -> None:
        self.kernel = spread(kernel, count)
        self.stride = spread(stride, count) if stride not in (None, []) else self.kernel
        self.before = spread(padding, count)
        self.dilation = spread(dilation, count)
        self.ins = x.sizes[-count:]
        self.outs = ex.shape[-count:]

    def afters(self) -> list[int] | None:
        """What is added behind, so that whole windows are as many as torch makes. None where sizes are not numbers."""
        if not is_known(self.ins):
            return None
        return [
            max(0, (int(o) - 1) * s + d * (k - 1) + 1 - int(i) - b)
            for o, s, d, k, i, b in zip(
                self.outs, self.stride, self.dilation, self.kernel, self.ins, self.before, strict=True
            )
        ]


def _batched(ex: Exporter, x: Tensor, count: int) -> tuple[Tensor, bool]:
    """With a batch, as kernels want it, and whether it had none."""
    if any(size == 0 for size in x.sizes):
        raise Unsupported("pooling without elements")
    if x.rank == count + 1:
        made = ex.unsqueeze(x, 0)
        return Tensor(made.value, x.dtype, (1, *x.sizes)), True
    return x, False


def _apart_from_pad(ex: Exporter, x: Tensor) -> Tensor:
    """ONNX Runtime takes zeros around the input of a MaxPool for the pool's own padding, which counts for nothing: it
    must not see the two side by side."""
    producer = x.value.producer()
    if producer is None or producer.op_type != "Pad":
        return x
    return Tensor(ex.op("Max", x, ex.number(-math.inf, x.dtype)).value, x.dtype, x.shape)


def _max_pool(count: int, indices: bool) -> Any:
    def rule(
        ex: Exporter, x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Any:  # fmt: skip
        if not x.is_float:
            raise Unsupported("pooling of integers")
        windows = Windows(ex, x, count, kernel, stride or None, padding, dilation)
        x, single = _batched(ex, _apart_from_pad(ex, x), count)
        afters = windows.afters()
        simple = not ceil_mode or afters is None
        ends = windows.before if simple else [max(a, 0) for a in afters or ()]
        wanted = indices and any(user.args[1] == 1 for user in ex.node.users)
        made = ex.several(
            "MaxPool",
            2 if wanted else 1,
            x,
            kernel_shape=windows.kernel,
            strides=windows.stride,
            pads=[*windows.before, *ends],
            dilations=windows.dilation,
            ceil_mode=int(ceil_mode and simple),
        )
        if wanted:  # ONNX counts from the first element of all, torch from the first of the plane
            plane: Any = 1
            for size in windows.ins:
                plane = plane * size
            made[1] = ex.op("Mod", made[1], ex.sizes.scalar(plane))
        made = [ex.squeeze(part, 0) for part in made] if single else made
        return (made if wanted else [made[0], made[0]]) if indices else made[0]

    return rule


exports(aten.max_pool2d_with_indices.default)(_max_pool(2, True))
exports(aten.max_pool3d_with_indices.default)(_max_pool(3, True))
exports(aten.max_pool1d.default)(_max_pool(1, False))
exports(aten.max_pool2d.default)(_max_pool(2, False))
exports(aten.max_pool3d.default)(_max_pool(3, False))


def _avg_pool(count: int) -> Any:
    def rule(
        ex: Exporter, x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> Tensor:  # fmt: skip
        if not x.is_float:
            raise Unsupported("pooling of integers")
        windows = Windows(ex, x, count, kernel, stride or None, padding, 1)
        x, single = _batched(ex, x, count)
        afters = windows.afters()
        if ceil_mode and afters is None:
            raise Unsupported("windows that reach over the edge of a size that is not a number")
        over = ceil_mode and any(a > b for a, b in zip(afters or (), windows.before, strict=True))
        if not over and divisor_override is None:
            made = ex.op(
                "AveragePool",
                x,
                kernel_shape=windows.kernel,
                strides=windows.stride,
                pads=windows.before * 2,
                count_include_pad=int(count_include_pad),
            )
        else:
            made = _summed(ex, x, windows, afters or windows.before, count_include_pad, divisor_override)
        return ex.squeeze(made, 0) if single else made

    return rule


def _summed(
    ex: Exporter, x: Tensor, windows: Windows, afters: Sequence[int], include: bool, override: int | None
) -> Tensor:
    """Sums of windows over zeros around, each over its own count."""
    count = len(windows.kernel)
    ends = [max(a, b) for a, b in zip(afters, windows.before, strict=True)]
    pads = ex.ints([0, 0, *windows.before, 0, 0, *ends])
    padded = ex.op("Pad", x, pads, mode="constant")
    area = math.prod(windows.kernel)
    mean = ex.op("AveragePool", padded, kernel_shape=windows.kernel, strides=windows.stride)
    if override is not None:
        mean_ = ex.op("Mul", mean, ex.number(area / override, x.dtype))
        return _cut(ex, mean_, windows)
    counts = torch.ones(())
    for place in range(count):
        i, b, k, s, o = (
            int(v[place]) for v in (windows.ins, windows.before, windows.kernel, windows.stride, windows.outs)
        )
        starts = torch.arange(o) * s - b
        stops = torch.clamp(starts + k, max=i + b if include else i)
        lengths = stops - (starts if include else starts.clamp(min=0))
        counts = counts.unsqueeze(-1) * lengths.to(torch.float64)
    factors = ex.constant((area / counts).to(x.dtype))
    return ex.op("Mul", _cut(ex, mean, windows), factors)


def _cut(ex: Exporter, x: Tensor, windows: Windows) -> Tensor:
    """As many windows as torch makes."""
    count = len(windows.kernel)
    at = list(range(2, 2 + count))
    return ex.op("Slice", x, ex.ints([0] * count), ex.sizes.vector(windows.outs), ex.ints(at))


exports(aten.avg_pool1d.default)(_avg_pool(1))
exports(aten.avg_pool2d.default)(_avg_pool(2))
exports(aten.avg_pool3d.default)(_avg_pool(3))


# ---------------------------------------------------------------------- to a size


def _adaptive(count: int) -> Any:
    def rule(ex: Exporter, x: Tensor, sizes: Any) -> Tensor:
        """Each dim by itself: a mean over equal windows, over everything, or a product with the windows' shares."""
        outs = ex.shape[-count:]
        ins = x.sizes[-count:]
        if any(size == 0 for size in (*x.sizes, *ex.shape)):
            raise Unsupported("pooling without elements")
        if all(out == 1 for out in outs):
            return ex.op("ReduceMean", x, ex.ints(list(range(x.rank - count, x.rank))))
        known = is_known(ins) and is_known(outs)
        if known and all(int(i) % int(o) == 0 for i, o in zip(ins, outs, strict=True)):
            steps = [int(i) // int(o) for i, o in zip(ins, outs, strict=True)]
            wide, single = _batched(ex, x, count)
            made = ex.op("AveragePool", wide, kernel_shape=steps, strides=steps)
            return ex.squeeze(made, 0) if single else made
        for place, (i, o) in enumerate(zip(ins, outs, strict=True)):
            if i != o:
                x = _pooled_along(ex, x, x.rank - count + place, i, o)
        return x

    return rule


def _pooled_along(ex: Exporter, x: Tensor, dim: int, size: Size, out: Size) -> Tensor:
    places, columns = ex.range(out), ex.range(size)
    inside, outside = ex.sizes.scalar(size), ex.sizes.scalar(out)
    one = ex.number(1, torch.int64)
    starts = ex.op("Div", ex.op("Mul", places, inside), outside)
    last = ex.op("Mul", ex.op("Add", places, one), inside)
    stops = ex.op("Div", ex.op("Sub", ex.op("Add", last, outside), one), outside)
    at, stop, column = ex.unsqueeze(starts, 1), ex.unsqueeze(stops, 1), ex.unsqueeze(columns, 0)
    among = ex.op("And", ex.op("GreaterOrEqual", column, at), ex.op("Less", column, stop))
    share = ex.op("Div", ex.cast(among, x.dtype), ex.cast(ex.op("Sub", stop, at), x.dtype))
    return _along(ex, x, dim, out, ex.op("Transpose", share, perm=[1, 0]))


exports(aten.adaptive_avg_pool1d.default)(_adaptive(1))
exports(aten._adaptive_avg_pool2d.default, aten.adaptive_avg_pool2d.default)(_adaptive(2))
exports(aten._adaptive_avg_pool3d.default, aten.adaptive_avg_pool3d.default)(_adaptive(3))


# ---------------------------------------------------------------------- resampling


Interpolation = Callable[[torch.Tensor, list[int], "float | None"], torch.Tensor]


def _resized(
    ex: Exporter, x: Tensor, scales: Sequence[float | None] | None, by_torch: Interpolation | None = None, **how: Any
) -> Tensor:
    """To the result's size; by factors where the user gave them, since coordinates follow these then.

    `by_torch` interpolates images of one row. Where kernels cannot do what it does, it is asked for the share that each
    place has in each place of the result, and a product does the rest.
    """
    if any(size == 0 for size in x.sizes):
        raise Unsupported("resampling without elements")
    given = scales is not None and any(scale is not None for scale in scales)
    runs = x.dtype in (torch.float32, torch.bfloat16, torch.float16)
    if given and scales is not None and all(scale is not None for scale in scales) and runs and "antialias" not in how:
        factors = ex.constant(torch.tensor([1.0, 1.0, *(float(s) for s in scales if s is not None)]))
        if _same_sizes(x, ex.shape, scales):
            return ex.op("Resize", x, None, factors, None, **how)
    if not given and runs and "antialias" not in how:
        return ex.op("Resize", x, None, None, ex.sizes.vector(ex.shape), **how)
    if by_torch is None or not is_known(x.sizes[2:]) or not is_known(ex.shape[2:]):
        raise Unsupported("resampling by factors that do not give the size, or of sizes that are not numbers")
    for place, (size, out) in enumerate(zip(x.sizes[2:], ex.shape[2:], strict=True)):
        shares = _shares(by_torch, int(size), int(out), scales[place] if scales is not None else None)
        x = _along(ex, x, 2 + place, out, ex.constant(shares.to(x.dtype)))
    return x


def _shares(by_torch: Interpolation, size: int, out: int, scale: float | None) -> torch.Tensor:
    """[size, out]: what of each place goes into each place of the result."""
    rows = torch.eye(size, dtype=torch.float64).view(size, 1, 1, size)  # columns of one row: torch fails for the turned
    return by_torch(rows, [1, out], scale).reshape(size, out)


def _along(ex: Exporter, x: Tensor, dim: int, out: Size, shares: Tensor) -> Tensor:
    """The product of a dim with [size, out]."""
    order = [*(d for d in range(x.rank) if d != dim), dim]
    made = ex.op("MatMul", ex.transpose(x, order), shares)
    back = [order.index(d) for d in range(x.rank)]
    result = made if dim == x.rank - 1 else ex.op("Transpose", made, perm=back)
    return Tensor(result.value, x.dtype, (*x.sizes[:dim], out, *x.sizes[dim + 1 :]))


def _same_sizes(x: Tensor, shape: Sequence[Size], scales: Sequence[float | None]) -> bool:
    """Whether ONNX makes of these factors the sizes that torch made, in float32 as it computes."""
    pairs = zip(x.sizes[2:], shape[2:], scales, strict=True)
    return all(not isinstance(i, int) or math.floor(float(torch.tensor(float(s or 1)) * i)) == o for i, o, s in pairs)


_NEAREST: dict[str, Any] = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


def _scales(rest: Sequence[Any]) -> list[float | None] | None:
    """The factors among an operator's last arguments: one list, or one number for each dim."""
    if not rest or rest[0] is None:
        return None
    return list(rest[0]) if isinstance(rest[0], list | tuple) else list(rest)


@exports(
    *(aten.upsample_nearest1d.default, aten.upsample_nearest2d.default, aten.upsample_nearest3d.default),
    *(aten.upsample_nearest1d.vec, aten.upsample_nearest2d.vec, aten.upsample_nearest3d.vec),
)
def upsample_nearest(ex: Exporter, x: Tensor, sizes: Any, *scales: Any) -> Tensor:
    return _by_places(ex, x, _scales(scales), half=False)


@exports(
    *(aten._upsample_nearest_exact1d.default, aten._upsample_nearest_exact2d.default),
    *(aten._upsample_nearest_exact3d.default, aten._upsample_nearest_exact1d.vec),
    *(aten._upsample_nearest_exact2d.vec, aten._upsample_nearest_exact3d.vec),
)
def upsample_nearest_exact(ex: Exporter, x: Tensor, sizes: Any, *scales: Any) -> Tensor:
    return _by_places(ex, x, _scales(scales), half=True)


def _by_places(ex: Exporter, x: Tensor, scales: Sequence[float | None] | None, *, half: bool) -> Tensor:
    """One Resize where every factor is whole, else rows and columns by their numbers, rounded as torch rounds."""
    ins, outs = x.sizes[2:], ex.shape[2:]
    whole = scales is None or all(s is None or float(s).is_integer() for s in scales)
    if not half and whole and x.dtype is torch.float32:
        multiples = [
            (isinstance(i, int) and isinstance(o, int) and i and o % i == 0) or (scales is not None and scales[n])
            for n, (i, o) in enumerate(zip(ins, outs, strict=True))
        ]
        if all(multiples):
            return _resized(ex, x, scales, **_NEAREST)
    for place, (i, o) in enumerate(zip(ins, outs, strict=True)):
        scale = scales[place] if scales is not None else None
        # In float32, the type that torch computes the place in.
        if scale:
            factor = ex.number(float(torch.tensor(1.0 / float(scale))), torch.float32)
        else:
            factor = ex.op(
                "Div", ex.cast(ex.sizes.scalar(i), torch.float32), ex.cast(ex.sizes.scalar(o), torch.float32)
            )
        at = ex.cast(ex.range(o), torch.float32)
        at = ex.op("Add", at, ex.number(0.5, torch.float32)) if half else at
        at = ex.cast(ex.op("Floor", ex.op("Mul", at, factor)), torch.int64)
        at = ex.op("Min", at, ex.sizes.scalar(i - 1))
        x = ex.op("Gather", x, at, axis=2 + place)
    return x


@exports(
    *(aten.upsample_linear1d.default, aten.upsample_bilinear2d.default, aten.upsample_trilinear3d.default),
    *(aten.upsample_linear1d.vec, aten.upsample_bilinear2d.vec, aten.upsample_trilinear3d.vec),
)
def upsample_linear(ex: Exporter, x: Tensor, sizes: Any, align_corners: bool, *scales: Any) -> Tensor:
    return _resized(
        ex,
        x,
        _scales(scales),
        lambda rows, out, scale: aten.upsample_bilinear2d.default(rows, out, align_corners, None, scale),
        mode="linear",
        coordinate_transformation_mode=_corners(align_corners),
    )


def _corners(align: bool) -> str:
    return "align_corners" if align else "half_pixel"


@exports(aten.upsample_bicubic2d.default, aten.upsample_bicubic2d.vec)
def upsample_bicubic(ex: Exporter, x: Tensor, sizes: Any, align_corners: bool, *scales: Any) -> Tensor:
    return _resized(
        ex,
        x,
        _scales(scales),
        lambda rows, out, scale: aten.upsample_bicubic2d.default(rows, out, align_corners, None, scale),
        mode="cubic",
        cubic_coeff_a=-0.75,
        coordinate_transformation_mode=_corners(align_corners),
    )


def _antialiased(op: Any) -> Any:
    """By shares: kernels have another idea of how wide a filter is."""

    def rule(ex: Exporter, x: Tensor, sizes: Any, align_corners: bool, *scales: Any) -> Tensor:
        return _resized(
            ex, x, _scales(scales), lambda rows, out, scale: op(rows, out, align_corners, None, scale), antialias=1
        )

    return rule


for _packet in (aten._upsample_bilinear2d_aa, aten._upsample_bicubic2d_aa):
    exports(_packet.default, _packet.vec)(_antialiased(_packet.default))


_MODES = (("bilinear", "linear"), ("nearest", "nearest"), ("bicubic", "cubic"))
_EDGES = ("zeros", "border", "reflection")


@exports(aten.grid_sampler_2d.default, aten.grid_sampler.default, takes=lambda node: value_of(node.args[0]).dim() == 4)
def grid_sampler(ex: Exporter, x: Tensor, grid: Tensor, mode: int, edge: int, align_corners: bool) -> Tensor:
    name = _MODES[mode][int(ex.opset >= 20)]
    return ex.op(
        "GridSample", x, ex.cast(grid, x.dtype), mode=name, padding_mode=_EDGES[edge], align_corners=int(align_corners)
    )


@exports(aten.col2im.default)
def col2im(ex: Exporter, x: Tensor, sizes: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Tensor:
    single = x.rank == 2
    x = Tensor(ex.unsqueeze(x, 0).value, x.dtype) if single else x
    around: dict[str, Any] = {"dilations": list(dilation), "pads": [*padding, *padding], "strides": list(stride)}
    made = ex.op("Col2Im", x, ex.sizes.vector(sizes), ex.ints(kernel), **around)
    return ex.squeeze(made, 0) if single else made


@exports(aten.pixel_shuffle.default, takes=lambda node: value_of(node.args[0]).dim() == 4)
def pixel_shuffle(ex: Exporter, x: Tensor, factor: int) -> Tensor:
    return ex.op("DepthToSpace", x, blocksize=factor, mode="CRD")


def _adaptive_max(count: int) -> Any:
    def rule(ex: Exporter, x: Tensor, sizes: Any) -> list[Tensor]:
        """Windows that are all as long."""
        ins, outs = x.sizes[-count:], ex.shape[-count:]
        pairs = list(zip(ins, outs, strict=True))
        if not is_known(ins) or not is_known(outs) or any(int(o) == 0 or int(i) % int(o) for i, o in pairs):
            raise Unsupported("the largest of windows that are not all as long")
        steps = [int(i) // int(o) for i, o in pairs]
        made: list[Tensor] = _max_pool(count, True)(ex, x, steps, steps)
        return made

    return rule


exports(aten.adaptive_max_pool2d.default)(_adaptive_max(2))
exports(aten.adaptive_max_pool3d.default)(_adaptive_max(3))
