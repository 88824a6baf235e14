"""Python's own functions of sizes that are dynamic: in capture, in native code and in ONNX files."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import ingot

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sqrt": lambda x: x / math.sqrt(x.shape[0]),
    "pow": lambda x: x * math.pow(x.shape[0], 1.5),
    "exp": lambda x: x * math.exp(-x.shape[0] / 50),
    "log": lambda x: x * math.log(x.shape[0] + 1) + math.log(x.shape[0], 3),
    "log2 and log10": lambda x: x * math.log2(x.shape[0]) + math.log10(x.shape[0]),
    "max": lambda x: x.sum(0) * max(x.shape[0], 7) + torch.ones(max(3, x.shape[0], 5)).sum(),
    "min": lambda x: x[: min(x.shape[0], 7)] + min([x.shape[0], 9, 2.5]),
    "of plain numbers": lambda x: x * max(2, 3) * min([4, 5], key=lambda n: -n) * max((), default=1) * math.sqrt(4),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_at_every_size(name: str, tmp_path: Path) -> None:
    function = FUNCTIONS[name]
    dims = {"x": {0: torch.export.Dim("n", min=1, max=100)}}
    program = ingot.capture(function, (torch.randn(12, 3),), dynamic_shapes=dims)
    native = ingot.compile(program)
    for size in (1, 2, 5, 7, 8, 100):
        x = torch.randn(size, 3)
        torch.testing.assert_close(program(x), function(x))
        torch.testing.assert_close(native(x), function(x))
    ingot.export_onnx(program, tmp_path / "m.onnx")


def test_known_larger_size_is_not_an_expression() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.new_zeros(max(1, x.shape[0])) + min(x.shape[0], 10**6)

    program = ingot.capture(function, (torch.randn(4),), dynamic_shapes={"x": {0: torch.export.Dim("n", min=2, max=9)}})
    assert not any(node.target in (torch.sym_max, torch.sym_min) for node in program.graph.nodes)


def test_python_has_its_own_back() -> None:
    before = max, min, math.sqrt

    def broken(x: torch.Tensor) -> torch.Tensor:
        raise KeyError(max(1, 2))

    with pytest.raises(ingot.errors.EagerError):
        ingot.capture(broken, (torch.randn(3),))
    assert (max, min, math.sqrt) == before


def test_what_onnx_cannot_say_of_a_size_is_refused_with_its_line(tmp_path: Path) -> None:
    program = ingot.capture(lambda x: x * round(x.shape[0] / 3, 1), (torch.randn(4),), dynamic_shapes={"x": {0: "n"}})
    with pytest.raises(ingot.errors.UnsupportedByOnnx, match=r"(?s)rounddecimal.*test_python_numbers\.py:\d+"):
        ingot.export_onnx(program, tmp_path / "m.onnx")
