"""Element types: their widths, and the types that they are computed in."""

from __future__ import annotations

import math
import struct

FLOATS = ("float16", "bfloat16", "float32", "float64")
HALVES = ("float16", "bfloat16")
INTEGERS = ("uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64")
BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
}


def wide(dtype: str) -> str:
    """What a value of this dtype is computed in: the halves are stored narrow and computed in float32."""
    return "float32" if dtype in HALVES else dtype


def round_number(value: float, dtype: str) -> float:
    """The number nearest to `value` that a half dtype has, by way of float32 as torch rounds it."""
    if not math.isfinite(value):
        return value
    try:
        if dtype == "float16":
            return _round_trip("<e", _round_trip("<f", value))
        (bits,) = struct.unpack("<I", struct.pack("<f", value))
    except OverflowError:
        return math.copysign(math.inf, value)
    (rounded,) = struct.unpack("<f", struct.pack("<I", (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000))
    return float(rounded)


def _round_trip(layout: str, value: float) -> float:
    (stored,) = struct.unpack(layout, struct.pack(layout, value))
    return float(stored)
