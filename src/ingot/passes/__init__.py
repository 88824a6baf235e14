"""Passes: functions `(program, **options) -> int` that change a program and return how many changes they made.

`ROAD` lists the ones that every program takes, in order. `transform` runs passes on a copy and checks what they did.
"""

from ingot.passes.autocast import autocast
from ingot.passes.canonicalize import canonicalize
from ingot.passes.cse import cse
from ingot.passes.dce import dce
from ingot.passes.decompose import decompose
from ingot.passes.effects import declare_effect, effects
from ingot.passes.expand import expand
from ingot.passes.fold import fold
from ingot.passes.functionalize import functionalize
from ingot.passes.grad_mode import grad_mode
from ingot.passes.manager import REGISTRY, register, transform
from ingot.passes.order_effects import order_effects
from ingot.passes.remove_noops import remove_noops
from ingot.passes.settle_sizes import settle_sizes
from ingot.passes.shapes import shapes
from ingot.passes.split_complex import split_complex
from ingot.passes.tracepoints import tracepoints

ROAD = (tracepoints, autocast, grad_mode, effects, functionalize, decompose, fold, cse, dce)
__all__ = [
    "REGISTRY",
    "ROAD",
    "autocast",
    "canonicalize",
    "cse",
    "dce",
    "declare_effect",
    "decompose",
    "effects",
    "expand",
    "fold",
    "functionalize",
    "grad_mode",
    "order_effects",
    "register",
    "remove_noops",
    "settle_sizes",
    "shapes",
    "split_complex",
    "tracepoints",
    "transform",
]
