"""The statements that programs of `aliasing` are made of, each drawn for the tensors that exist so far."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import prod

import torch

Values = dict[str, torch.Tensor]


def draw(rng: random.Random, values: Values, own: set[str]) -> str | None:
    """A statement over some of the values, or None where the one drawn does not fit. It may fail in eager."""
    name = rng.choice(sorted(values)[-5:] if rng.random() < 0.7 else sorted(values))
    new = f"v{100 + len(values)}"
    kind = rng.random()
    if kind < 0.45:
        text = _call(rng, rng.choice(_VIEWS), name, values)
        return f"{new} = {text}" if text else None
    if kind < 0.85:
        return _call(rng, rng.choice(_WRITES), name, values)
    if kind < 0.9:
        text = _call(rng, rng.choice(_IN_PLACE_VIEWS), name, values) if name in own else None
        return text
    if kind < 0.95:
        own.add(new)
        return f"{new} = {_call(rng, rng.choice(_COMPUTES), name, values)}"
    return _branch(rng, name, new, values[name])


Draw = Callable[[random.Random, str, torch.Tensor, Values], "str | None"]


def _call(rng: random.Random, rule: Draw, name: str, values: Values) -> str | None:
    return rule(rng, name, values[name], values)


def _dim(rng: random.Random, x: torch.Tensor) -> int:
    return rng.randrange(-x.dim(), x.dim()) if x.dim() else 0


def _index(rng: random.Random, x: torch.Tensor) -> str:
    """Brackets of integers, slices with steps, None and ellipses."""
    parts = []
    for size in x.shape:
        kind = rng.random()
        if kind < 0.25 and size:
            parts.append(str(rng.randrange(-size, size)))
        elif kind < 0.6:
            parts.append(
                f"{rng.randrange(0, 3)}:{rng.choice(['', str(rng.randrange(-2, 5))])}:{rng.choice(['', 1, 2])}"
            )
        else:
            parts.append(":")
        if rng.random() < 0.1:
            parts.append("None")
    cut = rng.randrange(len(parts) + 1)
    parts = parts[:cut] if rng.random() < 0.5 else ["...", *parts[cut:]]
    return ", ".join(parts) or "..."


def _shape(rng: random.Random, x: torch.Tensor) -> list[int]:
    """Another shape of as many elements."""
    left, shape = x.numel(), []
    while left > 1 and len(shape) < 3:
        size = rng.choice([d for d in range(1, left + 1) if left % d == 0])
        shape.append(size)
        left //= size
    return [*shape, left] if left > 1 or not shape else shape


def _expanded(rng: random.Random, x: torch.Tensor) -> list[int]:
    shape = [rng.choice([size, 3]) if size == 1 else size for size in x.shape]
    return [*([rng.choice([1, 2])] if rng.random() < 0.4 else []), *shape]


def _strided(rng: random.Random, n: str, x: torch.Tensor, values: Values) -> str | None:
    memory = x.untyped_storage()
    whole = (t for t in values.values() if t.untyped_storage().data_ptr() == memory.data_ptr() and t.is_contiguous())
    if not any(t.numel() * t.element_size() == memory.nbytes() for t in whole):
        return None  # it would speak of memory around an argument, which only the caller knows
    size, stride = rng.choice([((2,), (1,)), ((2, 2), (1, 2)), ((2, 1), (1, 1)), ((1, 2), (2, 1))])
    return f"{n}.as_strided({size}, {stride}{rng.choice(['', ', 0', ', 1'])})"


def _other(rng: random.Random, values: Values) -> str:
    return rng.choice(sorted(values))


# What they return for these arguments has the elements of theirs: a copy, or a view.
_IDLE = (
    *("torch.channel_shuffle({}, 1)", "torch.channel_shuffle({}, 2)", "F.pixel_shuffle({}, 1)", "F.pad({}, (0, 0))"),
    *(
        "F.pixel_unshuffle({}, 1)",
        "{}.roll(0, 0)",
        "torch.rot90({}, 0)",
        "{}.flip(())",
        "torch.cat([{}])",
        "{}.tile(1)",
    ),
    *("torch.hstack([{}])", "torch.column_stack([{}])", "torch.diff({}, n=0)", "torch.matrix_power({}, 1)"),
    *("{}.repeat_interleave(1, 0)", "F.max_pool1d({}, 1)", "F.avg_pool2d({}, 1)"),
)


_VIEWS: list[Draw] = [
    lambda r, n, x, v: r.choice(_IDLE).format(n),
    *[lambda r, n, x, v: f"{n}[{_index(r, x)}]"] * 6,
    lambda r, n, x, v: f"{n}.select({_dim(r, x)}, 0)",
    lambda r, n, x, v: f"{n}.narrow({_dim(r, x)}, {r.randrange(2)}, {r.randrange(1, 3)})",
    lambda r, n, x, v: f"{n}.unsqueeze({r.randrange(-x.dim() - 1, x.dim() + 1)})",
    lambda r, n, x, v: f"{n}.squeeze({r.choice(['', _dim(r, x)])})",
    lambda r, n, x, v: f"{n}.transpose({_dim(r, x)}, {_dim(r, x)})",
    lambda r, n, x, v: f"{n}.permute({r.sample(range(x.dim()), x.dim())})",
    lambda r, n, x, v: f"{n}.{r.choice(['T', 'mT', 'H', 'data', 'real'])}" if x.dim() == 2 else f"{n}.data",
    lambda r, n, x, v: f"{n}.{r.choice(['movedim', 'swapaxes', 'swapdims'])}({_dim(r, x)}, {_dim(r, x)})",
    *[lambda r, n, x, v: f"{n}.{r.choice(['view', 'reshape'])}({_shape(r, x)})"] * 3,
    lambda r, n, x, v: f"{n}.{r.choice(['flatten', 'ravel', 'contiguous', 'detach', 'cpu', 'positive', 'conj'])}()",
    lambda r, n, x, v: f"{n}.unflatten({_dim(r, x)}, (-1, {r.choice([1, 2])}))",
    *[lambda r, n, x, v: f"{r.choice([f'{n}.expand', f'{n}.broadcast_to'])}({_expanded(r, x)})"] * 2,
    lambda r, n, x, v: f"{n}.{r.choice(['expand_as', 'view_as', 'type_as', 'reshape_as'])}({_other(r, v)})",
    lambda r, n, x, v: f"torch.broadcast_tensors({n}, {_other(r, v)})[0]",
    lambda r, n, x, v: f"{n}.to({r.choice([x.dtype, torch.float32])})",
    lambda r, n, x, v: f"F.{r.choice(['dropout', 'alpha_dropout', 'feature_alpha_dropout'])}({n}, 0.5, False)",
    lambda r, n, x, v: f"torch.{r.choice(['chunk', 'unsafe_chunk', 'tensor_split'])}({n}, 2, {_dim(r, x)})[-1]",
    lambda r, n, x, v: f"torch.{r.choice(['split', 'unsafe_split'])}({n}, {r.randrange(1, 3)}, {_dim(r, x)})[-1]",
    lambda r, n, x, v: f"{n}.unbind({_dim(r, x)})[{r.choice([0, -1])}]",
    lambda r, n, x, v: f"{n}.diagonal({r.randrange(-1, 2)}, {_dim(r, x)}, {_dim(r, x)})",
    *[lambda r, n, x, v: f"{n}.unfold({_dim(r, x)}, {r.randrange(1, 3)}, {r.randrange(1, 4)})"] * 2,
    *[_strided] * 2,
    lambda r, n, x, v: f"torch.atleast_{r.randrange(1, 4)}d({n})",
    lambda r, n, x, v: f"torch.atleast_2d({n}, {_other(r, v)})[0]",
    lambda r, n, x, v: f"torch.meshgrid({n}, {n}, indexing='ij')[0]" if x.dim() == 1 else None,
    lambda r, n, x, v: f"torch.einsum('ij->ji', {n})" if x.dim() == 2 else None,
    lambda r, n, x, v: f"torch.ops.aten.{r.choice(['alias', 'lift_fresh', 'detach'])}.default({n})",
    lambda r, n, x, v: f"torch.ops.aten._unsafe_view.default({n}, {_shape(r, x)})",
    lambda r, n, x, v: f"torch.{r.choice(['hsplit', 'vsplit'])}({n}, 1)[0]",
    lambda r, n, x, v: f"torch.view_as_real(torch.view_as_complex({n}))",
    lambda r, n, x, v: f"torch.native_dropout({n}, 0.5, False)[0]",
]


def _number(rng: random.Random, x: torch.Tensor) -> str:
    if x.dtype is torch.int64:
        return str(rng.randrange(-3, 4))
    return rng.choice(["1e-3", "1e8", "float('inf')", "float('nan')", "-0.0", "0.25", "2.0", "-1.5"])


def _source(rng: random.Random, x: torch.Tensor, values: Values) -> str:
    """A new tensor that may be written to one like `x`."""
    fitting = [k for k, v in sorted(values.items()) if v.dtype == x.dtype and _fits(v.shape, x.shape)]
    return f"({rng.choice(fitting)} * 1)" if fitting else _number(rng, x)


def _fits(shape: torch.Size, target: torch.Size) -> bool:
    pairs = zip(reversed(shape), reversed(target), strict=False)
    return len(shape) <= len(target) and all(a in (1, b) for a, b in pairs) and prod(shape) > 0


def _places(rng: random.Random, size: int, distinct: bool) -> str:
    count = rng.randrange(1, size + 1)
    return f"torch.tensor({rng.sample(range(size), count) if distinct else [rng.randrange(size)]})"


def _indexed(rng: random.Random, n: str, x: torch.Tensor, values: Values) -> str | None:
    if not x.numel() or not x.dim():
        return None
    at, c = _places(rng, x.shape[0], True), _number(rng, x)
    return rng.choice(
        [
            f"{n}[{at}] = {c}",
            f"{n}[{at}] += {rng.choice([1, 2])}",
            f"{n}.index_put_(({at},), torch.tensor({c}, dtype={x.dtype}))",
            f"{n}.index_fill_(0, {at}, {c})",
            f"{n}.scatter_(0, torch.zeros({[1] * x.dim()}, dtype=torch.int64), {c})",
            f"{n}.index_copy_(0, {at}, {n}[{at}] * 2)",
            f"{n}.index_add_(0, {at}, {n}[{at}] * 2)",
            f"{n}[{n} > 0] = {c}",
        ]
    )


_WRITES: list[Draw] = [
    lambda r, n, x, v: f"{n}.add_({r.choice([1, 2, -4])})",
    lambda r, n, x, v: f"{n}.mul_({r.choice([2, -2])})",
    lambda r, n, x, v: f"{n}.{r.choice(['neg_', 'relu_', 'zero_', 'abs_'])}()",
    lambda r, n, x, v: f"{n}.fill_({_number(r, x)})",
    *[lambda r, n, x, v: f"{n}.copy_({_source(r, x, v)})"] * 2,
    lambda r, n, x, v: f"{n}.copy_({_other(r, v)})",
    lambda r, n, x, v: f"{n}.masked_fill_({n} > 0, {_number(r, x)})",
    lambda r, n, x, v: f"{n}.clamp_(max={_number(r, x)})",
    *[lambda r, n, x, v: f"{n}[{_index(r, x)}] = {_number(r, x)}"] * 3,
    lambda r, n, x, v: f"{n}[{_index(r, x)}] = {_source(r, x, v)}",
    lambda r, n, x, v: f"{n}[{_index(r, x)}] *= 2",
    lambda r, n, x, v: f"{n}.sub_({_source(r, x, v)})",
    lambda r, n, x, v: f"torch.mul({_source(r, x, v)}, 2, out={n})",
    lambda r, n, x, v: f"torch.add({n}, 1, out={n})",
    lambda r, n, x, v: f"torch.add({n}, {n}.flip({list(range(x.dim()))}), out={n})",
    lambda r, n, x, v: f"F.{r.choice(['relu', 'hardtanh', 'threshold'])}({n}, inplace=True)".replace(
        f"threshold({n}", f"threshold({n}, 0.5, 2"
    ),
    lambda r, n, x, v: f"{n}.{r.choice(['tril_', 'triu_'])}()" if x.dim() >= 2 else None,
    lambda r, n, x, v: f"{n}.fill_diagonal_(2)" if x.dim() == 2 else None,
    lambda r, n, x, v: f"{n}.data.add_(1)",
    lambda r, n, x, v: f"{n}.expand({_expanded(r, x)}).mul_(2)",
    *[_indexed] * 4,
]

_IN_PLACE_VIEWS: list[Draw] = [
    lambda r, n, x, v: f"{n}.squeeze_()",
    lambda r, n, x, v: f"{n}.unsqueeze_({r.randrange(-x.dim() - 1, x.dim() + 1)})",
    lambda r, n, x, v: f"{n}.{r.choice(['transpose_', 'swapaxes_', 'swapdims_'])}({_dim(r, x)}, {_dim(r, x)})",
    lambda r, n, x, v: f"{n}.t_()",
    lambda r, n, x, v: f"{n}.resize_({list(x.shape)})",
]

_COMPUTES: list[Draw] = [
    lambda r, n, x, v: f"{n} * {r.choice([1, 2, -2])}",
    lambda r, n, x, v: f"{n} + {r.choice([0, 1])}",
    lambda r, n, x, v: f"{n}.clone()",
    lambda r, n, x, v: f"torch.where({n} > 0, {n}, {_number(r, x)})",
    lambda r, n, x, v: f"torch.cat([{n}, {n}])" if x.dim() else f"{n} * 2",
    lambda r, n, x, v: f"torch.full_like({n}, {_number(r, x)})",
]


def _branch(rng: random.Random, n: str, new: str, x: torch.Tensor) -> str | None:
    """Control flow whose functions write to what they made themselves."""
    if not x.numel() or not x.dim():
        return None
    write = rng.choice(["u.add_(1)", "u[0] = 2", "u.reshape(-1)[::2].mul_(2)", "u.expand_as(u).neg_()", "u.T.fill_(1)"])
    if rng.random() < 0.4:
        return (
            f"def body(t):\n    u = t * 2\n    {write.replace('u[0]', 'u[...]')}\n    return u\n{new} = map_(body, {n})"
        )
    return (
        f"def yes(t):\n    u = t * 2\n    {write}\n    return u\n"
        f"def no(t):\n    return t + 1\n{new} = cond({n}.reshape(-1)[0] > 0, yes, no, ({n},))"
    )
