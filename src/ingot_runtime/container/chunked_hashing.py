"""Members in pieces, each with its own hash: all cores check one large member, and damage is located."""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ..cpu_features import cores
from . import checksums

PIECE = 4 << 20
SHA256, SUMS = "sha256", "sums"  # the kinds of hash

_DIGESTS: Mapping[str, Callable[[memoryview], str]] = {SHA256: checksums.sha256, SUMS: checksums.sums}

_THREADS_FROM = 1 << 20  # below this many bytes, starting threads costs more than hashing
_THREADS_MOST = 8  # beyond it, memory is the limit and not the hash


class Piece(NamedTuple):
    """Bytes `begin` to `end` of a file, a part of `member`, and the hash of one `kind` that they must have."""

    member: str
    begin: int
    end: int
    kind: str
    digest: str


def kind_of(member: str) -> str:
    """The kind of hash that a member of this name has: what runs, or says what runs, has SHA-256."""
    return SUMS if member.endswith(".safetensors") else SHA256


def count(size: int) -> int:
    """How many pieces `size` bytes have; none at all have none."""
    return -(-size // PIECE)


def cut(member: str, begin: int, end: int, kind: str, hashes: Sequence[str]) -> Iterator[Piece]:
    """The pieces of a member; `hashes` has one of that kind for each."""
    for at, digest in zip(range(begin, end, PIECE), hashes, strict=True):
        yield Piece(member, at, min(at + PIECE, end), kind, digest)


def find_damage(
    data: memoryview, pieces: Sequence[Piece], forget: Callable[[int, int], None] | None = None
) -> tuple[Piece, str] | None:
    """The first piece that is not what it must be, and the hash it has; None if all are.

    `forget(begin, end)` is called for bytes that are done with, from several threads.
    """
    found: list[tuple[int, str]] = []
    failures: list[BaseException] = []
    left = deque(enumerate(pieces))

    def work() -> None:
        try:
            while left:
                try:
                    number, piece = left.popleft()
                except IndexError:  # another thread took the last one
                    return
                digest = _DIGESTS[piece.kind](data[piece.begin : piece.end])
                if digest != piece.digest:
                    found.append((number, digest))
                if forget is not None:
                    forget(piece.begin, piece.end)
        except BaseException as failure:
            failures.append(failure)

    large = sum(piece.end - piece.begin for piece in pieces) >= _THREADS_FROM
    helpers = [
        threading.Thread(target=work) for _ in range(min(cores(), _THREADS_MOST, len(pieces)) - 1 if large else 0)
    ]
    for helper in helpers:
        helper.start()
    work()
    for helper in helpers:
        helper.join()
    if failures:
        raise failures[0]
    if not found:
        return None
    number, digest = min(found)
    return pieces[number], digest


class Hasher:
    """Hashes of one kind of the pieces of data that comes in parts of any size."""

    __slots__ = ("_digest", "_filled", "_hashes", "_piece")

    def __init__(self, kind: str) -> None:
        self._digest = _DIGESTS[kind]
        self._hashes: list[str] = []
        self._piece = memoryview(bytearray(PIECE))
        self._filled = 0

    def update(self, data: memoryview) -> None:
        while data:
            part = data[: PIECE - self._filled]
            self._piece[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            data = data[len(part) :]
            if self._filled == PIECE:
                self._end_piece()

    def finish(self) -> list[str]:
        """The hash of every piece."""
        if self._filled:
            self._end_piece()
        return self._hashes

    def _end_piece(self) -> None:
        self._hashes.append(self._digest(self._piece[: self._filled]))
        self._filled = 0
