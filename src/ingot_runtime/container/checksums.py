"""The two hashes of a file's pieces, each as 64 hexadecimal digits.

`sha256` is for code and for everything else that is small. `sums` is for tensors, which are nearly all of a file's
bytes: it reads them once, at the speed of memory.
"""

import contextlib
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

Bytes = bytes | bytearray | memoryview

# Words in a row of `sums`. A prime: then pages of 4 KiB that trade places meet other columns wherever in a piece they
# are, because 1031 of them are more than a piece has.
ROW = 1031

_LARGE = 1 << 20  # from here on, OpenSSL's speed is worth the time and the memory that loading it takes


def sha256(data: Bytes) -> str:
    if _python_sha256 is None or len(data) >= _LARGE:
        import hashlib  # here, because it loads OpenSSL: 3 MB and as many milliseconds that small data can do without

        return hashlib.sha256(data).hexdigest()
    digest: str = _python_sha256(data).hexdigest()
    return digest


def sums(data: memoryview) -> str:
    """SHA-256 of the sums, modulo 2**64, of the columns of little-endian 64-bit words that lie in rows of ROW words,
    and of the bytes behind the last whole row.

    Differs for certain where the data differs within 8 KiB only (a flipped bit, a burst, a page that was lost: no
    column then has two changed words), and where two pages of 4 KiB trade places. Other damage it misses only where
    the changes cancel in every column that they touch: words that trade places at a distance of exactly a multiple of
    8248 bytes, for one. No disk or network does that by accident. It is easily done on purpose, and a hash that
    stands in the same file as the data never was a guard against that.
    """
    rows = len(data) // (8 * ROW)
    words = np.frombuffer(data, "<u8", rows * ROW).reshape(rows, ROW)
    columns = np.add.reduce(words, axis=0).astype("<u8", copy=False)
    return sha256(columns.tobytes() + data[8 * ROW * rows :])


def _find_python_sha256() -> Callable[[Bytes], Any] | None:
    """Python's own SHA-256, which hashlib falls back to where there is no OpenSSL. Its module's name is not fixed."""
    for name in ("_sha2", "_sha256"):  # from Python 3.12 on, and before
        with contextlib.suppress(ImportError, AttributeError):
            found: Callable[[Bytes], Any] = importlib.import_module(name).sha256
            return found
    return None


_python_sha256 = _find_python_sha256()
