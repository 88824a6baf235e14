"""`check="numerics"`: whether scheduling kept what a module computes, and if not, which pass is to blame.

The module is interpreted on the example inputs as it was lowered, after every scheduling pass, and once more with its
temporaries at the places that buffer planning gives them. As it was lowered it must give what torch gives, up to the
rounding of its dtypes; after a pass it must give what it gave before, up to the order of sums. The pass is named, and
the step that writes the first buffer that differs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ingot.errors import InterpreterError, ScheduleError, format_error
from ingot.ir.clone import copy_written_state
from ingot.ir.execution import check_call
from ingot.ir.program import Program
from ingot.ir.pytree import flatten, unflatten
from ingot.ir.signature import InputKind, OutputKind
from ingot.lowering.dependence import reads_and_writes
from ingot.lowering.loop_ir import Stmt
from ingot.lowering.loop_module import Module, PackedWeight
from ingot.scheduling.buffer_planning import MemoryPlan, plan
from ingot.targets.base import ScheduleObserver, Target, ignore_pass
from ingot.targets.reference.interpreter import Interpreter
from ingot.targets.reference.memory import Array, decode
from ingot.targets.reference.tensor_arrays import pack_state, store_inputs, store_tensor

# Relative to the largest value, by the coarsest dtype of a module. Against torch: a handful of roundings of each layer.
# Between two modules: sums in float64 in another order, which seldom round to another number.
_AGAINST_TORCH = {"float64": 1e-9, "float32": 2e-4, "float16": 1e-2, "bfloat16": 8e-2, "int8": 5e-2, "uint8": 5e-2}
_BETWEEN_MODULES = {"float64": 1e-11, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2, "int8": 1e-5, "uint8": 1e-5}
_COARSEST = ("bfloat16", "int8", "uint8", "float16", "float32", "float64")


@dataclass(frozen=True, slots=True)
class Difference:
    """Two runs that do not agree on a buffer, and by how much."""

    buffer: str
    problem: str


def schedule_checked(
    target: Target[Any],
    program: Program,
    module: Module,
    disabled: Collection[str] = (),
    *,
    observe: ScheduleObserver = ignore_pass,
) -> Module:
    """The scheduled module, after every pass has been checked. Raises ScheduleError, which names the first that is
    wrong. A module that draws random numbers is not compared with torch, which draws others. `observe` is called after
    each pass that is right."""
    check = ScheduleCheck(target, program)
    check.compare_with_torch(module)

    def compare(name: str, before: Module, after: Module) -> None:
        check.compare(name, before, after)
        observe(name, before, after)

    made = target.schedule(module, disabled, verify=True, observe=compare)
    check.compare("buffer_planning", made, made, plan(made))
    return made


class ScheduleCheck:
    """The inputs of one call, those of the example unless others are given, and what the last module gave for them."""

    def __init__(self, target: Target[Any], program: Program, inputs: tuple[Any, Any] | None = None) -> None:
        given = inputs or program.example_inputs
        if given is None:
            raise ScheduleError(
                format_error(
                    "The program has no example inputs to check its schedule on.",
                    fix="capture it with example arguments, or compile without check",
                )
            )
        self.target = target
        self.program = program
        self.inputs = given
        args, kwargs = _copy(given)
        self.leaves = [
            leaf
            for leaf, spec in zip(check_call(program, args, kwargs), program.signature.user_inputs, strict=True)
            if spec.kind is InputKind.ARGUMENT
        ]
        self._known: tuple[Module, dict[str, Array]] | None = None
        self._weights: dict[PackedWeight, Array] = {}

    def run(self, module: Module, memory_plan: MemoryPlan | None = None) -> dict[str, Array]:
        """Every buffer after one run, as values."""
        packed = pack_state(self.target, self.program, module, self._weights)
        interpreter = Interpreter(module, packed, self.target.reference_rules, plan=memory_plan)
        interpreter.run(store_inputs(module, self.leaves))
        arrays = interpreter.memory.arrays
        if memory_plan is not None:  # temporaries have overwritten each other by now
            arrays = {name: array for name, array in arrays.items() if module.buffers[name].kind != "temporary"}
        return {name: _read(array, module.buffers[name].dtype) for name, array in arrays.items() if array.size}

    def compare(self, name: str, before: Module, after: Module, memory_plan: MemoryPlan | None = None) -> None:
        """Raises ScheduleError if the module computes something else after a pass than before it."""
        if memory_plan is None and before.steps == after.steps and before.buffers == after.buffers:
            return
        old = self._values_of(before)
        try:
            new = self.run(after, memory_plan)
        except InterpreterError as error:
            raise ScheduleError(self._explain(name, str(error))) from error
        found = find_difference(after, old, new, _tolerance(after, _BETWEEN_MODULES))
        if found is not None:
            raise ScheduleError(self._explain(name, _locate(after, found, old, new)))
        if memory_plan is None:
            self._known = (after, new)

    def _explain(self, name: str, why: str) -> str:
        avoid = f", and compile with disable_passes={{{name!r}}} until then"
        return format_error(
            f"The scheduling step {name!r} changed what the module computes.",
            why=why,
            fix=f"report this bug in Ingot{avoid if name in self.target.optional_passes else ''}",
        )

    def _values_of(self, module: Module) -> dict[str, Array]:
        if self._known is None or self._known[0] is not module:
            self._known = (module, self.run(module))
        return self._known[1]

    def compare_with_torch(self, module: Module) -> bool:
        """Raises ScheduleError if the module does not give what torch gives for the program. Returns whether there was
        something to compare: torch cannot run every program, and draws other random numbers."""
        try:
            mine = self._values_of(module)
        except InterpreterError as error:
            raise ScheduleError(_explain_lowering(str(error))) from error
        try:
            theirs = {} if module.draws else self._run_torch(module)
        except (RuntimeError, ValueError):  # an operator that torch has for its own compiler alone
            theirs = {}
        if not theirs:
            return False
        found = find_difference(module, theirs, mine, _tolerance(module, _AGAINST_TORCH))
        if found is not None:
            raise ScheduleError(
                _explain_lowering(f"torch returns something else: {_locate(module, found, theirs, mine)}")
            )
        return True

    def _run_torch(self, module: Module) -> dict[str, Array]:
        """What torch gives, by the buffers of the module: results, and inputs and states that it writes."""
        program = copy_written_state(self.program)
        args, kwargs = _copy(self.inputs)
        given, _ = flatten((args, kwargs))
        with torch.no_grad():
            leaves, _ = flatten(program(*args, **kwargs))
        kinds = [output.kind for output in program.signature.user_outputs]
        results = [leaf for leaf, kind in zip(leaves, kinds, strict=True) if kind is OutputKind.RESULT]
        found = dict(zip((output.buffer for output in module.outputs), results, strict=True))
        arguments = [
            leaf
            for leaf, spec in zip(given, program.signature.user_inputs, strict=True)
            if spec.kind is InputKind.ARGUMENT
        ]
        found |= {a.buffer: leaf for a, leaf in zip(module.inputs, arguments, strict=True) if a.mutated}
        for weight in module.weights:
            if module.buffers[weight.buffer].kind == "state":
                found[weight.buffer] = program.state_dict[weight.source]
        return {
            name: _read(store_tensor(value, module.buffers[name].dtype), module.buffers[name].dtype).reshape(-1)
            for name, value in found.items()
            if not isinstance(value, torch.Tensor) or value.numel()
        }


def _read(array: Array, dtype: str) -> Array:
    """What is stored, as values; bools stay bytes, since a temporary may have some that nothing wrote."""
    return array if dtype == "bool" else decode(array, dtype)


def _copy(value: Any) -> Any:
    leaves, tree = flatten(value)
    return unflatten([leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], tree)


def _tolerance(module: Module, table: Mapping[str, float]) -> float:
    """That of the coarsest dtype that the module stores."""
    stored = {buffer.dtype for buffer in module.buffers.values()} | {module.precision}
    return max((table[dtype] for dtype in _COARSEST if dtype in stored), default=0.0)


# ---------------------------------------------------------------------- comparing


def find_difference(
    module: Module, old: Mapping[str, Array], new: Mapping[str, Array], tolerance: float
) -> Difference | None:
    """The first buffer that the caller sees and that differs: outputs, then inputs and states that are written."""
    names = [output.buffer for output in module.outputs]
    names += [argument.buffer for argument in module.inputs if argument.mutated]
    names += [name for name, buffer in module.buffers.items() if buffer.kind == "state"]
    for name in names:
        if name in old or name in new:
            problem = compare_arrays(old.get(name), new.get(name), tolerance)
            if problem is not None:
                return Difference(name, problem)
    return None


def compare_arrays(old: Array | None, new: Array | None, tolerance: float) -> str | None:
    """How two arrays differ; None where they agree."""
    if old is None or new is None:
        return "is written by one of the two alone"
    if old.shape != new.shape:
        return f"has {new.size} elements, not {old.size}"
    if old.dtype.kind != "f":
        wrong = int((old != new).sum())
        return f"has {wrong} of {old.size} elements that differ" if wrong else None
    finite = np.isfinite(old)
    same = np.where(finite, np.isfinite(new), (old == new) | (np.isnan(old) & np.isnan(new)))
    if not same.all():
        return f"has {int((~same).sum())} of {old.size} elements that are nan or infinite in one of the two alone"
    if not finite.any():
        return None
    largest = float(np.abs(old[finite]).max())
    apart = float(np.abs(old[finite].astype(np.float64) - new[finite].astype(np.float64)).max())
    if apart <= tolerance * max(largest, 1e-30):
        return None
    return f"differs by up to {apart:.3g}, where the largest value is {largest:.3g}"


def _locate(module: Module, found: Difference, old: Mapping[str, Array], new: Mapping[str, Array]) -> str:
    """What differs, and the first step that writes something else than before: it, or one it reads from."""
    tolerance = _tolerance(module, _BETWEEN_MODULES)
    writer: Stmt | None = None
    for step in module.steps:
        written = reads_and_writes(step)[1]
        differing = any(n in old and n in new and compare_arrays(old[n], new[n], tolerance) for n in written)
        if differing or found.buffer in written:
            writer = step
            if differing:
                break
    names = {argument.buffer: argument.name for argument in (*module.outputs, *module.inputs)}
    shown = f"{names[found.buffer]} ({found.buffer})" if found.buffer in names else found.buffer
    where = f"; the first step that differs is {type(writer).__name__} ({writer.origin})" if writer is not None else ""
    return f"{shown} {found.problem}{where}"


def _explain_lowering(why: str) -> str:
    return format_error("A module does not compute what its program does.", why=why, fix="report this bug in Ingot")
