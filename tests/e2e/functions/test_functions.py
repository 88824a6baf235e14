"""Attention and scans with users' functions inside: native code against whole tensors in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.scan import scan
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import ingot
from ingot.lowering.loop_ir import AttentionBackward, Scan
from tests.support.kernel_functions import (
    ATTENDING,
    COMBINING,
    HEADS,
    Attending,
    Combining,
    attend,
    combine_along,
    masking,
    scoring,
)

TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 4e-2}


class Attends(nn.Module):
    """A model that holds flex_attention; its tables are buffers, and parameters where they are learned."""

    def __init__(self, case: Attending, tables: list[torch.Tensor]) -> None:
        super().__init__()
        self.case = case
        self.names = [f"table{number}" for number in range(len(tables))]
        for number, (name, table) in enumerate(zip(self.names, tables, strict=True)):
            if number < case.learned:
                setattr(self, name, nn.Parameter(table))
            else:
                self.register_buffer(name, table)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        tables = [getattr(self, name) for name in self.names]
        mask = masking(self.case, tables)
        blocks = None
        if mask is not None:
            blocks = create_block_mask(mask, q.shape[0], q.shape[1], q.shape[2], k.shape[2], device="cpu")
        score = scoring(self.case, tables)
        return flex_attention(q, k, v, score_mod=score, block_mask=blocks, enable_gqa=True, return_lse=True)


def operands(dtype: torch.dtype, queries: int, keys: int, heads: int = 2, depth: int = 16) -> list[torch.Tensor]:
    torch.manual_seed(queries)
    shapes = ((2, HEADS, queries, depth), (2, heads, keys, depth), (2, heads, keys, depth + 3))
    return [torch.randn(shape).to(dtype) for shape in shapes]


def check(ours: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype, name: str = "") -> None:
    assert ours.shape == exact.shape
    limit = TOLERANCE[dtype]
    torch.testing.assert_close(
        ours.double(), exact.double(), rtol=limit, atol=limit, msg=lambda text: f"{name}: {text}"
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=["float64", "bfloat16"])
def test_models_that_hold_flex_attention(dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    models = [Attends(case, case.tables()) for case in ATTENDING.values()]
    models = [model.double() if dtype == torch.float64 else model for model in models]
    q, k, v = operands(dtype, 101, 133)
    compiled = ingot.compile(Several(models).eval(), (q, k, v))
    with torch.no_grad():
        for (name, case), model, (out, lse) in zip(ATTENDING.items(), models, compiled(q, k, v), strict=True):
            tables = [getattr(model, table) for table in model.names]
            tables = [t.double() if t.is_floating_point() else t for t in tables]
            exact = attend(case, q.double(), k.double(), v.double(), tables)
            check(out, exact[0], dtype, name)
            check(lse, exact[1], max(dtype, lse.dtype, key=TOLERANCE.__getitem__), name)
    compiled.close()


def leaves_of(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copies in float64 that gather gradients."""
    return [t.detach().double().requires_grad_(t.requires_grad) if t.is_floating_point() else t for t in tensors]


class Several(nn.Module):
    """Many models on the same arguments, so that one compile tries all of them."""

    def __init__(self, models: list[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, *arguments: Any) -> list[Any]:
        return [model(*arguments) for model in self.models]


HALVES = {"first": list(ATTENDING)[:7], "second": list(ATTENDING)[7:]}


@pytest.mark.parametrize(
    ("half", "dtype"),
    [
        pytest.param("first", torch.float32, marks=pytest.mark.optimized, id="first-float32"),
        pytest.param("first", torch.bfloat16, id="first-bfloat16"),
        pytest.param("second", torch.float32, id="second-float32"),
        pytest.param("second", torch.bfloat16, id="second-bfloat16"),
    ],
)
def test_attention_trains(half: str, dtype: torch.dtype) -> None:
    cases = [ATTENDING[name] for name in HALVES[half]]
    torch.manual_seed(3)
    models = [Attends(case, case.tables()) for case in cases]
    given = [t.requires_grad_() for t in operands(dtype, 67, 131)]
    trained = ingot.compile(Several(models), given, training=True)
    (graph,) = trained.graphs
    assert graph.backward is not None
    steps = [step for step in graph.backward._module.steps if isinstance(step, AttentionBackward)]
    assert len(steps) == 2 * len(cases)
    for name, model, (out, lse) in zip(HALVES[half], models, trained(*given), strict=True):
        case, tables = ATTENDING[name], [getattr(model, table) for table in model.names]
        exact, exact_tables = leaves_of(given), leaves_of(tables)
        theirs = attend(case, *exact, exact_tables)
        asked = [torch.randn_like(out), torch.randn_like(lse)]
        for results in ((out, lse), theirs):
            seen = results[1].isfinite()
            weights = [asked[0].to(results[0]), asked[1][seen].to(results[1])]
            torch.autograd.backward([results[0], results[1][seen]], weights, retain_graph=True)
        check(out, theirs[0], dtype, name)
        check(lse, theirs[1], dtype, name)
        for ours, other in zip((*given, *tables), (*exact, *exact_tables), strict=True):
            if other.requires_grad:
                size = max(1.0, float(other.grad.abs().max()))
                check(ours.grad / size, other.grad / size, dtype, name)
                ours.grad = None
    trained.close()


class Scans(nn.Module):
    """An associative scan along a dim; what it is learned over are parameters."""

    def __init__(self, case: Combining, dim: int, reverse: bool, width: int) -> None:
        super().__init__()
        self.case, self.dim, self.reverse = case, dim, reverse
        self.tables = nn.ParameterList(torch.rand(width) + 0.5 for _ in range(case.learned))

    def forward(self, *xs: torch.Tensor) -> Any:
        tables = list(self.tables)
        return associative_scan(
            lambda a, b: self.case.combine(a, b, *tables),
            xs[: self.case.count],
            self.dim,
            reverse=self.reverse,
            combine_mode="generic",
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_scans_train(dim: int, dtype: torch.dtype) -> None:
    """Every function along each dim, forward and back in turn, on tensors that do not lie in their own order."""
    shape = [3, 5, 7]
    shape[dim] = 37 if dtype == torch.float32 else 9
    torch.manual_seed(dim)
    xs = [torch.rand(shape) * 0.5 + 0.5 for _ in range(3)]
    xs = [x.to(dtype).transpose(0, 2).contiguous().transpose(0, 2).requires_grad_() for x in xs]
    width = [size for d, size in enumerate(shape) if d != dim][-1]
    models = [Scans(case, dim, n % 2 == 1, width).to(dtype) for n, case in enumerate(COMBINING.values())]
    trained = ingot.compile(Several(models), xs, training=True)
    (graph,) = trained.graphs
    assert graph.forward is not None and graph.backward is not None
    for half in (graph.forward, graph.backward):
        assert sum(isinstance(step, Scan) for step in half._module.steps) == len(models)
    tolerance = TOLERANCE[dtype] if dtype == torch.float32 else 0.1  # each turn rounds
    for (name, case), model, ours in zip(COMBINING.items(), models, trained(*xs), strict=True):
        exact, tables = leaves_of(xs), leaves_of(list(model.tables))
        theirs = combine_along(case, tuple(exact[: case.count]), tables, dim, model.reverse)
        asked = [torch.randn_like(y) for y in ours]
        torch.autograd.backward(list(ours), asked, retain_graph=True)
        torch.autograd.backward(list(theirs), [g.double() for g in asked])
        inputs = list(zip([*xs[: case.count], *model.tables], [*exact[: case.count], *tables], strict=True))
        for a, b in [*zip(ours, theirs, strict=True), *((a.grad, b.grad) for a, b in inputs)]:
            size = max(1.0, float(b.detach().abs().max()))
            torch.testing.assert_close(
                a.double() / size,
                b / size,
                rtol=tolerance,
                atol=tolerance,
                msg=lambda text, name=name: f"{name}: {text}",
            )
        for x in xs:
            x.grad = None
    trained.close()


def test_a_scan_with_a_state_of_its_own() -> None:
    class Recurrence(nn.Module):
        def forward(self, h: torch.Tensor, x: torch.Tensor) -> Any:
            def step(h: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                h = torch.tanh(h * 0.9 + x)
                return h, h * 2

            return scan(step, h, x)

    h, x = torch.randn(4, 3), torch.randn(20, 4, 3)
    compiled = ingot.compile(Recurrence(), (h, x))
    assert [type(step) for step in compiled._module.steps] == [Scan]
    last, all_ = compiled(h, x)
    for t in range(20):
        h = torch.tanh(h * 0.9 + x[t])
        check(all_[t], h * 2, torch.float32)
    check(last, h, torch.float32)
    compiled.close()


def test_a_scan_that_mixes_elements_runs_place_by_place() -> None:
    def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return b @ a

    x = torch.randn(6, 3, 3)
    compiled = ingot.compile(lambda x: associative_scan(multiply, x, 0, combine_mode="generic"), (x,))
    expected = [x[0]]
    for t in range(1, 6):
        expected.append(x[t] @ expected[-1])
    check(compiled(x), torch.stack(expected), torch.float32)
    compiled.close()
