"""Memory for large results: reuses that of results which are no longer referenced before it allocates.

The system clears fresh memory page by page, which takes longer than most kernels take to fill it. A model therefore
keeps the memory of as many results as one call returns, for its next call; that of large ones the system may take back
before. What a caller still holds, or a view of it, is never touched.
"""

import math
import weakref
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .page_allocator import advise, map_pages

# Results of fewer bytes are left to numpy: the C library keeps memory of that size itself.
WORTH = 1 << 20
# Up to this size memory is kept as it is: to let the system take it back costs as much as many kernels do.
HELD = 32 << 20
# The system's large pages lie on multiples of their size.
LARGE = 2 << 20


class ResultMemory:
    """Arrays for the results of a model. Any number of threads may use it at once."""

    def __init__(self, results: int) -> None:
        """`results` is how many a call returns."""
        # Adding to a deque and taking from it are one step each, and need no lock: a result may die at any moment, in
        # the middle of `empty` too. One that is full lets the oldest go.
        self._kept: deque[_Pages] = deque(maxlen=results)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """An array of any content. Raises MemoryError or ValueError where there is no room for it."""
        size = math.prod(shape) * dtype.itemsize
        if size < WORTH:
            return np.empty(shape, dtype)
        return np.asarray(_Result(self._pages(size), shape, dtype, weakref.ref(self)))

    def keep(self, pages: "_Pages") -> None:
        """Takes back the memory of a result that is no longer referenced."""
        if pages.size > HELD:
            pages.may_be_taken_back()
        self._kept.append(pages)

    def close(self) -> None:
        """Releases everything to the system, now and later."""
        self._kept = deque(maxlen=0)

    def _pages(self, size: int) -> "_Pages":
        """Kept ones of about that size, or fresh ones."""
        kept = self._kept
        for _ in range(len(kept)):
            try:
                pages = kept.popleft()
            except IndexError:  # another thread has taken them
                break
            if size <= pages.size <= 2 * size:
                return pages
            kept.append(pages)
        return _Pages(size)


class _Pages:
    """Memory of the system's, in large pages where it has them."""

    __slots__ = ("_map", "address", "size")

    def __init__(self, size: int) -> None:
        self._map = map_pages(size + LARGE)
        begin: int = np.frombuffer(self._map, np.uint8).ctypes.data
        self.address = -(-begin // LARGE) * LARGE
        self.size = size

    def may_be_taken_back(self) -> None:
        """Until it is written to again. What it holds is of no worth any more."""
        advise(self._map, "MADV_FREE")


class _Result:
    """What an array, and every view of it, keeps alive: the last one that goes gives the memory back."""

    __slots__ = ("__array_interface__", "_home", "_pages")

    def __init__(
        self, pages: _Pages, shape: tuple[int, ...], dtype: np.dtype[Any], home: "weakref.ref[ResultMemory]"
    ) -> None:
        self._pages, self._home = pages, home
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": dtype.str,
            "data": (pages.address, False),
        }

    def __del__(self) -> None:
        home = self._home()
        if home is not None:
            home.keep(self._pages)
