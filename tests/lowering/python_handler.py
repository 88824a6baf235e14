"""Bodies and steps on Python numbers: what generated code must compute, slowly."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ingot.lowering.index_expr import evaluate
from ingot.lowering.loop_body import replay
from ingot.lowering.loop_ir import Body, Load, Op

OPERATIONS: dict[str, Any] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "neg": lambda a: -a,
    "max": max,
    "lt": lambda a, b: a < b,
    "and": lambda a, b: a and b,
    "not": lambda a: not a,
    "exp": math.exp,
    "where": lambda c, a, b: a if c else b,
}


class Python:
    """A handler whose values are numbers. `memory` has a list of numbers a buffer, `sizes` a number a symbol."""

    def __init__(self, memory: Mapping[str, Sequence[Any]], sizes: Mapping[str, int]) -> None:
        self.memory = memory
        self.known = dict(sizes)
        self.values: list[Any] = []
        self.ran: list[str] = []

    def op(self, place: int, op: Op, operands: tuple[Any, ...]) -> Any:
        value = self._value(op, operands)
        self.ran.append(op.name)
        self.values.append(value)
        if op.dtype == "int64":
            self.known[f"v{place}"] = value
        return value

    def _value(self, op: Op, operands: tuple[Any, ...]) -> Any:
        attribute = op.attribute
        if isinstance(attribute, Load):
            if attribute.mask is not None and not self.values[attribute.mask]:
                return 0
            return self.memory[attribute.buffer][evaluate(attribute.index, self.known)]
        match op.name:
            case "const":
                return attribute.value
            case "index":
                return evaluate(attribute, self.known)
            case "cast":
                return {"float": float, "int": int, "bool": bool}[attribute.rstrip("0123456789")](operands[0])
            case "bounds_check":
                size = evaluate(attribute, self.known)
                if not -size <= operands[0] < size:
                    raise IndexError(operands[0])
                return operands[0] % size
        return OPERATIONS[op.name](*operands)


def run(body: Body, memory: Mapping[str, Sequence[Any]], sizes: Mapping[str, int] | None = None) -> list[Any]:
    return replay(body, Python(memory, sizes or {}))
