"""Which kernels are compiled together: a compiler of kernels has one thread, and a text that is split has many.

What goes where depends on the kernels' texts alone: the bytes of a model are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence

# A part holds at least so many characters of kernels' text: to begin a compilation and to read the library's text takes
# as long as a very small kernel.
LEAST = 2000
# A GPU's driver loads each part as a module of its own.
MOST = 32


def split_kernels(lengths: Sequence[int]) -> list[list[int]]:
    """Kernels by part, of texts of these lengths: in each part in their order, and parts by their first kernel."""
    count = max(1, min(len(lengths), MOST, sum(lengths) // LEAST))
    parts: list[list[int]] = [[] for _ in range(count)]
    filled = [0] * count
    for kernel in sorted(range(len(lengths)), key=lambda number: (-lengths[number], number)):
        part = min(range(count), key=lambda number: (filled[number], number))
        parts[part].append(kernel)
        filled[part] += lengths[kernel]
    return sorted(sorted(part) for part in parts)
