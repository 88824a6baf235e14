"""Sorts, scans, linear algebra, random draws and masks of blocks: emulated kernels against eager."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import ingot
from ingot.compiler import run_cpu_pipeline
from ingot.lowering.index_expr import size_symbol, symbol
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.loop_ir import ClassifyMaskBlocks, ExternKernel, Loop, Map, Scan, Store
from ingot.targets.cuda.codegen import extern_kernels, loops, mask_blocks, reductions, scan  # noqa: F401
from tests.support.cuda_emulation.emulated_model import EmulatedModel, lower_for_cuda
from tests.support.cuda_emulation.kernels import check_cubin, run_module, write_kernels
from tests.support.cuda_emulation.statements import Statements, draw_values
from tests.support.cuda_emulation.toolkit import needs_nvrtc

LENGTHS = (0, 1, 2, 31, 33, 257, 1030)


def add_sort(bench: Statements, dtype: str, rows: int, n: int, *, descending: bool, special: bool = True) -> None:
    x = bench.give(draw_values((rows, n), dtype, n, special=special), dtype)
    values, places = bench.make(dtype, (rows, n)), bench.make("int64", (rows, n))
    bench.add(ExternKernel("sort", (x,), (values, places), (rows, n), (("descending", descending),)))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8", "bool"])
def test_sorts_are_stable_and_put_nan_last(dtype: str) -> None:
    bench = Statements()
    for n in LENGTHS:
        add_sort(bench, dtype, 3, n, descending=False)
        add_sort(bench, dtype, 2, n, descending=True)
    bench.compare(ulps=0)


def test_rows_too_long_for_shared_memory_are_sorted_in_global_memory() -> None:
    bench = Statements()
    add_sort(bench, "float32", 2, 6500, descending=False)
    (step,) = write_kernels(bench.module)[1]
    assert step.kernels[0][1].shared == 0 and step.scratch.size == 2 * 6500 * 8 // 256 * 256 + 256
    bench.compare(ulps=0)


@pytest.mark.parametrize("kind", ["sum", "prod", "logsumexp"])
def test_cumulative_scans(kind: str) -> None:
    bench = Statements()
    for dtype in ("float32", "float64", "int64", "int32"):
        if kind == "logsumexp" and dtype[0] == "i":
            continue
        for outer, n, inner in ((3, 0, 1), (2, 1, 1), (3, 33, 1), (2, 1030, 1), (2, 31, 3), (1, 300, 5), (130, 7, 1)):
            values = draw_values((outer, n, inner), dtype, n)
            values = np.sign(values) if kind == "prod" else values
            x, y = bench.give(values, dtype), bench.make(dtype, (outer, n, inner))
            bench.add(ExternKernel("scan", (x,), (y,), (outer, n, inner), (("kind", kind),)))
    bench.compare()


@pytest.mark.parametrize("kind", ["max", "min"])
def test_cumulative_extremes(kind: str) -> None:
    bench = Statements()
    for dtype in ("float32", "int64", "uint8"):
        for outer, n, inner in ((3, 0, 1), (3, 33, 1), (2, 400, 3)):
            x = bench.give(draw_values((outer, n, inner), dtype, n, special=True), dtype)
            made = bench.make(dtype, (outer, n, inner)), bench.make("int64", (outer, n, inner))
            bench.add(ExternKernel("scan_places", (x,), made, (outer, n, inner), (("kind", kind),)))
    bench.compare(ulps=0)


def well_conditioned(n: int) -> torch.Tensor:
    x = torch.randn(2, n, n, generator=torch.Generator().manual_seed(n))
    return x @ x.mT + n * torch.eye(n)


MODELS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "cholesky": (torch.linalg.cholesky, lambda: (well_conditioned(7),)),
    "solve": (torch.linalg.solve, lambda: (well_conditioned(5), torch.ones(2, 5, 3))),
    "inverse": (torch.linalg.inv, lambda: (well_conditioned(6),)),
    "triangular": (
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=True),
        lambda: (well_conditioned(4).triu(), torch.ones(2, 4, 2)),
    ),
    "qr": (lambda a: torch.linalg.qr(a)[1].abs(), lambda: (torch.arange(30.0).sin().reshape(6, 5),)),
    "svd": (lambda a: torch.linalg.svdvals(a), lambda: (torch.arange(24.0).cos().reshape(6, 4),)),
    "mode": (lambda a: torch.mode(a, -1).values, lambda: (torch.arange(24).reshape(2, 12) % 5,)),
    "search": (
        torch.searchsorted,
        lambda: (torch.arange(20.0).reshape(2, 10), torch.tensor([[0.5, 3, math.inf], [-1, 9.5, 12]])),
    ),
    "topk": (lambda a: torch.topk(a, 3), lambda: (torch.arange(40.0).sin().reshape(4, 10),)),
}


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    function, make = MODELS[name]
    args = make()
    program = run_cpu_pipeline(ingot.capture(Lambda(function), args))
    found = EmulatedModel(program, lower_for_cuda(program))(*args)
    wide = [x.double() if x.is_floating_point() else x for x in args]
    for one, other in zip(*(torch.utils._pytree.tree_leaves(v) for v in (found, function(*wide))), strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=2e-6, atol=2e-6)


class Lambda(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


# ---------------------------------------------------------------------- scans, draws, masks


@pytest.mark.parametrize("back", [False, True])
def test_scans_by_a_function(back: bool) -> None:
    """Two states, of which the second is the first before: Fibonacci's with a factor."""
    n = size_symbol("n0")
    bench = Statements({"n0": 17})
    for lanes in (1, 3, 70):
        x, y = (
            bench.give(draw_values((17, lanes), "float32", lanes), "float32", (n, lanes)),
            bench.make("float32", (n, lanes)),
        )
        i, t = symbol("i0", lanes), symbol("t", n)
        ops = BodyBuilder()
        start = ops.finish([ops.const(1, "float32"), ops.cast(ops.index(i), "float32")])
        ops = BodyBuilder()
        first, second = (ops.emit("input", (), "float32", number) for number in (0, 1))
        value = ops.call("mul", ops.call("add", first, second), ops.load(x, t * lanes + i, "float32"))
        body = ops.finish([value, first, second])
        stores = (Store(y, t * lanes + i, 2),)
        bench.add(Scan((Loop("i0", lanes),), Loop("t", n), start, body, stores, back=back))
    bench.compare()


def test_draws_are_the_interpreters() -> None:
    bench = Statements()
    for kind, dtype in (("uniform_f32", "float32"), ("normal_f32", "float32"), ("normal_f64", "float64")):
        y = bench.make(dtype, (77,))
        ops = BodyBuilder()
        place = ops.index(symbol("i0", 77))
        body = ops.finish([ops.emit("random", (place,), dtype, (kind, 2))])
        bench.add(Map((Loop("i0", 77),), body, (Store(y, symbol("i0", 77), 0),)))
    one, other = bench.compare(seed=11, ulps=4), run_module(bench.module, {}, seed=12)
    assert not np.array_equal(one["b0"], other["b0"])


def test_blocks_of_a_mask() -> None:
    bench = Statements()
    for queries, keys in ((1, 1), (64, 64), (65, 130), (0, 5), (200, 33)):
        down, right = -(-queries // 64), -(-keys // 32)
        table = bench.make("uint8", (2, down, right))
        ops = BodyBuilder()
        i, j, h = (ops.index(symbol(name, below)) for name, below in (("i", queries), ("j", keys), ("h", 2)))
        shifted = ops.call("add", i, ops.call("mul", h, ops.const(40, "int64")))
        mask = ops.finish([ops.call("ge", shifted, j)])
        bench.add(ClassifyMaskBlocks((Loop("h", 2),), queries, keys, 64, 32, mask, table))
    found = bench.compare()
    assert set(found["b2"]) == {0, 1, 2}


@needs_nvrtc
def test_all_compile_for_every_architecture() -> None:
    bench = Statements()
    add_sort(bench, "float32", 3, 1030, descending=False)
    add_sort(bench, "int64", 3, 33, descending=True)
    for kind in ("sum", "prod", "logsumexp"):
        x, y = bench.give(draw_values((3, 33), "float32"), "float32"), bench.make("float32", (3, 33))
        bench.add(ExternKernel("scan", (x,), (y,), (3, 33, 1), (("kind", kind),)))
    check_cubin(write_kernels(bench.module)[0])
    for name, (function, make) in MODELS.items():
        program = run_cpu_pipeline(ingot.capture(Lambda(function), make()))
        text, steps = write_kernels(lower_for_cuda(program))
        assert steps, name
        check_cubin(text, ("sm_90a",))
