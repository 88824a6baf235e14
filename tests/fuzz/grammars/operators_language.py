"""Operators beside the usual ones of `tests.support.random_programs.operations`: numbers that no half dtype has,
casts back and forth, writes of another dtype, softmax of large products, integers that no float has, sizes of 1."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F

from tests.support.random_programs.operations import OPS, Op, Wanted, without_sign_of_zero
from tests.support.random_programs.programs import USUAL, Choices, Language, Program, Source, Step

X = torch.Tensor
NUMBERS = (0.1, 1.001, 3.3, 1 / 3, -0.7, 2.5, 1e-3)
LARGE = (2**53 + 1, -(2**53) - 1, 2**62, -(2**63) + 1, 1263830757729097974, 2**31, 2**24 + 1)
NEW: dict[str, Op] = {}


def number(c: Any, x: list[X]) -> tuple[Sequence[Any], Sequence[Wanted]]:
    return (c.pick(NUMBERS),), ()


def number_and_dim(c: Any, x: list[X]) -> tuple[Sequence[Any], Sequence[Wanted]]:
    rank = x[0].dim()
    return (c.pick((1.1e9, 3e12, 1e30)), c.below(rank - 1) if rank > 1 and c.below(3) else c.below(max(rank, 1))), ()


def integer_dtype(c: Any, x: list[X]) -> tuple[Sequence[Any], Sequence[Wanted]]:
    return (c.pick((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)),), ()


def add(exact: str, operands: tuple[str, ...], functions: dict[str, Callable[..., X]], arguments: Any = number) -> None:
    for name, function in functions.items():
        assert name not in OPS and name not in NEW
        NEW[name] = Op(function, operands, arguments, exact)


def like(x: X, value: float) -> X:
    return torch.tensor(value, dtype=torch.get_default_dtype())


def single(x: X) -> X:
    """float32, or float64 where the program is run in it."""
    return x.to(torch.get_default_dtype())


add(
    "rounds",
    ("float",),
    {
        "add_number": lambda x, c: x + c,
        "number_minus": lambda x, c: c - x,
        "mul_number": lambda x, c: x * c,
        "div_number": lambda x, c: x / c,
        "add_rank_0": lambda x, c: x + like(x, c),
        "mul_rank_0": lambda x, c: x * like(x, c),
        "of_rank_0": lambda x, c: like(x, c) - x,
        "scaled_sum": lambda x, c: (x * c + x) * c,
        "twice_used": lambda x, c: (x * c) * (x * c + x),
        "leaky": lambda x, c: F.leaky_relu(x, abs(c)),
        "root": lambda x, c: torch.sqrt((x + c).abs()),
    },
)
add(
    "keep",
    ("float",),
    {
        "clamp_number": lambda x, c: x.clamp(-abs(c), abs(c)),
        "clamp_max_number": lambda x, c: x.clamp(max=c),
        "full_like_number": lambda x, c: torch.full_like(x, c),
        "pad_number": lambda x, c: F.pad(x, (1, 1), value=c),
        "nan_to_number": lambda x, c: torch.nan_to_num(x, nan=c),
        "copysign_number": lambda x, c: torch.copysign(x, c),
        "maximum_rank_0": without_sign_of_zero(lambda x, c: torch.maximum(x, like(x, c))),
    },
)
# A rounding error becomes another result: exact, finite operands only.
add(
    "needs",
    ("float",),
    {
        "equals_number": lambda x, c: x == c,
        "differs_from_number": lambda x, c: x != c,
        "above_number": lambda x, c: x > c,
        "at_most_number": lambda x, c: x <= c,
        "above_rank_0": lambda x, c: x > like(x, c),
        "equals_full": lambda x, c: torch.full_like(x, c) == x,
        "where_number": lambda x, c: torch.where(x > c, x, c),
        "masked_number": lambda x, c: x.masked_fill(x == c, -c),
        "hardshrink_number": lambda x, c: F.hardshrink(x, abs(c)),
        "threshold_number": lambda x, c: F.threshold(x, c, c / 3),
        "fmod_number": torch.fmod,
        "remainder_number": torch.remainder,
        "floor_number": lambda x, c: x // c,
        "trunc_number": lambda x, c: torch.div(x, c, rounding_mode="trunc"),
        "sign_of_difference": lambda x, c: torch.sign(x - c),
        "heaviside_number": lambda x, c: torch.heaviside(x - c, x),
        "place_of_largest": lambda x, c: (x * c).argmax(-1) if x.dim() else x > c,
        "order": lambda x, c: (x * c).argsort(-1, stable=True) if x.dim() else x > c,
    },
)
add("needs", ("float",), {"through_integer": lambda x, dtype: x.to(dtype).to(x.dtype)}, integer_dtype)
add(
    "needs, rounds",
    ("float",),
    {"inverse_of_integer": lambda x, dtype: 1 / (x.to(dtype).to(x.dtype) + 0.5) + x.to(dtype)},
    integer_dtype,
)
add("keep", ("any",), {"through_float": lambda x, dtype: x.to(dtype).to(torch.float64)}, integer_dtype)
NEW["through_float"] = replace(NEW["through_float"], operands=("whole",))
add(
    "keep",
    ("int",),
    {
        "threshold_integer": lambda x, c: F.threshold(x, c, -c),
        "integer_above": lambda x, c: x > c,
        "integer_at_least": lambda x, c: x >= float(2**53),
        "bucket": lambda x, c: torch.bucketize(c, x.flatten().sort().values) + x.flatten()[:1],
    },
)


def part_of(x: X, y: X) -> X:
    """As many elements of y as a row of x has, of another dtype perhaps."""
    flat = y.reshape(-1)
    count = x[0].numel()
    return flat[torch.arange(count) % max(flat.numel(), 1)].reshape(x[0].shape)


add(
    "needs",
    ("any", "any"),
    {
        "select_other": lambda x, y: torch.select_scatter(x, part_of(x, y), 0, 0),
        "slice_other": lambda x, y: torch.slice_scatter(x, part_of(x, y)[None], 0, 0, 1),
        "copy_other": lambda x, y: x.clone().copy_(part_of(x, y)),
        "row_other": lambda x, y: x.index_fill(0, torch.tensor([0]), 1) + part_of(x, y),
        "compare_other": lambda x, y: x == part_of(x, y),
        "logical_other": lambda x, y: torch.logical_xor(x, part_of(x, y)),
    },
    lambda c, x: ((), ()),
)
add(
    "needs, rounds",
    ("float",),
    {
        "large_softmax": lambda x, scale, dim: torch.softmax(single(x) * scale, dim),
        "large_logsumexp": lambda x, scale, dim: torch.logsumexp(single(x) * scale, dim) / scale,
        "large_log_softmax": lambda x, scale, dim: torch.log_softmax(single(x) * scale, dim) / scale,
    },
    number_and_dim,
)


def make_source(choices: Choices, dynamic: bool) -> Source:
    source = USUAL.source(choices, dynamic)
    if choices.below(3) == 0:
        source = replace(source, dtype=choices.pick((torch.bfloat16, torch.float16)), special=False)
    if source.dtype is torch.int64 and choices.below(2):
        return replace(source, values=LARGE)
    if source.dtype.is_floating_point and choices.below(2):
        values: tuple[float, ...] = (*NUMBERS, *(-n for n in NUMBERS), -0.0, 0.0)
        return replace(source, values=values)
    return source


# Calls that eager refuses for their dtypes; `w` is an integer tensor of the same shape as the float `x`.
ILLEGAL: dict[str, Callable[[X, X], X]] = {
    "product_of_dtypes": lambda x, w: torch.mm(_flat(x), _flat(w).T),
    "batched_product_of_dtypes": lambda x, w: torch.bmm(_flat(x)[None], _flat(w).T[None]),
    "linear_of_dtypes": lambda x, w: F.linear(_flat(x), _flat(w)),
    "dot_of_dtypes": lambda x, w: torch.dot(x.reshape(-1), w.reshape(-1)),
    "addmm_of_dtypes": lambda x, w: torch.addmm(x.reshape(-1)[:1], _flat(w), _flat(x).T),
    "convolution_of_dtypes": lambda x, w: F.conv1d(_flat(x)[None], _flat(w).unsqueeze(-1)),
    "max_pool_of_integers": lambda x, w: F.max_pool2d(_flat(w)[None], 1),
    "average_pool_of_integers": lambda x, w: F.avg_pool1d(_flat(w), 1),
    "adaptive_pool_of_integers": lambda x, w: F.adaptive_avg_pool2d(_flat(w)[None], 1),
    "softmax_of_integers": lambda x, w: torch.softmax(w, -1),
    "mean_of_integers": lambda x, w: w.mean(),
    "layer_norm_of_integers": lambda x, w: F.layer_norm(w, w.shape[-1:]),
    "bits_of_floats": torch.bitwise_and,
    "shift_of_floats": lambda x, w: x << w,
    "difference_of_bools": lambda x, w: (x > 0) - (w > 0),
    "negative_bool": lambda x, w: -(w > 0),
    "index_of_floats": lambda x, w: w[x],
    "gather_of_floats": lambda x, w: x.gather(-1, x * 0),
    "rows_of_floats": lambda x, w: F.embedding(x, _flat(x)),
    "scatter_of_dtypes": lambda x, w: x.scatter(-1, w * 0, w),
    "index_put_of_dtypes": lambda x, w: x.index_put((w * 0,), w),
    "float_to_integers_in_place": lambda x, w: w.clone().mul_(x),
    "root_of_integers_in_place": lambda x, w: w.clone().sqrt_(),
    "silu_of_integers": lambda x, w: F.silu(w),
    "gelu_of_integers": lambda x, w: F.gelu(w),
    "cross_of_dtypes": lambda x, w: torch.lerp(x, w, 0.5),
}


def _flat(x: X) -> X:
    return x.reshape(-1, x.shape[-1])


def add_illegal_call(program: Program, number: int) -> None:
    """Ends the program with a call that eager refuses, where one fits."""
    choices = Choices(number)
    values = program.run(program.inputs(), eager=True, everything=True)
    floats = [n for n, v in enumerate(values) if v.is_floating_point() and v.dim() and v.numel()]
    if not floats:
        return
    operand = choices.recent(floats)
    step = Step(choices.pick(sorted(ILLEGAL)), (operand,), (choices.pick((torch.int64, torch.int32)),))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ALL[step.op].function(values[operand], *step.arguments)
    except (RuntimeError, IndexError, TypeError, NotImplementedError) as error:
        program.refusal = f"{type(error).__name__}: {error}"
        program.steps.append(step)
        program.outputs = [len(values)]


def _refused(function: Callable[[X, X], X]) -> Op:
    return Op(lambda x, dtype: function(x, x.abs().clamp(max=3).nan_to_num(0).to(dtype)), ("float",), number, "never")


ALL = OPS | NEW | {name: _refused(function) for name, function in ILLEGAL.items()}
# What is most likely to be wrong, once more.
OFTEN = ("through_integer", "inverse_of_integer", "threshold_integer", "select_other", "slice_other", "equals_full",
         "fmod_number", "floor_number", "large_softmax", "large_logsumexp", "large_log_softmax")  # fmt: skip
LANGUAGE = Language(
    ALL,
    [*sorted(OPS), *3 * sorted(NEW), *3 * OFTEN],
    make_source,
    examples=(11, 3, 1, 29),
    largest=2**63 - 1,
)
