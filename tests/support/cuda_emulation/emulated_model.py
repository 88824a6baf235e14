"""A module whose kernels run in emulation, and the rest on the reference target's interpreter, called like the model.

    EmulatedModel(program, module)(*args)

Its control flow, sizes that steps find out, and steps that no kernel writer is for are interpreted, on the same memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from ingot.ir.program import Program
from ingot.lowering.dependence import reads_and_writes
from ingot.lowering.dtypes import BYTES
from ingot.lowering.loop_ir import Buffer, Stmt
from ingot.lowering.loop_module import Module, PackedWeight, Precision
from ingot.lowering.lower import lower
from ingot.scheduling.buffer_planning import MemoryPlan
from ingot.targets.cuda.codegen.device_library import DeviceLibrary
from ingot.targets.cuda.codegen.kernel_rules import KERNELS
from ingot.targets.cuda.kernel_selection.strategy import CudaStrategy
from ingot.targets.cuda.schedule.pipeline import schedule
from ingot.targets.cuda.schedule.reference_semantics import REFERENCE_RULES
from ingot.targets.cuda.schedule.weight_layouts import lay_out
from ingot.targets.reference.interpreted_model import InterpretedModel
from ingot.targets.reference.interpreter import Interpreter
from ingot.targets.reference.memory import Array, Memory, poison, stored_type
from ingot.targets.reference.target import ReferenceTarget
from ingot.targets.reference.tensor_arrays import read_tensor, store_inputs
from ingot_runtime.errors import IndexOutOfRange
from tests.support.cuda_emulation.kernels import (
    GuardedMemory,
    KernelContext,
    WrittenStep,
    build_text,
    run_step,
    write_kernels,
    write_steps,
)

# Of INGOT_INDEX in the device text.
_INDEX = 3


class EmulatedMemory(Memory):
    """Buffers that have guards around them. What is assigned is copied, and copied back by `write_back`."""

    def __init__(self, buffers: Mapping[str, Buffer], sizes: dict[str, int], plan: MemoryPlan | None = None) -> None:
        super().__init__(buffers, sizes, plan)
        self.guarded: dict[str, GuardedMemory] = {}
        self._sources: dict[str, Array] = {}
        self.shift = 0  # bytes by which what is assigned lies behind a multiple of 256

    def assign(self, name: str, array: Array) -> None:
        super().assign(name, array)
        self._sources[name] = self.arrays[name]
        self.arrays[name] = self._allocate(name, self.shift)
        self.arrays[name][...] = self._sources[name]

    def _allocate(self, name: str, shift: int = 0) -> Array:
        dtype, count = self.buffers[name].dtype, self.count(name)
        memory = self.guarded[name] = GuardedMemory(count * BYTES[dtype], shift)
        made = memory.view.view(stored_type(dtype))
        made[...] = poison(count, dtype)
        return made

    def write_back(self) -> None:
        for name, array in self._sources.items():
            array[...] = self.arrays[name]


class EmulatedInterpreter(Interpreter):
    """One run of a module: its steps by their kernels in `library`, where they have some."""

    def __init__(
        self,
        module: Module,
        weights: Mapping[str, Array],
        library: ctypes.CDLL,
        steps: Sequence[WrittenStep],
        *,
        seed: int = 0,
        first_draw: int = 0,
    ) -> None:
        super().__init__(module, {}, seed=seed, first_draw=first_draw)
        memory = EmulatedMemory(module.buffers, self.sizes)
        self.memory: EmulatedMemory = memory
        for name, array in weights.items():
            memory.assign(name, array)
        self._library = library
        self._steps = {id(written.step): written for written in steps}
        self._status = (ctypes.c_uint * 1)()

    def run_step(self, step: Stmt) -> None:
        written = self._steps.get(id(step))
        if written is None:
            super().run_step(step)
            return
        for names in reads_and_writes(step):
            for name in names - set(getattr(step, "local", ())):
                self.memory.array(name)
        context = KernelContext(ctypes.addressof(self._status), 7, self.seed, self.first_draw)
        run_step(self._library, written, self.memory.guarded, self.sizes, context)
        found = self._status[0]
        if found & 255 == _INDEX:
            raise IndexOutOfRange("A kernel reports an index that is out of range.")
        if found:
            raise RuntimeError(f"status {found & 255}, site {found >> 8}")
        for name, one in self.memory.guarded.items():
            one.check(name)
        note_block_sizes(self, step)


def note_block_sizes(run: Interpreter, step: Stmt) -> None:
    """What the interpreter's attention must know of a mask that a kernel has classified."""
    if hasattr(step, "high"):
        run.block_sizes[step.buffer] = (step.high, step.wide)


class PackingTarget(ReferenceTarget):
    """The reference target, with this target's layouts of weights and its own steps."""

    reference_rules = REFERENCE_RULES

    def pack_weight(self, weight: PackedWeight, buffer: Buffer, state: torch.Tensor) -> torch.Tensor:
        return lay_out(weight, buffer, state)


class EmulatedModel(InterpretedModel):
    """A module that is scheduled for CUDA. `library` and `steps` are given where several modules share a library."""

    def __init__(
        self,
        program: Program,
        module: Module,
        library: ctypes.CDLL | None = None,
        steps: Sequence[WrittenStep] | None = None,
    ) -> None:
        super().__init__(PackingTarget(), program, module)
        if library is None or steps is None:
            text, steps = write_kernels(module)
            library = build_text(text)
        self._library, self._steps = library, steps

    def run(self, leaves: Sequence[Any]) -> list[Any]:
        inputs = store_inputs(self.module, leaves)
        run = EmulatedInterpreter(
            self.module, self._state, self._library, self._steps, seed=self._seed, first_draw=self._draws
        )
        self._draws += self.module.draws
        outputs = run.run(inputs)
        run.memory.write_back()
        for argument, leaf, array in zip(self.module.inputs, leaves, inputs, strict=True):
            if argument.mutated:
                leaf.data.copy_(read_tensor(array, argument))
        return [read_tensor(array, output) for array, output in zip(outputs, self.module.outputs, strict=True)]


def lower_for_cuda(program: Program, disabled: Collection[str] = (), precision: Precision = "float32") -> Module:
    """The program's loops as this target schedules them."""
    return schedule(lower(program, CudaStrategy(disabled), precision), disabled, verify=True)


def build_models(programs: Sequence[tuple[Program, Module]]) -> list[EmulatedModel]:
    """Models that share one library: to compile their text at once takes a fraction of the time."""
    device = DeviceLibrary()
    written = [write_steps(module, device, f"m{number}_k") for number, (_, module) in enumerate(programs)]
    library = build_text("\n".join([device.text(), *(text for _, text in written)]))
    return [
        EmulatedModel(program, module, library, steps)
        for (program, module), (steps, _) in zip(programs, written, strict=True)
    ]


def has_kernels(module: Module) -> bool:
    """Whether every step of a module has a kernel writer."""
    return all(type(step) in KERNELS for step in module.steps)
