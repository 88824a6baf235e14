"""What the operations of a body must hold: dtypes that fit one another, and masks.

One rule per kind of operation; an operation without a rule of its own gives the dtype that all its operands have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from ingot.lowering.dtypes import BYTES, FLOATS, INTEGERS, wide
from ingot.lowering.loop_body import COMPARISONS
from ingot.lowering.loop_ir import Body, Buffer, Load, Op
from ingot.registry import Registry

# The dtypes that a step gives its bodies, by the name of the op that reads them: accumulator, gradient, input 0, …
Given: TypeAlias = Mapping[str, str]
# Says what is wrong with an operation, given the dtypes of its operands.
OpRule: TypeAlias = Callable[[Op, Sequence[str]], str | None]
_RULES: Registry[str, OpRule] = Registry("verifier rule of an operation")

# What a step hands to its body, if it has it.
_HANDED_IN = frozenset({"accumulator", "gradient", "second_accumulator"})


def find_op_fault(body: Body, buffers: Mapping[str, Buffer], given: Given) -> str | None:
    """The first operation that is wrong, and why. Operands are known to be earlier operations."""
    dtypes = [op.dtype for op in body.ops]
    for place, op in enumerate(body.ops):
        fault = _find_fault(op, dtypes, buffers, given)
        if fault is not None:
            return f"%{place} is {op.name} of dtype {op.dtype}, {fault}"
    return None


def _find_fault(op: Op, dtypes: Sequence[str], buffers: Mapping[str, Buffer], given: Given) -> str | None:
    if op.name == "load":
        return _check_load(op, dtypes, buffers)
    if op.name in _HANDED_IN or op.name == "input":
        name = f"input {op.attribute}" if op.name == "input" else op.name
        if name not in given:
            return f"and the step has no {name} for it"
        return None if given[name] == op.dtype else f"and the {name} is {given[name]}"
    return _RULES.get(op.name, _check_same)(op, [dtypes[operand] for operand in op.operands])


def _check_load(op: Op, dtypes: Sequence[str], buffers: Mapping[str, Buffer]) -> str | None:
    load = op.attribute
    if not isinstance(load, Load):
        return "and says not what it reads"
    if load.mask is not None and dtypes[load.mask] != "bool":
        return f"and its mask %{load.mask} is {dtypes[load.mask]}, which is not bool"
    stored = buffers[load.buffer].dtype
    return None if op.dtype == wide(stored) else f"and {load.buffer} holds {stored}"


def _check_same(op: Op, operands: Sequence[str]) -> str | None:
    wrong = [dtype for dtype in operands if dtype != op.dtype]
    return f"and has an operand of {wrong[0]}" if wrong else None


@_RULES.register(*COMPARISONS)
def _check_comparison(op: Op, operands: Sequence[str]) -> str | None:
    if op.dtype != "bool":
        return "and a comparison gives bool"
    return f"and compares {' with '.join(operands)}" if len(set(operands)) > 1 else None


@_RULES.register("where")
def _check_where(op: Op, operands: Sequence[str]) -> str | None:
    if len(operands) != 3 or operands[0] != "bool":
        return "and its condition is not bool"
    return None if operands[1] == operands[2] == op.dtype else f"and chooses between {operands[1]} and {operands[2]}"


@_RULES.register("cast")
def _check_cast(op: Op, operands: Sequence[str]) -> str | None:
    return None if op.dtype == wide(str(op.attribute)) else f"and casts to {op.attribute}"


@_RULES.register("bitcast")
def _check_bitcast(op: Op, operands: Sequence[str]) -> str | None:
    before, after = op.attribute
    if BYTES[before] != BYTES[after]:
        return f"and {before} is not as wide as {after}"
    if [wide(before)] != [*operands]:
        return f"and takes {before}, not {', '.join(operands)}"
    return None if op.dtype == wide(after) else f"and gives {after}"


@_RULES.register("const")
def _check_const(op: Op, operands: Sequence[str]) -> str | None:
    value = op.attribute.value
    kind = bool if op.dtype == "bool" else float if op.dtype in FLOATS else int
    return None if type(value) is kind else f"and has the value {value!r}"


@_RULES.register("index")
def _check_index(op: Op, operands: Sequence[str]) -> str | None:
    return None if op.dtype == "int64" else "and an index is int64"


@_RULES.register("bounds_check")
def _check_check(op: Op, operands: Sequence[str]) -> str | None:
    if op.dtype != "int64" or operands[0] != "int64":
        return f"and a place is int64; its operand is {operands[0]}"
    return None if operands[1:] in ([], ["bool"]) else f"and its mask is {operands[1]}, which is not bool"


def _check_between(taken: Sequence[str], given: Sequence[str]) -> OpRule:
    """A rule of an operation from one of some dtypes to one of others."""

    def check(op: Op, operands: Sequence[str]) -> str | None:
        if any(dtype not in taken for dtype in operands):
            return f"and takes {' or '.join(taken)}, not {', '.join(operands)}"
        return None if op.dtype in given else f"and gives {' or '.join(given)}"

    return check


@_RULES.register("random")
def _check_nothing(op: Op, operands: Sequence[str]) -> str | None:
    return None


_RULES.add("round_to_int", _check_between(FLOATS, INTEGERS))
_RULES.add("truncate", _check_between(INTEGERS, INTEGERS))
