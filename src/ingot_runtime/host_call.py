"""Calls of a model on the CPU for a caller that checks its arguments itself: what all calls share is worked out once.

call = HostCall.bind(model, shapes)     once for inputs of these sizes
call(addresses)                         inputs, and behind them outputs, which lie contiguous there
"""

import array
import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .device_model import DeviceModel
from .model import Model
from .native import native_library

_MESSAGE_SIZE = 2048
_TENSOR_SIZE = ctypes.sizeof(native_library.NativeTensor)
_TENSOR_WORDS = _TENSOR_SIZE // 8  # the first of them is the address
# ingot_run with plain numbers: to convert arrays takes longer than many calls.
_Run = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
)


class _Frame:
    """What one call writes its addresses to."""

    __slots__ = ("_tensors", "inputs", "message", "message_at", "outputs", "words")

    def __init__(self, tensors: bytes, inputs: int) -> None:
        self._tensors = ctypes.create_string_buffer(tensors, max(len(tensors), 1))
        self.inputs = ctypes.addressof(self._tensors)
        self.outputs = self.inputs + inputs * _TENSOR_SIZE
        self.words = memoryview(self._tensors).cast("B")[: len(tensors)].cast("Q")[::_TENSOR_WORDS]
        self.message = ctypes.create_string_buffer(_MESSAGE_SIZE)
        self.message_at = ctypes.addressof(self.message)


class HostCall:
    """A call of a model whose inputs have known sizes: only addresses are left to give. Any number of threads may use
    it. Nothing is checked: addresses are of contiguous memory, and what the model writes to overlaps nothing else."""

    def __init__(self, native: native_library.NativeModel, inputs: Any, outputs: Any, counts: tuple[int, int]) -> None:
        """Use `bind`."""
        self._native = native
        self._run = _Run(ctypes.cast(native._library.ingot_run, ctypes.c_void_p).value or 0)
        self._count = counts[0]
        self._tensors = bytes(inputs)[: counts[0] * _TENSOR_SIZE] + bytes(outputs)[: counts[1] * _TENSOR_SIZE]
        self._kept = (inputs, outputs)  # the sizes that the tensors point to
        self._idle: list[_Frame] = []  # frames that no call uses
        self.shapes: tuple[tuple[int, ...], ...] = ()

    @staticmethod
    def bind(model: Model, shapes: Sequence[tuple[int, ...]]) -> "HostCall | None":
        """What calls with inputs of these sizes share; None for a model on a GPU, and for one that takes sizes as
        numbers or returns numbers. Raises InputError."""
        spec = model.spec
        if isinstance(model, DeviceModel) or model._symbols or any(output.is_scalar for output in spec.outputs):
            return None
        given = [
            np.broadcast_to(np.empty((), asked.dtype.numpy), shape)
            for asked, shape in zip(spec.inputs, shapes, strict=True)
        ]
        plan = model._plan(model._native, given)
        made = HostCall(model._native, plan.inputs, plan.outputs, (len(spec.inputs), len(spec.outputs)))
        made.shapes = plan.output_shapes
        return made

    def __call__(self, addresses: Sequence[int]) -> None:
        try:
            frame = self._idle.pop()
        except IndexError:
            frame = _Frame(self._tensors, self._count)
        frame.words[:] = memoryview(array.array("Q", addresses))
        native = self._native
        native._enter()
        try:
            status = self._run(native._handle, frame.inputs, frame.outputs, frame.message_at, _MESSAGE_SIZE)
        finally:
            native._leave()
        if status:
            native._call(lambda *arguments: _repeat(status, frame, *arguments))
        self._idle.append(frame)  # not where it failed: the frame has its message


def allocate_large(model: Model, size: int) -> NDArray[np.uint8]:
    """Memory for a result of so many bytes: that of an earlier one where it is free. Raises MemoryError."""
    return model._memory.empty((size,), np.dtype(np.uint8))


def _repeat(status: int, frame: _Frame, handle: Any, message: Any, size: int) -> int:
    """The end of a call that has failed, for what raises its error."""
    ctypes.memmove(message, frame.message, size)
    return status
