"""Operators that native code does not have and torch does not take apart, as arithmetic: special functions, orthogonal
polynomials, maxima of windows whose places are drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ingot.passes.decompositions.special.expansions import EXPANSIONS, LATE


def find_expansion(op: Any, *, late: bool = False) -> Callable[..., Any] | None:
    """A function that computes what an operator computes; None where there is none. `late`: also one that is for graphs
    of torch's compiler alone."""
    from ingot.passes.decompositions.special import (  # noqa: F401  fill the table
        drawn_pools,
        orthogonal_polynomials,
        polygamma,
        special_functions,
    )

    schema = getattr(op, "_schema", None)
    if schema is None or (not late and EXPANSIONS.has_tag(schema.name, LATE)):
        return None
    return EXPANSIONS.get(schema.name)
