"""An image of several modules: kernels that were compiled apart, for one architecture, as one member of a file.

    8 bytes     IGPARTS1
    8 bytes     the number of parts
    16 bytes    for each part: where it begins, counted from the image's first byte, and its size
    parts       cubins or PTX, each at a multiple of 64 bytes, zeros between them

Numbers are little-endian. A single part is an image as it is, without any of this. c/images.h reads it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

MAGIC = b"IGPARTS1"
# Of the format, for the keys of what is stored: bytes of another one are not found.
FORMAT = "parts-1"
_ALIGNMENT = 64


def pack_parts(parts: Sequence[bytes]) -> bytes:
    """The image that holds these parts, in this order."""
    if len(parts) == 1:
        return parts[0]
    at = _round_up(16 + 16 * len(parts))
    table = [MAGIC, struct.pack("<Q", len(parts))]
    for part in parts:
        table.append(struct.pack("<QQ", at, len(part)))
        at = _round_up(at + len(part))
    head = b"".join(table)
    return b"".join(piece.ljust(_round_up(len(piece)), b"\0") for piece in (head, *parts))


def unpack_parts(image: bytes) -> list[bytes]:
    """The parts of an image that `pack_parts` made."""
    if not image.startswith(MAGIC):
        return [image]
    (count,) = struct.unpack_from("<Q", image, 8)
    places = [struct.unpack_from("<QQ", image, 16 + 16 * number) for number in range(count)]
    return [image[begin : begin + size] for begin, size in places]


def _round_up(size: int) -> int:
    return (size + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
