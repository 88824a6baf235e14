"""Large allocations, mapped directly from the system."""

import contextlib
import mmap

from ..errors import OutOfMemory


def map_pages(size: int) -> mmap.mmap:
    """Zeros, in large pages where the system has them: hundreds of thousands of small ones take seconds to clear.

    Raises OutOfMemory where there are not that many.
    """
    # Not shared with processes forked off, which is what mmap does unasked: systems have no large pages for that.
    private = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)
    try:
        pages = mmap.mmap(-1, size, flags=private) if private else mmap.mmap(-1, size)
    except (OSError, OverflowError) as error:
        raise OutOfMemory(f"There is no memory: {size:,} bytes are needed ({error}).") from None
    advise(pages, "MADV_HUGEPAGE")
    return pages


def advise(pages: mmap.mmap, name: str) -> None:
    """Only advice: a system may ignore it."""
    with contextlib.suppress(AttributeError, OSError):
        pages.madvise(getattr(mmap, name))
