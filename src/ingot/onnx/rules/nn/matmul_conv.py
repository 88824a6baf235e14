"""Matrix products and convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ingot.ir.metadata import value_of
from ingot.onnx.exporter import Exporter
from ingot.onnx.registry import OnnxUnsupported, exports
from ingot.onnx.values import OnnxValue, Size, is_known, sizes_of

aten = torch.ops.aten


def matmul_of(ex: Exporter, x: OnnxValue, y: OnnxValue) -> OnnxValue:
    if x.dtype is torch.bool:
        raise OnnxUnsupported("a matrix product of bools")
    return ex.op("MatMul", x, y)


@exports(aten.mm.default, aten.bmm.default, aten.mv.default, aten.dot.default, aten.vdot.default)
def product(ex: Exporter, x: OnnxValue, y: OnnxValue) -> OnnxValue:
    return matmul_of(ex, x, y)


@exports(aten.matmul.default)
def matmul(ex: Exporter, x: OnnxValue, y: OnnxValue) -> OnnxValue:
    return matmul_of(ex, x, y)


@dataclass(frozen=True, slots=True)
class _Letters:
    """An equation of einsum that is one product of matrices: the letters of each of its dims."""

    batch: list[str]
    left: list[str]
    inner: str
    right: list[str]
    out: str


def _letters(equation: str, shapes: Sequence[Sequence[Size]]) -> _Letters | None:
    """None where it takes more than transposes and a product: a sum, a diagonal, dims to be joined."""
    sides = equation.replace(" ", "").split("->")
    operands = sides[0].split(",")
    if len(operands) != 2 or len(sides) != 2 or "." in equation:
        return None
    (x, y), out = operands, sides[1]
    if any(len(set(part)) != len(part) for part in (x, y, out)) or set(x) ^ set(y) != set(out) - (set(x) & set(y)):
        return None
    inner = [letter for letter in x if letter in y and letter not in out]
    batch = [letter for letter in x if letter in y and letter in out]
    left, right = [letter for letter in x if letter not in y], [letter for letter in y if letter not in x]
    joined = (len(left) > 1 and batch) or len(right) != 1 or not left
    if len(inner) != 1 or joined or shapes[0][x.index(inner[0])] != shapes[1][y.index(inner[0])]:
        return None
    return _Letters(batch, left, inner[0], right, out)


def _is_product(node: fx.Node) -> bool:
    equation: Any
    operands: Any
    equation, operands, *_ = node.args
    values = [value_of(operand) for operand in operands]
    return _letters(equation, [sizes_of(value.shape) for value in values]) is not None


@exports(aten.einsum.default, takes=_is_product)
def einsum(ex: Exporter, equation: str, operands: Sequence[OnnxValue], *, path: Any = None) -> OnnxValue:
    x, y = operands
    found = _letters(equation, [x.sizes, y.sizes])
    assert found is not None
    ours, theirs = equation.replace(" ", "").split("->")[0].split(",")
    turned = [
        ex.transpose(part, [letters.index(letter) for letter in order])
        for part, letters, order in (
            (x, ours, [*found.batch, *found.left, found.inner]),
            (y, theirs, [*found.batch, found.inner, *found.right]),
        )
    ]
    made = matmul_of(ex, *turned)
    letters = [*found.batch, *found.left, *found.right]
    return ex.transpose(made, [letters.index(letter) for letter in found.out])


@exports(aten.linear.default)
def linear(ex: Exporter, x: OnnxValue, weight: OnnxValue, bias: OnnxValue | None = None) -> OnnxValue:
    if weight.rank == 1:
        made = matmul_of(ex, x, weight)
        return made if bias is None else ex.op("Add", made, bias)
    if x.rank == 2 and x.is_float and (bias is None or bias.rank <= 2):
        return ex.op("Gemm", x, weight, *(() if bias is None else (bias,)), transB=1)
    turned = ex.once(("turned", weight.value), lambda: ex.transpose(weight, [1, 0]))
    made = matmul_of(ex, x, turned)
    return made if bias is None else ex.op("Add", made, bias)


def _scale(ex: Exporter, x: OnnxValue, factor: Any) -> OnnxValue:
    if isinstance(factor, int | float) and factor == 1:
        return x
    return ex.op("Mul", x, ex.factor(factor, x.dtype, ex.shape))


def _sum(ex: Exporter, bias: OnnxValue, made: OnnxValue, beta: Any, alpha: Any) -> OnnxValue:
    """beta · bias + alpha · product; a bias that is taken zero times does not count, nan or not."""
    made = _scale(ex, made, alpha)
    if isinstance(beta, int | float) and beta == 0:
        return ex.expand(OnnxValue(made.value, made.dtype), ex.shape) if not is_known(ex.shape) else made
    return ex.op("Add", _scale(ex, ex.cast(bias, made.dtype), beta), made)


@exports(aten.addmm.default)
def addmm(ex: Exporter, bias: OnnxValue, x: OnnxValue, y: OnnxValue, *, beta: Any = 1, alpha: Any = 1) -> OnnxValue:
    plain = isinstance(beta, int | float) and isinstance(alpha, int | float) and beta != 0
    if x.is_float and plain and _fits(bias, ex.shape) and x.sizes[1] != 0 and ex.says(x.dtype, alpha, beta):
        return ex.op("Gemm", x, y, bias, alpha=float(alpha), beta=float(beta))
    return _sum(ex, bias, matmul_of(ex, x, y), beta, alpha)


def _fits(bias: OnnxValue, shape: Sequence[Size]) -> bool:
    """Whether Gemm spreads a bias over the result as torch does."""
    pairs = zip(reversed(bias.sizes), reversed(shape), strict=False)
    return all(mine == 1 or mine == theirs for mine, theirs in pairs)


@exports(aten.addmv.default, aten.baddbmm.default)
def add_product(
    ex: Exporter, bias: OnnxValue, x: OnnxValue, y: OnnxValue, *, beta: Any = 1, alpha: Any = 1
) -> OnnxValue:
    return _sum(ex, bias, matmul_of(ex, x, y), beta, alpha)


@exports(aten.addbmm.default)
def addbmm(ex: Exporter, bias: OnnxValue, x: OnnxValue, y: OnnxValue, *, beta: Any = 1, alpha: Any = 1) -> OnnxValue:
    made = ex.op("ReduceSum", matmul_of(ex, x, y), ex.ints([0]), keepdims=0)
    return _sum(ex, bias, made, beta, alpha)


@exports(aten.addr.default)
def addr(ex: Exporter, bias: OnnxValue, x: OnnxValue, y: OnnxValue, *, beta: Any = 1, alpha: Any = 1) -> OnnxValue:
    if ex.dtype is torch.bool:
        raise OnnxUnsupported("an outer product of bools")
    x, y = ex.cast(x, ex.dtype), ex.cast(y, ex.dtype)
    made = ex.op("Mul", ex.unsqueeze(x, 1), ex.unsqueeze(y, 0))
    return _sum(ex, bias, made, beta, alpha)


# ---------------------------------------------------------------------- convolutions


def spread(value: Any, count: int) -> list[Any]:
    """A setting for each dim, of one for all or one for each."""
    given = list(value) if isinstance(value, list | tuple) else [value]
    return given * count if len(given) == 1 else given


def convolve(
    ex: Exporter,
    x: OnnxValue,
    weight: OnnxValue,
    bias: OnnxValue | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
) -> OnnxValue:
    count = weight.rank - 2
    single = x.rank == count + 1  # without a batch
    if not x.is_float:
        raise OnnxUnsupported("a convolution of integers")
    if any(size == 0 for size in (*x.sizes, *ex.shape)):
        raise OnnxUnsupported("an empty convolution")
    x = ex.unsqueeze(x, 0) if single else x
    if isinstance(padding, str):
        pads = None if padding == "same" else [0] * 2 * count
        if padding == "same":
            spans = [d * (int(k) - 1) for d, k in zip(spread(dilation, count), weight.sizes[2:], strict=True)]
            pads = [*(span // 2 for span in spans), *(span - span // 2 for span in spans)]
    else:
        pads = spread(padding, count) * 2
    made = ex.op(
        "Conv",
        x,
        weight,
        *(() if bias is None else (bias,)),
        strides=spread(stride, count),
        pads=pads,
        dilations=spread(dilation, count),
        group=groups,
        kernel_shape=[int(size) for size in weight.sizes[2:]],
    )
    return ex.squeeze(made, 0) if single else made


def transpose(
    ex: Exporter, x: OnnxValue, weight: OnnxValue, bias: OnnxValue | None, stride: Any, padding: Any, extra: Any,
    dilation: Any,
    groups: int,
) -> OnnxValue:  # fmt: skip
    count = weight.rank - 2
    single = x.rank == count + 1
    if not x.is_float:
        raise OnnxUnsupported("a convolution of integers")
    if any(size == 0 for size in (*x.sizes, *ex.shape)):
        raise OnnxUnsupported("an empty convolution")
    x = ex.unsqueeze(x, 0) if single else x
    strides, pads, more = spread(stride, count), spread(padding, count), spread(extra, count)
    # A data-dependent one is at most this: the excess is cut off at the end.
    unknown = not is_known(more)
    more = [grow if isinstance(grow, int) else step - 1 for grow, step in zip(more, strides, strict=True)]
    # ONNX lets a result grow by less than a stride; what goes over it is less padding, or rows of zeros.
    over = any(grow >= step for grow, step in zip(more, strides, strict=True))
    ends = [max(pad - grow, 0) for pad, grow in zip(pads, more, strict=True)] if over else pads
    settings: dict[str, Any] = {
        "strides": strides,
        "pads": [*pads, *ends],
        "output_padding": None if over else more,
        "dilations": spread(dilation, count),
        "kernel_shape": [int(size) for size in weight.sizes[2:]],
    }
    # onnx.reference, which alone runs it in float64, takes no groups.
    split = groups > 1 and x.dtype is torch.float64
    if split:
        inputs = ex.several("Split", groups, x, axis=1, num_outputs=groups)
        weights = ex.several("Split", groups, weight, axis=0, num_outputs=groups)
        made = ex.op(
            "Concat", *(ex.op("ConvTranspose", *p, **settings) for p in zip(inputs, weights, strict=True)), axis=1
        )
    else:
        within = () if bias is None or over else (bias,)
        made = ex.op("ConvTranspose", x, weight, *within, group=groups, **settings)
    if over:
        rows = [max(grow - pad, 0) for pad, grow in zip(pads, more, strict=True)]
        made = ex.op("Pad", made, ex.ints([0] * (count + 4) + rows)) if any(rows) else made
    if bias is not None and (over or split):
        made = ex.op("Add", made, ex.reshape(bias, [*bias.sizes, *([1] * count)]))
    if unknown:
        there = ex.sizes.vector(ex.shape[-count:])
        made = ex.op("Slice", made, ex.ints([0] * count), there, ex.ints(list(range(2, count + 2))))
    return ex.squeeze(made, 0) if single else made


@exports(aten.convolution.default)
def convolution(
    ex: Exporter, x: OnnxValue, weight: OnnxValue, bias: OnnxValue | None, stride: Any, padding: Any, dilation: Any,
    is_transposed: bool, output_padding: Any, groups: int,
) -> OnnxValue:  # fmt: skip
    if is_transposed:
        return transpose(ex, x, weight, bias, stride, padding, output_padding, dilation, groups)
    return convolve(ex, x, weight, bias, stride, padding, dilation, groups)


@exports(
    *(aten.conv1d.default, aten.conv2d.default, aten.conv3d.default),
    *(aten.conv1d.padding, aten.conv2d.padding, aten.conv3d.padding),
)
def conv(
    ex: Exporter, x: OnnxValue, weight: OnnxValue, bias: OnnxValue | None = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> OnnxValue:  # fmt: skip
    return convolve(ex, x, weight, bias, stride, padding, dilation, groups)


@exports(aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input)
def conv_transpose(
    ex: Exporter, x: OnnxValue, weight: OnnxValue, bias: OnnxValue | None = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> OnnxValue:  # fmt: skip
    return transpose(ex, x, weight, bias, stride, padding, output_padding, dilation, groups)
