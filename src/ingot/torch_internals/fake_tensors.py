"""Fake tensors: creating them, and which memory they stand for."""

from __future__ import annotations

import contextlib
import functools
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import _meta_registrations
from torch._ops import OpOverload
from torch._subclasses.fake_impls import op_implementations_dict as _HAND_WRITTEN
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorMode,
)
from torch.fx.experimental.symbolic_shapes import (
    ShapeEnv,
    guard_or_false,
    statically_known_true,
)

from ingot.torch_internals.isolation import Patches
from ingot.torch_internals.monkeypatches import patch_attributes
from ingot.torch_internals.operator_schemas import argument_names, bind_arguments
from ingot.torch_internals.operators import computes_new_tensor, declares_aliases, without_dispatch
from ingot.torch_internals.shape_env import OwnShapeEnv, suspend_watching
from ingot.torch_internals.symbols import expr_of, is_unbacked


def fake_mode(env: ShapeEnv | None) -> FakeTensorMode:
    """torch's, with seven corrections: fake kernels that torch wrote by hand get no dim that counts from the end, x[i]
    has a number where i is a symbol and is an error where i is out of range, x[:2] has min(n, 2) elements, the indices
    that unique returns are integers, and a convolution's kernel, the values of x[indices] = values and the sources of
    slices fit.

    Some of those kernels slice the shape at the dim as it comes, and return two dims for unique_consecutive(f32[5],
    dim=-1). Before torch 2.12 those of unique return indices with the dtype of the values. Before 2.13 that of x[i]
    does not ask whether i is in range, and those of convolutions whether the kernel is larger than the input, as every
    real kernel does. No class of our own: control flow knows this mode by its class.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=env)
    theirs = mode.dispatch

    def dispatch(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> object:
        if func is torch.ops.aten.item.default:
            # For a tensor that begins at a symbolic place torch has another rule, which reads the value at once.
            func = torch.ops.aten._local_scalar_dense.default
        _check_dim(func, args, kwargs or {})
        place = _list_operators_with_dim().get(func)
        if place is not None:
            args, kwargs = _normalize_dims(place, list(args), dict(kwargs or {}))
        if func is torch.ops.aten.select.int and not _checks_selections():
            _check_selection(*args, **(kwargs or {}))
        if func in _CONVOLUTIONS and not _checks_kernel_sizes():
            _check_kernel_size(func, args, kwargs or {})
        if func in _INDEX_PUTS:
            _check_values_fit(*args, **(kwargs or {}))
        if func in _SCATTERED_VIEWS:
            _check_source_fits(func, *args, **(kwargs or {}))
        if func is torch.ops.aten._fft_c2c.default and not _transforms_in_any_order():
            args = (args[0], sorted(args[1]), *args[2:])
        if func is torch.ops.aten.split.Tensor:
            args = _allow_empty_split(*args)
        if func in _QUANTILES and isinstance(args[1], float):
            # Before torch 2.12 the rule for a number compares it as a tensor without a value; this tensor has one.
            number = torch.tensor(args[1], dtype=args[0].dtype)
            known = mode.fake_tensor_converter.from_real_tensor(mode, number, make_constant=True)
            func, args = _QUANTILES[func], (args[0], known, *args[2:])
        if func is torch.ops.aten.slice.Tensor:
            part = _slice_within(*args, **(kwargs or {}))
            if part is not None:
                return part
        # torch compares the arguments of a call with those of earlier ones, and these objects cannot be compared.
        scripted = any(isinstance(argument, torch.ScriptObject) for argument in args)
        with (
            patch_attributes(mode, cache_enabled=False) if scripted else contextlib.nullcontext(),
            _skip_division_guards() if _is_pooling(func) else contextlib.nullcontext(),
        ):
            made = theirs(func, types, args, kwargs)
        return _cast_indices(made) if func in _UNIQUE else made

    vars(mode)["dispatch"] = dispatch
    return mode


_QUANTILES = {
    torch.ops.aten.quantile.scalar: torch.ops.aten.quantile.default,
    torch.ops.aten.nanquantile.scalar: torch.ops.aten.nanquantile.default,
}


def _allow_empty_split(x: torch.Tensor, size: Any, dim: int = 0) -> tuple[Any, ...]:
    """The arguments of a split. Nothing is one part of any size; torch 2.11 knows that only if its size is 0."""
    empty = isinstance(size, int) and size > 0 and x.dim() > 0 and statically_known_true(x.shape[dim] == 0)
    return x, 0 if empty else size, dim


@functools.cache
def _transforms_in_any_order() -> bool:
    """Whether torch's shape function of Fourier transforms takes dims that do not ascend; torch 2.11 fails there."""
    with without_dispatch():
        try:
            torch.ops.aten._fft_c2c.default(torch.empty(6, 5, 9, dtype=torch.complex64, device="meta"), [1, 0], 0, True)
        except RuntimeError:
            return False
    return True


_TRANSFORMS = frozenset(
    overload.default for overload in (torch.ops.aten._fft_r2c, torch.ops.aten._fft_c2r, torch.ops.aten._fft_c2c)
)
_DENSE_IN_FACT = frozenset(
    (torch.ops.aten.poisson.default, torch.ops.aten.isin.Tensor_Scalar, torch.ops.aten.isin.Tensor_Tensor)
)


@functools.cache
def may_be_restrided(func: Any) -> bool:
    """Whether an operator returns other strides than its shape function says, of arguments that are not contiguous."""
    if func is torch.ops.aten.zero.default:
        with without_dispatch():
            return bool(func(torch.empty(2, 3, device="meta").t()).stride() != (1, 3))  # so before torch 2.13
    return func in _DENSE_IN_FACT or (func in _TRANSFORMS and not _transforms_in_any_order())


@functools.cache
def _is_pooling(func: Any) -> bool:
    return "pool" in func.name()


def _skip_division_guards() -> contextlib.AbstractContextManager[None]:
    """Inside, shape functions of pooling divide sizes without asking whether the division is exact.

    Before torch 2.13 they ask. The answer changes nothing, but would hold for the example's size alone.
    """
    return Patches((_meta_registrations, "div_rtn", lambda _: operator.floordiv))


@functools.cache
def _checks_selections() -> bool:
    """Whether torch's own shape function of select rejects an index that is out of range."""
    with FakeTensorMode():
        try:
            torch.empty(2).select(0, 2)
        except IndexError:
            return True
    return False


def _check_selection(self: Any, dim: int, index: Any) -> None:
    """Raises what the real kernel does for an index out of range; what depends on a tensor's values is not known."""
    if not self.dim():
        return  # torch raises
    size = self.shape[dim]
    if guard_or_false(index >= size) or guard_or_false(index < -size):
        raise IndexError(
            f"select(): index {index} out of range for tensor of size {list(self.shape)} at dimension {dim}"
        )


_CONVOLUTIONS = frozenset(
    (
        torch.ops.aten.convolution.default,
        torch.ops.aten._convolution.default,
        torch.ops.aten._convolution.deprecated,
    )
)


@functools.cache
def _checks_kernel_sizes() -> bool:
    """Whether torch's own shape function of convolutions rejects a kernel that is larger than the input in one dim."""
    with without_dispatch():
        image, kernel = torch.empty(1, 1, 2, 4, device="meta"), torch.empty(1, 1, 3, 3, device="meta")
        try:
            torch.conv2d(image, kernel)
        except RuntimeError:
            return True
    return False


def _check_kernel_size(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    given = bind_arguments(func, args, kwargs)
    if given["transposed"]:
        return
    sizes, kernel = given["input"].shape[2:], given["weight"].shape[2:]
    paddings, dilations = (
        list(given[name]) * (1 if len(given[name]) == len(sizes) else len(sizes)) for name in ("padding", "dilation")
    )
    padded = [size + 2 * padding for size, padding in zip(sizes, paddings, strict=True)]
    reach = [dilation * (size - 1) + 1 for size, dilation in zip(kernel, dilations, strict=True)]
    for have, need in zip(padded, reach, strict=True):
        torch._check(
            have >= need,
            lambda: (
                f"Calculated padded input size per channel: ({' x '.join(map(str, padded))}). Kernel size: "
                f"({' x '.join(map(str, reach))}). Kernel size can't be greater than actual input size"
            ),
        )


_INDEX_PUTS = frozenset(
    overload
    for packet in ("index_put", "index_put_", "_index_put_impl", "_index_put_impl_", "_unsafe_index_put")
    for overload in [getattr(torch.ops.aten, packet).default]
)


def _check_values_fit(self: Any, indices: Sequence[Any], values: Any, *others: Any, **options: Any) -> None:
    """Raises what the real kernel does for values that cannot be broadcast. Sizes that are not known may fit."""
    given = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    if any(index.dtype in (torch.bool, torch.uint8) for _, index in given):
        return  # how many elements a mask chooses is not known
    chosen: list[Any] = [1] * max((index.dim() for _, index in given), default=0)
    for _, index in given:
        for place, size in enumerate(reversed(index.shape), 1):
            chosen[-place] = size if chosen[-place] == 1 else chosen[-place]
    dims = [dim for dim, _ in given]
    adjacent = bool(dims) and dims == list(range(dims[0], dims[-1] + 1))
    rest = [size for dim, size in enumerate(self.shape) if dim not in dims]
    begin = dims[0] if adjacent else 0
    result = [*rest[:begin], *chosen, *rest[begin:]]
    pairs = list(zip(reversed(values.shape), reversed(result), strict=False))
    if values.dim() > len(result) or any(
        isinstance(have, int) and isinstance(want, int) and have not in (1, want) for have, want in pairs
    ):
        raise IndexError(
            f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to indexing result of "
            f"shape {result}"
        )


_SCATTERED_VIEWS = {
    torch.ops.aten.select_scatter.default: torch.ops.aten.select.int,
    torch.ops.aten.slice_scatter.default: torch.ops.aten.slice.Tensor,
    torch.ops.aten.diagonal_scatter.default: torch.ops.aten.diagonal.default,
}


def _check_source_fits(func: OpOverload, self: Any, src: Any, *place: Any, **more: Any) -> None:
    """Raises what the real kernel does for a source of another size than the slice; unknown sizes may fit."""
    if any(map(_is_data_dependent, (*self.shape, *src.shape, *place, *more.values()))):
        return
    part = _SCATTERED_VIEWS[func](self, *place, **more)
    if part.dim() != src.dim() or any(have != want for have, want in zip(src.shape, part.shape, strict=True)):
        raise RuntimeError(
            f"expected src to have a size equal to the slice of self. src size = {list(src.shape)}, "
            f"slice size = {list(part.shape)}"
        )


def _is_data_dependent(number: Any) -> bool:
    return isinstance(number, torch.SymInt) and any(map(is_unbacked, number.node.expr.free_symbols))


_UNIQUE = frozenset(
    (
        torch.ops.aten._unique2.default,
        torch.ops.aten.unique_dim.default,
        torch.ops.aten.unique_consecutive.default,
    )
)


def _cast_indices(results: Any) -> Any:
    values, *indices = results
    return values, *(i if i.dtype is torch.int64 else fake_like(i, torch.int64) for i in indices)


@functools.cache
def _place_of_dim(func: Any) -> int | None:
    """Where among its arguments an operator takes the dim of its first that it works on."""
    if not isinstance(func, OpOverload) or func.namespace != "aten" or func._opname.startswith("unsqueeze"):
        return None
    names = argument_names(func)
    return names.index("dim") if "dim" in names and names[0] in ("self", "input") else None


def _check_dim(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises what the real kernel does for a dim out of range; fake ones of select, softmax, sort and unique do not."""
    place = _place_of_dim(func)
    dim = None if place is None else args[place] if place < len(args) else kwargs.get("dim")
    if type(dim) is int and args:
        dims = max(args[0].dim(), 1)
        if not -dims <= dim < dims:
            raise IndexError(
                f"Dimension out of range (expected to be in range of [{-dims}, {dims - 1}], but got {dim})"
            )


@functools.cache
def _list_operators_with_dim() -> dict[Any, int]:
    """The operators with hand-written fake kernels that take a dim, and its place among their arguments."""
    places = {op: argument_names(op) for op in _HAND_WRITTEN}
    return {op: names.index("dim") for op, names in places.items() if "dim" in names}


def _normalize_dims(place: int, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    def normalize(dim: Any) -> Any:
        return dim + max(args[0].dim(), 1) if isinstance(dim, int) and dim < 0 else dim

    args[place:] = [*map(normalize, args[place : place + 1]), *args[place + 1 :]]
    return args, {name: normalize(value) if name == "dim" else value for name, value in kwargs.items()}


def _slice_within(
    x: torch.Tensor, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> torch.Tensor | None:
    """A slice of a symbolic size, clamped by Min and Max; None of any other slice.

    Torch decides by the example's size whether a bound lies inside, and its answer holds for some sizes only. A bound
    whose sign depends on the size is left to torch.
    """
    start, end = (None if isinstance(bound, int) and bound == sys.maxsize else bound for bound in (start, end))
    if not x.dim() or type(step) is not int or step < 1:
        return None
    size = x.shape[dim]
    symbolic = [number for number in (size, start, end) if isinstance(number, torch.SymInt)]
    if not symbolic or any(is_unbacked(s) for number in symbolic for s in number.node.expr.free_symbols):
        return None
    if not all(bound is None or type(bound) is int or statically_known_true(bound >= 0) for bound in (start, end)):
        return None
    stop = size if end is None else _clamp(end, size)
    begin = 0 if start is None else _clamp(start, size)
    from_end = type(start) is int and start < 0
    if from_end and end is None:
        length = _choose(torch.sym_min, size, -start)
    else:
        # A start beyond the end is not clamped: the difference is negative then, and so 0.
        length = _choose(torch.sym_max, stop - (begin if start is None or from_end else start), 0)
    sizes, strides = list(x.shape), list(x.stride())
    sizes[dim] = length if step == 1 else (length + step - 1) // step
    offset = x.storage_offset() + begin * strides[dim]
    strides[dim] = strides[dim] * step
    with suspend_watching(symbolic[0].node.shape_env):  # whether it lies inside its storage: a slice always does
        return x.as_strided(sizes, strides, offset)


def _clamp(bound: Any, size: Any) -> Any:
    """A slice's bound as a place in [0, size]; a symbolic bound is not negative."""
    if type(bound) is int and bound < 0:
        return _choose(torch.sym_max, size + bound, 0)
    return _choose(torch.sym_min, size, bound)


def _choose(which: Callable[[Any, Any], Any], value: Any, limit: Any) -> Any:
    """The smaller or larger of a number and a limit: one of the two where it is the same for every size."""
    for least, most, one in ((value, limit, 0), (limit, value, 1)):
        if statically_known_true(least <= most):
            return (value, limit)[one] if which is torch.sym_min else (limit, value)[one]
    return which(value, limit)


@contextlib.contextmanager
def keep_aliases(mode: FakeTensorMode, func: Any) -> Iterator[None]:
    """Inside, what a call on fakes returns shares memory with its arguments as it would on real tensors.

    The mode's cache holds types of results, and makes new memory for any result whose schema declares no alias.
    """
    cached = mode.cache_enabled
    mode.cache_enabled = cached and (declares_aliases(func) or computes_new_tensor(func))
    try:
        yield
    finally:
        mode.cache_enabled = cached


def fake_dense(mode: FakeTensorMode, like: torch.Tensor, requires_grad: bool) -> FakeTensor:
    """The fake of a plain strided tensor, without the general converter's checks (ten times faster)."""
    fake = _fake(mode, like, like.dtype)
    if requires_grad:
        fake.requires_grad_(True)
    return fake


def _fake(mode: FakeTensorMode, like: torch.Tensor, dtype: torch.dtype) -> FakeTensor:
    with without_dispatch():
        meta = torch.empty_strided(like.shape, like.stride(), dtype=dtype, device="meta")
    return FakeTensor(mode, meta, like.device)


def fake_like(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What an elementwise operator makes of a fake tensor, if its result has this dtype."""
    mode = fake_mode_of(value)
    fixed = all(isinstance(size, int) for size in (*value.shape, *value.stride()))
    dense = value.is_contiguous() or (value.dim() == 4 and value.is_contiguous(memory_format=torch.channels_last))
    if mode is None or not fixed or not dense:
        with mode or new_fake_mode()[0]:
            return torch.empty_like(value, dtype=dtype, requires_grad=False)
    return _fake(mode, value, dtype)


def fake_sized(mode: FakeTensorMode, like: torch.Tensor, sizes: Sequence[Any], strides: Sequence[Any]) -> FakeTensor:
    """A fake like `like`, with symbolic sizes and strides."""
    with mode:
        fake = torch.empty_strided(list(sizes), list(strides), dtype=like.dtype, device=like.device)
    assert isinstance(fake, FakeTensor)
    if like.requires_grad:
        fake.requires_grad_(True)
    return fake


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether `fake_dense` may stand for it: strided, no subclass, no conjugate or negative bit."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        and tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor.is_nested
    )


def is_strided(tensor: torch.Tensor) -> bool:
    """Whether a tensor lies in a storage with strides: a sparse one does not."""
    return tensor.layout is torch.strided or type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def storage_id(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def same_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two fakes are the same view of the same storage."""
    return (
        a.dtype == b.dtype
        and a.dim() == b.dim()
        and storage_id(a) == storage_id(b)
        and [expr_of(s) for s in (*a.shape, *a.stride(), a.storage_offset())]
        == [expr_of(s) for s in (*b.shape, *b.stride(), b.storage_offset())]
    )


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether elements of a tensor may share memory: some dim's stride is within the reach of the dims below it.

    Of sizes and strides that are not known, only a stride of 0 counts.
    """
    if tensor.layout is not torch.strided:
        return False
    dims = [(s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if not isinstance(n, int) or n != 1]
    if any(isinstance(size, int) and size == 0 for _, size in dims):
        return False
    if any(isinstance(stride, int) and stride == 0 for stride, _ in dims):
        return True
    if not all(isinstance(value, int) for pair in dims for value in pair):
        return False
    reach = 0
    for stride, size in sorted(dims):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def may_overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the stretches of memory that two real tensors lie in meet."""
    if a.layout is not torch.strided or b.layout is not torch.strided or not a.numel() or not b.numel():
        return False
    if storage_id(a) != storage_id(b):
        return False
    (begin, end), (other_begin, other_end) = _stretch(a), _stretch(b)
    return begin < other_end and other_begin < end


def _stretch(tensor: torch.Tensor) -> tuple[int, int]:
    begin = int(tensor.storage_offset()) * tensor.element_size()
    reach = int(sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)))
    return begin, begin + (reach + 1) * tensor.element_size()


def same_strides(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one shape lie in memory in the same order. Dims of size 1 lie anywhere."""
    if a.layout is not torch.strided or b.layout is not torch.strided or a.dim() != b.dim():
        return False
    sizes, pairs = [expr_of(size) for size in a.shape], zip(a.stride(), b.stride(), strict=True)
    return all(size == 1 or expr_of(x) == expr_of(y) for size, (x, y) in zip(sizes, pairs, strict=True))


def new_fake_mode() -> tuple[FakeTensorMode, ShapeEnv]:
    """A fake mode with an empty environment of its own."""
    env = OwnShapeEnv()
    return fake_mode(env), env


def fake_mode_of(tensor: torch.Tensor) -> FakeTensorMode | None:
    """The fake mode that a tensor belongs to, or None for a real one."""
    return tensor.fake_mode if isinstance(tensor, FakeTensor) else None


def is_static_input(tensor: torch.Tensor) -> bool:
    """Whether torch.compile takes a graph's argument for a parameter or buffer: the same tensor in every call."""
    return isinstance(tensor, torch.nn.Parameter) or hasattr(tensor, "_dynamo_static_input_type")
