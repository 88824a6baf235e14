"""Random draws of generated code: Philox as published, each element a function of seed, draw and index alone, and
distributed as its name says."""

import ctypes
import math
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

HERE = Path(__file__).parent
HEADERS = HERE.parents[1] / "src" / "ingot" / "codegen" / "c"
FLAGS = ["-O3", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-fwrapv"]
DTYPES = {
    "uniform_f32": np.float32,
    "uniform_f64": np.float64,
    "normal_f32": np.float32,
    "normal_f64": np.float64,
    "randint_i64": np.int64,
}
COUNT = 400_000
SEED = 20_240_229

words = st.integers(0, 2**64 - 1)
Draw = Callable[..., NDArray[Any]]


def build(output: Path, *flags: str) -> str:
    compiler = shutil.which("gcc") or shutil.which("clang") or shutil.which("cc")
    if not compiler:
        pytest.skip("no C compiler")
    command = [compiler, "-Wall", "-Wextra", "-Werror", *FLAGS, *flags, f"-I{HEADERS}", str(HERE / "random_harness.c")]
    done = subprocess.run(
        [*command, "-shared", "-fPIC", "-o", str(output), "-lm"], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    path = tmp_path_factory.mktemp("random") / "random.so"
    build(path)
    harness = ctypes.CDLL(str(path))
    unsigned, signed, array = ctypes.c_uint64, ctypes.c_int64, ctypes.c_void_p
    harness.philox.argtypes = [unsigned, unsigned, unsigned, array]
    for name in DTYPES:
        bounds = [signed, signed] if name == "randint_i64" else []
        getattr(harness, name).argtypes = [unsigned, unsigned, signed, signed, array, *bounds]
    return harness


@pytest.fixture(scope="module")
def draw(library: ctypes.CDLL) -> Draw:
    """draw(name, key, draw, begin, end, *bounds): elements begin to end of a draw."""

    def fill(name: str, key: int, number: int, begin: int, end: int, *bounds: int) -> NDArray[Any]:
        result = np.empty(end - begin, DTYPES[name])
        getattr(library, name)(key, number, begin, end, result.ctypes.data, *bounds)
        return result

    return fill


def philox(library: ctypes.CDLL, key: int, number: int, i: int) -> list[int]:
    out = np.zeros(4, np.uint32)
    library.philox(key, number, i, out.ctypes.data)
    return [int(word) for word in out]


def reference(key: int, number: int, i: int) -> list[int]:
    """The paper's definition, in integers of any size."""
    mask = 2**32 - 1
    x = [i & mask, i >> 32, number & mask, number >> 32]
    keys = [key & mask, key >> 32]
    for _ in range(10):
        first, second = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
        x = [(second >> 32) ^ x[1] ^ keys[0], second & mask, (first >> 32) ^ x[3] ^ keys[1], first & mask]
        keys = [(keys[0] + 0x9E3779B9) & mask, (keys[1] + 0xBB67AE85) & mask]
    return x


def distance(sample: NDArray[Any], cdf: NDArray[np.float64]) -> float:
    """Kolmogorov's: sqrt(n) times the largest distance of two distributions, `cdf` taken at the sorted sample. Above
    2.2 with a probability of 1 in 8,000 for a sample of the distribution; the seed is fixed, so never here."""
    steps = np.arange(len(sample) + 1) / len(sample)
    return math.sqrt(len(sample)) * float(max((cdf - steps[:-1]).max(), (steps[1:] - cdf).max()))


# Counter, key and output as the authors of Philox publish them for philox4x32-10.
@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_published_vectors(library: ctypes.CDLL, counter: list[int], key: list[int], expected: list[int]) -> None:
    def joined(low: int, high: int) -> int:
        return high << 32 | low

    assert philox(library, joined(*key), joined(*counter[2:]), joined(*counter[:2])) == expected


@settings(deadline=None, derandomize=True)
@given(words, words, words)
def test_every_bit_counts(library: ctypes.CDLL, key: int, number: int, i: int) -> None:
    assert philox(library, key, number, i) == reference(key, number, i)


@pytest.mark.parametrize("name", DTYPES)
def test_an_element_does_not_depend_on_its_neighbours(draw: Draw, name: str) -> None:
    bounds = (-50, 1000) if name == "randint_i64" else ()
    whole = draw(name, SEED, 3, 0, 1000, *bounds)
    for begin, end in [(0, 1), (1, 18), (17, 401), (999, 1000)]:
        assert draw(name, SEED, 3, begin, end, *bounds).tobytes() == whole[begin:end].tobytes()
    for other in [draw(name, SEED + 1, 3, 0, 1000, *bounds), draw(name, SEED, 4, 0, 1000, *bounds)]:
        assert (other == whole).mean() < 0.01
    far = 2**40  # an index of more than 32 bits is not taken for a smaller one
    assert (draw(name, SEED, 3, far, far + 1000, *bounds) == whole).mean() < 0.01


@pytest.mark.parametrize(("name", "bits"), [("uniform_f32", 24), ("uniform_f64", 53)])
def test_uniform(draw: Draw, name: str, bits: int) -> None:
    values = draw(name, SEED, 0, 0, COUNT).astype(np.float64)
    assert values.min() >= 0 and values.max() < 1
    assert values.min() < 20 / COUNT and values.max() > 1 - 20 / COUNT
    steps = values * 2.0**bits
    assert (steps == np.floor(steps)).all() and (steps % 2 == 1).mean() == pytest.approx(0.5, abs=0.01)
    assert values.mean() == pytest.approx(1 / 2, abs=5 / math.sqrt(12 * COUNT))
    assert values.var() == pytest.approx(1 / 12, rel=0.01)
    ordered = np.sort(values)
    assert distance(ordered, ordered) < 2.2


@pytest.mark.parametrize("name", ["normal_f32", "normal_f64"])
def test_normal(draw: Draw, name: str) -> None:
    values = draw(name, SEED, 0, 0, COUNT).astype(np.float64)
    assert np.isfinite(values).all()
    assert values.mean() == pytest.approx(0, abs=5 / math.sqrt(COUNT))
    assert values.var() == pytest.approx(1, abs=5 * math.sqrt(2 / COUNT))
    assert (values**3).mean() == pytest.approx(0, abs=5 * math.sqrt(15 / COUNT))
    assert (values**4).mean() == pytest.approx(3, abs=5 * math.sqrt(96 / COUNT))
    ordered = np.sort(values)
    assert distance(ordered, np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in ordered])) < 2.2
    assert (abs(values) > 4).sum() == pytest.approx(COUNT * math.erfc(4 / math.sqrt(2)), abs=25)


def test_draws_and_neighbours_are_not_correlated(draw: Draw) -> None:
    first, second = (draw("normal_f64", SEED, number, 0, COUNT) for number in (0, 1))
    other_seed = draw("normal_f64", SEED + 1, 0, 0, COUNT)
    limit = 5 / math.sqrt(COUNT)
    assert abs(np.mean(first * second)) < limit
    assert abs(np.mean(first * other_seed)) < limit
    for lag in (1, 2, 3, 4, 64):
        assert abs(np.mean(first[lag:] * first[:-lag])) < limit


@pytest.mark.parametrize(("low", "high"), [(0, 2), (-3, 4), (10, 110), (-(2**62), -(2**62) + 1000)])
def test_randint(draw: Draw, low: int, high: int) -> None:
    values = draw("randint_i64", SEED, 0, 0, COUNT, low, high)
    assert values.min() == low and values.max() == high - 1
    sizes = np.bincount(values - low, minlength=high - low)
    expected = COUNT / (high - low)
    degrees = high - low - 1
    assert ((sizes - expected) ** 2 / expected).sum() < degrees + 5 * math.sqrt(2 * degrees)


@settings(deadline=None, derandomize=True)
@given(words, words, st.integers(0, 2**62), st.integers(-(2**63), 2**63 - 2), st.data())
def test_randint_is_the_exact_share(draw: Draw, key: int, number: int, i: int, low: int, data: st.DataObject) -> None:
    high = data.draw(st.integers(low + 1, 2**63 - 1))
    a, b, c, d = reference(key, number, i)
    share = ((a << 96 | b << 64 | c << 32 | d) * (high - low)) >> 128
    assert int(draw("randint_i64", key, number, i, i + 1, low, high)[0]) == low + share


def test_one_value_only(draw: Draw) -> None:
    for low in (-(2**63), -1, 0, 2**63 - 2):
        assert (draw("randint_i64", SEED, 0, 0, 100, low, low + 1) == low).all()


def test_loops_over_elements_vectorize(tmp_path: Path) -> None:
    if not shutil.which("gcc") or "x86_64" not in subprocess.check_output(["gcc", "-dumpmachine"], text=True):
        pytest.skip("asks gcc on x86-64")
    # Without libm's own vector functions the normal draws would not, so they are left out.
    report = build(tmp_path / "random.so", "-march=x86-64-v3", "-DNO_LIBM", "-fopt-info-vec-optimized")
    lines = {line.split(":")[1] for line in report.splitlines() if "loop vectorized" in line}
    assert len(lines) == 3, report
