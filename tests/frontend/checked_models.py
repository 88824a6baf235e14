"""Models that check values at run time. Not a test module: pytest rewrites the assert statements of those."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._higher_order_ops import while_loop
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan

Arguments = tuple[torch.Tensor, ...]


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values)


@dataclass
class Case:
    """A function with arguments that pass its checks, and some that fail one: the arguments and its message."""

    function: Callable[..., Any]
    passing: list[Arguments]
    failing: list[tuple[Arguments, str]]
    dynamic_shapes: Any = None
    native: bool = True

    @property
    def name(self) -> str:
        return self.function.__name__


CASES: list[Case] = []


def case(*passing: Arguments, failing: Sequence[tuple[Arguments, str]] = (), **options: Any) -> Callable[..., Any]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        CASES.append(Case(function, list(passing), list(failing), **options))
        return function

    return register


# ---------------------------------------------------------------------- at the end, in the middle, twice


@case((ints(1, 1),), failing=[((ints(-5, -9),), "positive")])
def last_statement(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    assert y.max().item() > 0, "positive"
    return y


@case((ints(1, 1),), failing=[((ints(-5, -9),), "u0 > 0")])
def without_message(x: torch.Tensor) -> torch.Tensor:
    torch._check(x.max().item() > 0)
    return x


@case((ints(2, 6),), failing=[((ints(0, 6),), "u > 1")])
def only_numbers(x: torch.Tensor) -> Any:
    u, v = x.tolist()
    torch._check(u > 1, lambda: "u > 1")
    return u + v


@case((ints(2, 3),), failing=[((ints(0, 3),), "first"), ((ints(2, 0),), "second"), ((ints(20, 3),), "third")])
def earlier_symbol(x: torch.Tensor) -> Any:
    u, v = x.tolist()
    torch._check(u > 1, lambda: "first")
    torch._check(v > 1, lambda: "second")
    y = x + 1
    torch._check(u < 10, lambda: "third")
    return y + 1, u + v


@case((ints(3, 5),), failing=[((ints(7, 5),), "less"), ((ints(-9, -5),), "sum")])
def two_symbols(x: torch.Tensor) -> torch.Tensor:
    u, v = x.tolist()
    torch._check(u < v, lambda: "less")
    y = x * 2
    torch._check(u + v > 0, lambda: "sum")
    return y


# ---------------------------------------------------------------------- equalities, which torch then takes for granted


@case((ints(5, 3),), failing=[((ints(6, 3),), "u is five")])
def equal_to_number(x: torch.Tensor) -> torch.Tensor:
    u = x[0].item()
    torch._check(u == 5, lambda: "u is five")
    return torch.zeros(4)[:2] + u


@case((ints(5, 5),), failing=[((ints(6, 5),), "same")])
def equal_to_another(x: torch.Tensor) -> torch.Tensor:
    u, v = x.tolist()
    torch._check(u == v, lambda: "same")
    return x + u + v


@case(
    (ints(3), torch.ones(3)),
    failing=[((ints(4), torch.ones(3)), "as long")],
    dynamic_shapes={"x": None, "y": {0: "n"}},
)
def equal_to_size(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    u = x[0].item()
    torch._check(u == y.shape[0], lambda: "as long")
    return y + torch.ones(u)


# ---------------------------------------------------------------------- every way to ask


@case((ints(3, 5),), failing=[((ints(0, 5),), "range"), ((ints(30, 5),), "range"), ((ints(3, -1),), "both")])
def conjunctions(x: torch.Tensor) -> torch.Tensor:
    u, v = x.tolist()
    assert 0 < u < 10, "range"
    assert v > u - 10 and v >= 0, (
        "both",
        "of them",
    )
    return x + 1


@case((ints(3, 5),), failing=[((ints(0, 5),), "f'u is {u}'")])
def computed_message(x: torch.Tensor) -> torch.Tensor:
    u = x[0].item()
    assert u > 0, f"u is {u}"
    return x + 1


@case((ints(3, 5),), failing=[((ints(-3, 5),), "u0 >= 0")])
def is_size(x: torch.Tensor) -> torch.Tensor:
    torch._check_is_size(x[0].item())
    return x


@case((torch.ones(3),), failing=[((torch.zeros(3),), "async")])
def assert_async(x: torch.Tensor) -> torch.Tensor:
    torch._assert_async(x.sum() > 0, "async")
    return x


@case((torch.ones(3),), failing=[((torch.zeros(3),), "torch._assert")])
def assert_function(x: torch.Tensor) -> torch.Tensor:
    torch._assert(x.sum() > 0, "torch._assert")
    return x * 2


@case((torch.ones(3),), failing=[((torch.zeros(3),), "a tensor")])
def assert_tensor(x: torch.Tensor) -> torch.Tensor:
    assert x.sum() > 0, "a tensor"
    return x * 2


@case((torch.ones(3),), failing=[((torch.zeros(3),), "all of them")])
def tensor_all(x: torch.Tensor) -> torch.Tensor:
    torch._check_tensor_all(x > 0, lambda: "all of them")
    return x * 2


@case((torch.ones(3),), failing=[((torch.zeros(3),), "a float")])
def float_value(x: torch.Tensor) -> torch.Tensor:
    torch._check_value(x.max().item() > 0.5, lambda: "a float")
    return x * 2


@case((ints(3, 5),), failing=[((ints(30, 5),), "scalar")])
def assert_scalar(x: torch.Tensor) -> torch.Tensor:
    torch.ops.aten._assert_scalar(x.max().item() < 10, "scalar")
    return x + 1


@case((ints(3, 5),), failing=[((ints(30, 5),), ""), ((ints(-3, -5),), "")])
def constrained_range(x: torch.Tensor) -> torch.Tensor:
    torch.ops.aten.sym_constrain_range(x.max().item(), min=0, max=10)
    return x + 1


@case((ints(3, 5),), failing=[((ints(-3, -5),), "")])
def constrained_size(x: torch.Tensor) -> torch.Tensor:
    torch.ops.aten.sym_constrain_range_for_size(x.max().item())
    return x + 1


@case((ints(3, 5),))
def unused_value(x: torch.Tensor) -> torch.Tensor:
    x.max().item()
    return x + 1


@case((ints(3, 5),), failing=[((ints(0, 5),), "written")])
def after_write(x: torch.Tensor) -> None:
    x.add_(1)
    assert x[0].item() > 1, "written"


@case(
    (ints(3), torch.zeros(6)),
    failing=[((ints(8), torch.zeros(6)), "long"), ((ints(-1), torch.zeros(6)), "negative")],
    native=False,  # the result's size is known only when it runs
)
def slice_length(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    u = x[0].item()
    torch._check(u >= 0, lambda: "negative")
    torch._check(u <= y.shape[0], lambda: "long")
    return y.narrow(0, 0, u) + 1


# ---------------------------------------------------------------------- branches, loops, regions, submodules


@case(
    (ints(3), torch.ones(2)),
    (ints(0), -torch.ones(2)),
    failing=[((ints(0), torch.ones(2)), "inside"), ((ints(200), torch.ones(2)), "after")],
)
def branch(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    u = x[0].item()

    def scaled(y: torch.Tensor) -> torch.Tensor:
        torch._check(u > 1, lambda: "inside")
        return y * u

    z = torch.cond(y.sum() > 0, scaled, lambda y: y * 1.5, (y,))
    torch._check(u < 100, lambda: "after")
    return z


@case(
    (ints(3), torch.ones(2)),
    failing=[((ints(0), torch.ones(2)), "inside"), ((ints(0), -torch.ones(2)), "after")],
)
def same_after_branch(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    u = x[0].item()

    def scaled(y: torch.Tensor) -> torch.Tensor:
        torch._check(u > 1, lambda: "inside")
        return y * u

    z = torch.cond(y.sum() > 0, scaled, lambda y: y * 1.5, (y,))
    torch._check(u > 1, lambda: "after")
    return z


@case(
    (ints(3), torch.ones(2)),
    (ints(4), -torch.ones(2)),
    failing=[((ints(4), torch.ones(2)), "three")],
)
def equality_in_branch(x: torch.Tensor, y: torch.Tensor) -> Any:
    u = x[0].item()

    def scaled(y: torch.Tensor) -> torch.Tensor:
        torch._check(u == 3, lambda: "three")
        return y * u + torch.ones(u).sum()

    z = torch.cond(y.sum() > 0, scaled, lambda y: y * 1.5, (y,))
    return z, torch.arange(2) + u


@case(
    (ints(3), torch.ones(3)),
    (ints(4), -torch.ones(3)),
    failing=[((ints(4), torch.ones(3)), "as long")],
    dynamic_shapes={"x": None, "y": {0: "n"}},
)
def size_in_branch(x: torch.Tensor, y: torch.Tensor) -> Any:
    u = x[0].item()

    def scaled(y: torch.Tensor) -> torch.Tensor:
        torch._check(u == y.shape[0], lambda: "as long")
        return y * u + torch.ones(u)

    z = torch.cond(y.sum() > 0, scaled, lambda y: y * 1.5, (y,))
    return z, torch.arange(2) + u


@case(
    (ints(3), torch.ones(6)),
    (ints(100), -torch.ones(6)),
    failing=[((ints(0), torch.ones(6)), "outer"), ((ints(100), torch.ones(6)), "inner")],
)
def nested_branches(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    u = x[0].item()

    def inner(y: torch.Tensor) -> torch.Tensor:
        torch._check(u < 50, lambda: "inner")
        return y * u

    def outer(y: torch.Tensor) -> torch.Tensor:
        torch._check(u >= 1, lambda: "outer")
        return torch.cond(y.sum() > 2, inner, lambda y: y * 1, (y,))

    return torch.cond(y.sum() > 0, outer, lambda y: y * 1.5, (y,))


@case((ints(3), torch.ones(2)), failing=[((ints(8), torch.ones(2)), "body")])
def loop(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    def body(i: torch.Tensor, y: torch.Tensor) -> Any:
        torch._check((x[0] + i).item() < 8, lambda: "body")
        return i + 1, y * 2

    return while_loop(lambda i, y: i < 3, body, (torch.tensor(0), y))[1]


@case((torch.ones(3, 2),), failing=[((torch.full((3, 2), 4.0),), "step")])
def scanned(x: torch.Tensor) -> torch.Tensor:
    def step(carry: torch.Tensor, row: torch.Tensor) -> Any:
        torch._check((carry + row).sum().item() < 20, lambda: "step")
        return carry + row, carry * 2

    return scan(step, torch.zeros(2), x)[1]


@case((torch.ones(3, 2),), failing=[((torch.full((3, 2), 14.0),), "row")])
def mapped(x: torch.Tensor) -> torch.Tensor:
    def each(row: torch.Tensor) -> torch.Tensor:
        torch._check(row.sum().item() < 20, lambda: "row")
        return row * 2

    rows: torch.Tensor = map_rows(each, x)
    return rows


class Sub(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._check(x.sum().item() < 10, lambda: "submodule")
        return x


class Regions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sub = Sub()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.sub(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch._check(x.max().item() > 0, lambda: "region")
        return x


_REGIONS = Regions()


@case((ints(3, 5),), failing=[((ints(30, 5),), "submodule"), ((ints(0, -3),), "region")])
def regions(x: torch.Tensor) -> torch.Tensor:
    return _REGIONS(x)  # type: ignore[no-any-return]


class Model(nn.Module):
    """A function of this module as a module with a submodule."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.regions = _REGIONS

    def forward(self, x: torch.Tensor, *rest: torch.Tensor) -> Any:
        return self.function(x, *rest)


class Either(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u, v = x.tolist()
        assert u > 5 or v > 5
        return x + 1


class Modulo(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._check(x[0].item() % 7 == 3)
        return x + 1
