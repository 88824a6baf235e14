"""Small values that are known while the model runs on fakes, so that Python may read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ingot import torch_internals as internals
from ingot.errors import DataDependentError, format_error
from ingot.frontend.graph_builder import Frame
from ingot.ir import metadata

aten = torch.ops.aten

# Values of tensors this small are carried along when they are known, so that Python may read them.
VALUE_LIMIT = 1024
CONSTANT_LIMIT = 2**20

_FACTORIES = frozenset(
    {
        aten.arange.default,
        aten.arange.start,
        aten.arange.start_step,
        aten.full.default,
        aten.zeros.default,
        aten.ones.default,
        aten.linspace.default,
        aten.scalar_tensor.default,
        aten.eye.default,
        aten.eye.m,
        aten.tril_indices.default,
        aten.triu_indices.default,
    }
)


class _Known(NamedTuple):
    """What a tensor holds, and which pieces of the model's state that was computed from."""

    value: torch.Tensor
    state: frozenset[int]


class ConstantCall(NamedTuple):
    """A call whose tensors' values are all known."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    state: frozenset[int]


class ConstantTracker:
    """What tensors hold, by the tensors' ids. `mutated` are the storages that the model writes, found so far."""

    def __init__(self, mutated: set[int]) -> None:
        self._mutated = mutated
        self._values: dict[int, _Known] = {}
        self._asked: list[torch.Tensor] = []
        self._answered: dict[int, str] = {}
        self._checked_when_read: dict[int, tuple[str, torch.Tensor, Any]] = {}
        self._unchecked: list[tuple[str, torch.Tensor, Any]] = []

    def record_value(self, fake: torch.Tensor, value: torch.Tensor, replaceable: str = "") -> None:
        """Says what a piece of the model's state holds, if it is small enough to be asked about.

        `replaceable` is the name of a buffer that a state dict may replace: of one number, and checked when it is read.
        """
        if value.numel() > (1 if replaceable else VALUE_LIMIT):
            return
        storage = internals.storage_id(fake)
        if replaceable:
            if value.numel() == 0 or value.is_complex() or value.is_quantized or bool(value.isnan().any()):
                return
            self._checked_when_read[storage] = replaceable, fake, value.item()
        self._values[id(fake)] = _Known(value.detach().clone(), frozenset({storage}))

    def take_unchecked(self) -> list[tuple[str, torch.Tensor, Any]]:
        """The name, the tensor and the value of each buffer whose value was read since the last call."""
        taken, self._unchecked = self._unchecked, []
        return taken

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any], func: Any = None) -> ConstantCall | None:
        """The arguments with tensors replaced by their values, if every one is known (and there is one)."""
        tensors = metadata.tensors_in([*args, *kwargs.values()])
        if any(map(_is_symbolic, (*args, *kwargs.values()))):
            return None
        if func not in _FACTORIES and (not tensors or not all(self._is_known(t) for t in tensors)):
            return None

        def value(item: Any) -> Any:
            if isinstance(item, torch.Tensor):
                return self._values[id(item)].value
            if isinstance(item, list | tuple):
                return type(item)(value(i) for i in item)
            return item

        origin = frozenset[int]().union(*(self._values[id(t)].state for t in tensors))
        return ConstantCall(tuple(value(a) for a in args), {key: value(a) for key, a in kwargs.items()}, origin)

    def _is_known(self, tensor: torch.Tensor) -> bool:
        if id(tensor) not in self._values and not isinstance(tensor, internals.FakeTensor):
            if tensor.numel() > CONSTANT_LIMIT or internals.storage_id(tensor) in self._mutated:
                return False
            self._asked.append(tensor)  # kept alive, so that its id stays its own
            with (
                internals.real_tensors(),
                internals.pause_recording(),
            ):  # a copy, since what forward does to it happens to the copy
                value = tensor.detach().clone()
            self._values[id(tensor)] = _Known(value, frozenset({internals.storage_id(tensor)}))
        return id(tensor) in self._values

    def run(self, func: Any, call: ConstantCall) -> Any:
        with internals.real_tensors(), torch.no_grad():
            out = func(*call.args, **call.kwargs)
            return out.clone() if func is aten.lift_fresh_copy.default else out

    def carry(self, func: Any, call: ConstantCall | None, args: Any, kwargs: Any, out: Any, frame: Frame) -> None:
        """After a call on fakes: what it gave is known if its arguments were; what it wrote to is known no more."""
        outs = metadata.tensors_in(out)
        small = all(not internals.is_symbolic(t.numel()) and t.numel() <= VALUE_LIMIT for t in outs)
        random = torch.Tag.nondeterministic_seeded in func.tags
        if call is not None and small and not random and outs:
            values = metadata.tensors_in(self.run(func, call))
            for fake, value in zip(outs, values, strict=True):
                self._values[id(fake)] = _Known(value, call.state)
        elif self._values and (func._schema.is_mutable or internals.unannotated_mutations(func, args)):
            written = {internals.storage_id(t) for t in mutated_tensors(func, args, kwargs)}
            around: Frame | None = frame
            while around is not None:
                for tensor in around.alive:
                    if id(tensor) in self._values and internals.storage_id(tensor) in written:
                        del self._values[id(tensor)]
                around = around.parent

    def alias(self, known: torch.Tensor, tensor: torch.Tensor) -> None:
        """Another wrapper of a tensor holds what the tensor does."""
        if id(known) in self._values:
            self._values[id(tensor)] = self._values[id(known)]

    def forget(self, tensor: torch.Tensor) -> None:
        """A tensor was written: what it held is known no more."""
        self._values.pop(id(tensor), None)

    def answer(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], place: Callable[[], str]) -> Any:
        """What an operator that reads a value returns, or None where it is unknown. `place` is the user's line."""
        call = self.arguments(args, kwargs)
        if call is None:
            return None
        self._answered.update(dict.fromkeys(call.state, place() if call.state else ""))
        read = [self._checked_when_read.pop(state, None) for state in sorted(call.state)]
        self._unchecked += [buffer for buffer in read if buffer is not None]
        return self.run(func, call)

    def check_answers(self) -> None:
        """State whose value Python has read must not be state that the model writes."""
        for state, place in self._answered.items():
            if state in self._mutated:
                raise DataDependentError(
                    format_error(
                        "The model's Python code reads the value of a buffer that forward also writes.",
                        where=place,
                        why="the next call would have to take another path",
                        fix="keep the value in a tensor, or use torch.cond or torch.where",
                    )
                )


def _is_symbolic(value: Any) -> bool:
    return any(map(_is_symbolic, value)) if isinstance(value, list | tuple) else internals.is_symbolic(value)


def mutated_tensors(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors that a call writes to."""
    return metadata.tensors_in(internals.mutated_values(func, args, kwargs))
