"""Products of few rows with a weight of integers: the step, what it must hold, and what it means.

    CodedGemm(m, n, k, a, codes, scales, zeros, form, …)    Σ a[i, t] · (code[j, t] - zero[j, g]) · scale[j, g]

Warps read the integers once and multiply them on tensor cores, where they are exact in bfloat16 (cu/gemm_codes.cuh).
Products of more rows dequantize their weight to memory first: kernel_selection/coded_products.py chooses.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ingot.lowering.dtypes import wide
from ingot.lowering.index_expr import Size
from ingot.lowering.loop_ir import Map, MatrixView, SourceLocation, WithEpilogue
from ingot.lowering.verification.access_rules import Facts
from ingot.targets.base import StepRunner
from ingot.targets.cuda.schedule.quantized.layouts import TILE, CodeForm, read_fragments, read_scales

NOWHERE = SourceLocation()
# Parts that are exact in bfloat16 and add up to a number of a dtype.
PIECES = {"bfloat16": 1, "float16": 2, "float32": 3}
# Rows of the product's left side at most, each counted as often as it has pieces.
MOST_COLUMNS = 32


@dataclass(frozen=True, slots=True)
class CodedGemm(WithEpilogue):
    """A product of `m` rows with `n` lines of `k` integers that lie as `form` says. `scales` and `zeros` are buffers or
    one number for all; zeros are integers, less what the codes are less. With `pairs`, in members of GatedCodes, runs
    of 8 lines of the first half of all and of the second one lie in turn."""

    m: int
    n: int
    k: int
    a: MatrixView
    codes: str
    scales: str | float
    zeros: str | float
    form: CodeForm
    dtype: str
    epilogue: Map
    origin: SourceLocation = NOWHERE
    pairs: bool = False

    def sums_shape(self) -> tuple[Size, Size]:
        return self.m, self.n

    def operand_buffers(self) -> set[str]:
        return {self.a.buffer, self.codes} | {name for name in (self.scales, self.zeros) if isinstance(name, str)}

    def operand_offsets(self) -> tuple[Size, ...]:
        return (self.a.offset,)


def count_columns(dtype: str, rows: int) -> int:
    """The columns that rows of a dtype are on tensor cores."""
    return PIECES[dtype] * rows


def find_coded_fault(step: CodedGemm, facts: Facts) -> str | None:
    """Why a step is not one of these; None where it is."""
    form, dtype = step.form, facts.buffers[step.a.buffer].dtype
    if form.bits not in (4, 8) or form.group < 1 or step.n < 1 or step.k < 1 or step.k % form.group:
        return f"{step.k} terms are not groups of {form.group} integers of 4 or 8 bits"
    if step.pairs and step.n % TILE:
        return f"halves of {step.n} lines are not whole runs of 8"
    if dtype not in PIECES or step.dtype != "float32":
        return f"rows of {dtype} are not multiplied with integers into sums of {step.dtype}"
    if not 0 < count_columns(dtype, step.m) <= MOST_COLUMNS:
        return f"{step.m} rows of {dtype} are not one to {MOST_COLUMNS // PIECES[dtype]}"
    given = {step.codes: ("uint32", form.codes_shape(step.n, step.k))}
    given |= {
        name: ("float32", form.scales_shape(step.n, step.k))
        for name in (step.scales, step.zeros)
        if isinstance(name, str)
    }
    for name, (stored, shape) in given.items():
        buffer = facts.buffers[name]
        if buffer.dtype != stored or buffer.kind != "weight":
            return f"{name} is {buffer.dtype} of the kind {buffer.kind}, and not a weight of {stored}"
        fault = facts.find_size_fault(name, shape)
        if fault is not None:
            return fault
    return facts.find_matrix_fault("a", step.a, step.m, step.k, {})


def run_coded_gemm(run: StepRunner, step: CodedGemm) -> None:
    """For the interpreter: sums in float64, rounded once."""
    n, k, form = step.n, step.k, step.form
    codes = read_fragments(np.ascontiguousarray(run.values(step.codes)), form, n, k).astype(np.float64)
    scales, zeros = (
        given
        if not isinstance(given, str)
        else read_scales(np.ascontiguousarray(run.values(given)), form, n, k).astype(np.float64).repeat(form.group, 1)
        for given in (step.scales, step.zeros)
    )
    (left,) = run.matrices(step.a, (), step.m, k)
    with np.errstate(all="ignore"):
        weight = (codes - zeros) * scales
        if step.pairs:
            weight = weight.reshape(n // TILE, 2, 8, k).swapaxes(0, 1).reshape(n, k)
        sums = left.astype(np.float64) @ weight.T
    run.run_epilogue(step.epilogue, sums.astype(wide(step.dtype))[None])
