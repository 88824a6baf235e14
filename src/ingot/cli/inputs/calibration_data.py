"""What `ingot quantize --data` names: batches to calibrate with, from a function or from an .npz file.

An .npz file holds one array for each argument, under its name: with the argument's own number of axes it is one batch,
with one axis more it is as many batches as that first axis is long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from ingot import quantize
from ingot.errors import IngotError, format_error
from ingot.ir import metadata, pytree

if TYPE_CHECKING:
    from ingot.ir.program import Program


class CalibrationDataError(IngotError):
    """A file does not hold batches of a program's arguments."""

    exit_code: ClassVar[int] = 2


@dataclass(frozen=True, slots=True)
class Batches:
    """Items to call a program with, how, and how many they are where that is known."""

    items: Iterable[Any]
    call: Callable[[Any, Any], Any]
    count: int | None

    def take(self, limit: int | None) -> Batches:
        """At most `limit` of them, and no more are made."""
        if limit is None:
            return self
        count = limit if self.count is None else min(limit, self.count)
        return Batches(islice(self.items, limit), self.call, count)

    def watch(self, step: Callable[[], None]) -> Callable[[Any, Any], Any]:
        """How to call a program with an item, `step` called after each."""

        def call(model: Any, item: Any) -> Any:
            made = self.call(model, item)
            step()
            return made

        return call


def is_file(data: str) -> bool:
    """Whether --data names a file and no function."""
    return data.endswith((".npz", ".npy")) or Path(data).is_file()


def from_function(made: Any, reference: str) -> Batches:
    """What a function returned. Raises CalibrationDataError where that cannot be gone through."""
    if not isinstance(made, Iterable) or isinstance(made, torch.Tensor):
        raise CalibrationDataError(
            format_error(
                f"--data {reference} returned a value of type {type(made).__name__}.",
                fix="return a list of batches, or yield them; a batch is a tuple of arguments or a dict of them",
            )
        )
    return Batches(made, quantize.feed, len(made) if isinstance(made, Sized) else None)


def from_example(program: Program) -> Batches:
    """The program's own example. Raises CalibrationDataError where it has none."""
    if program.example_inputs is None:
        raise CalibrationDataError(
            format_error(
                "The program has no example inputs to calibrate with.",
                fix="name data: --data MODULE:FUNCTION, or --data FILE.npz",
            )
        )
    return Batches([program.example_inputs], _call_with, 1)


def from_file(path: str, program: Program) -> Batches:
    """The batches in an .npz file. Raises CalibrationDataError, and OSError where it cannot be read."""
    arrays = _read(path)
    inputs = program.signature.user_inputs
    values = {node.name: metadata.value_of(node) for node in program.graph.nodes if node.op == "placeholder"}
    names = argument_names(program)
    tensors = {
        names[one.name]: values[one.name]
        for one in inputs
        if one.name in names and isinstance(values[one.name], torch.Tensor)
    }
    missing = [name for name in tensors if name not in arrays]
    extra = [name for name in arrays if name not in tensors]
    if missing or extra:
        problem = "; ".join(
            f"{label} {', '.join(names)}" for label, names in (("missing", missing), ("unexpected", extra)) if names
        )
        raise CalibrationDataError(
            format_error(
                f"The arrays of {path} are not the model's arguments: {problem}.",
                fix=f"write it with numpy.savez({path!r}, **arrays), an array for each of {', '.join(tensors)}",
            )
        )
    lengths = {name: _count(path, name, arrays[name], tensors[name]) for name in tensors}
    count = max(lengths.values(), default=0)
    for name, length in lengths.items():
        if length not in (1, count) or not length:
            listed = ", ".join(f"{name}: {length}" for name, length in lengths.items())
            raise CalibrationDataError(
                format_error(f"The arrays of {path} hold different numbers of batches: {listed}.")
            )
    example = None if program.example_inputs is None else pytree.flatten(program.example_inputs)[0]
    others = [one.name for one in inputs if names.get(one.name) not in tensors]
    if others and example is None:
        raise CalibrationDataError(
            format_error(
                f"{path} cannot hold the argument {others[0]}, which is not a tensor.",
                fix="give --data MODULE:FUNCTION, whose batches hold every argument",
            )
        )

    def make(number: int) -> Any:
        leaves = list(example or [None] * len(inputs))
        for place, one in enumerate(inputs):
            name = names.get(one.name, "")
            if name in tensors:
                leaves[place] = _batch(arrays[name], tensors[name], number)
        return pytree.unflatten(leaves, program.signature.in_tree)

    return Batches([make(number) for number in range(count)], _call_with, count)


def argument_names(program: Program) -> dict[str, str]:
    """What the user calls each argument, by placeholder: "mask", "cache.0.1"."""
    names = {}
    for placeholder, (first, *rest) in program.signature.argument_paths().items():
        known = isinstance(first, int) and first < len(program.parameter_names)
        start = program.parameter_names[int(first)] if known else f"args.{first}" if isinstance(first, int) else first
        names[placeholder] = ".".join(map(str, (start, *rest)))
    return names


def _call_with(model: Any, item: Any) -> Any:
    args, kwargs = item
    return model(*args, **kwargs)


def _read(path: str) -> dict[str, NDArray[Any]]:
    from ingot_runtime.files import reading

    with reading(path) as file:
        try:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                raise ValueError("it holds one array without a name")
            return dict(loaded.items())
        except (ValueError, EOFError, OSError) as error:
            raise CalibrationDataError(
                format_error(
                    f"--data {path} is not a file of arrays by name.",
                    why=str(error).partition("\n")[0],
                    fix="write it with numpy.savez(path, x=batches), one array for each argument, under its name",
                )
            ) from error


def _count(path: str, name: str, array: NDArray[Any], taken: torch.Tensor) -> int:
    """How many batches of an argument an array holds. Raises CalibrationDataError where it holds something else."""
    rank = taken.dim()
    spelled = f"{str(taken.dtype).removeprefix('torch.')}[{', '.join(map(str, taken.shape))}]"

    def wrong(why: str, fix: str) -> CalibrationDataError:
        return CalibrationDataError(
            format_error(f"The array {name} of {path} is not of batches of {name}: {spelled}.", why=why, fix=fix)
        )

    if array.ndim not in (rank, rank + 1):
        raise wrong(
            f"it has {array.ndim} axes, {list(array.shape)}",
            f"give one batch, with {rank}, or several along a first axis, with {rank + 1}",
        )
    made = torch.from_numpy(array[:0] if array.ndim else array.reshape(1)).dtype
    if made != taken.dtype and not (made == torch.float32 and taken.dtype in (torch.bfloat16, torch.float16)):
        raise wrong(f"it holds {array.dtype}", f"convert it: {name}.astype({str(taken.dtype).rpartition('.')[2]!r})")
    for axis, (given, size) in enumerate(zip(array.shape[array.ndim - rank :], taken.shape, strict=True)):
        if isinstance(size, int) and given != size:
            raise wrong(f"axis {axis} of a batch is {given}, and the model takes {size}", "give batches of that size")
    return len(array) if array.ndim > rank else 1


def _batch(array: NDArray[Any], taken: torch.Tensor, number: int) -> torch.Tensor:
    chosen = array if array.ndim == taken.dim() else array[min(number, len(array) - 1)]
    return torch.from_numpy(np.array(chosen)).to(taken.dtype)


def repeatable(batches: Batches) -> Batches:
    """The same batches in a list, so that they can be gone through again."""
    made = list(batches.items)
    return Batches(made, batches.call, len(made))


__all__ = [
    "Batches",
    "CalibrationDataError",
    "from_example",
    "from_file",
    "from_function",
    "is_file",
    "repeatable",
]
