"""The sample call stored in a file: its inputs, its results where it was compiled, and the comparison."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .container import Container
from .container.manifest import InputSpec, OutputSpec, SampleSpec, Spec
from .container.safetensors_member import as_numpy, parse_header
from .dtypes import BFLOAT16, Dtype
from .errors import DamagedFile, SelfTestFailed, format_error
from .native.bfloat16 import BFloat16Array

MUTATED = "mutated."  # in front of an input's name: what it was after the call

Arrays = tuple[NDArray[Any], ...]


class StoredSample(NamedTuple):
    """A call: one array per input, one per output, and one per mutated input; bfloat16 as its bits."""

    inputs: Arrays
    outputs: Arrays
    mutated: dict[int, NDArray[Any]]
    tolerance: float


def read_sample(container: Container, spec: Spec, sample: SampleSpec) -> StoredSample:
    """The sample of a file, over its mapped bytes. Raises DamagedFile where it does not fit the model."""
    given = _read(container, sample.inputs)
    made = _read(container, sample.outputs)

    def find(
        stored: dict[str, tuple[str, NDArray[Any]]], name: str, asked: InputSpec | OutputSpec, member: str
    ) -> NDArray[Any]:
        rank = len(asked.shape) if isinstance(asked, InputSpec) else asked.rank
        dtype, array = stored.get(name, ("nothing", np.empty(0)))
        if dtype != asked.dtype.stored or array.ndim != rank:
            raise DamagedFile(
                "the stored sample does not fit the model",
                why=f"{name} is {dtype} with {array.ndim} dims, the model has {asked.spelled}",
                fix="compile the model again",
                path=container.path,
                member=member,
            )
        return array

    return StoredSample(
        inputs=tuple(find(given, asked.name, asked, sample.inputs) for asked in spec.inputs),
        outputs=tuple(find(made, asked.name, asked, sample.outputs) for asked in spec.outputs),
        mutated={
            number: find(made, MUTATED + asked.name, asked, sample.outputs)
            for number, asked in enumerate(spec.inputs)
            if asked.mutated
        },
        tolerance=sample.tolerance,
    )


def _read(container: Container, member: str) -> dict[str, tuple[str, NDArray[Any]]]:
    view = container.read(member)
    entries = parse_header(view, path=container.path, member=member)
    return {name: (entry.dtype, as_numpy(view, entry)) for name, entry in entries.items()}


def compare(
    spec: Spec, sample: StoredSample, results: Sequence[Any], after: Sequence[NDArray[Any]], path: str
) -> float:
    """The largest difference of a result from the stored one, in units of max(1, |stored|).

    Integers and bools must be equal, and so must be NaNs, infinities and shapes. Raises SelfTestFailed.
    """
    pairs = [
        (asked.name, asked.dtype, np.asarray(result.bits if isinstance(result, BFloat16Array) else result), stored)
        for asked, result, stored in zip(spec.outputs, results, sample.outputs, strict=True)
    ]
    pairs += [
        (f"{spec.inputs[number].name} after the call", spec.inputs[number].dtype, after[number], stored)
        for number, stored in sample.mutated.items()
    ]
    worst = 0.0
    for name, dtype, found, stored in pairs:
        if found.shape != stored.shape:
            raise _make_failure(f"{name} is of shape {found.shape}, the stored one is {stored.shape}", path)
        difference = _difference(_numbers(found, dtype), _numbers(stored, dtype), dtype)
        if difference.size and not (largest := float(difference.max())) <= sample.tolerance:
            at = np.unravel_index(int(difference.argmax()), difference.shape)
            place = f"{name}[{', '.join(map(str, at))}]" if at else name
            raise _make_failure(
                f"{place} is {_numbers(found, dtype)[at]}, the stored one is {_numbers(stored, dtype)[at]}: "
                f"a difference of {largest:.3g}, where {sample.tolerance:.3g} is allowed",
                path,
            )
        worst = max(worst, float(difference.max()) if difference.size else 0.0)
    return worst


def _numbers(array: NDArray[Any], dtype: Dtype) -> NDArray[Any]:
    return BFloat16Array(array).float32() if dtype.name == BFLOAT16 else array


def _difference(found: NDArray[Any], stored: NDArray[Any], dtype: Dtype) -> NDArray[np.float64]:
    """How far apart the numbers are; infinitely where they must be equal and are not."""
    if dtype.is_exact:
        return np.where(found == stored, 0.0, np.inf)
    a, b = found.astype(np.float64), stored.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(a - b) / np.maximum(1.0, np.abs(b))
        same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(same, 0.0, np.where(np.isfinite(a) & np.isfinite(b), apart, np.inf))


def _make_failure(why: str, path: str) -> SelfTestFailed:
    return SelfTestFailed(
        format_error(
            "The model's results on this machine differ from those where it was compiled.",
            where=path,
            why=why,
            fix="do not use it here: compile it again on this machine, and report what you saw",
        )
    )
