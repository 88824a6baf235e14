"""Tensors while a graph is being lowered: memory seen through strides, or a function of an index that is not run yet.

    Strided   offset + Σ index·stride of a buffer: inputs, weights, realized results, and every view of them
    Deferred      index → value of a body: pointwise results and whatever else no one has needed in memory so far

A consumer loads either alike. A Deferred that is loaded is inlined into its consumer: that is producer fusion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import wraps
from itertools import pairwise
from typing import Concatenate, ParamSpec, TypeAlias

from ingot.lowering.index_expr import Size, bounds, divide, largest, product, remainder, smallest, symbol
from ingot.lowering.loop_body import BodyBuilder

Index: TypeAlias = tuple[Size, ...]
Shape: TypeAlias = tuple[Size, ...]
Loader: TypeAlias = Callable[[BodyBuilder, Index], int]


@dataclass(frozen=True, slots=True)
class Strided:
    buffer: str
    offset: Size
    strides: tuple[Size, ...]

    def offset_at(self, index: Index) -> Size:
        place = self.offset
        for i, stride in zip(index, self.strides, strict=True):
            place = place + i * stride
        return place


@dataclass(frozen=True, slots=True)
class Deferred:
    """`cost` guesses the work of one element; `order` is the physical order of dims that suits it, or None.

    `margin` is for those who can do without the zeros around another tensor: that tensor, and how many lie before it;
    of integers that stand for numbers, without those that stand for zeros.
    `quantized` is for those who can compute with integers: what this was dequantized from.
    `pieces` is for those who write all of it: the tensors of one place along the last dim that it is joined from there.
    """

    load: Loader
    cost: int = 1
    order: tuple[int, ...] | None = None
    margin: tuple[TensorValue, tuple[int, ...]] | None = None
    quantized: Quantized | None = None
    pieces: tuple[TensorValue, ...] = ()


class TensorValue:
    """A value of the graph. `data` becomes a Strided when the tensor is realized; the Deferred is dropped."""

    __slots__ = ("data", "dtype", "shape")

    def __init__(self, shape: Sequence[Size], dtype: str, data: Strided | Deferred) -> None:
        self.shape = tuple(shape)
        self.dtype = dtype
        self.data = data

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> Size:
        return product(self.shape)

    @property
    def cost(self) -> int:
        return self.data.cost if isinstance(self.data, Deferred) else 1

    def load(self, ops: BodyBuilder, index: Index) -> int:
        """The element at `index`, as a value of the body."""
        data = self.data
        if isinstance(data, Strided):
            return ops.load(data.buffer, data.offset_at(index), self.dtype)
        return ops.once((data, index), lambda: data.load(ops, index))

    def __repr__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}] {type(self.data).__name__}"


def contiguous_strides(shape: Sequence[Size]) -> tuple[Size, ...]:
    strides: list[Size] = []
    step: Size = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * size
    return tuple(reversed(strides))


def broadcast(index: Index, shape: Shape) -> Index:
    """The index into a tensor of `shape` for an index of the shape that it is broadcast to.

    Whether a dim is broadcast must be known (`Making.align`).
    """
    tail = index[len(index) - len(shape) :]
    return tuple(0 if size == 1 else i for i, size in zip(tail, shape, strict=True))


class Fit(Enum):
    """How a dim of an operand relates to that of the result."""

    EQUAL = "equal"
    BROADCAST = "broadcast"
    UNKNOWN = "unknown"  # one of the two, known only at run time


def compare(size: Size, full: Size) -> Fit:
    """Whether a dim of an operand is as large as the result's, or has one place that serves all of them."""
    if size == full:
        return Fit.EQUAL
    if size == 1 or full == 1:
        return Fit.BROADCAST
    least, _ = bounds(size)
    return Fit.EQUAL if least is not None and least > 1 else Fit.UNKNOWN


def broadcast_place(place: Size, size: Size, full: Size) -> Size:
    """A place in a dim of an operand for one in [0, full) of the result."""
    fit = compare(size, full)
    if fit is Fit.UNKNOWN:
        return smallest(place, size - 1)  # itself or 0; never outside the operand
    return place if fit is Fit.EQUAL else 0


def broadcast_shapes(first: Sequence[Size], second: Sequence[Size]) -> tuple[Size, ...]:
    width = max(len(first), len(second))
    a, b = ((1,) * (width - len(s)) + tuple(s) for s in (first, second))
    return tuple(map(_broadcast_size, a, b))


def _broadcast_size(a: Size, b: Size) -> Size:
    if a == b or a == 1 or b == 1:
        return b if a == 1 else a
    if compare(a, b) is Fit.EQUAL:
        return a
    if compare(b, a) is Fit.EQUAL:
        return b
    is_one = 1 - smallest(largest(a - 1, 1 - a), 1)
    return a + (b - a) * is_one


# ---------------------------------------------------------------------- integers that stand for other numbers

# With a smaller scale two integers may stand for the same float32.
LEAST_SCALE = 2.0**-126


@dataclass(frozen=True, slots=True)
class Quantized:
    """(integers - zero) · scale. A TensorValue of scales or zeros has one element, or one for each place of `axis`, or,
    with `group`, one for each place of `axis` and each so many places of the other one of two dims, or, with `tokens`,
    one for each row. `ends` are the least and the greatest of the integers, as they are said to be. `dtype` is what the
    numbers, which are computed in float32, are rounded to."""

    integers: TensorValue
    scale: float | TensorValue
    zero: int | TensorValue
    axis: int | None = None
    group: int | None = None
    ends: tuple[int, int] | None = None
    tokens: bool = False
    dtype: str = "float32"

    @property
    def in_order(self) -> bool:
        """Whether a larger integer stands for a larger number, everywhere."""
        return (
            not isinstance(self.scale, TensorValue)
            and not isinstance(self.zero, TensorValue)
            and self.scale > LEAST_SCALE
        )

    def parameter(self, ops: BodyBuilder, value: float | TensorValue, index: Index, dtype: str) -> int:
        """The scale or zero that belongs to an element, as a value of the body."""
        if not isinstance(value, TensorValue):
            return ops.const(value, dtype)
        place: Index = (0,) * value.rank if self.axis is None else (index[self.axis],)
        if self.group is not None and self.axis is not None:
            place = (index[self.axis], divide(index[1 - self.axis], self.group))
        if self.tokens:
            place = (*index[:-1], 0)
        return ops.cast(value.load(ops, place), dtype)


def dequantize_view(quantized: Quantized) -> TensorValue:
    """The numbers that integers stand for."""
    whole = quantized.integers

    def load(ops: BodyBuilder, index: Index) -> int:
        value = ops.cast(whole.load(ops, index), "float32")
        if quantized.zero != 0:
            value = ops.call("sub", value, quantized.parameter(ops, quantized.zero, index, "float32"))
        value = ops.call("mul", value, quantized.parameter(ops, quantized.scale, index, "float32"))
        return value if quantized.dtype == "float32" else ops.cast(value, quantized.dtype)

    margin = None
    if isinstance(whole.data, Deferred):
        order, margin = whole.data.order, whole.data.margin
    else:
        order = _order(whole.data.strides)
    if margin is not None:
        margin = (dequantize_view(replace(quantized, integers=margin[0])), margin[1])
    return TensorValue(whole.shape, quantized.dtype, Deferred(load, whole.cost + 1, order, margin, quantized))


def _order(strides: Sequence[Size]) -> tuple[int, ...] | None:
    """The physical order of dims, where their strides are known."""
    steps = [step for step in strides if isinstance(step, int)]
    if len(steps) < len(strides) or 0 in steps:
        return None
    return tuple(sorted(range(len(steps)), key=lambda d: (-steps[d], d)))


def find_quantized(tensor: TensorValue | None, *, halves: bool = False) -> Quantized | None:
    """What a tensor was dequantized from, if it was and is not in memory yet. With `halves`, numbers that are rounded
    to float16 or bfloat16 count too."""
    found = tensor.data.quantized if isinstance(tensor, TensorValue) and isinstance(tensor.data, Deferred) else None
    return found if found is None or halves or found.dtype == "float32" else None


P = ParamSpec("P")
View: TypeAlias = Callable[Concatenate[TensorValue, P], TensorValue]


def _follow_integers(
    moved: Callable[Concatenate[int, P], int | None], groups: bool = False
) -> Callable[[View[P]], View[P]]:
    """A view of dequantized numbers dequantizes a view of the integers. `moved` says where a dim that has a scale for
    each of its places goes; None: this view is one of the numbers only, as it is of tokens, and of groups unless it
    leaves them be."""

    def decorate(view: View[P]) -> View[P]:
        @wraps(view)
        def apply_view(tensor: TensorValue, /, *args: P.args, **kwargs: P.kwargs) -> TensorValue:
            found = find_quantized(tensor, halves=True)
            if found is None:
                return view(tensor, *args, **kwargs)
            axis = None if found.axis is None else moved(found.axis, *args, **kwargs)
            if (axis is None and found.axis is not None) or found.tokens or (found.group is not None and not groups):
                return view(tensor, *args, **kwargs)
            return dequantize_view(replace(found, integers=apply_view(found.integers, *args, **kwargs), axis=axis))

        return apply_view

    return decorate


# ---------------------------------------------------------------------- views


def restride(tensor: TensorValue, shape: Shape, offset: Size, strides: tuple[Size, ...]) -> TensorValue:
    assert isinstance(tensor.data, Strided)
    return TensorValue(shape, tensor.dtype, Strided(tensor.data.buffer, offset, strides))


def join_neighbours(tensors: Sequence[TensorValue], dim: int) -> TensorValue | None:
    """Tensors of one place along `dim` as one, if they lie in the same memory at equal distances."""
    first = tensors[0]
    if len(tensors) < 2 or any(t.shape[dim] != 1 or t.shape != first.shape for t in tensors):
        return None
    homes = [t.data for t in tensors if isinstance(t.data, Strided)]
    if len(homes) < len(tensors) or len({home.buffer for home in homes}) > 1:
        return None
    others = [home.strides[:dim] + home.strides[dim + 1 :] for home in homes]
    gaps = [after.offset - before.offset for before, after in pairwise(homes)]
    if any(strides != others[0] for strides in others) or any(gap != gaps[0] for gap in gaps):
        return None
    shape = (*first.shape[:dim], len(tensors), *first.shape[dim + 1 :])
    strides = (*others[0][:dim], gaps[0], *others[0][dim:])
    return TensorValue(shape, first.dtype, Strided(homes[0].buffer, homes[0].offset, strides))


@_follow_integers(lambda axis, dims: list(dims).index(axis), groups=True)
def permute(tensor: TensorValue, dims: Sequence[int]) -> TensorValue:
    shape = tuple(tensor.shape[d] for d in dims)
    data = tensor.data
    if isinstance(data, Strided):
        return restride(tensor, shape, data.offset, tuple(data.strides[d] for d in dims))
    inverse = {d: k for k, d in enumerate(dims)}

    def load(ops: BodyBuilder, index: Index) -> int:
        return tensor.load(ops, tuple(index[inverse[d]] for d in range(len(dims))))

    order = tuple(inverse[d] for d in (data.order or range(len(dims))))
    return TensorValue(shape, tensor.dtype, Deferred(load, data.cost, order))


@_follow_integers(lambda axis, shape: None)
def expand(tensor: TensorValue, shape: Shape) -> TensorValue:
    """Broadcast; sizes of 1 and missing leading dims repeat."""
    if tuple(shape) == tensor.shape:
        return tensor
    lead = len(shape) - tensor.rank
    data = tensor.data
    if isinstance(data, Strided):
        strides = tuple(_broadcast_stride(*part) for part in zip(data.strides, tensor.shape, shape[lead:], strict=True))
        return restride(tensor, shape, data.offset, (*(0,) * lead, *strides))

    def load(ops: BodyBuilder, index: Index) -> int:
        return tensor.load(ops, tuple(map(broadcast_place, index[lead:], tensor.shape, shape[lead:])))

    return TensorValue(shape, tensor.dtype, Deferred(load, data.cost))


def _broadcast_stride(stride: Size, size: Size, full: Size) -> Size:
    fit = compare(size, full)
    if fit is Fit.UNKNOWN:
        return stride * smallest(size - 1, 1)  # 0 where the size is 1
    return stride if fit is Fit.EQUAL else 0


@_follow_integers(lambda axis, dim, start, step, length: axis if dim != axis else None)
def slice_dim(tensor: TensorValue, dim: int, start: Size, step: Size, length: Size) -> TensorValue:
    """Places start, start + step, … of a dim; a negative step walks back."""
    shape = (*tensor.shape[:dim], length, *tensor.shape[dim + 1 :])
    data = tensor.data
    if isinstance(data, Strided):
        strides = (*data.strides[:dim], data.strides[dim] * step, *data.strides[dim + 1 :])
        return restride(tensor, shape, data.offset + data.strides[dim] * start, strides)

    def load(ops: BodyBuilder, index: Index) -> int:
        return tensor.load(ops, (*index[:dim], start + step * index[dim], *index[dim + 1 :]))

    return TensorValue(shape, tensor.dtype, Deferred(load, data.cost, data.order))


def select(tensor: TensorValue, dim: int, place: Size) -> TensorValue:
    return drop(slice_dim(tensor, dim, place, 1, 1), (dim,))


@_follow_integers(lambda axis, dims: axis - sum(d < axis for d in dims) if axis not in dims else None)
def drop(tensor: TensorValue, dims: Sequence[int]) -> TensorValue:
    """Without these dims, which have one place each."""
    kept = [d for d in range(tensor.rank) if d not in dims]
    shape = tuple(tensor.shape[d] for d in kept)
    data = tensor.data
    if isinstance(data, Strided):
        return restride(tensor, shape, data.offset, tuple(data.strides[d] for d in kept))

    def load(ops: BodyBuilder, index: Index) -> int:
        full: list[Size] = [0] * tensor.rank
        for d, i in zip(kept, index, strict=True):
            full[d] = i
        return tensor.load(ops, tuple(full))

    order = None
    if data.order is not None:
        order = tuple(kept.index(d) for d in data.order if d in kept)
    return TensorValue(shape, tensor.dtype, Deferred(load, data.cost, order))


@_follow_integers(lambda axis, dim: axis + (dim <= axis))
def insert(tensor: TensorValue, dim: int) -> TensorValue:
    """With one more dim of size 1."""
    shape = (*tensor.shape[:dim], 1, *tensor.shape[dim:])
    data = tensor.data
    if isinstance(data, Strided):
        return restride(tensor, shape, data.offset, (*data.strides[:dim], 0, *data.strides[dim:]))
    return TensorValue(
        shape,
        tensor.dtype,
        Deferred(lambda ops, index: tensor.load(ops, (*index[:dim], *index[dim + 1 :])), data.cost),
    )


@_follow_integers(lambda axis, shape, hint: None)
def reshape(tensor: TensorValue, shape: Shape, hint: Callable[[Size], int]) -> TensorValue:
    """The same elements in row-major order under another shape."""
    if tuple(shape) == tensor.shape:
        return tensor
    if any(size == 0 for size in (*tensor.shape, *shape)):
        return TensorValue(shape, tensor.dtype, Deferred(lambda ops, index: ops.const(0, tensor.dtype), 0))
    groups = _groups(tensor.shape, tuple(shape), hint)
    if isinstance(tensor.data, Strided):
        strides = _strides(tensor.shape, tensor.data.strides, tuple(shape), groups)
        if strides is not None:
            return restride(tensor, tuple(shape), tensor.data.offset, strides)

    def load(ops: BodyBuilder, index: Index) -> int:
        old: list[Size] = [0] * tensor.rank
        for before, after in groups:
            if len(before) == 1 and len(after) == 1:
                old[before[0]] = index[after[0]]
                continue
            flat: Size = 0
            for d in after:
                flat = flat * shape[d] + index[d]
            for d in reversed(before):
                if d == before[0]:
                    old[d] = flat
                else:
                    old[d], flat = remainder(flat, tensor.shape[d]), divide(flat, tensor.shape[d])
        return tensor.load(ops, tuple(old))

    return TensorValue(shape, tensor.dtype, Deferred(load, tensor.cost))


Groups: TypeAlias = list[tuple[list[int], list[int]]]


def _groups(old: Shape, new: Shape, hint: Callable[[Size], int]) -> Groups:
    """Runs of dims of equal product, as small as can be, in order. Sizes of 1 belong to no run."""
    left = [d for d, size in enumerate(old) if size != 1]
    right = [d for d, size in enumerate(new) if size != 1]
    groups: Groups = []
    while left or right:
        before: list[int] = []
        after: list[int] = []
        a: Size = 1
        b: Size = 1
        while True:
            if before and after and a == b:
                break
            take_left = bool(left) and (not right or not before or (bool(after) and hint(a) <= hint(b)))
            if take_left:
                before.append(left.pop(0))
                a = a * old[before[-1]]
            elif right:
                after.append(right.pop(0))
                b = b * new[after[-1]]
            else:
                break  # equal in number for every size that the program accepts, though not by form
        groups.append((before, after))
    return groups


def _strides(old: Shape, strides: Sequence[Size], new: Shape, groups: Groups) -> tuple[Size, ...] | None:
    """Strides of the new shape over the same memory, or None where there are none."""
    found: list[Size] = [0] * len(new)
    for before, after in groups:
        if not before:
            return None
        for d, inner in pairwise(before):
            if strides[d] != strides[inner] * old[inner]:
                return None
        step = strides[before[-1]]
        for d in reversed(after):
            found[d] = step
            step = step * new[d]
    return tuple(found)


def loop_variables(shape: Shape, order: Sequence[int], prefix: str = "i") -> tuple[Index, list[tuple[str, Size]]]:
    """An index over the shape, and its loops in `order`, outermost first. A dim of size 1 has no loop."""
    index: list[Size] = [0] * len(shape)
    loops: list[tuple[str, Size]] = []
    for d in order:
        if shape[d] == 1:
            continue
        name = f"{prefix}{len(loops)}"
        index[d] = symbol(name, below=shape[d])
        loops.append((name, shape[d]))
    return tuple(index), loops
