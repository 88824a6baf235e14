"""A zoo of `transformers` architectures, small and with random weights, on which capture is tested."""

from __future__ import annotations

from tests.support.zoo import (
    audio,
    dense,
    encoder_decoder,
    experts,
    multimodal,
    other,
    prompted,
    state_space,
    text,
    vision,
)
from tests.support.zoo.entry import Entry

ZOO: tuple[Entry, ...] = (
    *text.ENTRIES,
    *encoder_decoder.ENTRIES,
    *vision.ENTRIES,
    *dense.ENTRIES,
    *audio.ENTRIES,
    *experts.ENTRIES,
    *state_space.ENTRIES,
    *multimodal.ENTRIES,
    *prompted.ENTRIES,
    *other.ENTRIES,
)
_BY_NAME = {item.name: item for item in ZOO}


def entry(name: str) -> Entry:
    """The entry of that name; KeyError where the zoo has none."""
    return _BY_NAME[name]


__all__ = ["ZOO", "Entry", "entry"]
