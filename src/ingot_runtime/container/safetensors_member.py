"""Tensors in one member, in the safetensors format, which the `safetensors` library reads too.

    8 bytes           length of the header, little-endian
    header            JSON {name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}}, spaces behind it
    data              the tensors, one right behind the other, row-major, little-endian

We write the header so long that the data begins on a multiple of 64 bytes, and the widest element types first, so
that every tensor lies on a multiple of its element's size. Aligned members keep the order they are given in, put every
tensor on a multiple of 64 bytes, and fill the gaps with tensors of zero bytes, `pad.0`, `pad.1` …
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import DamagedFile
from . import canonical_json

# safetensors' name of each element type, and the numpy type of as_numpy; numpy has no bfloat16 and no float8, these
# are given as the raw bits.
DTYPES: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype("?"),
    "U8": np.dtype("u1"),
    "I8": np.dtype("i1"),
    "F8_E4M3": np.dtype("u1"),
    "F8_E5M2": np.dtype("u1"),
    "F8_E8M0": np.dtype("u1"),
    "F8_E4M3FNUZ": np.dtype("u1"),
    "F8_E5M2FNUZ": np.dtype("u1"),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "F32": np.dtype("<f4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F64": np.dtype("<f8"),
    "C64": np.dtype("<c8"),
}

_LENGTH_SIZE = 8
_DATA_ALIGNMENT = 64
_RANK_LIMIT = 32  # numpy 1's; numpy 2 and torch have 64
_BYTES_LIMIT = 2**63  # what numpy and torch can count
_METADATA = "__metadata__"  # the one header key that is not a tensor

Buffer = bytes | bytearray | memoryview | NDArray[Any]
Tensor = tuple[str, Sequence[int], Buffer | Callable[[], Buffer]]


class TensorEntry(NamedTuple):
    """One tensor of a member: its bytes are `view[begin:end]` of the member's whole view."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def parse_header(view: memoryview, *, path: str | None = None, member: str | None = None) -> dict[str, TensorEntry]:
    """The tensors of a member by name, in the order of their data. `path` and `member` are for the message.

    Raises DamagedFile unless the header is sound and its tensors cover the data exactly, without hole or overlap.
    """
    try:
        return _parse(view)
    except ValueError as error:
        fix = "copy or download the file again, or write it again with Ingot"
        raise DamagedFile("the tensors cannot be read", str(error), fix, path=path, member=member) from None


def data_begin(view: memoryview) -> int:
    """Where the data begins in a member whose header is sound."""
    return _LENGTH_SIZE + int.from_bytes(view[:_LENGTH_SIZE], "little")


def as_numpy(view: memoryview, entry: TensorEntry) -> NDArray[Any]:
    """The tensor as an array over the member's bytes, without a copy; bfloat16 and float8 as unsigned integers."""
    dtype = DTYPES[entry.dtype]
    count = (entry.end - entry.begin) // dtype.itemsize
    return np.frombuffer(view, dtype, count, entry.begin).reshape(entry.shape)


class TensorsMember:
    """Tensors as a member to write: a mapping from name to (dtype, shape, data), data row-major and little-endian.

    Data is a buffer, or a function that returns one when its turn comes, so that no two need be in memory at once.
    The order of the mapping matters only where `aligned`: then it is the order in the file, and `offsets` says where
    each tensor lies, a multiple of 64, counted from the first byte of data. Raises ValueError for a tensor that cannot
    be written.
    """

    __slots__ = ("_data", "_head", "data_size", "offsets", "size")

    def __init__(self, tensors: Mapping[str, Tensor], *, aligned: bool = False) -> None:
        sizes = {name: _byte_size(name, dtype, shape) for name, (dtype, shape, _) in tensors.items()}
        if _METADATA in tensors:
            raise ValueError(f"a tensor cannot be named {_METADATA!r}: safetensors keeps that name for itself")
        if aligned:
            tensors = _pad(tensors, sizes)
            names = list(tensors)
        else:
            names = sorted(tensors, key=lambda name: (-DTYPES[tensors[name][0]].itemsize, name))
        header: dict[str, dict[str, Any]] = {}
        position = 0
        for name in names:
            dtype, shape, _ = tensors[name]
            end = position + sizes[name]
            header[name] = {"dtype": dtype, "shape": [int(n) for n in shape], "data_offsets": [position, end]}
            position = end
        text = canonical_json.encode(header)
        text += b" " * (-(_LENGTH_SIZE + len(text)) % _DATA_ALIGNMENT)
        self._head = len(text).to_bytes(_LENGTH_SIZE, "little") + text
        self._data = [(name, sizes[name], tensors[name][2]) for name in names]
        self.offsets = {name: entry["data_offsets"][0] for name, entry in header.items()}
        self.data_size = position
        self.size = len(self._head) + position

    def chunks(self) -> Iterator[bytes | bytearray | memoryview]:
        yield self._head
        yield from self.data_chunks()

    def data_chunks(self) -> Iterator[memoryview]:
        """What lies behind the header."""
        for name, size, data in self._data:
            buffer = data() if callable(data) else data
            view = _raw_bytes(name, buffer)
            if view.nbytes != size:
                raise ValueError(f"tensor {name!r} has {view.nbytes} bytes of data, its dtype and shape need {size}")
            yield view


def _pad(tensors: Mapping[str, Tensor], sizes: dict[str, int]) -> dict[str, Tensor]:
    """The tensors with what fills the gaps between them; `sizes` gets the sizes of it too."""
    padded: dict[str, Tensor] = {}
    position = 0
    for name, tensor in tensors.items():
        gap = -position % _DATA_ALIGNMENT
        if gap:
            pad = f"pad.{len(padded)}"
            if pad in tensors:
                raise ValueError(f"a tensor cannot be named {pad!r}: that is the name of the gap in front of {name!r}")
            padded[pad] = ("U8", (gap,), bytes(gap))
            sizes[pad] = gap
        padded[name] = tensor
        position += gap + sizes[name]
    return padded


def _raw_bytes(name: str, buffer: Buffer) -> memoryview:
    if isinstance(buffer, np.ndarray):
        if buffer.dtype.newbyteorder("<") != buffer.dtype:
            raise ValueError(f"tensor {name!r} is an array of big-endian numbers: convert it with astype first")
        if not buffer.flags.c_contiguous:
            raise ValueError(f"tensor {name!r} is not row-major without holes: pass it through ascontiguousarray first")
        buffer = buffer.reshape(-1).view(np.uint8).data
    view = memoryview(buffer)
    # A view without elements may have a shape that cannot be cast.
    return view.cast("B") if view.nbytes else memoryview(b"")


def _byte_size(name: str, dtype: str, shape: Sequence[int]) -> int:
    """The bytes of a tensor of this type and shape. Raises ValueError where no tensor can be of it."""
    if dtype not in DTYPES:
        raise ValueError(f"tensor {name!r} has dtype {dtype!r}, known are {', '.join(DTYPES)}")
    if len(shape) > _RANK_LIMIT:
        raise ValueError(f"tensor {name!r} has {len(shape)} dimensions, the limit is {_RANK_LIMIT}")
    if any(n < 0 for n in shape):
        raise ValueError(f"tensor {name!r} has shape {list(shape)}, with a negative size")
    itemsize = DTYPES[dtype].itemsize
    # Zeros aside: numpy counts the strides of an empty array too, and must not overflow.
    if math.prod(n for n in shape if n) * itemsize >= _BYTES_LIMIT:
        raise ValueError(f"tensor {name!r} has shape {list(shape)}, more than 2**63 bytes")
    return math.prod(shape) * itemsize


def _parse(view: memoryview) -> dict[str, TensorEntry]:
    if len(view) < _LENGTH_SIZE:
        raise ValueError(f"{len(view)} bytes are too few to hold the length of a header")
    length = int.from_bytes(view[:_LENGTH_SIZE], "little")
    begin = _LENGTH_SIZE + length
    if begin > len(view):
        raise ValueError(f"the header claims {length} bytes, {len(view) - _LENGTH_SIZE} are there")
    try:
        header = canonical_json.decode(bytes(view[_LENGTH_SIZE:begin]))
    except ValueError as error:
        raise ValueError(f"the header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise ValueError("the header is not a JSON object")
    metadata = header.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError(f"{_METADATA} is not a mapping from text to text")
    entries = [_parse_entry(name, entry, begin) for name, entry in header.items()]
    entries.sort(key=lambda entry: (entry.begin, entry.end))
    position = begin
    for entry in entries:
        if entry.begin != position:
            kind = "a hole" if entry.begin > position else "an overlap"
            raise ValueError(f"there is {kind} before tensor {entry.name!r}, at byte {min(entry.begin, position)}")
        position = entry.end
    if position != len(view):
        raise ValueError(f"the tensors end at byte {position}, the data at byte {len(view)}")
    return {entry.name: entry for entry in entries}


def _parse_entry(name: str, entry: object, data_begin: int) -> TensorEntry:
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [begin, end], **rest} if not rest:
            if not all(type(n) is int for n in [*shape, begin, end]):
                raise ValueError(f"tensor {name!r} has a shape or offsets that are not integers")
        case _:
            raise ValueError(f"the entry for tensor {name!r} is not a dtype, a shape and two offsets")
    size = _byte_size(name, dtype, shape)
    if not 0 <= begin <= end or end - begin != size:
        raise ValueError(f"tensor {name!r} lies at {begin} to {end}, its dtype and shape need {size} bytes")
    return TensorEntry(name, dtype, tuple(shape), data_begin + begin, data_begin + end)
