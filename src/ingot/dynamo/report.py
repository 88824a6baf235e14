"""What became of each graph: for the logger "ingot.dynamo", and for who asks with the option `on_graph`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

log = logging.getLogger("ingot.dynamo")

# A graph without gradients is one of "inference"; any other is two graphs.
Half = Literal["inference", "forward", "backward"]


@dataclass(frozen=True, slots=True)
class GraphReport:
    """One functional graph: how many operations it has, how many of them are native, and why the others are not.
    `communications` are those that torch.distributed runs between pieces of native code."""

    half: Half
    operations: int
    native: int
    pieces: int
    kernels: int
    reasons: tuple[str, ...] = ()
    communications: int = 0

    @property
    def is_native(self) -> bool:
        return self.native + self.communications == self.operations

    def __str__(self) -> str:
        what = "A graph" if self.half == "inference" else f"The {self.half} graph"
        if self.is_native:
            around = f" around {self.communications} operations of torch.distributed" if self.communications else ""
            return f"{what} of {self.operations} operations is native code{around}, {self.kernels} kernels."
        where = "runs in eager"
        if self.native:
            where = f"is split: {self.native} are native code in {self.pieces} pieces, the others run in eager"
        return f"{what} of {self.operations} operations {where}. " + " ".join(self.reasons)


Observer = Callable[[GraphReport], None]


def publish(report: GraphReport, observer: Observer | None) -> None:
    """Logs the report, as a warning where something runs in eager, and hands it to the observer."""
    log.log(logging.INFO if report.is_native else logging.WARNING, "%s", report)
    if observer is not None:
        observer(report)
