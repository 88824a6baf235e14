"""A target whose programs are lowered and scheduled for a GPU, then interpreted, but for steps of some types: these run
as emulated kernels. So the kernels of a step are tried inside whole programs, before those of other steps.

    emulated = EmulatedSteps({Attention})
    model = emulated.compile(module, args)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

import ingot
from ingot.compiler import run_cpu_pipeline
from ingot.lowering.dependence import reads_and_writes
from ingot.lowering.loop_ir import Stmt
from ingot.lowering.loop_module import Module
from ingot.targets.base import ScheduleObserver, ignore_pass
from ingot.targets.cuda.kernel_selection.strategy import CudaStrategy
from ingot.targets.cuda.schedule.pipeline import schedule
from ingot.targets.reference.interpreted_model import InterpretedModel
from ingot.targets.reference.interpreter import Interpreter
from ingot.targets.reference.target import ReferenceTarget
from tests.support.cuda_emulation.kernels import run_module


class EmulatedSteps(ReferenceTarget):
    """`steps` are all that ran as kernels so far, with the module that each is in."""

    def __init__(self, types: Collection[type[Stmt]]) -> None:
        self.reference_rules = dict.fromkeys(types, self._run)
        self.steps: list[tuple[Stmt, Module]] = []

    def strategy(self, disabled: Collection[str] = ()) -> CudaStrategy:
        return CudaStrategy(disabled)

    def schedule(
        self,
        module: Module,
        disabled: Collection[str] = (),
        *,
        verify: bool = False,
        observe: ScheduleObserver = ignore_pass,
    ) -> Module:
        return schedule(module, disabled, verify=verify, observe=observe)

    def compile(self, model: nn.Module | Any, args: Sequence[Any], **options: Any) -> InterpretedModel:
        program = ingot.capture(model, tuple(args), **options)
        passed = run_cpu_pipeline(program, (), self)
        return InterpretedModel(self, passed, self.schedule(self.lower(passed)))

    def build_half(self, half: nn.Module, inputs: Sequence[torch.Tensor]) -> Any:
        """What a TrainableModel takes to compile its halves."""
        return self.compile(half, inputs)

    def _run(self, run: Interpreter, step: Stmt) -> None:
        read, written = reads_and_writes(step)
        buffers = {name: run.module.buffers[name] for name in sorted(read | written)}
        module = replace(run.module, steps=(step,), buffers=buffers)
        self.steps.append((step, module))
        values = {name: run.memory.array(name) for name in buffers}
        made = run_module(module, values, run.sizes)
        for name in written:
            run.memory.array(name)[...] = made[name].view(values[name].dtype) if made[name].size else np.empty(0)
