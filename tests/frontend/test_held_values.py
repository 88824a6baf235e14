"""What a model holds besides dense weights: sparse tensors, flags in buffers, globals of any kind; and profiling."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.errors import DataDependentError, UntraceableError


class _Raises:
    """Stands for a package that is not installed, and says so whenever it is used."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("not installed")


MISSING = _Raises()


class _NamesMissing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if MISSING is not None else x


def test_a_global_that_raises_on_every_attribute() -> None:
    x = torch.randn(3)
    assert torch.equal(ingot.capture(_NamesMissing(), (x,))(x), x + 1)


# ---------------------------------------------------------------------- sparse tensors


class _Sparse(nn.Module):
    def __init__(self, how: str, layout: str = "coo") -> None:
        super().__init__()
        matrix = torch.tensor([[0.0, 2, 0, 1], [0, 0, 0, 0], [3, 0, -1, 0]])
        self.register_buffer("matrix", matrix.to_sparse() if layout == "coo" else matrix.to_sparse_csr())
        self.how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        m: Any = self.matrix
        if self.how == "unused":
            return x * 2
        if self.how == "sparse.mm":
            return torch.sparse.mm(m, x)
        if self.how == "matmul":
            return torch.matmul(m, x)
        if self.how == "addmm":
            return torch.addmm(x.new_ones(3, 2), m, x, beta=2)
        if self.how == "mv":
            return torch.mv(m, x[:, 0])
        if self.how == "transposed":
            return torch.mm(m.t(), x[:3])
        if self.how == "dense":
            return m.to_dense() @ x
        if self.how == "values":
            return m.coalesce().values().sum() * x
        return (m * x.mT).to_dense()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("layout", ["coo", "csr"])
@pytest.mark.parametrize("how", ["unused", "sparse.mm", "matmul", "addmm", "mv", "transposed", "dense", "values"])
def test_a_sparse_buffer(how: str, layout: str) -> None:
    if (how, layout) in (("values", "csr"),):
        pytest.skip("has no coalesce")
    model, x = _Sparse(how, layout), torch.randn(4, 2)
    buffer = model.matrix
    program = ingot.capture(model, (x,))
    assert model.matrix is buffer
    torch.testing.assert_close(program(x), model(x))
    torch.testing.assert_close(ingot.compile(program)(x), model(x))


def test_another_operator_on_a_sparse_buffer_is_an_error_that_names_it() -> None:
    with pytest.raises(UntraceableError, match=r"aten\.mul\.Tensor takes a sparse tensor"):
        ingot.capture(_Sparse("product"), (torch.randn(4, 3),))


# ---------------------------------------------------------------------- values of buffers


class _Flag(nn.Module):
    def __init__(self, value: Any, persistent: bool = True) -> None:
        super().__init__()
        self.register_buffer("flag", torch.tensor(value), persistent=persistent)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if (self.flag > 1).all() else x - 1


@pytest.mark.parametrize("value", [3, 0, [2.5], [0.5], True])
def test_a_branch_on_a_buffer_takes_its_value(value: Any) -> None:
    model, x = _Flag(value), torch.randn(3)
    program = ingot.capture(model, (x,))
    assert torch.equal(program(x), model(x))
    assert torch.equal(ingot.compile(program)(x), model(x))
    assert str(program).count("_assert_async") == 1
    assert "_assert_async" not in str(ingot.capture(_Flag(value, persistent=False), (x,)))


def test_a_buffer_that_was_read_may_not_change() -> None:
    program = ingot.capture(_Flag(3), (torch.randn(3),))
    module: Any = program.module()
    module.flag.fill_(0)
    with pytest.raises(RuntimeError, match="captured with flag = 3"):
        module(torch.randn(3))


class _Counts(_Flag):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2 if self.flag > 1 else x - 1
        self.flag += 1
        return y


def test_a_buffer_that_forward_writes_is_not_known() -> None:
    with pytest.raises(DataDependentError, match="buffer that forward also writes"):
        ingot.capture(_Counts(3), (torch.randn(3),))


def test_a_buffer_of_several_numbers_is_not_known() -> None:
    with pytest.raises(DataDependentError):
        ingot.capture(_Flag([2.0, 3.0]), (torch.randn(3),))


class _Repeats(_Flag):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.repeat(int(self.flag), 1)


def test_a_buffer_as_a_number() -> None:
    model, x = _Repeats(3), torch.randn(4)
    assert torch.equal(ingot.capture(model, (x,))(x), model(x))


# ---------------------------------------------------------------------- profiling


def test_named_stretches_of_time_leave_no_node() -> None:
    def stretch(x: torch.Tensor) -> torch.Tensor:
        with torch.profiler.record_function("outer"), torch.autograd.profiler.record_function("inner"):
            return x * 2

    x = torch.randn(3)
    program = ingot.capture(stretch, (x,))
    assert [node.op for node in program.graph.nodes].count("call_function") == 1
    assert torch.equal(ingot.compile(program)(x), x * 2)
