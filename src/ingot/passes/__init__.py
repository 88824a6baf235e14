"""Passes: functions `(program, **options) -> int` that change a program and return how many changes they made.

`DEFAULT_PIPELINE` lists the ones that every program takes, in order. `transform` runs passes on a copy and checks what
they did.
"""

from typing import TYPE_CHECKING, Any

from ingot.passes.annotate_shapes import annotate_shapes
from ingot.passes.autocast import autocast
from ingot.passes.canonicalize import canonicalize
from ingot.passes.constant_fold import constant_fold
from ingot.passes.cse import cse
from ingot.passes.dce import dce
from ingot.passes.decompose import decompose
from ingot.passes.decompose_complex import decompose_complex
from ingot.passes.erase_effect_tokens import erase_effect_tokens
from ingot.passes.functionalize import functionalize, remove_private_writes
from ingot.passes.grad_mode import grad_mode
from ingot.passes.insert_effect_tokens import declare_effect, insert_effect_tokens
from ingot.passes.legalize import legalize
from ingot.passes.manager import REGISTRY, register, transform
from ingot.passes.propagate_known_sizes import propagate_known_sizes
from ingot.passes.remove_noops import remove_noops
from ingot.passes.tracepoints import tracepoints

if TYPE_CHECKING:
    from ingot.pipelines import DEFAULT as DEFAULT_PIPELINE

__all__ = [
    "DEFAULT_PIPELINE",
    "REGISTRY",
    "annotate_shapes",
    "autocast",
    "canonicalize",
    "constant_fold",
    "cse",
    "dce",
    "declare_effect",
    "decompose",
    "decompose_complex",
    "erase_effect_tokens",
    "functionalize",
    "grad_mode",
    "insert_effect_tokens",
    "legalize",
    "propagate_known_sizes",
    "register",
    "remove_noops",
    "remove_private_writes",
    "tracepoints",
    "transform",
]


def __getattr__(name: str) -> Any:
    """DEFAULT_PIPELINE, which lies with the other pipelines: they import the passes."""
    if name == "DEFAULT_PIPELINE":
        from ingot.pipelines import DEFAULT

        return DEFAULT
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
