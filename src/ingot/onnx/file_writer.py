"""An ONNX model as a file: in one piece, with its tensors beside it past 2 GB, and whole or not at all.

Weights go from torch's memory to the disk without a copy: all of the file but their bytes is made by protobuf, and
their bytes are written between, where protobuf's own layout puts them, by several threads: what takes the time is
the memory that the system finds for them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import TorchTensor

from ingot.errors import OnnxError, format_error

# A message of protobuf is shorter than this.
LIMIT = 2**31 - 1
# Tensors of fewer bytes than this are part of the graph's own message.
SMALL = 1024
# Tensors of a file of their own begin at multiples of this, so that it can be mapped.
ALIGNMENT = 4096
# Threads that write, and how many bytes each takes at a time.
WRITERS, STRETCH = 4, 1 << 23
# Fields of ONNX's messages, as protobuf writes them: the number, and 2 for "so many bytes".
_GRAPH_OF_MODEL, _INITIALIZER_OF_GRAPH, _RAW_DATA_OF_TENSOR = 7, 5, 9


def check_place(path: str | PathLike[str]) -> None:
    """Raises OnnxError where no file can be: before the work, not after it."""
    target = Path(path)
    if target.is_dir():
        raise OnnxError(
            format_error(f"{target} cannot be written.", why="it is a folder", fix="give the name of a file")
        )
    if not target.parent.is_dir():
        raise OnnxError(
            format_error(
                f"{target} cannot be written.", why="its folder does not exist", fix="give a folder that exists"
            )
        )


@contextmanager
def stage_file(path: str | PathLike[str]) -> Iterator[Path]:
    """A place to write the file to: what is there at the end appears under `path`; after an exception, nothing does."""
    target = Path(path)
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise OnnxError(
            format_error(
                f"{target} cannot be written.", why=error.strerror or str(error), fix="give a folder that exists"
            )
        ) from None
    try:
        yield folder / target.name
        for made in sorted(folder.iterdir(), key=lambda file: file.name == target.name):  # the model itself last
            os.replace(made, target.parent / made.name)
    except OSError as error:
        raise OnnxError(format_error(f"{target} cannot be written.", why=error.strerror or str(error))) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write(model: ir.Model, path: Path, *, external_data: bool = False) -> list[str]:
    """Writes the model, and `path`.data beside it where it is requested or needed. Returns the names of the files."""
    beside = f"{path.name}.data"
    if not external_data:
        pieces = _pieces(model, _InlineTensors())
        if sum(map(len, pieces)) < LIMIT:
            _write_pieces(path, pieces)
            return [path.name]
    data = _Beside(beside)
    _write_pieces(path, _pieces(model, data))
    _write_pieces(path.with_name(beside), data.pieces)
    return [path.name, beside]


class _InlineTensors:
    """Large tensors as fields of the model's own message."""

    def __call__(self, head: onnx.TensorProto, data: memoryview) -> list[bytes | memoryview]:
        start = head.SerializeToString(deterministic=True) + _field(_RAW_DATA_OF_TENSOR, len(data))
        return [_field(_INITIALIZER_OF_GRAPH, len(start) + len(data)) + start, data]


class _Beside:
    """Large tensors in a file of their own; the model says where in it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pieces: list[bytes | memoryview] = []
        self._end = 0

    def __call__(self, head: onnx.TensorProto, data: memoryview) -> list[bytes | memoryview]:
        gap = -self._end % ALIGNMENT
        self.pieces += [bytes(gap), data]
        place, self._end = self._end + gap, self._end + gap + len(data)
        head.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", self.name), ("offset", place), ("length", len(data))):
            head.external_data.add(key=key, value=str(value))
        message = head.SerializeToString(deterministic=True)
        return [_field(_INITIALIZER_OF_GRAPH, len(message)) + message]


def _pieces(
    model: ir.Model, stored: Callable[[onnx.TensorProto, memoryview], list[bytes | memoryview]]
) -> Sequence[bytes | memoryview]:
    """The file, in order; `stored` says what stands in it for a large tensor, whose bytes are where torch has them."""
    initializers = model.graph.initializers
    large = [value for value in initializers.values() if value.const_value is not None and _size(value) >= SMALL]
    for value in large:
        initializers.pop(str(value.name))
    try:
        proto = ir.serde.serialize_model(model)
    finally:
        for value in large:
            initializers[str(value.name)] = value
    graph = proto.graph.SerializeToString(deterministic=True)
    proto.ClearField("graph")
    tensors: list[bytes | memoryview] = []
    for value in large:
        tensor = value.const_value
        assert tensor is not None
        head = onnx.TensorProto(name=value.name, data_type=tensor.dtype.value, dims=tensor.shape.numpy())
        tensors += stored(head, _bytes(tensor))
    length = len(graph) + sum(map(len, tensors))
    return [proto.SerializeToString(deterministic=True), _field(_GRAPH_OF_MODEL, length), graph, *tensors]


def _write_pieces(path: Path, pieces: Sequence[bytes | memoryview]) -> None:
    """The pieces one after another, as a file."""
    stretches: list[tuple[memoryview, int]] = []
    end = 0
    for given in pieces:
        piece = memoryview(given)
        stretches += [(piece[at : at + STRETCH], end + at) for at in range(0, len(piece), STRETCH)]
        end += len(piece)
    with path.open("wb") as file:

        def write_at(stretch: memoryview, place: int) -> None:
            while stretch:
                written = os.pwrite(file.fileno(), stretch, place)
                stretch, place = stretch[written:], place + written

        with ThreadPoolExecutor(min(WRITERS, os.cpu_count() or 1)) as pool:
            list(pool.map(write_at, *zip(*stretches, strict=True)))


def _bytes(tensor: ir.TensorProtocol) -> memoryview:
    """The bytes of a tensor, where they are if they lie in order."""
    if isinstance(tensor, TorchTensor):
        held: Any = tensor.raw.detach().contiguous().view(-1).view(torch.uint8).numpy()
        return memoryview(held)
    return memoryview(tensor.tobytes())


def _size(value: ir.Value) -> int:
    assert value.const_value is not None
    return value.const_value.nbytes


def _field(number: int, length: int) -> bytes:
    """The beginning of a field of so many bytes."""
    return _varint(number << 3 | 2) + _varint(length)


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)
