"""Passes: functions `(program, **options) -> int` that change a program and return how many changes they made.

`ROAD` lists the ones that every program takes, in order. `transform` runs passes on a copy and checks what they did.
"""

from ingot.passes.autocast import autocast
from ingot.passes.decompose import decompose
from ingot.passes.functionalize import functionalize
from ingot.passes.grad_mode import grad_mode
from ingot.passes.manager import REGISTRY, register, transform
from ingot.passes.tracepoints import tracepoints

ROAD = (tracepoints, autocast, grad_mode, functionalize, decompose)

__all__ = [
    "REGISTRY",
    "ROAD",
    "autocast",
    "decompose",
    "functionalize",
    "grad_mode",
    "register",
    "tracepoints",
    "transform",
]
