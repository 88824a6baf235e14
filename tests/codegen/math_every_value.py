"""Calls every loop of a compiled library with every kind of value: `math_every_value.py library.so`.

A process of its own, because the library is built to abort on undefined behaviour. The repository's root and its src
must be on the path.
"""

from __future__ import annotations

import ctypes
import re
import sys

import numpy

from tests.codegen.math_harness import TYPES, loops

COUNT = 20_000
NUMPY = {c: dtype for c, dtype in TYPES.values()}


def values(c: str, seed: int) -> numpy.ndarray:
    """Random bits, small numbers, ends and specials of a C type, in an order of the seed's."""
    rng = numpy.random.default_rng(seed)
    dtype = numpy.dtype(NUMPY[c])
    bits = rng.integers(0, 256, COUNT * dtype.itemsize, dtype=numpy.uint8).view(dtype)
    small = rng.integers(0, 9, COUNT).astype(dtype)
    if dtype.kind == "f":
        info = numpy.finfo(dtype)
        ends = [
            numpy.inf,
            -numpy.inf,
            numpy.nan,
            -0.0,
            -1.0,
            info.max,
            info.min,
            info.tiny,
            2.0**31,
            2.0**63,
            -(2.0**63),
        ]
        small = rng.normal(0, 10, COUNT).astype(dtype)
    else:
        ends = [numpy.iinfo(dtype).min, numpy.iinfo(dtype).max, 0, 1]
        ends += [-1] if dtype.kind == "i" else []
    return rng.permutation(numpy.concatenate([bits, small, numpy.array(ends * 400, dtype)[: COUNT // 8]]))


def main(path: str) -> None:
    library = ctypes.CDLL(path)
    for name, text in loops().items():
        declared = re.search(r"\((.*), int64_t n\)", text)
        assert declared is not None
        kinds = [p.replace("const ", "").split(" *")[0] for p in declared[1].split(", ")]
        arrays = [values(c, seed) for seed, c in enumerate(kinds)]
        n = min(len(a) for a in arrays)
        getattr(library, f"v_{name}")(*(ctypes.c_void_p(a.ctypes.data) for a in arrays), ctypes.c_int64(n))
    print(f"{len(loops())} functions")


if __name__ == "__main__":
    main(sys.argv[1])
