"""Calls with tensors of known sizes: what they share is worked out once, and only addresses are left to give.

call = model.bind(shapes)     once for inputs of these sizes
call(addresses)               inputs, and behind them outputs, which lie contiguous there
"""

import array
from collections.abc import Sequence
from typing import Any

from .native_library import TENSOR_SIZE, CallFrame, NativeModel


class BoundCall:
    """A call of a model whose inputs have known sizes. Any number of threads may use it. It checks nothing: addresses
    are of contiguous memory where the model is, and what the model writes to overlaps nothing else."""

    __slots__ = ("_count", "_idle", "_kept", "_native", "_tensors", "dtypes", "shapes")

    def __init__(
        self,
        native: NativeModel,
        inputs: Any,
        outputs: Any,
        counts: tuple[int, int],
        shapes: Sequence[tuple[int, ...]],
        dtypes: Sequence[str],
    ) -> None:
        """Use `bind` of the model. `counts`: of inputs and outputs; `shapes` and `dtypes`: of the outputs."""
        self._native = native
        self._count = counts[0]
        self._tensors = bytes(inputs)[: counts[0] * TENSOR_SIZE] + bytes(outputs)[: counts[1] * TENSOR_SIZE]
        self._kept = (inputs, outputs)  # the sizes that the tensors point to
        self._idle: list[CallFrame] = []  # frames that no call uses
        self.shapes, self.dtypes = shapes, dtypes

    def __call__(self, addresses: Sequence[int], stream: int = 0) -> None:
        """Runs the model, or queues it on a stream of its device. Addresses are multiples of their elements' sizes."""
        try:
            frame = self._idle.pop()
        except IndexError:
            frame = CallFrame(self._tensors, self._count)
        frame.addresses[:] = memoryview(array.array("Q", addresses))
        self._native.run_frame(frame, stream)
        self._idle.append(frame)  # not where it failed: the frame has its message
