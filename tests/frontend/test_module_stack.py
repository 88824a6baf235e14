"""Hand-written models that each hold one difficulty of arguments or results."""

from __future__ import annotations

import copy
import functools
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from transformers.modeling_outputs import BaseModelOutputWithPooling

import ingot
from ingot.errors import LiteralError
from ingot.ir.signature import InputKind, OutputKind
from tests.frontend.checks import assert_same, check, check_calls

Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Answer:
    score: torch.Tensor
    label: str
    extra: torch.Tensor | None = None


def x(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*(shape or (2, 4)), generator=torch.Generator().manual_seed(0), dtype=dtype)


# ---------------------------------------------------------------------- arguments


class Nested(nn.Module):
    def forward(self, batch: dict[str, Any], pair: Pair, *rest: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
        total = batch["x"] * 2 + batch["more"][0] - batch["more"][1]["deep"]
        return total + pair.left * pair.right + sum(rest) - sum(named.values())


def test_nested_arguments() -> None:
    batch = {"x": x(), "more": [x(), {"deep": x() + 1}]}
    program = check(Nested(), (batch, Pair(x(), x() * 3), x(), x() - 2), {"a": x(), "b": x() * 5})
    assert [i.name for i in program.signature.inputs_of_kind(InputKind.ARGUMENT)][:3] == [
        "batch_x",
        "batch_more_0",
        "batch_more_1_deep",
    ]


def test_dataclass_argument() -> None:
    check(lambda a: a.score * 2 if a.label == "yes" else a.score, (Answer(x(), "yes", x()),))


def test_keyword_only_arguments_in_any_order() -> None:
    class Model(nn.Module):
        def forward(self, *, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            return left - right

    model = Model()
    check_calls(model, [((), {"left": x(), "right": x() * 2}), ((), {"right": x() * 3, "left": x()})])


def test_position_and_keyword_are_interchangeable() -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a - b

    check_calls(f, [((x(), x() * 2), {}), ((x(),), {"b": x() * 3}), ((), {"b": x() * 4, "a": x()})])
    check_calls(f, [((), {"a": x(), "b": x() * 2}), ((x(), x() * 3), {})])


def test_defaults_may_be_left_out() -> None:
    def f(a: torch.Tensor, scale: float = 2.0, bias: torch.Tensor | None = None) -> torch.Tensor:
        return a * scale if bias is None else a * scale + bias

    check(f, (x(),))
    check(f, (x(),), {"bias": x()})


def test_variadic_forward() -> None:
    class Model(nn.Module):
        def forward(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> torch.Tensor:
            return torch.cat([*args, *kwargs.values()])

    check(Model(), (x(), x() * 2), {"a": x() * 3})


@pytest.mark.parametrize(
    ("value", "other"),
    [(None, 1), (True, False), (3, 4), (1.5, 2.5), ("gelu", "relu"), (float("nan"), 1.0), (1, True), (0.0, -0.0)],
)
def test_a_literal_is_checked(value: Any, other: Any) -> None:
    def f(a: torch.Tensor, option: Any) -> torch.Tensor:
        return F.gelu(a) if option == "gelu" else a * (option if isinstance(option, int | float) else 7)

    program = check(f, (x(), value))
    with pytest.raises(LiteralError, match=r"option is .*captured with .*\n.*why: .*\n.*what to do: capture"):
        program(x(), other)


def test_concrete_args_fix_a_named_argument() -> None:
    def f(a: torch.Tensor, flag: bool = False, scale: float = 1.0) -> torch.Tensor:
        return a * scale + 1 if flag else a

    program = ingot.capture(f, (x(),), concrete_args={"flag": True})
    assert_same(program(x(), flag=True), x() + 1)
    with pytest.raises(LiteralError, match="flag is False, but the program was captured with True"):
        program(x(), flag=False)


def test_concrete_args_fix_leaves_inside() -> None:
    def f(pair: dict[str, Any]) -> torch.Tensor:
        return pair["x"] * pair["by"] + (1 if pair["flag"] else 0)

    pair = {"x": x(), "by": x() * 2, "flag": True}
    program = ingot.capture(f, (pair,), concrete_args={"pair": {"x": fx.PH, "by": x() * 2, "flag": True}})
    assert [i.name for i in program.signature.inputs_of_kind(InputKind.ARGUMENT)] == ["pair_x"]
    assert_same(program({"x": x() + 1, "by": x() * 2, "flag": True}), (x() + 1) * (x() * 2) + 1)
    with pytest.raises(LiteralError, match=r"pair\.by is another tensor"):
        program({"x": x(), "by": x() * 3, "flag": True})


def test_concrete_tensor_may_be_asked_for_its_values() -> None:
    def f(a: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return torch.stack([row[: int(n)].sum() for row, n in zip(a, lengths, strict=True)])

    lengths = torch.tensor([1, 3])
    program = ingot.capture(f, (x(), lengths), concrete_args={"lengths": lengths})
    assert_same(program(x() + 1, torch.tensor([1, 3])), f(x() + 1, lengths))
    with pytest.raises(LiteralError):
        program(x(), torch.tensor([1, 2]))


def test_same_tensor_twice_as_argument() -> None:
    a = x()
    program = ingot.capture(lambda a, b: a * 2 + b, (a, a))
    assert_same(program(x(), x() + 1), x() * 2 + x() + 1)


def test_functions_bound_methods_and_partials() -> None:
    linear = nn.Linear(4, 4)

    class Holder:
        def twice(self, a: torch.Tensor, by: float = 2.0) -> torch.Tensor:
            return a * by

    check(Holder().twice, (x(),))
    check(functools.partial(Holder().twice, by=3.0), (x(),))
    check(torch.relu, (x(),))
    check(linear.forward, (x(),))


# ---------------------------------------------------------------------- results


class Returns(nn.Module):
    def __init__(self, make: Any) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.make = make

    def forward(self, a: torch.Tensor) -> Any:
        return self.make(self.fc(a))


@pytest.mark.parametrize(
    "make",
    [
        lambda y: Answer(y, "done"),
        lambda y: Answer(y, "done", y * 2),
        lambda y: Pair(y, (y, [y + 1])),
        lambda y: {"b": y, "a": {"c": [y, None, 3, "text", 2.5, True]}},
        lambda y: OrderedDict([("z", y), ("y", y * 2)]),
        lambda y: BaseModelOutputWithPooling(last_hidden_state=y, pooler_output=y[:, 0]),
        lambda y: (y, y),
        lambda y: [y],
        lambda y: None,
        lambda y: (y.shape[0], y.shape, y),
        lambda y: y.max(dim=1),
        lambda y: y.unbind(0),
        lambda y: (),
    ],
)
def test_results_come_back_as_themselves(make: Any) -> None:
    check(Returns(make), (x(),))


def test_model_output_is_itself() -> None:
    program = ingot.capture(Returns(lambda y: BaseModelOutputWithPooling(last_hidden_state=y)), (x(),))
    out = program(x())
    assert type(out) is BaseModelOutputWithPooling
    assert out.last_hidden_state is out[0] and list(out.keys()) == ["last_hidden_state"]


def test_the_same_tensor_twice_in_the_result_is_one_tensor() -> None:
    first, second = ingot.capture(Returns(lambda y: (y, y)), (x(),))(x())
    assert first is second


def test_results_that_are_or_alias_arguments() -> None:
    program = check(lambda a, b: (a, a.view(-1), b.t(), a + b), (x(), x()))
    a, b = x(), x()
    same, view, transposed, _ = program(a, b)
    assert same is a
    assert view.data_ptr() == a.data_ptr() and transposed.data_ptr() == b.data_ptr()


def test_results_that_are_parameters_and_buffers() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(x())
            self.register_buffer("b", x())

        def forward(self, a: torch.Tensor) -> Any:
            return self.w, self.b, self.w.t(), a

    check(Model(), (x(),))


# ---------------------------------------------------------------------- dtypes and gradients


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.complex128])
def test_dtypes(dtype: torch.dtype) -> None:
    weight = nn.Parameter(x(3, 4, dtype=dtype))
    check(lambda a: F.linear(a @ a.mT.conj() @ a, weight) * 2 + 1, (x(dtype=dtype),))


def test_complex_views() -> None:
    def rotate(a: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
        turned = torch.view_as_complex(a.reshape(2, 2, 2)) * torch.polar(torch.ones_like(angle), angle)
        return (
            torch.view_as_real(turned.conj().resolve_conj()).flatten(1) + turned.imag.sum() + turned.conj().imag.sum()
        )

    check(rotate, (x(), x(2, 2)))


def test_gradients_flow_through_the_program() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))
    twin = copy.deepcopy(model)
    program = ingot.capture(model, (x(),))
    a, b = x().requires_grad_(), x().requires_grad_()
    program(a).square().sum().backward()
    twin(b).square().sum().backward()
    assert torch.equal(a.grad, b.grad)
    for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)


def test_outputs_of_the_signature_follow_the_graph() -> None:
    program = check(Returns(lambda y: (y, None, y + 1)), (x(),))
    kinds = [o.kind for o in program.signature.outputs]
    assert kinds == [OutputKind.RESULT, OutputKind.LITERAL, OutputKind.RESULT]
