"""One way of calling a model, as a function of tensors that torch's autograd can take apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from ingot.autograd.call_tracer import CallTracer
from ingot.autograd.differentiable_graph import Differentiable
from ingot.autograd.missing_gradients import MissingGradients
from ingot.autograd.model_state import ModelState, Place, Tracked
from ingot.interop.module import tensor_at
from ingot.ir import execution, pytree
from ingot.ir.program import Program
from ingot.ir.signature import InputKind, OutputKind

_WRITES = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION, OutputKind.ARGUMENT_MUTATION)
StandIns = Mapping[int, torch.Tensor]


class TracedBody(Protocol):
    """What is traced. `stand_ins` has, by the id of a tensor of the state, the one to compute with."""

    def run(self, stand_ins: StandIns, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any: ...


class ModuleBody:
    """The model itself: a module or a function."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def run(self, stand_ins: StandIns, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        missing = MissingGradients()
        tracer = CallTracer(stand_ins, missing)
        with tracer:
            result = self._call(*args, **kwargs)
        leaves, tree = pytree.flatten(result)
        leaves = [tracer.substitute(leaf) for leaf in leaves]
        missing.check(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
        return pytree.unflatten(leaves, tree)


class ProgramBody:
    """A functional program whose state hangs in a module under the same names; the rest are constants of its own."""

    def __init__(self, program: Program, root: nn.Module | None) -> None:
        self.program = program
        self._graph = Differentiable(program.graph_module)
        self._root = root

    def watch(self, state: ModelState) -> None:
        """Makes tensors of the program that no module has a part of the state."""
        for name, holder in self._constants():
            state.watch(Place(holder, name, name))

    def run(self, stand_ins: StandIns, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        leaves, _ = pytree.flatten((tuple(args), dict(kwargs)))
        signature = self.program.signature
        specs = signature.user_inputs
        given = {i.name: leaf for i, leaf in zip(specs, leaves, strict=True) if i.kind is InputKind.ARGUMENT}
        state: dict[str, torch.Tensor] = {}
        for name in (str(i.target) for i in signature.state_inputs):
            tensor = self._tensor(name)
            state[name] = stand_ins.get(id(tensor), tensor)
        # What is written in the end may be what a gradient is made of: the graph computes with a copy of that.
        written = {str(output.target) for output in signature.outputs if output.kind in _WRITES}
        inputs = [value.clone() if name in written else value for name, value in (*state.items(), *given.items())]
        values = self._graph.run(*inputs)
        return execution.finish(self.program, list(values), given, state.__getitem__)

    def _tensor(self, name: str) -> torch.Tensor:
        found = self._hanging(name)
        return found if found is not None else self._own(name)[name]

    def _own(self, name: str) -> dict[str, torch.Tensor]:
        program = self.program
        return program.state_dict if name in program.state_dict else program.constants

    def _constants(self) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
        for name in (str(i.target) for i in self.program.signature.state_inputs):
            if self._hanging(name) is None:
                yield name, self._own(name)

    def _hanging(self, name: str) -> torch.Tensor | None:
        """The tensor that hangs in the module, unless a pass has made another one of it: parts of a complex one."""
        try:
            found = None if self._root is None else tensor_at(self._root, name)
        except (AttributeError, AssertionError):
            return None
        mine = self._own(name)[name]
        return found if found is not None and (found.shape, found.dtype) == (mine.shape, mine.dtype) else None


@dataclass(frozen=True)
class ResultLayout:
    """What the tensors that a trace returns are: results by their place among the leaves, and what to put where."""

    tree: pytree.Tree
    leaves: tuple[Any, ...]  # of a result that is a tensor: a TensorSlot
    changes: tuple[tuple[Place, Any], ...]

    def finish(self, values: Sequence[Any]) -> Any:
        """Puts what forward changed where it belongs, and nests the results."""
        for place, value in self.changes:
            place.write(values[value.number] if isinstance(value, TensorSlot) else value)
        leaves = [values[leaf.number] if isinstance(leaf, TensorSlot) else leaf for leaf in self.leaves]
        return pytree.unflatten(leaves, self.tree)


@dataclass(frozen=True)
class TensorSlot:
    """The place of a tensor among those that a trace returns."""

    number: int


class TracedCall:
    """A function of the state's tensors and of the arguments that are tensors. It says what its results are."""

    def __init__(
        self,
        body: TracedBody,
        state: ModelState,
        tensors: Sequence[torch.Tensor],
        leaves: Sequence[Any],
        tree: pytree.Tree,
    ) -> None:
        self._body = body
        self._state = state
        self._tensors = list(tensors)  # alive while their ids are read
        self._leaves = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self._places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self._tree = tree
        self.layout: ResultLayout | None = None

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        count = len(self._tensors)
        stand_ins = {id(real): given for real, given in zip(self._tensors, inputs[:count], strict=True)}
        leaves = list(self._leaves)
        for place, given in zip(self._places, inputs[count:], strict=True):
            leaves[place] = given
        args, kwargs = pytree.unflatten(leaves, self._tree)
        tracked = Tracked(self._state, stand_ins)
        try:
            results, tree = pytree.flatten(self._body.run(stand_ins, args, kwargs))
            changes = tracked.changes()
        finally:
            tracked.restore()
        values: list[torch.Tensor] = []

        def slot(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            values.append(value)
            return TensorSlot(len(values) - 1)

        self.layout = ResultLayout(
            tree, tuple(map(slot, results)), tuple((change.place, slot(change.value)) for change in changes)
        )
        return tuple(values)

    def release(self) -> None:
        """Called when the trace is written: it needs no tensor any more."""
        self._tensors.clear()
