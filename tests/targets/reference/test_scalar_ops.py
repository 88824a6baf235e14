"""Scalar operations and extern kernels: none that the C code generator knows is missing, and each is torch's."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import ingot
from ingot.codegen import c_expressions
from ingot.lowering.loop_body import COMPARISONS, SELECTIONS, BodyBuilder, replay
from ingot.lowering.loop_ir import Op
from ingot.targets.cpu.codegen import builtin_kernels
from ingot.targets.cpu.target import CPU
from ingot.targets.reference.body_evaluator import GIVEN, BodyEvaluator
from ingot.targets.reference.extern_kernels import KERNELS
from ingot.targets.reference.index_grid import IndexGrid, evaluate_index, halve, make_grid, pick_points
from ingot.targets.reference.memory import Memory, decode, encode
from ingot.targets.reference.random_numbers import DRAWS
from ingot.targets.reference.scalar_ops import SCALAR_OPS, cast, constant
from ingot_runtime.errors import DivisionByZero

SOURCES = Path(ingot.__file__).parent
# What an evaluator does itself: it needs memory, the grid, or an attribute.
EVALUATED = {"load", "const", "index", "input", "cast", "bounds_check", "truncate", "random", "bitcast", *GIVEN}


def emitted() -> set[str]:
    """Every operation that the code generator spells, or that lowering and scheduling write into bodies by name."""
    tables = ("_INFIX", "_FLOAT_BUILTINS", "_FLOAT_TEXT", "_INTEGER_TEXT", "_BOOLEAN", "_ANY_TEXT")
    found = {name for table in tables for name in getattr(c_expressions, table)} | COMPARISONS | SELECTIONS
    for path in (
        *SOURCES.glob("lowering/**/*.py"),
        *SOURCES.glob("codegen/*.py"),
        *SOURCES.glob("targets/cpu/**/*.py"),
        *SOURCES.glob("scheduling/*.py"),
    ):
        text = path.read_text(encoding="utf-8")
        found |= set(re.findall(r'\b(?:ops|self|body)\.(?:call|emit)\(\s*"(\w+)"', text))
    from ingot.lowering.rules import elementwise_composite, pointwise

    found |= pointwise.HEAVY
    for module in (pointwise, elementwise_composite):
        text = Path(str(module.__file__)).read_text(encoding="utf-8")
        found |= {name for _, name in re.findall(r'"([\w.]+)": "(\w+)"', text)}
    return found | {"through_i32", "through_i64"}


def test_no_operation_is_missing() -> None:
    names = emitted()
    some = {"add", "erf", "floormod", "bitwise_not", "second_accumulator", "round_to_int", "i1e", "shr", "isinf"}
    assert some <= names
    assert names - EVALUATED <= set(SCALAR_OPS)


def test_every_library_function_of_one_name_is_known() -> None:
    """What the C library offers to bodies, as ig_NAME_f32: known here, or a part of other functions."""
    parts = set(
        [
            "bits",
            "fabs",
            "fma",
            "ldexp",
            "frexp",
            "scale",
            "pow2",
            "log_parts",
            "log_rest",
            "log_ends",
            "log_based",
            "exp_narrow",
        ]
    )
    parts |= set(["product_rest", "turn", "sin_turned", "from_bits", "scale_whole", "remainder", "floor_divide"])
    from ingot.codegen.math_library import functions

    offered = {
        name[3:-4] for name in functions() if name.endswith("_f32") and "_to_" not in name and "_as_" not in name
    }
    assert offered - parts - {"uniform", "normal"} <= set(SCALAR_OPS), offered - parts - set(SCALAR_OPS)


def test_no_extern_kernel_is_missing() -> None:
    assert set(builtin_kernels._EMITTERS) == set(KERNELS) | {
        name for name in CPU.reference_rules if isinstance(name, str)
    }


def test_no_kind_of_draw_is_missing() -> None:
    from ingot.codegen.math_library import functions

    drawing = re.compile(r"ig_((?:uniform|normal|randint)_\w+)")
    assert {found[1] for name in functions() if (found := drawing.fullmatch(name))} == set(DRAWS)


# ---------------------------------------------------------------------- against torch

EDGES = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1.5,
    2.5,
    -2.5,
    1e-30,
    3e4,
    -3e4,
    1e30,
    float("inf"),
    -float("inf"),
    float("nan"),
]
UNARY = {
    **{
        name: getattr(torch, name)
        for name in [
            "exp",
            "exp2",
            "expm1",
            "log",
            "log2",
            "log10",
            "log1p",
            "sin",
            "cos",
            "tan",
            "sinh",
            "cosh",
            "tanh",
        ]
    },
    **{
        name: getattr(torch, name)
        for name in ["asin", "acos", "atan", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "sigmoid", "sqrt"]
    },
    **{
        name: getattr(torch, name)
        for name in ["rsqrt", "neg", "abs", "lgamma", "digamma", "ceil", "floor", "trunc", "round", "reciprocal"]
    },
    **{name: getattr(torch, name) for name in ["sign", "sgn", "square", "positive", "relu", "isnan", "isinf", "i0"]},
    **{name: getattr(torch.special, name) for name in ("i0e", "i1", "i1e")},
}
BINARY = {
    **{
        name: getattr(torch, name)
        for name in [
            "add",
            "sub",
            "mul",
            "div",
            "atan2",
            "hypot",
            "nextafter",
            "copysign",
            "fmax",
            "fmin",
            "fmod",
            "pow",
        ]
    },
    **{name: getattr(torch, name) for name in ["eq", "ne", "lt", "le", "gt", "ge"]},
    "max": torch.maximum,
    "min": torch.minimum,
    "floormod": torch.remainder,
    "floordiv": torch.floor_divide,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", [*UNARY, *BINARY])
def test_floats(name: str, dtype: torch.dtype) -> None:
    plain = torch.linspace(-4, 4, 41, dtype=dtype)
    values = torch.cat([torch.tensor(EDGES, dtype=dtype), plain])
    given = [values] if name in UNARY else [values.repeat_interleave(len(values)), values.repeat(len(values))]
    with np.errstate(all="ignore"):
        ours = torch.from_numpy(np.asarray(SCALAR_OPS[name](*(one.numpy() for one in given))))
    theirs = {**UNARY, **BINARY}[name](*given)
    if name in ("fmod", "floormod"):  # of a quotient that float32 does not hold, torch's is nan
        known = (given[0] / given[1]).isfinite()
        ours, theirs = ours[known], theirs[known]
    if name in ("sign", "sgn", "digamma"):  # of nan, and at poles, torch's own functions differ from each other
        known = theirs.isfinite() & given[0].isfinite()
        ours, theirs = ours[known], theirs[known]
    torch.testing.assert_close(ours, theirs, rtol=1e-5 if dtype is torch.float32 else 1e-11, atol=1e-30, equal_nan=True)


INTEGER = {
    **{name: getattr(torch, name) for name in ["add", "sub", "mul", "eq", "ne", "lt", "le", "gt", "ge"]},
    "max": torch.maximum,
    "min": torch.minimum,
    "bitand": torch.bitwise_and,
    "bitor": torch.bitwise_or,
    "bitxor": torch.bitwise_xor,
}


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64], ids=str)
def test_integers(dtype: torch.dtype) -> None:
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    values = torch.tensor([low, low + 1, 0, 1, 2, 3, 7, 100, high - 1, high], dtype=dtype)
    a, b = values.repeat_interleave(len(values)), values.repeat(len(values))
    with np.errstate(all="ignore"):
        for name, function in INTEGER.items():
            assert torch.equal(torch.from_numpy(SCALAR_OPS[name](a.numpy(), b.numpy())), function(a, b)), name
        apart = (b != 0) & ~((a == low) & (b == -1))
        divided = {
            "floordiv": lambda p, q: torch.div(p, q, rounding_mode="floor"),
            "truncdiv": lambda p, q: torch.div(p, q, rounding_mode="trunc"),
            "floormod": torch.remainder,
            "fmod": torch.fmod,
        }
        for name, function in divided.items():
            ours = SCALAR_OPS[name](a[apart].numpy(), b[apart].numpy())
            assert torch.equal(torch.from_numpy(ours), function(a[apart], b[apart])), name
            with pytest.raises(DivisionByZero):
                SCALAR_OPS[name](a.numpy(), b.numpy())
        shifts = torch.tensor([0, 1, 3, 5, 7, 2, 2, 1, 0, 4], dtype=dtype)
        for name, function in {"shl": torch.bitwise_left_shift, "shr": torch.bitwise_right_shift}.items():
            assert torch.equal(
                torch.from_numpy(SCALAR_OPS[name](values.numpy(), shifts.numpy())), function(values, shifts)
            )
        powers = torch.tensor([0, 1, 2, 3, 5, 0, 1, 2, 3, 1], dtype=dtype)
        assert torch.equal(torch.from_numpy(SCALAR_OPS["pow"](values.numpy(), powers.numpy())), values**powers)
        assert torch.equal(torch.from_numpy(SCALAR_OPS["bitwise_not"](values.numpy())), ~values)
        for name in ("neg", "abs", "sign", "square"):
            assert torch.equal(torch.from_numpy(SCALAR_OPS[name](values.numpy())), getattr(torch, name)(values)), name


def test_bools() -> None:
    a, b = np.array([0, 0, 1, 1], np.bool_), np.array([0, 1, 0, 1], np.bool_)
    for name, expected in {"add": a | b, "mul": a & b, "max": a | b, "min": a & b, "and": a & b, "or": a | b}.items():
        assert (SCALAR_OPS[name](a, b) == expected).all(), name
    assert (SCALAR_OPS["bitwise_not"](a) == ~a).all() and (SCALAR_OPS["not"](a) == ~a).all()


def test_casts() -> None:
    values = torch.tensor([0.0, -0.0, 1.5, -1.5, 2.5, 300.0, -200.0, 70000.0, 1e-8])
    for dtype in ("int8", "uint8", "int16", "int32", "int64", "bool", "float64", "float32"):
        assert torch.equal(torch.from_numpy(cast(values.numpy(), dtype)), values.to(getattr(torch, dtype))), dtype
    for dtype in ("float16", "bfloat16"):
        with np.errstate(over="ignore"):
            rounded = torch.from_numpy(cast(values.numpy(), dtype))
        assert rounded.dtype is torch.float32 and torch.equal(rounded, values.to(getattr(torch, dtype)).float())
    strange = np.array([np.nan, np.inf, -np.inf, 1e20], np.float32)
    assert (cast(strange, "int32") == -(2**31)).all() and (cast(strange, "int64") == -(2**63)).all()
    assert (cast(strange, "bool")).all()
    assert SCALAR_OPS["through_i32"](np.array([-0.0, 2.7, np.nan], np.float32)).tolist() == [0.0, 2.0, -(2.0**31)]
    assert constant(-1, "uint8") == 255 and constant(2**63, "int64") == -(2**63)
    assert constant(0.1, "float32").dtype == np.float32


def test_nearest_integers() -> None:
    values = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 3.4, -7.6], np.float32)
    assert SCALAR_OPS["round_to_int"](values).tolist() == np.rint(values).tolist()
    assert SCALAR_OPS["round_to_float"](values).tolist() == np.rint(values).tolist()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_halves_are_stored_as_torch_rounds_them(dtype: torch.dtype) -> None:
    values = torch.cat(
        [torch.randn(1000), torch.randn(100) * 1e-7, torch.tensor(EDGES), torch.tensor([65504.0, 65520.0])]
    )
    name = str(dtype)[6:]
    stored = encode(values.numpy(), name)
    theirs = values.to(dtype)
    mine = torch.from_numpy(stored.view(np.int16)).view(dtype)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(torch.from_numpy(decode(stored, name)), theirs.float(), rtol=0, atol=0, equal_nan=True)


# ---------------------------------------------------------------------- grids and bodies


def test_grids_are_cut_in_order() -> None:
    grid = make_grid(("i", "j"), (5, 7))
    flat = [(part.variables["i"] * 7 + part.variables["j"]).reshape(-1).tolist() for _, part in grid.split(4)]
    assert [point for part in flat for point in part] == list(range(35)) and max(map(len, flat)) <= 4
    assert all(len(part.shape) == 2 for _, part in grid.split(1))
    picked = pick_points(("i", "j"), (5, 7), np.array([8, 34]))
    assert picked.variables["i"].tolist() == [1, 4] and picked.variables["j"].tolist() == [1, 6]
    first, second = halve(1000)
    assert sorted([*first, *second]) == list(range(1000)) and abs(first.size - second.size) < 100


def test_indices_as_arrays() -> None:
    from ingot.lowering.index_expr import largest, smallest, symbol

    i = symbol("i", below=20)
    values = {"i": np.arange(-3, 4)}
    assert evaluate_index((i - 3) // 2 * 5 + i % 3, values).tolist() == [(n - 3) // 2 * 5 + n % 3 for n in range(-3, 4)]
    signed = symbol("i", signed=True)
    assert evaluate_index(largest(signed, 0) + smallest(signed, 1), values).tolist() == [
        max(n, 0) + min(n, 1) for n in range(-3, 4)
    ]


def test_a_body_on_arrays() -> None:
    ops = BodyBuilder()
    from ingot.lowering.index_expr import symbol

    value = ops.call("mul", ops.cast(ops.index(symbol("i", below=4)), "float32"), ops.const(0.5, "float32"))
    body = ops.finish([value])
    evaluator = BodyEvaluator(Memory({}, {}), make_grid(("i",), (4,)), {}, {})
    assert replay(body, evaluator)[0].tolist() == [0, 0.5, 1, 1.5]
    from ingot.targets.base import Fault

    with pytest.raises(Fault, match="no scalar operation 'frobnicate'"):
        BodyEvaluator(Memory({}, {}), IndexGrid((), {}), {}, {}).op(0, Op("frobnicate", (), "float32"), ())
