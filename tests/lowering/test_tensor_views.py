"""Views as index arithmetic: chains of them against torch, over memory and over what is not computed yet."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ingot.lowering import tensor_views
from ingot.lowering.index_expr import Size, evaluate, symbol
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.loop_ir_printer import print_body
from ingot.lowering.tensor_views import Deferred, Index, Strided, TensorValue, contiguous_strides
from tests.lowering.python_handler import run

View = tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[TensorValue], TensorValue]]


def hint(size: Size) -> int:
    assert isinstance(size, int)
    return size


def both_kinds(shape: tuple[int, ...]) -> list[TensorValue]:
    """Elements numbered in row-major order: in memory, and as a function of the index."""
    memory = TensorValue(shape, "int64", Strided("x", 0, contiguous_strides(shape)))
    lazy = TensorValue(shape, "int64", Deferred(lambda ops, index: memory.load(ops, index)))
    return [memory, lazy]


def elements(tensor: TensorValue, memory: dict[str, list[int]]) -> torch.Tensor:
    """Every element, loaded through a symbolic index and worked out by Python."""
    index, loops = tensor_views.loop_variables(tensor.shape, range(tensor.rank))
    ops = BodyBuilder()
    body = ops.finish([tensor.load(ops, index)])
    shape = [hint(size) for size in tensor.shape]
    made = torch.zeros(shape, dtype=torch.int64)
    for place in torch.cartesian_prod(*(torch.arange(n) for n in shape)).reshape(-1, len(shape)) if shape else [()]:
        at = tuple(int(p) for p in place)
        moving = [at[d] for d in range(len(shape)) if shape[d] != 1]
        numbers = {name: number for (name, _), number in zip(loops, moving, strict=True)}
        made[at] = run(body, memory, numbers)[0]
    return made


@st.composite
def views(draw: st.DrawFn, shape: tuple[int, ...]) -> View:
    rank = len(shape)
    kinds = ["reshape", "insert", "expand"]
    if rank:
        kinds += ["permute", "slice", "select"]
    match draw(st.sampled_from(kinds)):
        case "reshape":
            new: list[int] = []
            rest = int(torch.Size(shape).numel())
            while rest > 1 and draw(st.booleans()):
                by = draw(st.sampled_from([d for d in range(1, rest + 1) if rest % d == 0]))
                new.append(by)
                rest //= by
            new.append(rest)
            target = tuple(draw(st.permutations(new)))
            return lambda t: t.reshape(target), lambda v: tensor_views.reshape(v, target, hint)
        case "permute":
            order = draw(st.permutations(range(rank)))
            return lambda t: t.permute(*order), lambda v: tensor_views.permute(v, order)
        case "slice":
            dim = draw(st.integers(0, rank - 1))
            start = draw(st.integers(0, max(shape[dim] - 1, 0)))
            step = draw(st.integers(1, 3))
            length = len(range(start, shape[dim], step))
            if draw(st.booleans()):  # the other way round
                last = start + step * (length - 1)
                return (
                    lambda t: t.flip(dim).flip(dim).narrow(dim, 0, shape[dim]).index_select(
                        dim, torch.arange(last, start - 1, -step)
                    ),
                    lambda v: tensor_views.slice_dim(v, dim, last, -step, length),
                )  # fmt: skip
            cut = (slice(None),) * dim + (slice(start, None, step),)
            return lambda t: t[cut], lambda v: tensor_views.slice_dim(v, dim, start, step, length)
        case "select":
            dim = draw(st.integers(0, rank - 1))
            place = draw(st.integers(0, shape[dim] - 1))
            return lambda t: t.select(dim, place), lambda v: tensor_views.select(v, dim, place)
        case "insert":
            dim = draw(st.integers(0, rank))
            return lambda t: t.unsqueeze(dim), lambda v: tensor_views.insert(v, dim)
    wide = (2, *(3 if size == 1 else size for size in shape))
    return lambda t: t.expand(wide), lambda v: tensor_views.expand(v, wide)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(st.data())
def test_chains_of_views_load_the_elements_that_torch_shows(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=0, max_size=3)))
    expected = torch.arange(torch.Size(shape).numel()).reshape(shape)
    memory = {"x": list(range(expected.numel()))}
    found = both_kinds(shape)
    for _ in range(data.draw(st.integers(1, 5))):
        if expected.numel() > 64:
            break
        in_torch, here = data.draw(views(tuple(expected.shape)))
        expected = in_torch(expected)
        found = [here(tensor) for tensor in found]
    for tensor in found:
        assert tensor.shape == tuple(expected.shape)
        assert torch.equal(elements(tensor, memory), expected)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.permutations(range(3)), st.integers(1, 5), st.integers(1, 5))
def test_views_of_dynamic_sizes_hold_at_every_size(order: list[int], rows: int, columns: int) -> None:
    n, m = symbol("n0"), symbol("n1")
    x = TensorValue((n, m, 2), "int64", Strided("x", 0, contiguous_strides((n, m, 2))))
    turned = tensor_views.permute(x, order)
    flat = tensor_views.reshape(
        turned, (tensor_views.product(turned.shape),), lambda size: evaluate(size, {"n0": 7, "n1": 5})
    )
    sizes = {"n0": rows, "n1": columns}
    expected = torch.arange(rows * columns * 2).reshape(rows, columns, 2).permute(*order).reshape(-1)
    ops = BodyBuilder()
    index: Index = (symbol("i0", below=flat.shape[0]),)
    body = ops.finish([flat.load(ops, index)])
    memory = {"x": list(range(expected.numel()))}
    assert [run(body, memory, {**sizes, "i0": i})[0] for i in range(expected.numel())] == expected.tolist()


def test_views_of_memory_stay_memory() -> None:
    (x, lazy) = both_kinds((4, 6))
    assert isinstance(tensor_views.reshape(x, (2, 2, 6), hint).data, Strided)
    assert isinstance(tensor_views.reshape(tensor_views.permute(x, (1, 0)), (3, 2, 4), hint).data, Strided)
    assert isinstance(tensor_views.slice_dim(x, 1, 5, -1, 6).data, Strided)
    assert isinstance(tensor_views.expand(tensor_views.insert(x, 0), (7, 4, 6)).data, Strided)
    assert isinstance(tensor_views.permute(lazy, (1, 0)).data, Deferred)


def test_a_reshape_that_strides_cannot_say_is_computed() -> None:
    (x, _) = both_kinds((4, 6))
    flat = tensor_views.reshape(tensor_views.permute(x, (1, 0)), (24,), hint)
    assert isinstance(flat.data, Deferred)
    assert torch.equal(elements(flat, {"x": list(range(24))}), torch.arange(24).reshape(4, 6).permute(1, 0).reshape(-1))


def test_index_arithmetic_of_a_reshape_cancels() -> None:
    (_, lazy) = both_kinds((4, 6))
    there_and_back = tensor_views.reshape(tensor_views.reshape(lazy, (24,), hint), (4, 6), hint)
    ops = BodyBuilder()
    index, _ = tensor_views.loop_variables((4, 6), (0, 1))
    body = ops.finish([there_and_back.load(ops, index)])
    assert print_body(body) == "%0 = load x[6*i0 + i1]: int64\nyield %0\n"


def test_a_value_that_two_indices_share_is_loaded_once() -> None:
    calls = []

    def load(ops: BodyBuilder, index: Index) -> int:
        calls.append(index)
        return ops.index(index[0])

    x = TensorValue((5,), "int64", Deferred(load))
    ops = BodyBuilder()
    i = symbol("i0", below=5)
    assert x.load(ops, (i,)) == x.load(ops, (i,))
    assert x.load(ops, (i + 1,)) != x.load(ops, (i,))
    assert len(calls) == 2


@pytest.mark.parametrize(("shape", "other"), [((0, 3), (3, 0)), ((2, 0), (0,))])
def test_nothing_may_be_reshaped_to_nothing(shape: tuple[int, ...], other: tuple[int, ...]) -> None:
    for tensor in both_kinds(shape):
        assert tensor_views.reshape(tensor, other, hint).shape == other
