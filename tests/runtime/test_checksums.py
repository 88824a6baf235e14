"""The hashes of a file's pieces: what each is, and which damage it finds for certain."""

import hashlib
import random
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingot_runtime.container import checksums, chunked_hashing

PAGE = 4096
WORD = 8
ROW_BYTES = WORD * checksums.ROW
PATTERNS = {
    "random": random.Random(0).randbytes(chunked_hashing.PIECE),
    "zeros": bytes(chunked_hashing.PIECE),
    "counting": np.arange(chunked_hashing.PIECE // WORD, dtype="<u8").tobytes(),
    "pages": b"".join(n.to_bytes(WORD, "little") * (PAGE // WORD) for n in range(chunked_hashing.PIECE // PAGE)),
}
patterns = st.sampled_from(sorted(PATTERNS))


def is_found(before: bytes, after: bytes | bytearray) -> bool:
    return checksums.sums(memoryview(before)) != checksums.sums(memoryview(after))


class TestSha256:
    @pytest.mark.parametrize("size", [0, 1, 63, 64, 1000, checksums._LARGE - 1, checksums._LARGE])
    @pytest.mark.parametrize("own", [True, False])
    def test_it_is_sha256(self, monkeypatch: pytest.MonkeyPatch, size: int, own: bool) -> None:
        if not own:
            monkeypatch.setattr(checksums, "_python_sha256", None)
        data = PATTERNS["random"][:size]
        assert checksums.sha256(data) == checksums.sha256(memoryview(data)) == hashlib.sha256(data).hexdigest()

    @pytest.mark.skipif(checksums._python_sha256 is None, reason="this Python has OpenSSL's SHA-256 only")
    def test_small_data_does_without_openssl(self) -> None:
        use = "from ingot_runtime.container import checksums; checksums.sha256(b'x')"
        code = f"import sys; {use}; assert '_hashlib' not in sys.modules"
        subprocess.run([sys.executable, "-c", code], check=True)


class TestSums:
    def test_a_piece_worked_out_by_hand(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(checksums, "ROW", 2)
        words = np.array([1, 2**64 - 1, 2, 3, 4, 5], "<u8").tobytes()
        expected = hashlib.sha256(np.array([7, 7], "<u8").tobytes() + b"behind").hexdigest()
        assert checksums.sums(memoryview(words + b"behind")) == expected

    @pytest.mark.parametrize("size", [0, 1, ROW_BYTES - 1])
    def test_less_than_a_row_is_hashed_as_it_is(self, size: int) -> None:
        data = PATTERNS["random"][:size]
        assert checksums.sums(memoryview(data)) == hashlib.sha256(bytes(ROW_BYTES) + data).hexdigest()

    @settings(deadline=None)
    @given(st.integers(0, 64), st.integers(0, 3 * ROW_BYTES))
    def test_it_does_not_matter_where_the_data_lies(self, offset: int, size: int) -> None:
        data = PATTERNS["random"][:size]
        moved = memoryview(bytes(offset) + data)[offset:]
        assert checksums.sums(moved) == checksums.sums(memoryview(data))

    def test_pages_have_other_columns_wherever_in_a_piece_they_are(self) -> None:
        assert all(checksums.ROW % n for n in range(2, checksums.ROW))
        assert checksums.ROW * PAGE > chunked_hashing.PIECE
        assert ROW_BYTES > 2 * PAGE


class TestDamage:
    @settings(deadline=None, max_examples=60)
    @given(
        patterns,
        st.integers(0, chunked_hashing.PIECE - 1),
        st.integers(0, 7),
        st.integers(ROW_BYTES, chunked_hashing.PIECE),
    )
    def test_a_flipped_bit(self, pattern: str, at: int, bit: int, size: int) -> None:
        before = PATTERNS[pattern][:size]
        after = bytearray(before)
        after[at % size] ^= 1 << bit
        assert is_found(before, after)

    @settings(deadline=None, max_examples=60)
    @given(
        patterns, st.integers(0, chunked_hashing.PIECE - 1), st.integers(1, 2 * PAGE), st.randoms(use_true_random=False)
    )
    def test_a_burst(self, pattern: str, begin: int, length: int, source: random.Random) -> None:
        before = PATTERNS[pattern]
        for damage in (bytes(length), b"\xff" * length, source.randbytes(length)):
            after = bytearray(before)
            after[begin : begin + length] = damage[: chunked_hashing.PIECE - begin]
            assert after == before or is_found(before, after)

    @settings(deadline=None, max_examples=60)
    @given(
        patterns, st.integers(0, chunked_hashing.PIECE // PAGE - 1), st.integers(0, chunked_hashing.PIECE // PAGE - 1)
    )
    def test_pages_that_trade_places(self, pattern: str, one: int, other: int) -> None:
        before = PATTERNS[pattern]
        after = bytearray(before)
        a, b = (slice(page * PAGE, (page + 1) * PAGE) for page in (one, other))
        after[a], after[b] = before[b], before[a]
        assert after == before or is_found(before, after)

    @settings(deadline=None, max_examples=60)
    @given(
        st.sampled_from(["random", "counting", "pages"]),
        st.integers(0, chunked_hashing.PIECE - 1),
        st.binary(min_size=1, max_size=9),
    )
    def test_bytes_put_in_or_lost(self, pattern: str, at: int, more: bytes) -> None:
        before = PATTERNS[pattern]
        longer = (before[:at] + more + before[at:])[: chunked_hashing.PIECE]
        shorter = before[:at] + before[at + len(more) :] + more
        for after in (longer, shorter[: chunked_hashing.PIECE]):
            assert after == before or is_found(before, after)

    def test_what_it_misses_is_what_it_says(self) -> None:
        before = PATTERNS["random"]
        after = bytearray(before)
        after[:WORD], after[ROW_BYTES : ROW_BYTES + WORD] = before[ROW_BYTES : ROW_BYTES + WORD], before[:WORD]
        assert after != before and not is_found(before, after)
