"""A compiled file called with arrays from files: what `python -m ingot_runtime run` and `ingot run` do."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .container.manifest import InputSpec
from .container.signing import Trust
from .dtypes import BFLOAT16
from .errors import InputError, format_error
from .files import replacing, unreadable
from .model import Model, load
from .native.bfloat16 import BFloat16Array
from .self_test import MUTATED

Results = dict[str, NDArray[Any]]


def run_file(
    file: str | os.PathLike[str],
    inputs: Iterable[str],
    *,
    seed: int | None = None,
    threads: int | None = None,
    trust: Trust = True,
    device: int = 0,
) -> Results:
    """The results of a model by name, bfloat16 as float32; inputs that it writes to under "mutated." and their name.

    `inputs` are texts: NAME=FILE.npy, or NAME=NUMBER for a scalar. Raises InputError, and what `load` and a call raise.
    """
    given = dict(_pair(text) for text in inputs)
    with load(file, threads, trust=trust, device=device) as model:
        values = _values(model, given)
        if seed is not None:
            model.seed(seed)
        results = model.run(values)
        named = {asked.name: np.asarray(result) for asked, result in zip(model.spec.outputs, results, strict=True)}
        for asked, value in zip(model.spec.inputs, values, strict=True):
            if asked.mutated:
                named[MUTATED + asked.name] = np.asarray(value)
    return named


def write_results(file: str | os.PathLike[str], results: Mapping[str, NDArray[Any]]) -> None:
    """Writes an .npz file, whole or not at all, as every file of ours."""
    with replacing(file, "the file of results") as opened:
        np.savez(opened, allow_pickle=False, **results)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InputError(format_error(f"--input {text} names no value.", fix="write NAME=FILE.npy, or NAME=NUMBER"))
    return name, value


def _values(model: Model, given: Mapping[str, str]) -> list[Any]:
    names = [asked.name for asked in model.spec.inputs]
    missing, extra = [name for name in names if name not in given], [name for name in given if name not in names]
    if missing or extra:
        labels = (("missing", missing), ("unexpected", extra))
        problem = "; ".join(f"{label} {', '.join(found)}" for label, found in labels if found)
        taken = ", ".join(f"{asked.name}: {asked.spelled}" for asked in model.spec.inputs) or "none"
        raise InputError(format_error(f"The inputs are not the model's: {problem}.", fix=f"it takes {taken}"))
    return [_value(asked, given[asked.name]) for asked in model.spec.inputs]


def _value(asked: InputSpec, text: str) -> Any:
    if not text.endswith(".npy") and not asked.shape:
        return _number(asked, text)
    try:
        array = np.load(text, allow_pickle=False)
    except OSError as failure:
        raise unreadable(failure, text) from None
    except (ValueError, EOFError) as failure:  # another kind of file, a cut one, or one that holds pickled objects
        raise InputError(
            format_error(f"{asked.name} cannot be read from {text}.", why=str(failure), fix="write it with numpy.save")
        ) from None
    if not isinstance(array, np.ndarray):
        raise InputError(format_error(f"{asked.name} cannot be read from {text}.", why="it is an .npz file of arrays"))
    if asked.dtype.name == BFLOAT16 and array.dtype == np.float32:
        return BFloat16Array.of(array)
    return array


def _number(asked: InputSpec, text: str) -> Any:
    fix = f"it takes {asked.spelled}: write a number, or the name of an .npy file"
    wrong = InputError(format_error(f"--input {asked.name}={text} is not a value for {asked.name}.", fix=fix))
    if asked.dtype.name == "bool":
        if text.lower() not in ("true", "false"):
            raise wrong
        return np.array(text.lower() == "true")
    try:
        number = float(text) if not asked.dtype.is_exact else int(text)
        return BFloat16Array.of(number) if asked.dtype.name == BFLOAT16 else np.array(number, asked.dtype.numpy)
    except (ValueError, OverflowError):
        raise wrong from None
