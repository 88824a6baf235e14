"""Members in pieces, each with its own SHA-256: all cores check one large member, and damage has a place."""

import hashlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

PIECE = 4 << 20

_THREADS_FROM = 1 << 20  # below this many bytes, starting threads costs more than hashing
_THREADS_MOST = 8  # beyond it, memory is the limit and not the hash


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes `begin` to `end` of a file, a part of `member`, and the SHA-256 that they must have."""

    member: str
    begin: int
    end: int
    sha256: str


def count(size: int) -> int:
    """How many pieces `size` bytes have; none at all have none."""
    return -(-size // PIECE)


def cut(member: str, begin: int, end: int, sha256s: Sequence[str]) -> Iterator[Piece]:
    """The pieces of a member; `sha256s` has one for each."""
    for at, sha256 in zip(range(begin, end, PIECE), sha256s, strict=True):
        yield Piece(member, at, min(at + PIECE, end), sha256)


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
                sha256 = hashlib.sha256(data[piece.begin : piece.end]).hexdigest()
                if sha256 != piece.sha256:
                    found.append((number, sha256))
                if forget is not None:
                    forget(piece.begin, piece.end)
        except BaseException as failure:
            failures.append(failure)

    large = sum(piece.end - piece.begin for piece in pieces) >= _THREADS_FROM
    helpers = [
        threading.Thread(target=work) for _ in range(min(_cores(), _THREADS_MOST, len(pieces)) - 1 if large else 0)
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
    number, sha256 = min(found)
    return pieces[number], sha256


class Hasher:
    """Hashes of the pieces of data that comes in parts of any size."""

    __slots__ = ("_current", "_room", "sha256s")

    def __init__(self) -> None:
        self.sha256s: list[str] = []
        self._current = hashlib.sha256()
        self._room = PIECE

    def update(self, data: memoryview) -> None:
        while len(data) >= self._room:
            self._current.update(data[: self._room])
            data = data[self._room :]
            self._end_piece()
        self._current.update(data)
        self._room -= len(data)

    def finish(self) -> list[str]:
        """The hash of every piece."""
        if self._room < PIECE:
            self._end_piece()
        return self.sha256s

    def _end_piece(self) -> None:
        self.sha256s.append(self._current.hexdigest())
        self._current = hashlib.sha256()
        self._room = PIECE


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1
