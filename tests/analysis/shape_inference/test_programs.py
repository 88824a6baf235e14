"""Whole programs: branches, loops, memory that is resized, errors, and what is shown."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ingot
from ingot.analysis.shape_inference.inference import MOST_ROUNDS
from ingot.errors import ShapeError
from tests.analysis.shape_inference.running import run_checked

hop = torch.ops.higher_order


def test_dims_are_named_and_computed() -> None:
    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x]) @ y

    program = ingot.capture(model, (torch.zeros(2, 3), torch.zeros(3, 4)))
    types = ingot.shapes_of(program, {"x": ("n", 3), "y": (3, None)})
    assert str(types["cat"]) == "f32[2*n, 3]" and str(types.outputs[0]) == "f32[2*n, ?]"
    run_checked(program.graph_module, (torch.zeros(5, 3), torch.zeros(3, 7)), types, {"n": 5})


def test_dims_that_capture_declared_keep_their_names() -> None:
    program = ingot.capture(lambda x: x.reshape(-1), (torch.zeros(2, 3),), dynamic_shapes={"x": {0: "batch"}})
    assert str(ingot.shapes_of(program).outputs[0]) == "f32[3*batch]"


def test_a_size_that_the_run_finds_out_has_its_name() -> None:
    program = ingot.capture(lambda x: x[x > 0] * 2, (torch.randn(4),))
    (out,) = ingot.shapes_of(program).outputs
    assert str(out).startswith("f32[u")


def test_branches_are_joined() -> None:
    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda: x.sin(), lambda: y.cos(), ())

    program = ingot.capture(model, (torch.zeros(3, 2), torch.zeros(3, 2)))
    assert str(ingot.shapes_of(program).outputs[0]) == "f32[3, 2]"
    types = ingot.shapes_of(program, {"x": ("n", 2), "y": ("m", 2)})
    assert str(types.outputs[0]) == "f32[?, 2]"


def test_a_branch_that_cannot_work_is_not_left() -> None:
    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda: x + y, lambda: x.cos(), ())

    program = ingot.capture(model, (torch.zeros(3), torch.zeros(3)))
    types = ingot.shapes_of(program, {"x": (4,), "y": (5,)})
    assert str(types.outputs[0]) == "f32[4]"
    ((failing, why),) = types.failures.items()
    assert failing.name == "add" and "cannot work on f32[4], f32[5]" in str(why)


def swapping(x: torch.Tensor, y: torch.Tensor) -> Any:
    start = (torch.zeros((), dtype=torch.int64), x * 1, y * 1)
    return torch.while_loop(lambda i, a, b: i < 3, lambda i, a, b: (i + 1, b + 1, a * 2), start)[1:]


def test_a_loop_comes_to_rest() -> None:
    program = ingot.capture(swapping, (torch.zeros(3), torch.zeros(3)))
    kept = ingot.shapes_of(program)
    assert [str(t) for t in kept.outputs] == ["f32[3]", "f32[3]"] and kept.rounds == 1
    types = ingot.shapes_of(program, {"x": ("n",), "y": ("m",)})
    assert [str(t) for t in types.outputs] == ["f32[?]", "f32[?]"] and types.rounds <= MOST_ROUNDS
    run_checked(program.graph_module, (torch.zeros(2), torch.zeros(5)), types, {"n": 2, "m": 5})


def test_a_loop_whose_carry_grows_in_rank_ends() -> None:
    program = ingot.capture(swapping, (torch.zeros(3), torch.zeros(3)))
    types = ingot.shapes_of(program, {"x": None, "y": (2, 3)})
    assert [str(t) for t in types.outputs] == ["f32[…]", "f32[…]"] and types.rounds <= MOST_ROUNDS


def test_memory_that_is_resized_has_no_shape() -> None:
    def model(x: torch.Tensor) -> Any:
        y = x.clone()
        view = y[0]
        y.resize_(7)
        return y, view, x + 1

    program = ingot.capture(model, (torch.zeros(2, 3),))
    types = ingot.shapes_of(program)
    assert str(types["clone"]) == "f32[…]" and str(types["select"]) == "f32[…]" and str(types["add"]) == "f32[2, 3]"


def test_a_transposed_in_place_tensor_has_no_shape() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y.t_()
        return y @ x

    types = ingot.shapes_of(ingot.capture(model, (torch.zeros(2, 3),)))
    assert str(types["clone"]) == "f32[…]"


def test_detaching_in_place_keeps_the_shape() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * 2), (torch.tensor(0), x))[1]

    program = ingot.capture(model, (torch.zeros(2, 3),), dynamic_shapes={"x": {0: "n"}})
    assert "detach_" in str(program) and str(ingot.shapes_of(program).outputs[0]) == "f32[n, 3]"


def test_rows_of_a_scan_and_a_map() -> None:
    from torch._higher_order_ops import scan
    from torch._higher_order_ops.map import map as map_

    def scanning(x: torch.Tensor) -> Any:
        return scan(lambda carry, row: (carry + row, carry[:2] * 2), torch.zeros(3), x)

    def mapping(x: torch.Tensor) -> torch.Tensor:
        return map_(lambda row: torch.cat([row, row]), x)

    for model, wanted in ((scanning, ["f32[3]", "f32[n, 2]"]), (mapping, ["f32[n, 6]"])):
        program = ingot.capture(model, (torch.zeros(4, 3),))
        types = ingot.shapes_of(program, {"x": ("n", 3)})
        assert [str(out) for out in types.outputs] == wanted


def test_an_impossible_shape_is_an_error_at_the_users_line() -> None:
    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = x.relu()
        return z @ y  # here

    program = ingot.capture(model, (torch.zeros(2, 3), torch.zeros(3, 4)))
    with pytest.raises(
        ShapeError, match=r"(?s)cannot work on f32\[2, 5\], f32\[3, 4\].*test_programs.py:\d+: .*# here"
    ):
        ingot.shapes_of(program, {"x": (2, 5)})


def test_a_loop_whose_condition_cannot_work_is_an_error() -> None:
    def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        def going_on(i: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
            return (a @ w).sum() + i < 3  # here

        return torch.while_loop(going_on, lambda i, a: (i + 1, a * 2), (torch.tensor(0), x * 1))[1]

    program = ingot.capture(model, (torch.zeros(2, 3), torch.zeros(3, 3)))
    with pytest.raises(ShapeError, match=r"(?s)cannot work on f32\[2, 5\].*test_programs.py:\d+: .*# here"):
        ingot.shapes_of(program, {"x": (2, 5)})


def test_a_loop_whose_rounds_cannot_work_ends_before_them() -> None:
    program = ingot.capture(multiplied, (torch.zeros(2, 3), torch.zeros(3, 3)))
    types = ingot.shapes_of(program, {"x": (2, 5)})
    assert str(types.outputs[0]) == "f32[2, 5]"
    assert [node.name for node in types.failures] == ["matmul"]
    assert not ingot.shapes_of(program, {"x": ("n", 3)}).failures


def multiplied(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a @ w), (torch.tensor(0), x * 1))[1]


def test_a_scan_whose_rounds_cannot_work_is_an_error() -> None:
    """torch has no scan over no rows."""
    from torch._higher_order_ops import scan

    def model(x: torch.Tensor, start: torch.Tensor) -> Any:
        return scan(lambda carry, row: (carry + row, carry * row), start, x)  # here

    program = ingot.capture(model, (torch.zeros(4, 3), torch.zeros(3)))
    with pytest.raises(ShapeError, match=r"(?s)cannot work on f32\[3\], f32\[5\].*test_programs.py:\d+: .*# here"):
        ingot.shapes_of(program, {"x": ("n", 5)})


def test_parts_of_a_dim_that_is_a_name() -> None:
    """How many parts there are is unknown; those that the program takes are there."""

    def model(x: torch.Tensor) -> Any:
        first, second = x.chunk(2, 1)
        return first, second, torch.cat([second, first], 1)

    program = ingot.capture(model, (torch.zeros(2, 8),))
    types = ingot.shapes_of(program, {"x": ("n", "d")})
    assert [str(t) for t in types.outputs] == ["f32[n, (1 + d)//2]", "f32[n, d + -1*((1 + d)//2)]", "f32[n, d]"]
    halves = ingot.shapes_of(program, {"x": ("n", "2*d")})
    assert [str(t) for t in halves.outputs] == ["f32[n, d]", "f32[n, d]", "f32[n, 2*d]"]
    for size in (2, 5, 7):
        x = torch.zeros(3, size)
        run_checked(program.graph_module, (x,), types, {"n": 3, "d": size})


@pytest.mark.parametrize("size", [4, 1])
def test_fewer_parts_than_were_captured_are_an_error(size: int) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        first, *_, last = x.split(2)  # here
        return first + last

    program = ingot.capture(model, (torch.zeros(6),))
    with pytest.raises(
        ShapeError,
        match=r"(?s)split.Tensor returns \d values?, but the program reads value 3.*test_programs.py:\d+: .*# here",
    ):
        ingot.shapes_of(program, {"x": (size,)})


def test_an_argument_that_is_not_there() -> None:
    program = ingot.capture(lambda x: x + 1, (torch.zeros(2),))
    with pytest.raises(ShapeError, match=r"no argument z.*\n.*x"):
        ingot.shapes_of(program, {"z": (2,)})


def test_autocast_decides_dtypes() -> None:
    def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ w
        return y + 1

    program = ingot.capture(model, (torch.zeros(2, 3), torch.zeros(3, 4)))
    for form in (program, ingot.transform(program, [ingot.passes.autocast])):
        assert str(ingot.shapes_of(form, {"x": ("n", 3)}).outputs[0]) == "bf16[n, 4]"


def test_the_pass_shows_what_it_found() -> None:
    program = ingot.capture(lambda x: torch.cat([x, x]) * 2, (torch.zeros(3),))
    typed = ingot.transform(program, [(ingot.passes.annotate_shapes, {"inputs": {"x": ("n",)}})])
    text = str(typed)
    assert "x: f32[n]" in text and "cat: f32[2*n] = aten.cat([x, x])" in text
    assert typed.history[-1].changes > 0
    again = ingot.transform(typed, [(ingot.passes.annotate_shapes, {"inputs": {"x": ("n",)}})])
    assert again.history[-1].changes == 0
    plain = ingot.transform(typed, [ingot.passes.annotate_shapes])
    assert str(plain) == str(program)
    assert torch.equal(typed(torch.ones(3)), program(torch.ones(3)))


def test_scripts_have_shapes_too() -> None:
    from tests.frontend.torchscript import models_loops
    from tests.frontend.torchscript.cases import CASES

    assert models_loops  # its scripts are among the cases
    case = next(case for case in CASES if case.name == "greedy decoder")
    program = ingot.from_torchscript(case.script(), case.arguments()[0])
    types = ingot.shapes_of(program)
    assert str(types.outputs[0]) == "i64[12]" and types.rounds <= MOST_ROUNDS
