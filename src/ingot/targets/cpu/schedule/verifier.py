"""What the CPU's own steps must hold, beside what every module must. One rule per type of step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ingot.lowering.index_expr import Size, product
from ingot.lowering.loop_ir import Convolution, Stmt
from ingot.lowering.loop_ir_verifier import verify_module
from ingot.lowering.loop_module import Module
from ingot.lowering.verification.access_rules import Facts
from ingot.lowering.verification.step_rules import extents
from ingot.registry import Registry
from ingot.targets.cpu.schedule.statements import (
    K_INTERLEAVE,
    LHS_STORAGE,
    DualGemm,
    GemmGroup,
    OperandFormat,
    PackedGemm,
    QuantizedLayout,
    StripMined,
    Tiled,
    TiledConvolution,
)

# What a packed weight is stored as, by the format of the product's operands.
_RHS_STORAGE: dict[OperandFormat, str] = {"bfloat16": "bfloat16", "int8": "int8"}
# Bits of a word of codes.
_WORD = 32


def verify_schedule(module: Module, after: str, *, full: bool = True) -> None:
    """Raises ScheduleError, which names the scheduling pass `after`, where the module is not well formed."""

    def find_fault(step: Stmt, facts: Facts) -> str | None:
        rule = _RULES.get(type(step)) if full or _RULES.has_tag(type(step), "structure") else None
        return None if rule is None else rule(step, facts)

    verify_module(module, after, find_fault, full=full)


# Those with the tag "structure" look at the steps alone.
_RULES: Registry[type, Callable[[Any, Facts], str | None]] = Registry("verifier rule")


@_RULES.register(PackedGemm)
def _check_packed_gemm(step: PackedGemm, facts: Facts) -> str | None:
    if step.factors != "same" and step.a.columns != 1:
        return f"rows of {step.factors} factors are not contiguous"
    rows, weight = facts.buffers[step.a.buffer], facts.buffers[step.b.buffer]
    if step.factors != "same" and rows.dtype != LHS_STORAGE[step.factors]:
        return f"rows of {step.factors} factors are {rows.dtype}, in {rows.name}"
    fault = _check_weight(step.b.buffer, "uint32" if step.codes else _weight_dtype(step), facts)
    fault = fault or facts.find_matrix_fault("a", step.a, step.m, step.k, extents(step.batch))
    if fault is not None:
        return fault
    terms: Size = _whole(step.k, step.factors)
    if step.codes is not None:
        if step.k % step.codes.group != 0:
            return f"{step.k} terms are not groups of {step.codes.group}"
        terms = step.k // step.codes.group * -(-step.codes.group * step.codes.bits // _WORD)
        fault = _check_codes(step, step.codes, facts)
    needed = _panels(step.n, step.b.width) * terms * step.b.width
    if fault is None and facts.surely_negative(weight.size - needed):
        fault = f"{weight.name} has {weight.size} elements, and {needed} are needed"
    return fault


def _check_codes(step: PackedGemm, codes: QuantizedLayout, facts: Facts) -> str | None:
    needed = _panels(step.n, step.b.width) * (step.k // codes.group) * step.b.width
    for name in sorted(codes.buffers):
        fault = _check_weight(name, "float32", facts) or facts.find_size_fault(name, (needed,))
        if fault is not None:
            return fault
    return None


def _check_weight(name: str, dtype: str, facts: Facts) -> str | None:
    weight = facts.buffers[name]
    if weight.kind != "weight":
        return f"{name} is packed ahead of time, and is not a weight ({weight.kind})"
    return None if weight.dtype == dtype else f"{name} holds {weight.dtype}, and its factors need {dtype}"


def _weight_dtype(step: Tiled) -> str:
    depthwise = isinstance(step, TiledConvolution) and step.algorithm == "depthwise"
    return step.dtype if depthwise else _RHS_STORAGE.get(step.factors, step.dtype)


def _whole(terms: Size, factors: OperandFormat) -> Size:
    each = K_INTERLEAVE[factors]
    return (terms + each - 1) // each * each


def _panels(columns: Size, width: int) -> Size:
    return (columns + width - 1) // width


@_RULES.register(TiledConvolution)
def _check_convolution(step: TiledConvolution, facts: Facts) -> str | None:
    if step.out_channels % step.groups:
        return f"{step.out_channels} output channels are not {step.groups} groups"
    if min(*step.kernel, *step.stride, *step.dilation) < 1:
        return "its kernel, stride or dilation is not positive"
    fault = _check_weight(step.weight, _weight_dtype(step), facts)
    return fault or _IMAGE_RULES[step.algorithm](step, facts)


_IMAGE_RULES: Registry[str, Callable[[TiledConvolution, Facts], str | None]] = Registry("rule of a convolution")


@_IMAGE_RULES.register("windows")
def _check_windows(step: TiledConvolution, facts: Facts) -> str | None:
    taps, each = product(step.kernel), step.out_channels // step.groups
    panels = _panels(each, step.panel) * step.groups
    weight = (panels, taps, _whole(step.channels, step.factors), step.panel)
    return facts.find_size_fault(step.weight, weight) or _check_image(step, facts)


@_IMAGE_RULES.register("depthwise")
def _check_depthwise(step: TiledConvolution, facts: Facts) -> str | None:
    if step.groups != step.out_channels:
        return f"a depthwise convolution has {step.groups} groups for {step.out_channels} channels"
    return facts.find_size_fault(step.weight, (*step.kernel, step.out_channels)) or _check_image(step, facts)


def _check_image(step: TiledConvolution, facts: Facts) -> str | None:
    needed = LHS_STORAGE.get(step.factors, step.dtype)
    found = facts.buffers[step.x].dtype
    if found != needed:
        return f"its image {step.x} holds {found}, and its factors need {needed}"
    return facts.find_size_fault(step.x, (step.images, *step.size, step.pixel))


@_IMAGE_RULES.register("winograd")
def _check_winograd(step: TiledConvolution, facts: Facts) -> str | None:
    down, across = ((size + 1) // 2 for size in step.out_size)
    fault = facts.find_size_fault(step.x, (16, step.images, down, across, step.channels))
    weight = (16, _panels(step.out_channels, step.panel), step.channels, step.panel)
    return fault or facts.find_size_fault(step.weight, weight)


@_RULES.register(GemmGroup, tags=["structure"])
def _check_gemm_group(step: GemmGroup, facts: Facts) -> str | None:
    kinds = {(one.a, one.batch, one.m, one.n, one.k, one.dtype, one.b.width, one.factors) for one in step.steps}
    if len(step.steps) < 2:
        return "a group has two products or more"
    return None if len(kinds) == 1 else "products of a group differ in their rows or sizes"


@_RULES.register(DualGemm, tags=["structure"])
def _check_dual_gemm(step: DualGemm, facts: Facts) -> str | None:
    _, second = step.steps
    if second.epilogue.stores:
        return "the second step of a pair has stores of its own"
    if any(isinstance(one, TiledConvolution) and one.algorithm != "windows" for one in step.steps):
        return "a step of a pair is a convolution that is not by windows"
    alike = [(one.sums_shape(), _panel_width(one), one.dtype, one.factors) for one in step.steps]
    return None if alike[0] == alike[1] else "the two steps of a pair differ in their rows, columns or panels"


def _panel_width(step: Tiled) -> int:
    return step.panel if isinstance(step, TiledConvolution) else step.b.width


@_RULES.register(StripMined, tags=["structure"])
def _check_strip_mined(step: StripMined, facts: Facts) -> str | None:
    if not len(step.steps) == len(step.local) + 1 == len(step.grids):
        return f"{len(step.steps)} steps have {len(step.local)} buffers between them and {len(step.grids)} grids"
    if step.lines < 1:
        return f"a strip has {step.lines} lines"
    for one, name in zip(step.steps, step.local, strict=False):
        if [store.buffer for store in one.epilogue.stores] != [name]:
            return f"a step before the last does not write {name} alone"
    for one, name in zip(step.steps[1:], step.local, strict=True):
        if (one.x if isinstance(one, TiledConvolution) else one.a.buffer) != name:
            return f"a step does not read {name}, which the one before it writes"
    for one, grid in zip(step.steps, step.grids, strict=True):
        rows = product((step.images, *grid))
        if facts.surely_differ(rows, one.sums_shape()[0]):
            return f"{rows} pixels of a grid are not the {one.sums_shape()[0]} rows of its step"
    return None


@_RULES.register(Convolution, tags=["structure"])
def _refuse_convolution(step: Convolution, facts: Facts) -> str | None:
    return "it has no algorithm, which lowering with the CPU's strategy gives it"
