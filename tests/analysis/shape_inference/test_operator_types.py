"""Operators by their own kernels: what is known, what is not, what cannot be."""

from __future__ import annotations

from typing import Any

import pytest
import sympy
import torch

from ingot.analysis.shape_inference import TensorType, TupleType, join
from ingot.analysis.shape_inference.lattice import UNKNOWN, NumberType, contains, widen
from ingot.analysis.shape_inference.operator_types import InfeasibleTypes, UnknownReason, answer, result_type
from ingot.torch_internals import SymbolicRun, UnsupportedOperatorException

aten = torch.ops.aten
CPU = torch.device("cpu")
n, m, k = sympy.symbols("n m k", integer=True)


def f32(*dims: Any) -> TensorType:
    return TensorType(torch.float32, CPU, dims)


ANY = TensorType(torch.float32, CPU, None)


@pytest.mark.parametrize(
    ("function", "args", "wanted"),
    [
        # What torch's own pass types as (2, 3), and a vector's nonzero as rank 1, and a list as a tensor.
        (aten.matmul.default, (f32(2, 3), f32(3, 5)), "f32[2, 5]"),
        (aten.nonzero.default, (f32(5),), "i64[?, 1]"),
        # torch's own fake kernel slices the shape at -1.
        (aten.unique_consecutive.default, (f32(5), True, True, -1), "(f32[?], i64[5], i64[?])"),
        (aten.chunk.default, (f32(4, 3), 2), "(f32[2, 3], f32[2, 3])"),
        (aten.add.Tensor, (f32(None), f32(3)), "f32[3]"),
        (aten.add.Tensor, (f32(n), f32(n)), "f32[n]"),
        (aten.add.Tensor, (f32(None), f32(n)), "f32[?]"),
        (aten.add.Tensor, (f32(n, 3), f32(1, 3)), "f32[n, 3]"),
        (aten.mm.default, (f32(None, 3), f32(3, n)), "f32[?, n]"),
        (aten.cat.default, ([f32(n, 2), f32(3, 2)],), "f32[n + 3, 2]"),
        (aten.view.default, (f32(n, 4), [-1, 2]), "f32[2*n, 2]"),
        (aten.squeeze.dim, (f32(1, n), 0), "f32[n]"),
        (aten.relu.default, (ANY,), "f32[…]"),
        (aten.sum.default, (ANY,), "f32[]"),
        (aten.mm.default, (ANY, f32(3, 5)), "f32[?, 5]"),
        # Two unknown dims must fit at once before the kernel says anything.
        (aten.addmm.default, (f32(2, 3), ANY, f32(2, 3)), "f32[2, 3]"),
        (aten.conv2d.default, (f32(None, 3, n, 8), f32(4, 3, 3, 3)), "f32[?, 4, n - 2, 6]"),
        (aten.select.int, (f32(4, n), 0, NumberType(int)), "f32[n]"),
        # Kernels of torch that are written for numbers, or slip on empty tensors: asked as capture asks them.
        (aten.matmul.default, (f32(n, m, 3, 4), f32(n, m, 4, 5)), "f32[n, m, 3, 5]"),
        (aten.matmul.default, (f32(n, 2, m, k), f32(2, k, 5)), "f32[n, 2, m, 5]"),
        (aten.einsum.default, ("bqd,bkd->bqk", [f32(n, m, 4), f32(n, k, 4)]), "f32[n, m, k]"),
        (aten.pad.default, (f32(n, m), [1, 2]), "f32[n, 3 + m]"),
        (aten.pad.default, (f32(n, m), [-1, -2]), "f32[n, -3 + m]"),
        (aten.upsample_nearest2d.vec, (f32(n, 3, m, 8), None, [2.0, 2.0]), "f32[n, 3, 2*m, 16]"),
        (aten.conv_transpose2d.input, (f32(n, 3, m, 4), f32(3, 4, 2, 2), None, [2, 2]), "f32[n, 4, 2*m, 8]"),
        # One expression where there is room for the slice, and another where there is not.
        (aten.slice.Tensor, (f32(n, 3), 0, 0, -1), "f32[max(0, -1 + n), 3]"),
        (aten.slice.Tensor, (f32(n, 3), 0, 0, 4), "f32[min(4, n), 3]"),
        # Each was found to be 1 where all are, and they only have to be the same.
        (aten.stack.default, ([f32(None), f32(None), f32(None)], 1), "f32[?, 3]"),
        # A number, unlike a size, may be -1, which keeps the dim that is there.
        (aten.expand.default, (f32(1, 4), [NumberType(int, n), 4]), "f32[?, 4]"),
    ],
)
def test_result_types(function: Any, args: tuple[Any, ...], wanted: str) -> None:
    found = str(result_type(function, args, {}))
    assert found.replace("-2 + n", "n - 2").replace("3 + n", "n + 3") == wanted


@pytest.mark.parametrize("channels", [0, m])
def test_a_kernel_that_reads_past_the_end_is_not_asked(channels: Any) -> None:
    """What batch_norm finds where its input has no dim of channels is any number, or the end of the process."""
    rest = (True, 0.1, 1e-5, True)
    known = answer(aten.batch_norm.default, (f32(n), None, None, f32(channels), f32(channels), *rest), {})
    assert known.unknown_reason in (UnknownReason.NO_KERNEL, UnknownReason.NO_SIZES)
    run = SymbolicRun({"n": (0, 0, None)})
    x, empty = (run.tensor([size], torch.float32, CPU) for size in (n, 0))
    with pytest.raises(UnsupportedOperatorException):
        run.call(aten.batch_norm.default, [x, None, None, empty, empty, *rest], {})


def test_a_dim_that_may_be_one_is_squeezed_or_not() -> None:
    assert str(result_type(aten.squeeze.dim, (f32(None, 3), 0), {})) == "f32[…]"


def test_bounds_of_a_symbol_count() -> None:
    assert str(result_type(aten.squeeze.dim, (f32(n, 3), 0), {}, {n: (2, None)})) == "f32[n, 3]"


@pytest.mark.parametrize(
    ("function", "args"),
    [(aten.mm.default, (f32(2, 3), f32(4, 5))), (aten.mm.default, (f32(n, m, 4), f32(4, 5)))],
)
def test_what_no_sizes_can_do_is_refused(function: Any, args: tuple[Any, ...]) -> None:
    with pytest.raises(InfeasibleTypes):
        result_type(function, args, {})


def test_a_rank_that_was_not_shown_impossible_counts() -> None:
    """Elements are counted over all dims: that no rank but 0 works cannot be found by one size at a time."""

    def counted(x: torch.Tensor) -> torch.Tensor:
        torch._check(x.dim() == 0 or x.numel() == 77)
        return x * 2 if x.dim() == 0 else x.flatten()

    found = result_type(counted, (ANY,), {})
    assert contains(found, torch.zeros(())) and contains(found, torch.zeros(77))


def test_symbols_that_an_answer_ties_together_change_together() -> None:
    """A matrix is found square before it is found too large: only a change of both dims leads on."""

    def of_squares(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        torch._check(x.dim() >= 2)
        torch._check(x.shape[-1] == x.shape[-2])
        torch._check(x.shape[-1] == y.shape[0])
        torch._check(x.dim() == 2 or x.shape[0] == 2)
        return x.sum((-2, -1))

    found = result_type(of_squares, (ANY, f32(5)), {})
    assert contains(found, torch.zeros(())) and contains(found, torch.zeros(2))


def test_how_many_values_there_are_hangs_on_a_size() -> None:
    found = result_type(torch.split, (ANY, 5), {})
    assert all(contains(found, torch.zeros(size, 2).split(5)) for size in (3, 5, 7, 20))


def test_operator_that_reads_values_is_not_refused() -> None:
    places = TensorType(torch.int64, CPU, (3,))
    assert result_type(torch.tensor_split, (f32(5, 5, 5), places), {}) is UNKNOWN


def test_what_the_meta_device_takes_and_fakes_refuse() -> None:
    """On the meta device a convolution takes a bias of any size."""
    found = result_type(aten.conv2d.default, (f32(1, 3, 4, 4), f32(3, 3, 3, 3), f32(None)), {})
    assert str(found) == "f32[1, 3, 2, 2]"


def test_zero_size_alone_does_not_prove_validity() -> None:
    """With no elements the checks are skipped, and what comes of it says nothing of other sizes."""

    def picky(x: torch.Tensor) -> torch.Tensor:
        if x.numel() == 0:
            return x.new_empty(3)
        torch._check(x.shape[0] == 4)
        torch._check(x.shape[1] == 6)
        return x.sum(0)

    found = result_type(picky, (f32(None, None),), {})
    assert contains(found, torch.zeros(3)) and contains(found, torch.zeros(6))


def test_attention_whose_values_have_any_rank() -> None:
    """Attention over no values at all has the rank of the queries; otherwise values may add dims."""
    attention = torch.nn.functional.scaled_dot_product_attention
    found = result_type(attention, (f32(4, 3, 8), f32(4, 6, 8), ANY), {})
    assert contains(found, torch.zeros(4, 3, 8)) and contains(found, torch.zeros(1, 4, 3, 8))


def test_join() -> None:
    assert str(join(f32(2, n), f32(3, n))) == "f32[?, n]"
    assert str(join(f32(2), f32(2, 3))) == "f32[…]"
    assert join(f32(2), f32(2)) == f32(2)
    both = join(f32(2), TensorType(torch.int64, CPU, (2,)))
    assert both == TensorType(None, CPU, (2,))
    assert join(TupleType((f32(1), f32(2))), TupleType((f32(1), f32(3)))) == TupleType((f32(1), f32(None)))
    assert join(NumberType(int, 3), NumberType(int, 4)) == NumberType(int)
    assert join(f32(1), NumberType(int, 1)) is UNKNOWN
    for one in (f32(2, n), NumberType(int, 3), UNKNOWN):
        assert join(one, widen(one)) == widen(one) == join(widen(one), one)


def test_contains() -> None:
    x = torch.zeros(2, 3)
    assert contains(f32(2, 3), x) and contains(f32(None, 3), x) and contains(ANY, x) and contains(UNKNOWN, x)
    assert contains(f32(n, 3), x, {n: 2}) and not contains(f32(n, 3), x, {n: 4})
    assert not contains(f32(2), x) and not contains(f32(2, 4), x) and not contains(f32(2, 3), x.long())
