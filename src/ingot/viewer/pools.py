"""Pools of what stages share, so that a model of thousands of nodes takes little more for twenty stages than for one.

A stage lists indexes of a pool. Most of what a stage has comes right after one another in the pool, so the lists are
written as runs: [first, count, first, count, …].
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

T = TypeVar("T")

# A line is taken from where it was before only together with those behind it: a brace alone would end every run.
_WINDOW = 3


def encode_runs(indexes: Iterable[int]) -> list[int]:
    """Indexes as runs."""
    made: list[int] = []
    for index in indexes:
        if made and made[-2] + made[-1] == index:
            made[-1] += 1
        else:
            made += (index, 1)
    return made


def decode_runs(runs: Sequence[int]) -> list[int]:
    """The indexes that runs stand for."""
    return [index for first, count in zip(runs[::2], runs[1::2], strict=True) for index in range(first, first + count)]


class Pool(Generic[T]):
    """Items by their content: an equal one is not stored again."""

    def __init__(self) -> None:
        self.items: list[T] = []
        self._places: dict[Hashable, int] = {}

    def add(self, key: Hashable, item: T) -> int:
        """The index of the item that has this key; this one is stored where there is none."""
        place = self._places.setdefault(key, len(self.items))
        if place == len(self.items):
            self.items.append(item)
        return place

    def find(self, key: Hashable) -> int:
        """The index of the item that has this key, -1 where there is none."""
        return self._places.get(key, -1)

    @property
    def keys(self) -> list[Any]:
        """The keys of the items, in their order."""
        return list(self._places)

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)


class LinePool:
    """Lines of text, each with the number of what it links to, or -1."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.link: list[int] = []
        self._windows: dict[tuple[tuple[str, int], ...], int] = {}

    def add(self, text: Sequence[str], links: Sequence[int]) -> list[int]:
        """The runs of a text's lines."""
        lines = list(zip(text, links, strict=True))
        indexes: list[int] = []
        begin = len(self.text)
        for place, line in enumerate(lines):
            follows = indexes[-1] + 1 if indexes else -1
            if 0 <= follows < begin and (self.text[follows], self.link[follows]) == line:
                indexes.append(follows)
                continue
            known = self._windows.get(tuple(lines[place : place + _WINDOW]), -1)
            if known < 0:
                known = len(self.text)
                self.text.append(line[0])
                self.link.append(line[1])
            indexes.append(known)
        for place in range(begin, len(self.text)):
            window = tuple(zip(self.text[place : place + _WINDOW], self.link[place : place + _WINDOW], strict=True))
            self._windows.setdefault(window, place)
        return encode_runs(indexes)

    def decode(self, runs: Sequence[int]) -> list[str]:
        """The lines that runs stand for."""
        return [self.text[index] for index in decode_runs(runs)]

    def to_json(self) -> dict[str, Any]:
        """`strings` has each text once; a line is the number of its text. Links are [link, count, link, count, …]."""
        numbers: dict[str, int] = {}
        text = [numbers.setdefault(line, len(numbers)) for line in self.text]
        links = [part for link, run in itertools.groupby(self.link) for part in (link, len(list(run)))]
        return {"strings": list(numbers), "text": text, "link": links}
