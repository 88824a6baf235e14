"""The element types of inputs and outputs: Ingot's name, the C code, numpy's type, the name in a file."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

BFLOAT16 = "bfloat16"


class Dtype(NamedTuple):
    """One element type. `numpy` is what lies in memory: for bfloat16, which numpy lacks, its 16 bits."""

    name: str
    code: int
    numpy: np.dtype[Any]
    stored: str

    @property
    def is_exact(self) -> bool:
        return self.numpy.kind != "f" and self.name != BFLOAT16


BY_NAME: Mapping[str, Dtype] = {
    name: Dtype(name, code, np.dtype(numpy), stored)
    for name, code, numpy, stored in (
        ("bool", 0, "bool", "BOOL"),
        ("uint8", 1, "uint8", "U8"),
        ("int8", 2, "int8", "I8"),
        ("int16", 3, "int16", "I16"),
        ("int32", 4, "int32", "I32"),
        ("int64", 5, "int64", "I64"),
        ("float16", 6, "float16", "F16"),
        (BFLOAT16, 7, "uint16", "BF16"),
        ("float32", 8, "float32", "F32"),
        ("float64", 9, "float64", "F64"),
        ("uint16", 10, "uint16", "U16"),
        ("uint32", 11, "uint32", "U32"),
        ("uint64", 12, "uint64", "U64"),
    )
}
