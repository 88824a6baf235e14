"""Expressions of sizes."""

from __future__ import annotations

import sympy
from torch.utils._sympy.functions import ToFloat, TruncToInt

from ingot.ir import symbolic_dims

n = sympy.Symbol("n", integer=True)


def test_a_size_by_a_factor_in_integers_is_what_doubles_give() -> None:
    """Where a double falls below the fraction that it stands for, as 0.29 does, there is no such form."""
    taken = 0
    for hundredths in range(1, 401):
        factor = hundredths / 100
        found = symbolic_dims.match_scaled_size(TruncToInt(sympy.Float(factor) * ToFloat(n)))
        if found is not None:
            _, times, by = found
            taken += 1
            assert all(size * times // by == int(factor * size) for size in (*range(3000), 2**20, 10**6, 10**9))
    assert taken > 200
    assert symbolic_dims.match_scaled_size(TruncToInt(sympy.Float(0.29) * ToFloat(n))) is None and int(0.29 * 100) == 28
    assert symbolic_dims.match_scaled_size(TruncToInt(sympy.Float(2**0.5) * ToFloat(n))) is None
