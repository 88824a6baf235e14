"""Conversion of operands: what is multiplied with a weight, stored as the product reads it.

That is a step of its own, in the loops of the step that computed the original, so that fusion joins the two.
Whatever else reads it still reads it as it was.
"""

from __future__ import annotations

from collections.abc import Callable

from ingot.lowering.builder import LoopBuilder
from ingot.lowering.dependence import reads_and_writes
from ingot.lowering.index_expr import product
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.loop_ir import Map, Stmt, Store, WithEpilogue
from ingot.lowering.tensor_views import Deferred, Strided, TensorValue
from ingot.targets.cpu.kernel_selection.choices import choices_of

# What may be multiplied in bfloat16.
_TYPES = ("float32", "bfloat16")


def is_narrow(low: LoopBuilder, weight: TensorValue) -> bool:
    """Whether the product of the node being lowered with this weight multiplies in bfloat16."""
    ahead = isinstance(weight.data, Strided) and low.buffers[weight.data.buffer].kind == "weight"
    return low.precision == "bfloat16" and ahead and low.out_dtype == weight.dtype and weight.dtype in _TYPES


def narrow(low: LoopBuilder, x: TensorValue) -> TensorValue:
    """The tensor in memory as bfloat16, its dims in the order they have."""
    return _store_as(low, x, "bfloat16", lambda ops, value: value)


def convert_to_uint8(low: LoopBuilder, x: TensorValue) -> TensorValue:
    """Integers in memory as uint8, their dims in the order they have; those that were int8 have become 128 larger."""

    def shift(ops: BodyBuilder, value: int) -> int:
        return ops.emit("truncate", (ops.call("add", ops.cast(value, "int32"), ops.const(128, "int32")),), "uint8")

    return _store_as(low, x, "uint8", shift)


def _store_as(low: LoopBuilder, x: TensorValue, dtype: str, convert: Callable[[BodyBuilder, int], int]) -> TensorValue:
    x = low.realize(x)
    if x.dtype == dtype:
        return x
    assert isinstance(x.data, Strided)
    name, offset, strides = x.data.buffer, x.data.offset, x.data.strides
    # What was made inside a branch or loop is known there alone: its steps are a list of their own.
    steps, copies = choices_of(low).narrow_copies.setdefault(id(low.steps), (low.steps, {}))
    writer = _writer(low, name) if low.buffers[name].size == x.numel else None
    key = (name, dtype) if writer is not None else (name, dtype, offset, strides, x.shape)
    if key not in copies:
        if writer is not None:
            made = low.buffer("temporary", dtype, low.buffers[name].shape)
            copies[key] = Strided(made.name, 0, ())
            steps.append(_copy(low, writer, name, made.name, convert))
        else:
            lazy = Deferred(lambda ops, index: convert(ops, x.load(ops, index)), 1, low.order_of(x))
            copy = TensorValue(x.shape, dtype, lazy)
            home = low.realize(copy).data
            assert isinstance(home, Strided)
            copies[key] = home
    found = copies[key]
    return TensorValue(x.shape, dtype, Strided(found.buffer, offset, strides) if writer is not None else found)


def _writer(low: LoopBuilder, name: str) -> Map | None:
    """The Map that alone writes a buffer, all of it: one by itself, or an epilogue."""
    writers = _writers(low).get(name, ())
    if len(writers) != 1:
        return None
    found = writers[0].epilogue if isinstance(writers[0], WithEpilogue) else writers[0]
    if not isinstance(found, Map) or found.collides or [s.mode for s in found.stores if s.buffer == name] != ["set"]:
        return None
    return found if product([loop.extent for loop in found.loops]) == low.buffers[name].size else None


def _writers(low: LoopBuilder) -> dict[str, list[Stmt]]:
    """The steps so far that write each buffer. Steps are only ever added: those that are known are not looked at
    again."""
    known = choices_of(low).step_writers
    steps, found, seen = known.get(id(low.steps), (low.steps, {}, 0))
    for step in steps[seen:]:
        for name in reads_and_writes(step)[1]:
            found.setdefault(name, []).append(step)
    known[id(low.steps)] = (steps, found, len(steps))
    return found


def _copy(low: LoopBuilder, writer: Map, name: str, to: str, convert: Callable[[BodyBuilder, int], int]) -> Map:
    (index,) = (store.index for store in writer.stores if store.buffer == name)
    ops = BodyBuilder()
    value = convert(ops, ops.load(name, index, low.buffers[name].dtype))
    return Map(writer.loops, ops.finish([value]), (Store(to, index, 0),), low.origin)
