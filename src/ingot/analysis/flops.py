"""FLOPs: one rule per operator, from the shapes of its inputs and its output.

Counted are matrix products, convolutions, attention and recurrent layers: two for each multiply-add. Everything else
(elementwise operators, reductions, norms, softmax, biases) is left out, as in torch.utils.flop_counter: it is a few
percent of a model's arithmetic and is bound by memory, for which the bytes written are the better measure.

    @counts(aten.linear.default)
    def _linear(x, weight, bias=None, *, out): ...      tensors come as shapes, everything else as it is in the graph
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch

from ingot.registry import Registry

Shape = tuple[int, ...]
Rule = Callable[..., int]

aten = torch.ops.aten
hop = torch.ops.higher_order
_RULES: Registry[Any, Rule] = Registry("counting rule")
counts = _RULES.register


def has_rule(operator: Any) -> bool:
    return operator in _RULES


def flops(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> int:
    """The FLOPs of one call, given shapes in place of tensors; 0 for an operator without a rule."""
    rule = _RULES.get(operator)
    return 0 if rule is None else rule(*args, **kwargs, out=out)


# ---------------------------------------------------------------------- matrix products


@counts(aten.linear.default)
def _linear(x: Shape, weight: Shape, bias: Shape | None = None, *, out: Shape) -> int:
    return 2 * prod(out) * weight[-1]


@counts(
    aten.matmul.default,
    aten.linalg_matmul.default,
    aten.mm.default,
    aten.mm.dtype,
    aten.bmm.default,
    aten.bmm.dtype,
    aten.mv.default,
    aten.dot.default,
    aten.vdot.default,
    aten.inner.default,
    aten._int_mm.default,
    aten._scaled_mm.default,
    aten._weight_int8pack_mm.default,
)
def _matmul(a: Shape, b: Shape, *rest: Any, out: Shape, **options: Any) -> int:
    return 2 * prod(out) * (a[-1] if a else 1)


@counts(
    aten.addmm.default,
    aten.addmm.dtype,
    aten.addmm_.default,
    aten._addmm_activation.default,
    aten.baddbmm.default,
    aten.baddbmm.dtype,
    aten.baddbmm_.default,
    aten.addmv.default,
    aten.addmv_.default,
)
def _addmm(added: Shape, a: Shape, b: Shape, *rest: Any, out: Shape, **options: Any) -> int:
    return 2 * prod(out) * a[-1]


@counts(aten.addbmm.default, aten.addbmm_.default)
def _addbmm(added: Shape, a: Shape, b: Shape, *, out: Shape, **options: Any) -> int:
    return 2 * prod(a) * b[-1]


@counts(aten._grouped_mm.default, aten._scaled_grouped_mm.default)
def _grouped_mm(a: Shape, b: Shape, *rest: Any, out: Shape, **options: Any) -> int:
    # A group takes its own rows of a flat `a`, or its own columns of a flat `b`: all of them together are counted once.
    rows = prod(a[:-1]) if len(b) == 3 else a[-2]
    return 2 * rows * a[-1] * b[-1]


@counts(aten.tensordot.default)
def _tensordot(a: Shape, b: Shape, dims_a: Sequence[int], dims_b: Sequence[int], *, out: Shape) -> int:
    return 2 * prod(out) * prod(a[dim] for dim in dims_a)


@counts(aten.linalg_vecdot.default)
def _vecdot(a: Shape, b: Shape, *, dim: int = -1, out: Shape) -> int:
    return 2 * prod(out) * max(a[dim], b[dim])


@counts(aten.bilinear.default)
def _bilinear(x: Shape, y: Shape, weight: Shape, bias: Shape | None = None, *, out: Shape) -> int:
    features, _, inner = weight
    return 2 * prod(x[:-1]) * (prod(weight) + features * inner)


@counts(aten.chain_matmul.default, aten.linalg_multi_dot.default)
def _chain(matrices: Sequence[Shape], *, out: Shape) -> int:
    """The cheapest order, which is the one that torch takes."""
    first = matrices[0]
    # A vector at the beginning is a row, one at the end a column.
    sizes = [first[0] if len(first) == 2 else 1, *(m[-1] if len(m) == 2 or m is first else 1 for m in matrices)]

    @functools.cache
    def cost(begin: int, end: int) -> int:
        return min(
            (cost(begin, k) + cost(k, end) + 2 * sizes[begin] * sizes[k] * sizes[end] for k in range(begin + 1, end)),
            default=0,
        )

    return cost(0, len(sizes) - 1)


@counts(aten.einsum.default)
def _einsum(equation: str, operands: Sequence[Shape], *, path: Sequence[int] | None = None, out: Shape) -> int:
    """Pair by pair, in the order that torch was given; a pair that sums over nothing is elementwise."""
    inputs, arrow, result = equation.replace(" ", "").partition("->")
    pending = [_labels(term, len(shape)) for term, shape in zip(inputs.split(","), operands, strict=True)]
    size: dict[str, int] = {}
    for labels, shape in zip(pending, operands, strict=True):
        for label, extent in zip(labels, shape, strict=True):
            size[label] = max(size.get(label, 1), extent)
    if arrow:
        final = set(_labels(result, len(out)))
    else:
        everywhere = [label for labels in pending for label in labels]
        final = {label for label in everywhere if everywhere.count(label) == 1 or not label.isalpha()}
    total = 0
    order = list(path) if path else [0, 1] * (len(pending) - 1)
    for i, j in zip(order[::2], order[1::2], strict=True):
        pair = set(pending[i]), set(pending[j])
        rest = [labels for k, labels in enumerate(pending) if k not in (i, j)]
        kept = final.union(*rest)
        # What only one of the two has and is not needed later is summed before they are multiplied.
        used = (pair[0] & pair[1]) | ((pair[0] | pair[1]) & kept)
        if used - kept:
            total += 2 * prod(size[label] for label in used)
        joined = sorted(used & kept)
        pending = [*rest, joined] if path else [joined, *rest]
    return total


def _labels(term: str, rank: int) -> list[str]:
    """One label a dim; those of an ellipsis are numbered from the right, as broadcasting aligns them."""
    if "..." not in term:
        return list(term)
    before, _, after = term.partition("...")
    covered = rank - len(before) - len(after)
    return [*before, *(str(covered - k) for k in range(covered)), *after]


# ---------------------------------------------------------------------- convolutions


@counts(
    aten.conv1d.default,
    aten.conv1d.padding,
    aten.conv2d.default,
    aten.conv2d.padding,
    aten.conv3d.default,
    aten.conv3d.padding,
)
def _conv(x: Shape, weight: Shape, *rest: Any, out: Shape, **options: Any) -> int:
    """Each output element is a sum over its group's channels and the kernel, which is one filter of the weight."""
    return 2 * prod(out) * prod(weight[1:])


@counts(aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input)
def _conv_transpose(x: Shape, weight: Shape, *rest: Any, out: Shape, **options: Any) -> int:
    """Each input element is multiplied with one filter of the weight and added to the output."""
    return 2 * prod(x) * prod(weight[1:])


@counts(aten.convolution.default, aten._convolution.default, aten._convolution.deprecated)
def _convolution(
    x: Shape,
    weight: Shape,
    bias: Shape | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    *rest: Any,
    out: Shape,
) -> int:
    return _conv_transpose(x, weight, out=out) if transposed else _conv(x, weight, out=out)


@counts(aten.conv_tbc.default)
def _conv_tbc(x: Shape, weight: Shape, bias: Shape, pad: int = 0, *, out: Shape) -> int:
    return 2 * prod(out) * prod(weight[:2])


# ---------------------------------------------------------------------- attention and recurrent layers


@counts(aten.scaled_dot_product_attention.default, hop.flex_attention)
def _attention(query: Shape, key: Shape, value: Shape, *rest: Any, out: Any, **options: Any) -> int:
    """Scores and their product with the values, for every pair of positions: a mask is not taken off."""
    pairs = prod(query[:-1]) * key[-2]
    return 2 * pairs * (query[-1] + value[-1])


counts(
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
    aten._scaled_dot_product_attention_math.default,
)(_attention)


@counts(aten.lstm.input, aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input)
def _recurrent(x: Shape, hidden: Any, parameters: Sequence[Shape], *rest: Any, out: Any) -> int:
    """Every weight matrix, those of a projection too, is applied once a position."""
    return 2 * prod(x[:-1]) * _matrices(parameters)


@counts(aten.lstm.data, aten.gru.data, aten.rnn_tanh.data, aten.rnn_relu.data)
def _recurrent_packed(
    x: Shape, batch_sizes: Shape, hidden: Any, parameters: Sequence[Shape], *rest: Any, out: Any
) -> int:
    return 2 * x[0] * _matrices(parameters)


@counts(aten.lstm_cell.default, aten.gru_cell.default, aten.rnn_tanh_cell.default, aten.rnn_relu_cell.default)
def _recurrent_cell(x: Shape, hidden: Any, *parameters: Shape | None, out: Any) -> int:
    return 2 * prod(x[:-1]) * _matrices([p for p in parameters if p is not None])


def _matrices(parameters: Sequence[Shape]) -> int:
    return sum(prod(shape) for shape in parameters if len(shape) == 2)
