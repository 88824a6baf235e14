"""Weights as the server sends them: paths that name a block, a whole file or statistics, and nothing else."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from ingot.viewer.weights.tensor_pool import TensorPool, file_pieces, file_size
from ingot.viewer.weights.weight_statistics import summarize_weight

# As much as a window shows, several times.
MOST_VALUES = 1 << 16
_BLOCK = re.compile(
    r"weights/(?P<number>\d{1,7})/(?P<fixed>-|\d{1,12}(?:\.\d{1,12}){0,30})"
    r"/(?P<first>\d{1,12})-(?P<last>\d{1,12})/(?P<left>\d{1,12})-(?P<right>\d{1,12})",
    re.ASCII,
)
_FILE = re.compile(r"weights/(?P<number>\d{1,7})\.(?P<kind>npy|json)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent for a path."""

    type: str
    size: int
    pieces: Iterable[bytes]


def answer_weights(pool: TensorPool, path: str) -> Answer | None:
    """What a path asks for; None where it is not one of a block or a file that there is. Raises OSError and ValueError
    where a file of weights is damaged."""
    block = _BLOCK.fullmatch(path)
    if block is not None:
        fixed = () if block["fixed"] == "-" else tuple(map(int, block["fixed"].split(".")))
        rows, columns = (int(block["first"]), int(block["last"])), (int(block["left"]), int(block["right"]))
        if (rows[1] - rows[0]) * (columns[1] - columns[0]) > MOST_VALUES:
            return None
        found = pool.read(int(block["number"]), fixed, rows, columns)
        return None if found is None else Answer("application/octet-stream", len(found), (found,))
    file = _FILE.fullmatch(path)
    if file is None or int(file["number"]) >= len(pool.items):
        return None
    tensor = pool.items[int(file["number"])]
    if file["kind"] == "json":
        text = json.dumps(summarize_weight(tensor), allow_nan=False).encode()
        return Answer("application/json", len(text), (text,))
    pieces = file_pieces(tensor)
    first = list(itertools.islice(pieces, 2))  # what cannot be read is known before an answer begins
    return Answer("application/octet-stream", file_size(tensor), itertools.chain(first, pieces))
