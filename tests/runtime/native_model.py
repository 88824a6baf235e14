"""A compiled file around a library that is written by hand (native/model.c), and what it should compute."""

import functools
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingot.artifacts.packaging import PackedWeights, SampleCall, pack_weights, write_native
from ingot_runtime import BFloat16Array, CallError, Model
from ingot_runtime.__main__ import HEADER

HERE = Path(__file__).parent
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")

ISA = {"aarch64": "aarch64", "arm64": "aarch64"}.get(platform.machine(), "x86-64")
W = np.array([1.0, 2.0, -3.0, 0.5], np.float32)
B = np.array([0.25, 0.0, 1.0, -8.0], np.float32)


def branch(kind: str, **children: Any) -> dict[str, Any]:
    return {"kind": kind, "name": kind, "keys": list(children), "children": list(children.values())}


def sequence(kind: str, *children: Any) -> dict[str, Any]:
    return {"kind": kind, "name": kind, "keys": list(range(len(children))), "children": list(children)}


# model(x, total, *, rows, options={"scale": 2.0, "mode": "sum"}, twice=[…], count)
MANIFEST: dict[str, Any] = {
    "inputs": [
        {"name": "x", "dtype": "float32", "shape": ["s0", 4], "mutated": False},
        {"name": "total", "dtype": "float32", "shape": [4], "mutated": True},
        {"name": "rows", "dtype": "int64", "shape": ["s1"]},
        {"name": "scale", "dtype": "float64", "shape": []},
        {"name": "twice", "dtype": "float32", "shape": ["2*s0"]},
        {"name": "count", "dtype": "int64", "shape": [], "symbol": "s2"},
    ],
    "outputs": [
        {"name": "y", "dtype": "float32", "shape": ["s0", 4]},
        {"name": "picked", "dtype": "float32", "shape": ["s1", 4]},
        {"name": "low", "dtype": "bfloat16", "shape": ["s0"]},
        {"name": "calls", "dtype": "int64", "shape": [], "scalar": True},
        {"name": "ramp", "dtype": "float32", "shape": ["s2"]},
    ],
    "symbols": {
        "s0": {"name": "batch", "min": 1, "max": 64},
        "s1": {"name": "picks", "min": 0, "max": None},
        "s2": {"name": "count", "min": 0, "max": 1000},
    },
    "call": {
        "in": sequence(
            "tuple",
            sequence("tuple", {"input": 0}, {"input": 1}),
            branch(
                "dict",
                rows={"input": 2},
                options=branch("dict", scale={"input": 3}, mode={"literal": "sum"}),
                twice=sequence("list", {"input": 4}),
                count={"input": 5},
            ),
        ),
        "out": branch(
            "dict",
            y={"output": 0},
            rest=sequence("tuple", {"output": 1}, {"output": 2}),
            info=branch("namedtuple", calls={"output": 3}, ramp={"output": 4}),
            extra=branch("registered", total={"input": 1}, nothing={"literal": None}),
        ),
        "parameters": ["x", "total", "rows"],
    },
}


@functools.cache
def weights(more: int = 0) -> PackedWeights:
    filler = {"filler": np.zeros(more, np.uint8)} if more else {}
    return pack_weights({"w": W, **filler, "b": B})


@functools.cache
def library(isa: str = ISA, more: int = 0, source: str = "model.c", options: tuple[str, ...] = ()) -> bytes:
    """A library, for the weights above with `more` bytes of filler among them."""
    assert COMPILER is not None
    packed = weights(more)
    facts = {
        "ISA": f'"{isa}"',
        "WEIGHTS_SHA256": f'"{packed.sha256}"',
        "WEIGHTS_SIZE": packed.size,
        "OFFSET_W": packed.offsets["w"],
        "OFFSET_B": packed.offsets["b"],
    }
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "model.so"
        command = [COMPILER, "-std=c11", "-Wall", "-Werror", "-O1", "-s", "-fPIC", "-shared", "-pthread"]
        command += [f"-D{name}={value}" for name, value in facts.items()]
        command += [*options, f"-I{HEADER.parent}", str(HERE / "native" / source), "-o", str(made)]
        subprocess.run(command, check=True)
        return made.read_bytes()


def arguments(n: int = 3, picks: int = 2, count: int = 5, scale: float = 2.0) -> tuple[tuple[Any, ...], dict[str, Any]]:
    x = np.arange(n * 4, dtype=np.float32).reshape(n, 4) - 5
    rows = np.arange(picks, dtype=np.int64) % max(n, 1)
    keyed = {
        "rows": rows,
        "options": {"scale": scale, "mode": "sum"},
        "twice": [np.zeros(2 * n, np.float32)],
        "count": count,
    }
    return (x, np.zeros(4, np.float32)), keyed


def expected(x: np.ndarray[Any, Any], rows: Any, scale: float = 2.0) -> dict[str, Any]:
    y = x * W * np.float32(scale) + B
    low = (np.ascontiguousarray(y[:, 0]).view(np.uint32) >> 16).astype(np.uint16)
    return {"y": y, "picked": y[np.asarray(rows, np.int64)], "low": low}


def sample() -> SampleCall:
    (x, total), keyed = arguments()
    made = expected(x, keyed["rows"])
    return SampleCall(
        inputs={
            "x": x,
            "total": total,
            "rows": keyed["rows"],
            "scale": np.array(2.0),
            "twice": keyed["twice"][0],
            "count": np.array(5, np.int64),
        },
        outputs={
            "y": made["y"],
            "picked": made["picked"],
            "low": BFloat16Array(made["low"]),
            "calls": np.array(1, np.int64),
            "ramp": np.arange(5, dtype=np.float32),
        },
        mutated={"total": x.sum(0)},
        tolerance=1e-6,
    )


AFFINE: dict[str, Any] = {
    "inputs": [{"name": "x", "dtype": "float32", "shape": ["s0", 4]}],
    "outputs": [{"name": "y", "dtype": "float32", "shape": ["s0", 4]}],
    "symbols": {"s0": {"name": "batch", "min": 1, "max": None}},
    "call": {
        "in": sequence("tuple", sequence("tuple", {"input": 0}), branch("dict")),
        "out": {"output": 0},
        "parameters": ["x"],
    },
}


def write_affine(path: Path, more: int = 0, **changes: Any) -> Path:
    """A compiled file of the smallest model."""
    options: dict[str, Any] = {
        "manifest_native": AFFINE,
        "libraries": {ISA: library(more=more, source="affine.c")},
        "source": (HERE / "native" / "affine.c").read_text(),
        "weights": weights(more),
    }
    write_native(path, **{**options, **changes})
    return path


def write(
    path: Path,
    manifest: Mapping[str, Any] = MANIFEST,
    libraries: Mapping[str, bytes] | None = None,
    more: int = 0,
    **changes: Any,
) -> Path:
    """The compiled file; `changes` replace arguments of write_native."""
    options: dict[str, Any] = {
        "manifest_native": manifest,
        "libraries": {ISA: library(more=more)} if libraries is None else libraries,
        "source": (HERE / "native" / "model.c").read_text(),
        "weights": weights(more),
        "sample": sample(),
        "fields": {"kind": "program"},
    }
    write_native(path, **{**options, **changes})
    return path


def changed(**changes: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Good arguments but for some, by name."""
    (x, total), keyed = arguments()
    named = {"x": x, "total": total, **keyed, **changes}
    return (named.pop("x"), named.pop("total")), named


def refused(model: Model, kind: type[CallError], *words: str, **changes: Any) -> None:
    args, kwargs = changed(**changes)
    with pytest.raises(kind) as caught:
        model(*args, **kwargs)
    for word in words:
        assert word in str(caught.value), (word, str(caught.value))
