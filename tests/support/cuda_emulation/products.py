"""Products and convolutions as modules of one step, with matrices that lie as a test says, and what they must give."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ingot.lowering.dtypes import wide
from ingot.lowering.index_expr import Size, symbol
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.loop_ir import Buffer, Gemm, Loop, Map, MatrixView, Stmt, Store
from ingot.lowering.loop_module import Module
from ingot.targets.reference.memory import decode
from tests.support.cuda_emulation.kernels import run_module

# How far a sum may be from the one in float64, in units of the sum of magnitudes: by the dtype of the result.
TOLERANCES = {"bfloat16": 2.0**-8, "float16": 2.0**-10, "float32": 2.0**-20, "float64": 2.0**-48}


@dataclass(frozen=True)
class Operand:
    """A matrix [batch…, rows, columns] in a buffer: dense in `order` of its dims, from `offset` on, rows `pad` longer
    than they are. A dim of the batch that is not in `batch` is broadcast."""

    shape: tuple[int, ...]
    dtype: str
    transposed: bool = False
    pad: int = 0
    offset: int = 0
    broadcast: tuple[int, ...] = ()

    def strides(self) -> tuple[int, ...]:
        *batch, rows, columns = self.shape
        inner = (1, rows + self.pad) if self.transposed else (columns + self.pad, 1)
        step = (columns if self.transposed else rows) * max(inner)
        steps: list[int] = []
        for dim in range(len(batch) - 1, -1, -1):
            steps.insert(0, 0 if dim in self.broadcast else step)
            step *= 1 if dim in self.broadcast else batch[dim]
        return (*steps, *inner)

    def size(self) -> int:
        return self.offset + sum((n - 1) * s for n, s in zip(self.shape, self.strides(), strict=True)) + 1 + self.pad


def make_values(dtype: str, size: int, seed: int) -> np.ndarray:
    """Numbers as memory holds them."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.startswith(("int", "uint")):
        low = 0 if dtype.startswith("uint") else -7
        return torch.randint(low, 8, (size,), generator=generator).numpy().astype(dtype)
    made = torch.randn(size, generator=generator, dtype=torch.float64).to(getattr(torch, dtype))
    return made.view(torch.uint16).numpy() if dtype == "bfloat16" else made.numpy()


def view_values(stored: np.ndarray, operand: Operand) -> np.ndarray:
    """The matrix as float64, or int64."""
    flat = decode(stored, operand.dtype)
    flat = flat.astype(np.int64 if flat.dtype.kind in "iu" else np.float64)
    strides = [s * flat.itemsize for s in operand.strides()]
    return np.lib.stride_tricks.as_strided(flat[operand.offset :], operand.shape, strides)


def make_gemm(a: Operand, b: Operand, out_dtype: str | None = None, sums: str | None = None, name: str = "") -> Module:
    """out[batch…, i, j] = a · b as a module of one Gemm. Buffers are called a, b and out, with `name` behind."""
    *batch, m, k = a.shape
    n = b.shape[-1]
    dtype = out_dtype or a.dtype
    kind = sums or wide(dtype)
    loops = tuple(Loop(f"i{d}", size) for d, size in enumerate((*batch, m, n)))
    index = [symbol(loop.variable, below=loop.extent) for loop in loops]
    at: Size = 0
    for loop, variable in zip(loops, index, strict=True):
        at = at * loop.extent + variable
    ops = BodyBuilder()
    value = ops.cast(ops.emit("accumulator", (), kind), dtype)
    epilogue = Map(loops, ops.finish([value]), (Store(f"out{name}", at, 0),))
    views = []
    for side, operand in (("a", a), ("b", b)):
        *steps, rows, columns = operand.strides()
        offset: Size = operand.offset
        for step, variable in zip(steps, index, strict=False):
            offset = offset + variable * step
        views.append(MatrixView(f"{side}{name}", offset, rows, columns))
    product = Gemm(loops[:-2], m, n, k, views[0], views[1], kind, epilogue)
    buffers = [
        Buffer(f"a{name}", a.dtype, (a.size(),), "input"),
        Buffer(f"b{name}", b.dtype, (b.size(),), "weight"),
        Buffer(f"out{name}", dtype, (*batch, m, n), "output"),
    ]
    return Module({buffer.name: buffer for buffer in buffers}, (product,), (), (), (), {})


@dataclass(frozen=True)
class Case:
    """A product, and what a test does to its step before its kernels are written."""

    a: Operand
    b: Operand
    change: Callable[[Any], Stmt]
    out_dtype: str | None = None
    sums: str | None = None


def join_cases(cases: Sequence[Case]) -> Module:
    """All products as one module: one text to compile."""
    buffers: dict[str, Buffer] = {}
    steps: list[Stmt] = []
    for number, case in enumerate(cases):
        module = make_gemm(case.a, case.b, case.out_dtype, case.sums, f"_{number}")
        buffers |= module.buffers
        steps += [case.change(step) for step in module.steps]
    return Module(buffers, tuple(steps), (), (), (), {})


def check_cases(cases: Sequence[Case], tolerances: Mapping[str, float] = TOLERANCES) -> None:
    """Every product's kernels against the product in float64, or in int64."""
    module = join_cases(cases)
    values = {}
    for number, case in enumerate(cases):
        for side, operand in (("a", case.a), ("b", case.b)):
            values[f"{side}_{number}"] = make_values(operand.dtype, operand.size(), 2 * number + (side == "b"))
    found = run_module(module, values)
    for number, case in enumerate(cases):
        name = f"out_{number}"
        left, right = view_values(values[f"a_{number}"], case.a), view_values(values[f"b_{number}"], case.b)
        dtype = module.buffers[name].dtype
        check_sums(found[name], dtype, left, right, tolerances.get(dtype, 0), f"{case} {module.steps[number]}")


def check_sums(
    stored: np.ndarray, dtype: str, left: np.ndarray, right: np.ndarray, tolerance: float, what: str
) -> None:
    expected = left @ right
    found = decode(stored, dtype).reshape(expected.shape)
    if expected.dtype.kind == "i":
        np.testing.assert_array_equal(found, expected, what)
        return
    assert np.isfinite(found).all(), what
    error = np.abs(found.astype(np.float64) - expected) / np.maximum(np.abs(left) @ np.abs(right), 1e-30)
    assert error.max(initial=0) <= tolerance, f"{error.max()} {what}"
