"""Layouts of weights of integers.

A product of few rows reads its weight in fragments: 16 lines by 16 terms are the left operand of one instruction of the
tensor cores, and lane 4·g + t of a warp has of them lines g and g + 8, and two pairs of terms. A chunk is what lanes
read at once, 16 bytes each: four fragments of 4 bits, or two of 8.

    codes    [tile of 16 lines][chunk][lane][4 words]
    scales   [tile of 16 lines][group][g][2]                line g, then line g + 8

The terms of a group are padded to whole fragments, so that none has terms of two groups. In a unit of fragments lane t
has neighbouring terms: 8 of the 32 of two fragments or, where the groups are not whole units of 32, 4 of the 16 of one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ingot.lowering.loop_module import WeightLayout

# Lines, and terms, of a fragment.
TILE = 16
# Codes of a word of CodeRows.
ROW_CODES = 8


@dataclass(frozen=True, slots=True)
class CodeForm:
    """How codes of so many bits, in groups of so many terms, lie in fragments."""

    bits: int
    group: int

    @property
    def padded(self) -> int:
        """The terms of a group, with those that are put in."""
        return -(-self.group // TILE) * TILE

    @property
    def unit(self) -> int:
        """Terms of which a lane has neighbours."""
        return 32 if self.padded % 32 == 0 else 16

    @property
    def chunk(self) -> int:
        """The terms of a chunk."""
        return 256 // self.bits

    def count_chunks(self, k: int) -> int:
        return -(-(k // self.group * self.padded) // self.chunk)

    def codes_shape(self, n: int, k: int) -> tuple[int, ...]:
        return -(-n // TILE), self.count_chunks(k), 32, 4

    def scales_shape(self, n: int, k: int) -> tuple[int, ...]:
        return -(-n // TILE), k // self.group, 8, 2


@dataclass(frozen=True, slots=True)
class CodeFragments(WeightLayout):
    """A matrix of integers, each less `base`, in fragments. Line i's term t is element offset + i · line_step + t ·
    term_step of the tensor. With `pairs`, runs of 8 lines of the first half and of the second one lie in turn."""

    form: CodeForm
    offset: int
    n: int
    k: int
    line_step: int
    term_step: int
    base: int
    pairs: bool = False

    def stored_shape(self) -> tuple[int, ...]:
        return self.form.codes_shape(self.n, self.k)

    def spread(self, flat: torch.Tensor) -> torch.Tensor:
        """The tensor's elements, as words."""
        form = self.form
        tiles, chunks, *_ = self.stored_shape()
        groups, unit = self.k // form.group, form.unit
        codes = _read_codes(flat, (self.n, self.k), (self.line_step, self.term_step), self.offset, self.base)
        codes = _pair_lines(codes) if self.pairs else codes
        padded = torch.zeros(tiles * TILE, chunks * form.chunk, dtype=torch.uint8)
        within = padded[: self.n, : groups * form.padded].view(self.n, groups, form.padded)
        within[..., : form.group] = codes.view(self.n, groups, form.group)
        # tile, half of its lines, g, chunk, unit, t, fragment of the unit, half of its terms, one of a pair
        parts = padded.view(tiles, 2, 8, chunks, form.chunk // unit, 4, unit // 16, 2, 2)
        lanes = parts.permute(0, 3, 2, 5, 4, 6, 7, 1, 8).reshape(tiles, chunks, 32, form.chunk // 16, 2, 2, 2)
        if form.bits == 4:
            # Of a fragment's word: bits 4·(2 · half of the terms + half of the lines) of the low or the high 16.
            ordered = lanes.permute(0, 1, 2, 3, 6, 4, 5)
        else:
            ordered = lanes  # two words, by the half of the terms
        return _join_codes(ordered.reshape(tiles, chunks, 32, 4, 32 // form.bits), form.bits)


@dataclass(frozen=True, slots=True)
class FragmentScales(WeightLayout):
    """Numbers for each line and group, each less `minus`, as float32 beside the fragments of CodeFragments."""

    offset: int
    n: int
    groups: int
    line_step: int
    group_step: int
    minus: int = 0
    pairs: bool = False

    def stored_shape(self) -> tuple[int, ...]:
        return -(-self.n // TILE), self.groups, 8, 2

    def spread(self, flat: torch.Tensor) -> torch.Tensor:
        tiles, groups, *_ = self.stored_shape()
        given = torch.as_strided(flat, (self.n, groups), (self.line_step, self.group_step), self.offset)
        padded = torch.zeros(tiles * TILE, groups, dtype=torch.float32)
        padded[: self.n] = (_pair_lines(given) if self.pairs else given).float() - self.minus
        return padded.view(tiles, 2, 8, groups).permute(0, 3, 2, 1).contiguous()


@dataclass(frozen=True, slots=True)
class CodeRows(WeightLayout):
    """A matrix of integers of 4 bits, each less `base`: [lines][words], eight terms in a word, the first one lowest."""

    offset: int
    n: int
    k: int
    line_step: int
    term_step: int
    base: int

    def stored_shape(self) -> tuple[int, ...]:
        return self.n, -(-self.k // ROW_CODES)

    def spread(self, flat: torch.Tensor) -> torch.Tensor:
        lines, words = self.stored_shape()
        padded = torch.zeros(lines, words * ROW_CODES, dtype=torch.uint8)
        strides = (self.line_step, self.term_step)
        padded[:, : self.k] = _read_codes(flat, (self.n, self.k), strides, self.offset, self.base)
        return _join_codes(padded.view(lines, words, ROW_CODES), 4)


def _pair_lines(matrix: torch.Tensor) -> torch.Tensor:
    """Runs of 8 lines of the first half and of the second one, in turn."""
    n, k = matrix.shape
    return matrix.reshape(2, n // TILE, 8, k).transpose(0, 1).reshape(n, k)


def _read_codes(
    flat: torch.Tensor, shape: tuple[int, int], strides: tuple[int, int], offset: int, base: int
) -> torch.Tensor:
    """Integers less `base`, none of which is negative then."""
    return (torch.as_strided(flat, shape, strides, offset).to(torch.int16) - base).to(torch.uint8)


def _join_codes(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """The last dim's codes as one word of 32 bits, the first one lowest."""
    words = torch.zeros(codes.shape[:-1], dtype=torch.int32)
    for place in range(codes.shape[-1]):
        words |= codes[..., place].to(torch.int32) << (bits * place)
    return words.view(torch.uint32)


def read_fragments(words: NDArray[Any], form: CodeForm, n: int, k: int) -> NDArray[Any]:
    """The codes [n, k] that lie in fragments: each is looked up by itself."""
    chunks, unit = form.count_chunks(k), form.unit
    line, term = np.arange(n)[:, None], np.arange(k)[None, :]
    place = term // form.group * form.padded + term % form.group
    chunk, in_chunk = place // form.chunk, place % form.chunk
    in_unit = in_chunk % unit
    t, rest = in_unit // (unit // 4), in_unit % (unit // 4)
    fragment = in_chunk // unit * (unit // 16) + rest // 4
    half, one = rest // 2 % 2, rest % 2
    g, side = line % 8, line // 8 % 2
    if form.bits == 4:
        word, shift = fragment, 4 * (2 * half + side) + 16 * one
    else:
        word, shift = 2 * fragment + half, 8 * (2 * side + one)
    at = ((line // TILE * chunks + chunk) * 32 + 4 * g + t) * 4 + word
    found: NDArray[Any] = words.reshape(-1)[at].astype(np.int64) >> shift & (1 << form.bits) - 1
    return found


def read_scales(values: NDArray[Any], form: CodeForm, n: int, k: int) -> NDArray[Any]:
    """The number of each line and group, [n, groups]."""
    line, group = np.arange(n)[:, None], np.arange(k // form.group)[None, :]
    at = ((line // TILE * (k // form.group) + group) * 8 + line % 8) * 2 + line // 8 % 2
    found: NDArray[Any] = values.reshape(-1)[at]
    return found
