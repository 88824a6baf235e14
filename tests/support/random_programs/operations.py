"""What random programs are made of: every operator, those of `elementwise` among them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from tests.support.random_programs import elementwise  # noqa: F401  registers its operators
from tests.support.random_programs.op_registry import (
    OPS,
    Op,
    Wanted,
    X,
    op,
    table,
    without_sign_of_zero,
)

# ---------------------------------------------------------------------- views


def some_dim(c: Any, x: list[X]) -> tuple[Sequence[Any], Sequence[Wanted]]:
    return (c.below(max(x[0].dim(), 1)),), ()


def new_shape(c: Any, x: list[X]) -> tuple[Sequence[Any], Sequence[Wanted]]:
    """A shape of as many elements, with one size left open where there is one."""
    rest, shape = x[0].numel(), []
    for _ in range(c.below(4)):
        by = c.pick([d for d in (1, 1, 2, 3, 5, 7, 17) if rest and rest % d == 0] or [1])
        shape.append(by)
        rest //= by
    shape.insert(c.below(len(shape) + 1), -1 if x[0].numel() else 0)
    return (tuple(shape),), ()


@op("any", arguments=new_shape)
def reshape(x: X, shape: tuple[int, ...]) -> X:
    return x.reshape(shape)


def some_order(c: Any, x: list[X]) -> tuple[Sequence[Any], Sequence[Wanted]]:
    dims = list(range(x[0].dim()))
    order = []
    while dims:
        order.append(dims.pop(c.below(len(dims))))
    return (tuple(order),), ()


@op("any", arguments=some_order)
def permute(x: X, order: tuple[int, ...]) -> X:
    return x.permute(order)


@op("any")
def flatten_last(x: X) -> X:
    return x.flatten(-2)


@op("any", arguments=some_dim)
def unsqueeze(x: X, dim: int) -> X:
    return x.unsqueeze(dim)


@op("any")
def squeeze(x: X) -> X:
    return x.squeeze(0)


@op("any", arguments=lambda c, x: ((c.pick((2, 3)),), ()))
def expand(x: X, count: int) -> X:
    return x.unsqueeze(0).expand(count, *x.shape)


def some_slice(c: Any, x: list[X]) -> tuple[Sequence[Any], Sequence[Wanted]]:
    return (c.below(max(x[0].dim(), 1)), c.below(3), c.pick((None, -1, 2)), 1 + c.below(3)), ()


@op("any", arguments=some_slice)
def sliced(x: X, dim: int, start: int, stop: int | None, step: int) -> X:
    return x[(slice(None),) * dim + (slice(start, stop, step),)]


@op("any", arguments=lambda c, x: ((c.below(max(x[0].dim(), 1)), c.pick((0, -1))), ()))
def select(x: X, dim: int, place: int) -> X:
    return x.select(dim, place)


@op("any", arguments=some_dim)
def flip(x: X, dim: int) -> X:
    return x.flip(dim)


@op("any", arguments=lambda c, x: ((c.pick((1, -2)), c.below(max(x[0].dim(), 1))), ()))
def roll(x: X, by: int, dim: int) -> X:
    return torch.roll(x, by, dim)


@op("any")
def diagonal(x: X) -> X:
    return x.diagonal(0, -2, -1)


@op("any", arguments=some_dim)
def cat_self(x: X, dim: int) -> X:
    return torch.cat([x, x.neg() if x.dtype is not torch.bool else x], dim)


@op("any", "any", arguments=some_dim)
def cat(x: X, y: X, dim: int) -> X:
    return torch.cat([x, y], dim)


@op("any", "any")
def stack(x: X, y: X) -> X:
    return torch.stack([x, y.to(x.dtype)], -1)


@op("any")
def repeat(x: X) -> X:
    return x.repeat(2, *(1 for _ in x.shape))


@op("any", arguments=lambda c, x: (((c.below(3), c.below(3) - 1),), ()))
def pad(x: X, by: tuple[int, int]) -> X:
    return F.pad(x, by, value=2 if x.dtype is not torch.bool else 1)


@op("any")
def halves(x: X) -> X:
    first, *rest = x.chunk(2, -1)
    return first if not rest else first[..., : rest[0].shape[-1]] + rest[0] if x.dtype is not torch.bool else rest[0]


@op("any", arguments=lambda c, x: ((c.pick((0, 1, -1)),), ()))
def tril(x: X, diagonal: int) -> X:
    return x.tril(diagonal)


# ---------------------------------------------------------------------- reductions


def dim_and_keep(c: Any, x: list[X]) -> tuple[Sequence[Any], Sequence[Wanted]]:
    return (c.below(max(x[0].dim(), 1)), bool(c.below(2))), ()


for _name, _want, _exact, _function in [
    ("sum", "any", "never", torch.sum),
    ("mean", "float", "never", torch.mean),
    ("amax", "any", "keep", without_sign_of_zero(torch.amax)),
    ("amin", "any", "keep", without_sign_of_zero(torch.amin)),
    ("logsumexp", "float", "never", torch.logsumexp),
    ("any", "any", "needs", torch.any),
    ("all", "any", "needs", torch.all),
    ("argmax", "number", "needs", torch.argmax),
    ("argmin", "number", "needs", torch.argmin),
    ("max_values", "any", "keep", without_sign_of_zero(lambda x, dim, keep: x.max(dim, keep).values)),
    ("max_indices", "number", "needs", lambda x, dim, keep: x.max(dim, keep).indices),
    ("var", "float", "never", lambda x, dim, keep: x.var(dim, correction=0, keepdim=keep) if x.numel() else x),
    ("norm", "float", "never", lambda x, dim, keep: torch.sqrt((x * x).sum(dim, keep) + 0.5)),
    ("softmax", "float", "never", lambda x, dim, keep: torch.softmax(x, dim)),
    ("log_softmax", "float", "never", lambda x, dim, keep: torch.log_softmax(x, dim)),
    ("cumsum", "any", "never", lambda x, dim, keep: torch.cumsum(x, dim)),
]:
    OPS[_name] = Op(_function, (_want,), dim_and_keep, _exact)  # type: ignore[arg-type]

table(("any",), "never", {"total": torch.sum})
table(("float",), "never", {"average": lambda x: x.mean((0, -1))})
table(("any",), "keep", {"largest": without_sign_of_zero(torch.amax)})
table(("int",), "keep", {"product": lambda x: (x % 3).prod(-1)})


def norm_weights(c: Any, x: list[X]) -> tuple[Sequence[Any], Sequence[Wanted]]:
    shape = tuple(x[0].shape[-1:])
    return (), ((shape, x[0].dtype, 0), (shape, x[0].dtype, 0))


@op("float", exact="never", arguments=norm_weights)
def layer_norm(x: X, weight: X, bias: X) -> X:
    return F.layer_norm(x, weight.shape, weight, bias, eps=0.5)


@op("float", exact="never")
def rms_norm(x: X) -> X:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 0.5)


@op("float", exact="never")
def group_norm(x: X) -> X:
    return F.group_norm(x, 1, eps=0.5)


# ---------------------------------------------------------------------- products


def linear_weights(c: Any, x: list[X]) -> tuple[Sequence[Any], Sequence[Wanted]]:
    out = c.pick((1, 3, 5, 49))
    return (), (((out, x[0].shape[-1] if x[0].dim() else 1), x[0].dtype, 0), ((out,), x[0].dtype, 0))


@op("float", exact="never", arguments=linear_weights)
def linear(x: X, weight: X, bias: X) -> X:
    return F.linear(x, weight, bias)


@op("float", exact="never", arguments=linear_weights)
def linear_gelu(x: X, weight: X, bias: X) -> X:
    return F.gelu(F.linear(x, weight, bias)) + 1


@op("number", "number", exact="never")
def matmul(x: X, y: X) -> X:
    return x @ y


@op("number", exact="never")
def gram(x: X) -> X:
    return x @ x.mT


def attention_eager(x: X) -> X:
    return x.clone() if _has_no_heads(x) else attention(x)


def causal_attention_eager(x: X) -> X:
    return x.clone() if _has_no_heads(x) else causal_attention(x)


def _has_no_heads(x: X) -> bool:
    """Where torch 2.11 divides by their number, which ends the process."""
    return x.dim() == 4 and x.shape[1] == 0


def attend(q: X, k: X, v: X, *, causal: bool = False) -> X:
    """Attention by its formula: a key that is hidden takes no part, and a row with a nan among its scores is nan.

    Eager's kernel multiplies the hidden keys of a block by 0, which is nan where their values are nan or inf, and gives
    0 for a row of nan.
    """
    if not q.shape[-1] or not q.numel():
        return q.clone()
    shown = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)
    shown = shown.tril() if causal else shown
    scores = torch.where(shown, q @ k.mT / math.sqrt(q.shape[-1]), -math.inf)
    weights = torch.softmax(scores, -1)
    return torch.where(shown.unsqueeze(-1), weights.unsqueeze(-1) * v.unsqueeze(-3), 0).sum(-2)


@op("float", exact="never", eager=attention_eager, meaning=lambda x: attend(x, x * 0.5, x + 1))
def attention(x: X) -> X:
    return F.scaled_dot_product_attention(x, x * 0.5, x + 1)


@op("float", exact="never", eager=causal_attention_eager, meaning=lambda x: attend(x, x, x, causal=True))
def causal_attention(x: X) -> X:
    return F.scaled_dot_product_attention(x, x, x, is_causal=True)


def conv_weights(c: Any, x: list[X]) -> tuple[Sequence[Any], Sequence[Wanted]]:
    channels = x[0].shape[1] if x[0].dim() > 1 else 1
    groups = c.pick([g for g in (1, 1, 2, 3, channels) if g and channels % g == 0] or [1])
    out, kernel = groups * c.pick((1, 2, 5)), c.pick((1, 2, 3))
    spatial = (kernel,) * (x[0].dim() - 2)
    wanted = ((out, channels // groups, *spatial), x[0].dtype, 0), ((out,), x[0].dtype, 0)
    return (1 + c.below(2), c.below(3), 1 + c.below(2), groups), wanted


@op("float", exact="never", arguments=conv_weights)
def conv(x: X, weight: X, bias: X, stride: int, padding: int, dilation: int, groups: int) -> X:
    function = {3: F.conv1d, 4: F.conv2d}[x.dim()]
    return function(x, weight, bias, stride, padding, dilation, groups)


@op("float", exact="keep")
def max_pool(x: X) -> X:
    return F.max_pool2d(x, 2, 1)


@op("float", exact="never")
def avg_pool(x: X) -> X:
    return F.avg_pool2d(x, 2, 1, 1)


# ---------------------------------------------------------------------- indexing


def index_constant(c: Any, x: list[X]) -> tuple[Sequence[Any], Sequence[Wanted]]:
    dim = c.below(max(x[0].dim(), 1))
    high = x[0].shape[dim] if x[0].dim() else 1
    return (dim,), ((c.pick(((3,), (2, 2), (5,))), torch.int64, min(high, 2)),)


@op("any", arguments=index_constant)
def index(x: X, places: X, dim: int) -> X:
    return x[(slice(None),) * dim + (places,)]


@op("any", arguments=index_constant)
def index_select(x: X, places: X, dim: int) -> X:
    return x.index_select(dim, places.flatten().abs())


@op("any", "int")
def take_rows(x: X, places: X) -> X:
    return x[torch.remainder(places.long(), x.shape[0])]


@op("any", "int")
def gather(x: X, places: X) -> X:
    return x.gather(0, torch.remainder(places.long(), x.shape[0]))


@op("any", arguments=index_constant)
def index_put(x: X, places: X, dim: int) -> X:
    y = x.clone()
    y[(slice(None),) * dim + (places.flatten()[:1],)] = 1
    return y


@op("number", "int", exact="never")
def scatter_add(x: X, places: X) -> X:
    at = torch.remainder(places.long(), x.shape[0])
    return x.scatter_add(0, at, torch.ones(at.shape, dtype=x.dtype))


@op("number", exact="needs")
def sort_values(x: X) -> X:
    return x.sort(-1).values + 0  # -0 and 0 are equal: which comes first is open, and the sum has one sign


# ---------------------------------------------------------------------- in place, and branches


@op("any", arguments=some_slice)
def assign_slice(x: X, dim: int, start: int, stop: int | None, step: int) -> X:
    y = x.clone()
    y[(slice(None),) * dim + (slice(start, stop, step),)] = 1
    return y


@op("number", exact="never")
def update_through_view(x: X) -> X:
    y = x.clone()
    turned = y.transpose(0, -1)
    turned.mul_(2)
    y[1:].add_(x[:-1])
    return turned + 1


@op("any", exact="keep")
def shift_in_place(x: X) -> X:
    y = x.clone()
    y[1:] = y[:-1].clone()
    return y


@op("number", mutates=True)
def mutate_reversed(x: X) -> X:
    x.copy_(x.flip(0))
    return x + 1


@op("number", mutates=True)
def mutate(x: X) -> X:
    x.mul_(2)
    x[..., :1] = 1
    return x * 1


@op("float", exact="never", mutates=True)
def mutate_softmax(x: X) -> X:
    x.copy_(torch.softmax(x, 0))
    return x.sum(-1)


def branch_eager(p: X, x: X) -> X:
    return _then(x) if bool(p.any()) else _otherwise(x)


@op("bool", "number", exact="never", eager=branch_eager)
def branch(p: X, x: X) -> X:
    made: X = torch.cond(p.any(), _then, _otherwise, (x,))
    return made


def _then(x: X) -> X:
    return x * 2 + 1


def _otherwise(x: X) -> X:
    return x.flip(0) - 1
