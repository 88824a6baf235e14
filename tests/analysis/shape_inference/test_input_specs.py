"""What a caller says of arguments: names, nesting, expressions, and what is refused at once."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import sympy
import torch

import ingot
from ingot.analysis.shape_inference import NumberType, TensorType
from ingot.errors import ShapeError
from ingot.ir.program import Program

CPU = torch.device("cpu")
TYPE: Any = TensorType  # for what its annotations forbid


def doubled(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, x])


@pytest.fixture(scope="module")
def program() -> Program:
    return ingot.capture(doubled, (torch.zeros(2, 3),))


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        (["n", 3], "f32[2*n, 3]"),
        (torch.Size([4, 3]), "f32[8, 3]"),
        ((numpy.int64(4), 3), "f32[8, 3]"),
        (("2*n", 3), "f32[4*n, 3]"),
        (("n//2 + 1", "n % 3"), "f32[2 + 2*(n//2), n % 3]"),
        (("max(n, 2) - 1", 3), "f32[-2 + 2*max(2, n), 3]"),
        ((sympy.Symbol("n"), 3), "f32[2*n, 3]"),
        ((3 * sympy.Symbol("n", positive=True), 3), "f32[6*n, 3]"),
        # The sizes that are tried first make no tensor of it.
        (("n - 10", 3), "f32[-20 + 2*n, 3]"),
        (("-n", 3), "f32[0, 3]"),
        (TYPE(torch.int64, CPU, ("n", 3)), "i64[2*n, 3]"),
        # A name that analysis might have used for itself.
        (("unknown1", None), "f32[2*unknown1, ?]"),
    ],
)
def test_dims(program: Program, spec: Any, wanted: str) -> None:
    assert str(ingot.shapes_of(program, {"x": spec}).outputs[0]) == wanted


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nm", "x is given as 'nm'"),
        (3, "x is given as 3"),
        ({0: "n"}, "x is given as {0: 'n'}"),
        (torch.zeros(4, 3), "x is given as a tensor"),
        (NumberType(int), "x is given as NumberType"),
        ((-1, 3), "Dim 0 of x is given as -1.\n  why: no tensor has such a size"),
        ((2**63, 3), "no tensor has such a size"),
        ((True, 3), "Dim 0 of x is given as True"),
        ((3, 2.5), "Dim 1 of x is given as 2.5"),
        (("n m", 3), "neither a name nor an expression"),
        (("", 3), "neither a name nor an expression"),
        (("?", 3), "neither a name nor an expression"),
        (("__import__('os')", 3), "neither a name nor an expression"),
        ((sympy.Symbol("n") / 2, 3), "not an integer"),
        ((..., 3), "Dim 0 of x is given as Ellipsis"),
        (TYPE("float32", CPU, (2, 3)), "has the dtype 'float32'"),
        (TYPE(torch.float32, "cpu", (2, 3)), "has the device 'cpu'"),
        (TensorType(torch.float32, CPU, (-2, 3)), "no tensor has such a size"),
    ],
)
def test_what_is_refused(program: Program, spec: Any, message: str) -> None:
    with pytest.raises(ShapeError) as refused:
        ingot.shapes_of(program, {"x": spec})
    assert message in str(refused.value)


@pytest.mark.parametrize("inputs", [("n", 3), "x", [("x", (2, 3))]])
def test_inputs_are_a_dict(program: Program, inputs: Any) -> None:
    with pytest.raises(ShapeError, match="give a dict by the arguments' names"):
        ingot.shapes_of(program, inputs)


def test_an_argument_has_the_users_name() -> None:
    """A graph has no placeholder named as one of Python's own functions."""
    program = ingot.capture(torch.nn.Linear(3, 4), (torch.zeros(2, 3),))
    for name in ("input", "input_1"):
        assert str(ingot.shapes_of(program, {name: ("n", 3)}).outputs[0]) == "f32[n, 4]"


def test_arguments_inside_of_others() -> None:
    def model(past: dict[str, Any], k: int) -> torch.Tensor:
        return past["keys"] + past["values"][0] * k

    program = ingot.capture(model, ({"keys": torch.zeros(3), "values": [torch.zeros(3)]}, 2))
    nested: dict[str, Any] = {"past": {"keys": ("n",), "values": [("n",)]}}
    for inputs in (
        nested,
        {"past.keys": ("n",), "past.values[0]": ("n",)},
        {"past_keys": ("n",), "past_values_0": (1,)},
    ):
        assert str(ingot.shapes_of(program, inputs).outputs[0]) == "f32[n]"
    assert str(ingot.shapes_of(program, {"past": {"keys": (1,)}}).outputs[0]) == "f32[3]"
    with pytest.raises(ShapeError, match=r"past is given as .*holds several values"):
        ingot.shapes_of(program, {"past": ("n",)})
    with pytest.raises(ShapeError, match=r"no argument x.*\n.*past.keys, past.values\[0\]"):
        ingot.shapes_of(program, {"x": ("n",)})
    with pytest.raises(ShapeError, match=r"is given for k.*\n.*captured as the constant 2"):
        ingot.shapes_of(program, {"k": None})


def test_numbers_among_the_arguments() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, k: int) -> torch.Tensor:
            return x.new_zeros(k)

    dynamic = {"x": None, "k": torch.export.Dim.DYNAMIC}
    program = ingot.from_exported(torch.export.export(Model(), (torch.zeros(5), 3), dynamic_shapes=dynamic))
    assert str(ingot.shapes_of(program, {"k": None}).outputs[0]) == "f32[?]"
    assert str(ingot.shapes_of(program, {"k": NumberType(int, 7)}).outputs[0]) == "f32[7]"
    with pytest.raises(ShapeError, match=r"k is given as \('n',\).*\n.*NumberType\(int"):
        ingot.shapes_of(program, {"k": ("n",)})


def test_a_name_of_what_the_run_finds_out_is_taken() -> None:
    program = ingot.capture(lambda x, y: x[x > 0] + y, (torch.randn(4), torch.zeros(1)))
    name = str(ingot.shapes_of(program)["index"])[4:-1]
    with pytest.raises(ShapeError, match=f"(?s)given the name {name}.*choose another"):
        ingot.shapes_of(program, {"y": (name,)})
