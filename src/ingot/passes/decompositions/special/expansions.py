"""The table of expansions: functions of tensors by the name of the operator that they compute, for all overloads.

Some are for graphs of torch's compiler alone. Of Bessel's and Airy's functions torch's own values are up to 2e-9 from
the exact ones in float64, and of trigamma 2e-13; of Chebyshev's polynomials these expansions are a few units in the
last place from torch's. They can serve every model once samples are judged by exact values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ingot.registry import Registry

EXPANSIONS: Registry[str, Callable[..., Any]] = Registry("expansion of an operator")
LATE = "late"
expands = EXPANSIONS.register
expands_late = partial(EXPANSIONS.register, tags=(LATE,))
