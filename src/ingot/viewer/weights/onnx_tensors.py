"""Tensors of an ONNX file as weights. What lies in a file beside it is read where it lies, block by block."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ingot.viewer.weights.tensor_pool import Array, has_values, matrix_of

if TYPE_CHECKING:
    import onnx


class OnnxTensor:
    """An initializer, or the value of a Constant."""

    def __init__(self, tensor: onnx.TensorProto, folder: Path, dtype: str) -> None:
        self.shape = tuple(int(size) for size in tensor.dims)
        self.dtype = dtype
        self._tensor, self._folder = tensor, folder
        self._values: Array | None = None

    def read(self, fixed: tuple[int, ...], rows: slice, columns: slice) -> Array:
        return self._numbers(matrix_of(self._array()[fixed])[rows, columns])

    def read_all(self, fixed: tuple[int, ...], part: slice) -> Array:
        return self._numbers(self._array()[fixed][part])

    def _numbers(self, values: Array) -> Array:
        made = np.asarray(values)
        return made.view(np.uint16) if self.dtype == "bfloat16" and made.dtype != np.uint16 else made

    def _array(self) -> Array:
        if self._values is None:
            self._values = self._open()
        return self._values

    def _open(self) -> Array:
        import onnx

        if self._tensor.data_location == onnx.TensorProto.EXTERNAL:
            return self._map()
        try:
            values = onnx.numpy_helper.to_array(self._tensor)
        except (TypeError, AttributeError, KeyError) as error:
            raise ValueError(f"{self._tensor.name}: {error}") from None
        if values.shape != self.shape:
            raise ValueError(f"{self._tensor.name} has other values than its dims say")
        return np.ascontiguousarray(values)

    def _map(self) -> Array:
        """The values in a file of the same folder: a model cannot name a file elsewhere."""
        import onnx

        said = {one.key: one.value for one in self._tensor.external_data}
        location = said.get("location", "")
        path = os.path.realpath(self._folder / location)
        if not location or os.path.isabs(location) or not path.startswith(os.path.realpath(self._folder) + os.sep):
            raise ValueError(f"{self._tensor.name} names a file outside the folder of the model")
        offset, count = int(said.get("offset", "0")), math.prod(self.shape)
        if offset < 0:
            raise ValueError(f"{self._tensor.name} begins before its file")
        if self.dtype in ("int4", "uint4", "int2", "uint2") or not has_values(self.dtype):
            inline = onnx.TensorProto()
            inline.CopyFrom(self._tensor)
            del inline.external_data[:]
            inline.data_location = onnx.TensorProto.DEFAULT
            with open(path, "rb") as file:
                file.seek(offset)
                inline.raw_data = file.read(int(said.get("length", str(count))))
            return np.ascontiguousarray(onnx.numpy_helper.to_array(inline))
        given: Any = onnx.helper.tensor_dtype_to_np_dtype(self._tensor.data_type)
        if count == 0:
            return np.empty(self.shape, given)
        return np.memmap(path, given, "r", offset, self.shape)


def open_tensor(tensor: onnx.TensorProto, folder: Path, dtype: str) -> OnnxTensor | None:
    """A tensor as a weight; None where its values cannot be shown, as strings."""
    import onnx

    if tensor.data_type in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING) or tensor.HasField("segment"):
        return None
    if any(size < 0 for size in tensor.dims) or not has_values(dtype):
        return None
    return OnnxTensor(tensor, folder, dtype)
