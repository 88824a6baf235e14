"""Dynamic shapes: every way to declare them, what freezes or ties them, and calls at other sizes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

import ingot
from ingot.errors import DynamicShapeError, InputError
from tests.frontend.checks import HAS_VERIFIER, assert_same


def x(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def ranges(program: ingot.Program) -> dict[str, tuple[int, int | None]]:
    return {dim.name: (dim.low, dim.high) for dim in program.dims}


def check_sizes(
    f: Callable[..., Any], example: tuple[int, ...], dynamic_shapes: Any, *others: tuple[int, ...], **options: Any
) -> ingot.Program:
    """Captures f on one tensor and compares with eager at the example and at other sizes."""
    program = ingot.capture(f, (x(*example),), dynamic_shapes=dynamic_shapes, **options)
    if HAS_VERIFIER:
        program.verify()
    for shape in (example, *others):
        assert_same(program(x(*shape)), f(x(*shape)), f"at {shape}")
    return program


def mean_rows(a: torch.Tensor) -> torch.Tensor:
    return (a * 2).sum(1) / a.shape[1] + a.shape[0]


# ---------------------------------------------------------------------- spellings


@pytest.mark.parametrize(
    "spec",
    [
        {"a": {0: "batch", 1: "seq"}},
        {"a": {0: Dim("batch"), 1: Dim("seq", max=64)}},
        {"a": ("batch", "seq")},
        {"a": ["batch", "seq"]},
        {"a": {-2: "batch", -1: "seq"}},
        ({0: "batch", 1: "seq"},),
        [("batch", "seq")],
        (("batch", "seq"),),
        {"a": "auto"},
        {"a": ("auto", "auto")},
        {"a": (Dim.AUTO, Dim.DYNAMIC)},
        "auto",
    ],
    ids=str,
)
def test_spellings(spec: Any) -> None:
    program = check_sizes(mean_rows, (3, 4), spec, (1, 4), (2, 1), (7, 13), (64, 64), (1, 1))
    assert len(program.dims) == 2


@pytest.mark.parametrize("spec", [None, {}, {"a": None}, {"a": {}}, {"a": {0: None, 1: 4}}, {"a": (Dim.STATIC, None)}])
def test_static_spellings(spec: Any) -> None:
    program = ingot.capture(mean_rows, (x(3, 4),), dynamic_shapes=spec)
    assert program.dims == ()
    with pytest.raises(InputError, match=r"dim 0 of a is 5, but the program was captured with 3"):
        program(x(5, 4))


def test_a_static_dim_that_is_not_the_examples() -> None:
    with pytest.raises(DynamicShapeError, match="dim 1 of a is declared 5, but the example has 4"):
        ingot.capture(mean_rows, (x(3, 4),), dynamic_shapes={"a": {1: 5}})


@pytest.mark.parametrize("double", ["2*seq", 2 * Dim("seq"), "2 * seq"], ids=str)
def test_derived_dims(double: Any) -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a.repeat_interleave(2, 0) + b

    seq = "seq" if isinstance(double, str) else double.root
    program = ingot.capture(f, (x(3), x(6)), dynamic_shapes={"a": {0: seq}, "b": {0: double}})
    assert_same(program(x(5), x(10)), f(x(5), x(10)))
    with pytest.raises(InputError, match="dim 0 of b is 9, but must be 2\\*seq with seq = 5"):
        program(x(5), x(9))


@pytest.mark.parametrize("plus", ["seq+1", "seq + 1", Dim("seq") + 1], ids=str)
def test_offset_dims(plus: Any) -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b[1:]

    seq = "seq" if isinstance(plus, str) else plus.root
    program = ingot.capture(f, (x(3), x(4)), dynamic_shapes={"a": {0: seq}, "b": {0: plus}})
    for size in (1, 2, 9):
        assert_same(program(x(size), x(size + 1)), f(x(size), x(size + 1)))
    with pytest.raises(InputError, match="dim 0 of b is 5"):
        program(x(5), x(5))


def test_a_derived_dim_alone() -> None:
    def f(b: torch.Tensor) -> torch.Tensor:
        return b.view(-1, 4).sum(0)

    program = check_sizes(f, (8,), {"b": {0: "4*quarter"}}, (4,), (20,))
    with pytest.raises(InputError, match=r"dim 0 of b is 6, which is not of the form 4\*quarter"):
        program(x(6))
    with pytest.raises(InputError, match=r"quarter, by dim 0 of b, is 0, outside the range of quarter in \[1, ∞\]"):
        program(x(0))


def test_nested_and_keyword_arguments() -> None:
    def f(batch: dict[str, Any], *, mask: torch.Tensor) -> torch.Tensor:
        return batch["x"] * mask + batch["more"][0]

    example = ({"x": x(3, 4), "more": [x(3, 4)]},)
    spec = {"batch": {"x": {0: "n"}, "more": [{0: "n"}]}, "mask": {0: "n"}}
    program = ingot.capture(f, example, {"mask": x(3, 4)}, dynamic_shapes=spec)
    call = ({"x": x(5, 4), "more": [x(5, 4)]},)
    assert_same(program(*call, mask=x(5, 4)), f(*call, mask=x(5, 4)))
    with pytest.raises(InputError, match=r"dim 0 of batch\.more\[0\] is 4, but dim 0 of batch\.x is 5"):
        program({"x": x(5, 4), "more": [x(4, 4)]}, mask=x(5, 4))


def test_variadic_arguments() -> None:
    def f(*parts: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
        return torch.cat([*parts, *named.values()])

    spec = {"parts": ({0: "n"}, {0: "m"}), "named": {"c": {0: "k"}}}
    program = ingot.capture(f, (x(2), x(3)), {"c": x(4)}, dynamic_shapes=spec)
    assert_same(program(x(7), x(1), c=x(5)), f(x(7), x(1), c=x(5)))


def test_two_names_for_one_dim_name_mean_equality() -> None:
    program = ingot.capture(lambda a, b: a + b, (x(3), x(3)), dynamic_shapes={"a": {0: "n"}, "b": {0: "n"}})
    with pytest.raises(InputError, match="dim 0 of b is 4, but dim 0 of a is 5; both are the dim n"):
        program(x(5), x(4))
    with pytest.raises(DynamicShapeError, match="The dim n has two sizes in the example: 3 at dim 0 of a, 4 at dim 0"):
        ingot.capture(lambda a, b: a, (x(3), x(4)), dynamic_shapes={"a": {0: "n"}, "b": {0: "n"}})


# ---------------------------------------------------------------------- sizes and ranges


@pytest.mark.parametrize("example", [1, 2, 3])
def test_every_size_from_one(example: int) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU())
    program = check_sizes(model, (example, 4), {"input": {0: "n"}}, *((n, 4) for n in (1, 2, 3, 5, 7, 97)))
    assert ranges(program) == {"n": (1, None)}


def test_bounds_are_checked_at_the_call() -> None:
    n = Dim("n", min=2, max=8)
    program = check_sizes(mean_rows, (3, 4), {"a": {0: n}}, (2, 4), (8, 4), (7, 4))
    for size in (0, 1, 9):
        with pytest.raises(InputError, match=rf"dim 0 of a is {size}, outside the range of n in \[2, 8\]"):
            program(x(size, 4))


def test_zero_needs_an_explicit_bound() -> None:
    program = check_sizes(mean_rows, (3, 4), {"a": {0: "n"}})
    with pytest.raises(InputError, match="dim 0 of a is 0"):
        program(x(0, 4))
    check_sizes(lambda a: torch.cat([a, a]).relu(), (3, 4), {"a": {0: Dim("n", min=0, max=9)}}, (0, 4), (9, 4), (1, 4))


def test_an_example_outside_of_its_range() -> None:
    with pytest.raises(DynamicShapeError, match=r"The dim n is declared in \[4, 8\], but the example has 3"):
        ingot.capture(mean_rows, (x(3, 4),), dynamic_shapes={"a": {0: Dim("n", min=4, max=8)}})


@pytest.mark.parametrize("build", [nn.Conv2d, nn.ConvTranspose2d, lambda *a: nn.Sequential(nn.Conv2d(*a), nn.ReLU())])
def test_convolutions_take_any_batch(build: Any) -> None:
    torch.manual_seed(0)
    sizes = [(n, 3, 7, 9) for n in (1, 2, 15, 16, 17, 33)]
    program = check_sizes(build(3, 4, 3), (3, 3, 7, 9), {"input": {0: "n"}}, *sizes)
    assert ranges(program) == {"n": (1, None)}
    check_sizes(build(3, 4, 3), (3, 3, 7, 9), {"input": {0: "n", 2: "h", 3: "w"}}, (16, 3, 20, 3), (1, 3, 3, 5))


def test_what_an_operator_asks_of_strides_does_not_narrow() -> None:
    def f(a: torch.Tensor) -> torch.Tensor:
        scores = a @ a.mT
        return (scores + torch.arange(a.shape[1])).masked_fill(scores > 1, 0.0).transpose(0, 1).contiguous()

    program = check_sizes(f, (3, 4, 5), {"a": {0: "b", 1: "s"}}, (1, 1, 5), (1, 9, 5), (9, 1, 5))
    assert ranges(program) == {"b": (1, None), "s": (1, None)} and not program.constraints


def test_a_kernel_bounds_the_size_below() -> None:
    program = check_sizes(nn.Conv1d(2, 2, 5), (1, 2, 9), {"input": {2: "n"}}, (1, 2, 5), (1, 2, 40))
    assert ranges(program) == {"n": (5, None)}
    with pytest.raises(InputError, match=r"dim 2 of input is 4, outside the range of n in \[5, ∞\]"):
        program(x(1, 2, 4))


# ---------------------------------------------------------------------- branches


def branch(a: torch.Tensor) -> torch.Tensor:
    return a * 2 if a.shape[0] > 4 else a + 1


def line_of(f: Any, text: str) -> str:
    """Where a line of f stands, as messages spell it."""
    lines, start = inspect.getsourcelines(f)
    return f"{__file__}:{start + next(i for i, line in enumerate(lines) if i and text in line)}"


def refused(f: Callable[..., Any], spec: Any, *args: torch.Tensor, line: str, says: str, fix: str) -> str:
    """The message of the DynamicShapeError that capturing f raises; it names the line and what to do."""
    with pytest.raises(DynamicShapeError) as caught:
        ingot.capture(f, args, dynamic_shapes=spec)
    text = str(caught.value)
    assert re.search(says, text), text
    assert f"where: {line_of(f, line)}: " in text, text
    assert re.search(rf"what to do: .*{fix}", text), text
    return text


def test_a_branch_narrows_an_open_range() -> None:
    small = ingot.capture(branch, (x(3),), dynamic_shapes={"a": {0: "n"}})
    assert ranges(small) == {"n": (1, 4)}
    large = check_sizes(branch, (6,), {"a": {0: "n"}}, (5,), (100,))
    assert ranges(large) == {"n": (5, None)}
    with pytest.raises(InputError, match=r"dim 0 of a is 5, outside the range of n in \[1, 4\]") as caught:
        small(x(5))
    assert line_of(branch, "a.shape[0] > 4") in str(caught.value)


def test_a_branch_inside_an_explicit_range_is_refused() -> None:
    n = Dim("n", min=2, max=8)
    refused(branch, {"a": {0: n}}, x(3), line="> 4", says=r"dim n \(dim 0 of a\) is declared in \[2, 8\]", fix="max=4")
    refused(branch, {"a": {0: n}}, x(6), line="> 4", says=r"dim n \(dim 0 of a\)", fix="min=5")


def test_a_branch_that_the_range_decides() -> None:
    program = check_sizes(branch, (6,), {"a": {0: Dim("n", min=5, max=8)}}, (5,), (8,))
    assert ranges(program) == {"n": (5, 8)} and not program.constraints


def test_a_branch_on_a_remainder_is_a_constraint() -> None:
    def f(a: torch.Tensor) -> torch.Tensor:
        return F.pad(a, (0, 1)) if a.shape[0] % 2 else a

    program = ingot.capture(f, (x(3),), dynamic_shapes={"a": {0: "n"}})
    assert_same(program(x(7)), f(x(7)))
    with pytest.raises(InputError, match="n % 2"):
        program(x(4))


def test_a_branch_on_two_dims_is_a_constraint() -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a.sum() if a.shape[0] < b.shape[0] else b.sum()

    program = ingot.capture(f, (x(3), x(5)), dynamic_shapes={"a": {0: "n"}, "b": {0: "m"}})
    assert_same(program(x(6), x(7)), f(x(6), x(7)))
    with pytest.raises(InputError, match="n < m") as caught:
        program(x(7), x(6))
    assert line_of(f, "<") in str(caught.value)


# ---------------------------------------------------------------------- frozen


def view_with_a_number(a: torch.Tensor) -> torch.Tensor:
    return a.view(3, 4) + 1


def int_of_size(a: torch.Tensor) -> torch.Tensor:
    n = int(a.shape[0])
    return a * n


def loop_over_range(a: torch.Tensor) -> torch.Tensor:
    total = a[0]
    for i in range(a.shape[0]):
        total = total + a[i]
    return total


def loop_over_rows(a: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(4)
    for row in a:
        total = total + row
    return total


def add_fixed(a: torch.Tensor) -> torch.Tensor:
    return a + torch.ones(3, 4)


def unbind_rows(a: torch.Tensor) -> torch.Tensor:
    rows = a.unbind(0)
    return torch.cat(rows)


def list_of_sizes(a: torch.Tensor) -> torch.Tensor:
    return a * torch.tensor([float(n) for n in [0] * a.shape[0]]).unsqueeze(1)


@pytest.mark.parametrize(
    ("f", "line"),
    [
        (view_with_a_number, "view"),
        (loop_over_range, "range"),
        (loop_over_rows, "for row"),
        (add_fixed, "ones"),
        (unbind_rows, "unbind"),
        (list_of_sizes, "[0] *"),
    ],
)
def test_frozen_dims_are_refused(f: Callable[..., Any], line: str) -> None:
    for spec in ({"a": {0: "n"}}, {"a": {0: Dim("n", min=1, max=9)}}, {"a": {0: Dim.DYNAMIC}}):
        name = "a_0" if "DYNAMIC" in str(spec) else "n"
        refused(f, spec, x(3, 4), line=line, says=rf"The dim {name} .*size 3 only", fix=f"leave {name} out")
    assert not ingot.capture(f, (x(3, 4),), dynamic_shapes={"a": {0: "auto"}}).dims


def test_int_of_a_size_is_either_kept_or_refused() -> None:
    try:
        program = ingot.capture(int_of_size, (x(3, 4),), dynamic_shapes={"a": {0: "n"}})
    except DynamicShapeError as error:
        assert line_of(int_of_size, "int(") in str(error)
    else:
        assert_same(program(x(5, 4)), int_of_size(x(5, 4)))


def test_an_example_of_one_that_broadcasts() -> None:
    def f(a: torch.Tensor) -> torch.Tensor:
        return a + torch.ones(4)

    text = refused(
        f, {"a": {0: "n"}}, x(1), line="ones", says=r"n \(dim 0 of a, 1\), and fails with 3", fix="leave n out"
    )
    assert "a size of 1 or 0 broadcasts" in text


def test_squeeze_of_a_dynamic_dim() -> None:
    def f(a: torch.Tensor) -> torch.Tensor:
        return a.squeeze(0).sum(0)

    program = check_sizes(f, (3, 4), {"a": {0: "n"}}, (2, 4), (5, 4))
    with pytest.raises(InputError, match="dim 0 of a is 1"):
        program(x(1, 4))


def test_broadcasting_against_a_dynamic_dim() -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a * b

    program = ingot.capture(f, (x(3, 4), x(1, 4)), dynamic_shapes={"a": {0: "n"}})
    for size in (1, 2, 5):
        assert_same(program(x(size, 4), x(1, 4)), f(x(size, 4), x(1, 4)))
    refused(f, {"a": {0: "n"}, "b": {0: "m"}}, x(3, 4), x(3, 4), line="a * b", says="m and n|n and m", fix='"[mn]"')


def test_related_dims_name_the_relation() -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.cat([a, a]) + b

    text = refused(f, {"a": {0: "n"}, "b": {0: "m"}}, x(3), x(6), line="torch.cat", says="2\\*n", fix='"2\\*n"')
    assert 'instead of "m"' in text


def test_divisibility_names_the_multiple() -> None:
    def f(a: torch.Tensor) -> torch.Tensor:
        return a.view(-1, 4).sum(1)

    refused(f, {"a": {0: "n"}}, x(8), line="view", says="n % 4 == 0", fix='"4\\*n_4"')
    check_sizes(f, (8,), {"a": {0: "4*n_4"}}, (4,), (12,))


def test_automatic_dims_may_be_tied() -> None:
    program = ingot.capture(lambda a, b: a + b, (x(3), x(3)), dynamic_shapes="auto")
    assert_same(program(x(5), x(5)), x(5) + x(5))
    with pytest.raises(InputError):
        program(x(5), x(4))


def test_an_unused_dim_is_free() -> None:
    program = ingot.capture(lambda a, b: a * 2, (x(3), x(4)), dynamic_shapes={"b": {0: "n"}})
    for size in (1, 2, 50):
        assert_same(program(x(3), x(size)), x(3) * 2)


# ---------------------------------------------------------------------- bad declarations


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"b": {0: "n"}}, "dynamic_shapes names 'b', which is not an argument of this call.\n.*the arguments are a"),
        ({"a": {2: "n"}}, "a has 2 dims, so it has no dim 2"),
        ({"a": ("n",)}, "gives 1 dims for a, which has 2"),
        ({"a": {0: "n m"}}, "The dim 'n m' cannot be read"),
        ({"a": {0: 1.5}}, "declared as 1.5"),
        ({"a": 3}, "dynamic_shapes for a is 3"),
        (7, "dynamic_shapes is a int"),
        ({"a": {0: "2*n"}}, "example's 3 does not match it"),
        (({0: "n"}, {0: "m"}), "has 2 parts|2 arguments"),
        ({"a": {0: "0*n"}}, r"'0\*n' cannot be read"),
        ({"a": {True: "n"}}, "no dim True"),
    ],
)
def test_bad_declarations(spec: Any, says: str) -> None:
    with pytest.raises(DynamicShapeError, match=says):
        ingot.capture(mean_rows, (x(3, 4),), dynamic_shapes=spec)


def test_dims_for_a_literal() -> None:
    with pytest.raises(DynamicShapeError, match="gives dims for flag, which is True, not a tensor"):
        ingot.capture(lambda a, flag: a, (x(3), True), dynamic_shapes={"flag": {0: "n"}})


def test_parts_that_the_argument_has_not() -> None:
    with pytest.raises(DynamicShapeError, match="dynamic_shapes for a has a part y that the argument does not have"):
        ingot.capture(lambda a: a["x"], ({"x": x(3)},), dynamic_shapes={"a": {"y": {0: "n"}}})
