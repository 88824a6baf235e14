"""AMX: products of bfloat16 or of bytes that use a machine's matrix registers, where it has such.

    before                                     after
    PackedGemm         factors=int8            PackedGemm         factors=int8 amx=true
    TiledConvolution   factors=bfloat16        TiledConvolution   factors=bfloat16 amx=true

A panel of such factors is a row of matrix registers as it lies, so weights are packed in the same way on every machine.
The C text says how to compute the same without AMX, for all other instruction sets.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from ingot.lowering.dependence import map_steps
from ingot.lowering.loop_ir import Attention, Stmt
from ingot.lowering.loop_module import Module
from ingot.targets.cpu.schedule.statements import (
    AmxAttention,
    DualGemm,
    GemmGroup,
    PackedGemm,
    StripMined,
    TiledConvolution,
)


def use_amx(module: Module) -> Module:
    """Marks the products that AMX computes."""
    return replace(module, steps=map_steps(module.steps, _mark))


def use_amx_in_attention(module: Module) -> Module:
    """Where float32 products multiply in bfloat16, those of attention do so on AMX. What backward is to read, the
    logarithm of the sums, is left to exact products."""
    return replace(module, steps=map_steps(module.steps, _narrow)) if module.precision == "bfloat16" else module


def _narrow(step: Stmt) -> Stmt:
    if type(step) is Attention and step.dtype == "float32" and step.lse is None and step.top is None:
        return AmxAttention(**{field.name: getattr(step, field.name) for field in fields(step)})
    return step


def _mark(step: Stmt) -> Stmt:
    match step:
        case PackedGemm() if step.factors != "same":
            return replace(step, amx=True)
        case TiledConvolution() if step.factors != "same" and step.algorithm == "windows":
            return replace(step, amx=True)
        case GemmGroup() | DualGemm() | StripMined():
            marked: Any = tuple(map(_mark, step.steps))
            return step if all(a is b for a, b in zip(marked, step.steps, strict=True)) else replace(step, steps=marked)
    return step
