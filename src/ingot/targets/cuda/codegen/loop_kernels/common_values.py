"""Values that several steps of a nest compute from elements that their threads keep: computed once.

before      sum of round(x + z)         (round(x + z) - mean)² …        round(x + z) - mean → y
after       the first step keeps round(x + z) in registers, which the others read
"""

from __future__ import annotations

from dataclasses import dataclass

from ingot.codegen.c_expressions import COMPUTED
from ingot.lowering.dtypes import BYTES
from ingot.lowering.loop_ir import Body, Load, Loop, LoopNest
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter
from ingot.targets.cuda.codegen.loop_kernels.row_registers import RowRegisters, general_place, row_loops

# Bytes of such values that a thread keeps.
MOST_BYTES = 128

# What a value is: the name of an operation, its dtype, and what it is applied to.
Value = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class CommonValue:
    """An array of registers for a value, by vector and lane. The first step that computes it fills it."""

    name: str
    is_first: bool


def find_common_values(out: CudaKernelWriter, made: RowRegisters, nest: LoopNest) -> dict[int, dict[int, CommonValue]]:
    """By the number of a step, the places of its body that are such values. Declares their registers."""
    values: dict[int, dict[int, Value]] = {}
    names: dict[Value, str] = {}
    left = MOST_BYTES
    for number, step, loop in row_loops(nest):
        known = {value for found in values.values() for value in found.values()}
        values[number] = _find_values(step.body, loop, made)
        for place in _last_of(step.body, values[number]):
            value, dtype = values[number][place], step.body.ops[place].dtype
            bytes_ = max(4, BYTES[dtype]) * made.width * made.count
            if value in known and value not in names and bytes_ <= left:
                left -= bytes_
                names[value] = f"common{len(names)}"
                out.line(f"{COMPUTED[dtype]} {names[value]}[{made.count}][{made.width}];")
    found: dict[int, dict[int, CommonValue]] = {}
    filled: set[Value] = set()
    for number, own in values.items():
        here = {place: value for place, value in own.items() if value in names}
        found[number] = {place: CommonValue(names[value], value not in filled) for place, value in here.items()}
        filled |= set(here.values())
    return found


def _find_values(body: Body, loop: Loop, made: RowRegisters) -> dict[int, Value]:
    """The operations that follow from kept elements alone."""
    found: dict[int, Value] = {}
    for place, op in enumerate(body.ops):
        attribute = op.attribute
        if isinstance(attribute, Load):
            general = general_place((attribute.buffer, attribute.index), loop)
            if attribute.mask is None and general in made.loads:
                found[place] = ("load", *general)
        elif op.name == "const":
            found[place] = ("const", op.dtype, repr(attribute.value))
        elif op.operands and isinstance(attribute, str | None) and all(one in found for one in op.operands):
            found[place] = (op.name, op.dtype, attribute, *(found[one] for one in op.operands))
    return found


def _last_of(body: Body, values: dict[int, Value]) -> list[int]:
    """Those of the values that the rest of the body uses, and that take more than a load to compute."""
    used = {one for place, op in enumerate(body.ops) if place not in values for one in op.operands} | set(body.results)
    return [place for place in values if place in used and _is_worth(values[place])]


def _is_worth(value: Value) -> bool:
    """Whether anything but a conversion is applied to an element."""
    operands = [one for one in value if isinstance(one, tuple)]
    if value[0] == "cast" and operands:
        return _is_worth(operands[0])
    return any(one[0] == "load" or _is_worth(one) for one in operands)
