"""What the CPU's own steps must hold, beside what every module must."""

from __future__ import annotations

from ingot.lowering.loop_ir import Convolution, Stmt
from ingot.lowering.loop_ir_verifier import verify_module
from ingot.lowering.loop_module import Module
from ingot.lowering.verification.access_rules import Facts
from ingot.targets.cpu.schedule.statements import DualGemm, PackedGemm


def verify_schedule(module: Module, after: str) -> None:
    """Raises ScheduleError, which names the scheduling pass `after`, where the module is not well formed."""
    verify_module(module, after, _find_fault)


def _find_fault(step: Stmt, facts: Facts) -> str | None:
    if isinstance(step, PackedGemm) and step.factors != "same" and step.a.columns != 1:
        return f"rows of {step.factors} factors are not contiguous"
    if isinstance(step, DualGemm) and step.steps[1].epilogue.stores:
        return "the second step of a pair has stores of its own"
    if isinstance(step, Convolution):
        return "it has no algorithm, which lowering with the CPU's strategy gives it"
    return None
