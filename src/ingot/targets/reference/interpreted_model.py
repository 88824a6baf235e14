"""A model on the interpreter: called like the model, as a compiled one is."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch

from ingot.errors import SaveError, format_error
from ingot.ir.execution import check_call
from ingot.ir.program import Program
from ingot.ir.pytree import unflatten
from ingot.ir.signature import InputKind, OutputKind
from ingot.lowering.loop_module import Module
from ingot.targets.base import Target
from ingot.targets.reference.interpreter import Interpreter
from ingot.targets.reference.memory import Array
from ingot.targets.reference.tensor_arrays import pack_state, read_tensor, store_inputs


class InterpretedModel:
    """A scheduled module that the interpreter runs. State that calls change is kept from call to call."""

    def __init__(self, target: Target[Any], program: Program, module: Module) -> None:
        """Use `ingot.compile` with target="reference"."""
        self.program = program
        self.module = module
        self._target = target
        self._state = pack_state(target, program, module)
        self._seed = 0
        self._draws = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own call, on torch tensors."""
        leaves = self._leaves(args, kwargs)
        results = iter(self.run(leaves))
        outputs = self.program.signature.user_outputs
        made = [output.value if output.kind is OutputKind.LITERAL else next(results) for output in outputs]
        return unflatten(made, self.program.signature.out_tree)

    def run(self, leaves: Sequence[Any]) -> list[Any]:
        """The results of one call whose arguments are given one by one."""
        inputs = store_inputs(self.module, leaves)
        interpreter = Interpreter(
            self.module, self._state, self._target.reference_rules, seed=self._seed, first_draw=self._draws
        )
        self._draws += self.module.draws
        outputs: list[Array] = interpreter.run(inputs)
        for argument, leaf, array in zip(self.module.inputs, leaves, inputs, strict=True):
            if argument.mutated:
                with torch.no_grad():
                    leaf.copy_(read_tensor(array, argument))
        return [read_tensor(array, output) for array, output in zip(outputs, self.module.outputs, strict=True)]

    def _leaves(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        leaves = check_call(self.program, tuple(args), dict(kwargs))
        specs = self.program.signature.user_inputs
        return [leaf for leaf, spec in zip(leaves, specs, strict=True) if spec.kind is InputKind.ARGUMENT]

    @property
    def draws(self) -> bool:
        """Whether the model draws random numbers."""
        return self.module.draws > 0

    def seed(self, value: int) -> None:
        """Random draws of later calls follow from this number alone."""
        self._seed, self._draws = value, 0

    def save(self, path: str | os.PathLike[str], **_: Any) -> NoReturn:
        """Raises SaveError: there is no native code to save."""
        raise SaveError(
            format_error(
                "A model that is interpreted cannot be saved as a compiled one.",
                why="the reference target has no native code",
                fix='compile for target="cpu", or save the program: model.program.save(path)',
            )
        )

    def close(self) -> None:
        """There is nothing to give back."""
