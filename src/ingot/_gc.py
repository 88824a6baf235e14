"""Python's garbage collector, paused for a while.

Capturing and compiling make many objects that live for long, next to the hundreds of thousands that torch has made
already. The collector would walk all of them, again and again, and find nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def pause() -> Iterator[None]:
    """Inside, nothing is collected. Reference counts free what they free all the same."""
    running = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if running:
            gc.enable()
