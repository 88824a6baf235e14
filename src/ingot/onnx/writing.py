"""An ONNX model as a file: in one piece, with its tensors beside it past 2 GB, and whole or not at all.

Weights go from torch's memory to the disk without a copy: all of the file but their bytes is made by protobuf, and
their bytes are written between, where protobuf's own layout puts them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

import onnx
import onnx_ir as ir
import torch

from ingot.errors import OnnxError, explain

# A message of protobuf is shorter than this.
LIMIT = 2**31 - 1
# Tensors of fewer bytes than this are part of the graph's own message.
SMALL = 1024
# Fields of ONNX's messages, as protobuf writes them: the number, and 2 for "so many bytes".
_GRAPH_OF_MODEL, _INITIALIZER_OF_GRAPH, _RAW_DATA_OF_TENSOR = 7, 5, 9


@contextmanager
def staged(path: str | PathLike[str]) -> Iterator[Path]:
    """A place to write the file to: what is there at the end appears under `path`; after an exception, nothing does."""
    target = Path(path)
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise OnnxError(
            explain(f"{target} cannot be written.", why=error.strerror or str(error), fix="give a folder that exists")
        ) from None
    try:
        yield folder / target.name
        for made in sorted(folder.iterdir(), key=lambda file: file.name == target.name):  # the model itself last
            os.replace(made, target.parent / made.name)
    except OSError as error:
        raise OnnxError(explain(f"{target} cannot be written.", why=error.strerror or str(error))) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write(model: ir.Model, path: Path, *, external_data: bool = False) -> list[str]:
    """Writes the model, and `path`.data beside it where it is asked for or needed. Returns the names of the files."""
    if not external_data:
        pieces = _pieces(model)
        if sum(len(piece) for piece in pieces) < LIMIT:
            with path.open("wb") as file:
                for piece in pieces:
                    file.write(piece)
            return [path.name]
    beside = f"{path.name}.data"
    ir.save(model, path, external_data=beside, size_threshold_bytes=SMALL)
    return [path.name, beside]


def _pieces(model: ir.Model) -> Sequence[bytes | memoryview]:
    """The file, in order; the bytes of large tensors are where torch has them."""
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
        data = memoryview(tensor.raw.detach().contiguous().view(-1).view(torch.uint8).numpy())
        start = head.SerializeToString() + _field(_RAW_DATA_OF_TENSOR, len(data))
        tensors += [_field(_INITIALIZER_OF_GRAPH, len(start) + len(data)) + start, data]
    length = len(graph) + sum(len(piece) for piece in tensors)
    return [proto.SerializeToString(deterministic=True), _field(_GRAPH_OF_MODEL, length), graph, *tensors]


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
