"""Memory for large weights, allocated ahead of time.

The system hands out fresh memory at about the speed at which weights are packed into it, or slower. While a model is
captured one core has nothing to do: it allocates memory for weights that will be about as large as the model's own.
"""

from __future__ import annotations

import mmap
import threading
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from ingot_runtime.cpu_features import cores
from ingot_runtime.native.page_allocator import map_pages

# Bytes that are worth a thread, and that it touches at a time.
WORTH = 64 << 20
PIECE = 16 << 20


class Pages:
    """Inside `with`, memory for about `size` bytes is made ready, for `take` to give.

    What is not taken is released.
    """

    def __init__(self, size: int) -> None:
        self._memory: mmap.mmap | None = None
        self._stopped = threading.Event()
        self._asker: threading.Thread | None = None
        if size >= WORTH and cores() > 1:
            # Packing may add to it; what is never touched costs nothing.
            self._memory = map_pages(2 * size)
            self._asker = threading.Thread(target=self._ask, args=(np.frombuffer(self._memory, np.uint8), size))

    def __enter__(self) -> Pages:
        if self._asker is not None:
            self._asker.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop()
        self._memory = None

    def take(self, size: int) -> NDArray[np.uint8]:
        """Memory of that size, which may be larger."""
        self._stop()
        memory, self._memory = self._memory, None
        if memory is None or len(memory) < size:
            return np.frombuffer(map_pages(size), np.uint8)
        used = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        if used < len(memory) and hasattr(mmap, "MADV_DONTNEED"):
            memory.madvise(mmap.MADV_DONTNEED, used, len(memory) - used)
        return np.frombuffer(memory, np.uint8)[:size]

    def _ask(self, memory: NDArray[np.uint8], size: int) -> None:
        for begin in range(0, size, PIECE):
            if self._stopped.is_set():
                return
            memory[begin : min(begin + PIECE, size) : mmap.PAGESIZE] = 0

    def _stop(self) -> None:
        self._stopped.set()
        if self._asker is not None:
            self._asker.join()
            self._asker = None
