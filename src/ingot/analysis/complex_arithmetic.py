"""Formulas of complex numbers, given as their real and their imaginary parts.

Who calls says what a part is, a tensor or a value of an ONNX graph, and how two parts are multiplied and added.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TypeVar

Part = TypeVar("Part")
Binary = Callable[[Part, Part], Part]


def multiply_parts(
    x: tuple[Part, Part],
    y: tuple[Part, Part],
    times: Binary[Part],
    minus: Binary[Part] = operator.sub,
    plus: Binary[Part] = operator.add,
) -> tuple[Part, Part]:
    """(a + bi)(c + di) = (ac - bd) + (ad + bc)i, of numbers or, where `times` is theirs, of matrices."""
    (a, b), (c, d) = x, y
    real = minus(times(a, c), times(b, d))
    return real, plus(times(a, d), times(b, c))
