"""The reference target: programs are lowered without any choice for a machine, and their loops are interpreted."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import get_args

from ingot.errors import UnsupportedMachine, format_error
from ingot.lowering.loop_ir_verifier import verify_module
from ingot.lowering.loop_module import Module, Precision
from ingot.lowering.strategy import LoweringStrategy
from ingot.targets.base import ScheduleObserver, Target, ignore_pass


class ReferenceTarget(Target[Module]):
    """Its source is the module itself."""

    name = "reference"
    precisions = get_args(Precision)  # it computes the same with any: sums are in float64

    def strategy(self, disabled: Collection[str] = ()) -> LoweringStrategy:
        return LoweringStrategy()

    def schedule(
        self,
        module: Module,
        disabled: Collection[str] = (),
        *,
        verify: bool = False,
        observe: ScheduleObserver = ignore_pass,
    ) -> Module:
        """The module as it is: what other schedules are compared with has none."""
        verify_module(module, "lower")
        return module

    def emit(self, module: Module, *, title: str = "model") -> Module:
        return module

    def build(
        self, source: Module, machines: str | Sequence[str] | None = None, *, cache: bool = True
    ) -> Mapping[str, bytes]:
        raise UnsupportedMachine(
            format_error(
                "The reference target builds no library.",
                why="it interprets loops with NumPy",
                fix='call the model that ingot.compile(…, target="reference") gives, or compile for target="cpu"',
            )
        )


REFERENCE = ReferenceTarget()
