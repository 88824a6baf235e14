"""Runs TorchScript graphs, node by node, on fakes and plain values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from ingot import torch_internals as internals
from ingot.errors import DataDependentError, UntraceableError, format_error
from ingot.frontend.source_locations import is_user_code
from ingot.frontend.torchscript import runtime_values, source_locations
from ingot.frontend.tracer import GraphTracer
from ingot.ir import metadata
from ingot.torch_internals import torchscript as ts

Environment = dict[str, Any]


class UnsupportedControlFlow(Exception):
    """A branch or a loop cannot be an operator of its own; `str()` says why, `place` where."""

    def __init__(self, why: str, place: str = "") -> None:
        super().__init__(why)
        self.place = place


class OuterMutation(Exception):
    """Something inside a scope writes to outer memory, which must then be an input and an output of the scope."""

    def __init__(self, base: torch.Tensor, depth: int) -> None:
        super().__init__()
        self.base = base
        self.depth = depth  # how many scopes there are around the write


@dataclass(slots=True)
class BlockScope:
    """One branch or loop body while it is recorded.

    `own` are the storages made inside; `stand_ins` maps a storage of outside to the tensor there and to the copy that
    is written to in here.
    """

    own: set[int] = field(default_factory=set)
    stand_ins: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)


class TorchScriptInterpreter:
    """Walks graphs. The recorder is given before the first call; options say how control flow is treated."""

    def __init__(self, *, unroll: bool = False) -> None:
        self.unroll = unroll
        self.recorder: GraphTracer | None = None
        self.scopes: list[BlockScope] = []
        self.tied: dict[int, str] = {}
        self.attributes: list[tuple[str, Any]] = []  # lists and dicts that modules hold, by the attribute's name
        self._kept: dict[int, torch.Tensor] = {}
        self._made: dict[int, tuple[Any, Any]] = {}
        self._place: list[metadata.Source | None] = [None]
        self._nodes: list[ts.Node] = []
        self._environments: list[Environment] = []
        self._last: metadata.Source | None = None
        self._latest: metadata.Source | None = None

    # ------------------------------------------------------------------ walking

    def outermost(self, run: Callable[[], Any]) -> Any:
        """The result of a script as its caller gets it: numbers are numbers."""
        try:
            return runtime_values.numbers(self.check_result(run()))
        except UnsupportedControlFlow as failure:
            raise DataDependentError(
                format_error(
                    "The script uses a data-dependent value in a way that a graph cannot express.",
                    where=failure.place,
                    why=str(failure),
                    fix="compute with tensors: stack the list and index it, use torch.where",
                )
            ) from None

    def call(self, graph: ts.Graph, inputs: Sequence[Any], name: str) -> Any:
        """Runs a whole graph and returns its one output, or a tuple of them."""
        env: Environment = {}
        for value, given in zip(graph.inputs(), inputs, strict=True):
            env[value.debugName()] = given
        last, self._last = self._last, None
        try:
            self.run_nodes(graph, env, name)
        finally:
            self._last = last
        results = [env[value.debugName()] for value in graph.outputs()]
        return results[0] if len(results) == 1 else tuple(results)

    def run_block(self, block: ts.Block, env: Environment, name: str) -> list[Any]:
        """Runs the nodes of a block and returns its results. Adds to `env`."""
        self.run_nodes(block, env, name)
        return [env[value.debugName()] for value in block.outputs()]

    def run_nodes(self, holder: Any, env: Environment, name: str) -> None:
        self._environments.append(env)
        try:
            for node in holder.nodes():
                self.step(node, env, name)
        finally:
            self._environments.pop()

    def step(self, node: ts.Node, env: Environment, name: str) -> None:
        from ingot.frontend.torchscript import node_handlers

        # What torch added of its own has no line; it belongs to the one before it.
        source = source_locations.source_of(node, name) or self._last
        self._last = source
        self._latest = source or self._latest
        self._place.append(source or self._place[-1])
        self._nodes.append(node)

        def run() -> Any:
            return node_handlers.run(self, node, env, name)

        try:
            results = source_locations.run_at(source, run)
        finally:
            self._place.pop()
            self._nodes.pop()
        outputs = list(node.outputs())
        if len(outputs) == 1:
            env[outputs[0].debugName()] = results
        else:
            for value, result in zip(outputs, results if outputs else (), strict=True):
                env[value.debugName()] = result

    @property
    def place(self) -> str:
        """The line that is being run, as messages show it: the user's, where torch's own code was called from there."""
        own = [source for source in self._place if source is not None and is_user_code(source.file)]
        return source_locations.format_source(own[-1] if own else self._place[-1] or self._latest)

    def unsupported_error(self, what: str, why: str = "", fix: str = "") -> UntraceableError:
        return UntraceableError(format_error(what, where=self.place, why=why, fix=fix))

    def check_result(self, value: Any) -> Any:
        """The value itself, if a Program can return it."""
        if any(isinstance(leaf, runtime_values.DynamicList) for leaf in runtime_values.flatten(value)[0]):
            raise UnsupportedControlFlow("it returns a list whose length is data-dependent", self.place)
        return self.unspoken(value)

    def unspoken(self, value: Any) -> Any:
        """The value itself, if it contains no text with a data-dependent value."""
        if any(isinstance(leaf, runtime_values.RuntimeString) for leaf in runtime_values.flatten(value)[0]):
            raise self.unsupported_error(
                "Text with a data-dependent value is used for more than a message.",
                why="a Program computes tensors and numbers; text is what it was when the script was imported",
                fix="return or compare the number itself",
            )
        return value

    def constant(self, node: ts.Node) -> Any:
        """What a constant holds: the same tensor each time, so that it is lifted once."""
        value = ts.constant_of(node)
        self._kept.update((id(tensor), tensor) for tensor in metadata.tensors_in(value))
        return value

    def once(self, owner: Any, make: Callable[[], Any]) -> Any:
        """What is made of an object that the script holds, made once: its tensors are the same each time."""
        if id(owner) not in self._made:
            self._made[id(owner)] = (owner, make())
        return self._made[id(owner)][1]

    # ------------------------------------------------------------------ operators

    def operate(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Calls an operator of torch. Inside a scope, memory of outside is replaced by the scope's own."""
        args = tuple(self.localize(arg) for arg in args)
        kwargs = {key: self.localize(value) for key, value in kwargs.items()}
        if isinstance(func, internals.OpOverload):
            self._check_writes(func, args, kwargs)
        out = func(*args, **kwargs)
        self.record_allocation(out, (args, kwargs))
        return out

    def record_allocation(self, out: Any, inputs: Any) -> None:
        """Notes memory that was made in the innermost scope."""
        if self.scopes:
            taken = {internals.storage_id(t) for t in _tensors(inputs)}
            self.scopes[-1].own |= {internals.storage_id(t) for t in _tensors(out)} - taken

    def _check_writes(self, func: internals.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        for tensor in _mutated_tensors(func, args, kwargs):
            memory = internals.storage_id(tensor)
            if memory in self.tied:
                raise self.unsupported_error(
                    "A tensor that may alias another one is written in place.",
                    why=f"which of two tensors it is depends on data: {self.tied[memory]}",
                    fix="clone() the tensor before the branch or the loop, or compute a new one instead of writing",
                )
            if self.scopes and memory not in self.scopes[-1].own:
                raise OuterMutation(self._base_of(memory, tensor), len(self.scopes))

    def _base_of(self, memory: int, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor that a piece of memory was made for: the first one outside the scope that has it."""
        assert self.recorder is not None
        frame = self.recorder.frame.parent
        frames = []
        while frame is not None:
            frames.append(frame)
            frame = frame.parent
        for outer in reversed(frames):
            for known in outer.alive:
                if isinstance(known, torch.Tensor) and internals.storage_id(known) == memory:
                    return known
        return tensor

    def reads_last(self, tensor: torch.Tensor) -> bool:
        """Whether the node being run is the only use of a tensor, so that nothing can write to it."""
        assert self.recorder is not None
        made_by = self.recorder.frame.nodes.get(id(tensor))
        value = next(iter(self._nodes[-1].inputs()))
        return made_by is not None and internals.returns_fresh_tensor(made_by.target) and len(value.uses()) == 1

    def is_dead_after(self, node: ts.Node, tensor: torch.Tensor) -> bool:
        """Whether an outer tensor is dead once `node` has run: it was created for this block only."""
        assert self.recorder is not None
        frame = self.recorder.frame.parent
        made_by = frame.nodes.get(id(tensor)) if frame is not None else None
        if made_by is None or not internals.returns_fresh_tensor(made_by.target) or frame is None:
            return False
        memory = internals.storage_id(tensor)
        alike = [t for t in frame.alive if isinstance(t, torch.Tensor) and internals.storage_id(t) == memory]
        names = [name for name, value in self._environments[-1].items() if value is tensor]
        here = {out.debugName(): out for other in node.owningBlock().nodes() for out in other.outputs()}
        return (
            len(alike) == 1
            and len(names) == 1
            and names[0] in here
            and not any(use.user.isAfter(node) for use in here[names[0]].uses())
        )

    # ------------------------------------------------------------------ scopes

    @contextmanager
    def scope(self, bases: Sequence[torch.Tensor], copies: Sequence[torch.Tensor]) -> Iterator[BlockScope]:
        """Inside, `copies` stand for `bases` and may be written to."""
        scope = BlockScope()
        for base, copy in zip(bases, copies, strict=True):
            scope.stand_ins[internals.storage_id(base)] = (base, copy)
            scope.own.add(internals.storage_id(copy))
        self.scopes.append(scope)
        try:
            yield scope
        finally:
            self.scopes.pop()

    def localize(self, value: Any) -> Any:
        """The value with memory of outside, where a scope has a copy of it, replaced by that copy."""
        if not any(scope.stand_ins for scope in self.scopes):
            return value
        if isinstance(value, torch.Tensor):
            for scope in self.scopes:
                found = scope.stand_ins.get(internals.storage_id(value))
                if found is not None:
                    value = self._view_like(value, *found)
            return value
        if isinstance(value, runtime_values.RuntimeScalar):
            return value  # its tensor is never written to
        if isinstance(value, list | tuple | dict):
            return runtime_values.map_leaves(self.localize, value)
        return value

    def _view_like(self, tensor: torch.Tensor, base: torch.Tensor, copy: torch.Tensor) -> torch.Tensor:
        """What `tensor` is of `base`, of `copy`."""
        if internals.same_memory(tensor, base):
            return copy
        if tensor.dtype is not base.dtype or not _keep_strides(base, copy):
            raise self.unsupported_error(
                "A branch or a loop writes to memory that several different views share.",
                fix="write to the tensor itself and make the views inside",
            )
        offset = tensor.storage_offset() - base.storage_offset()
        return copy.as_strided(tensor.shape, tensor.stride(), offset)

    def is_own(self, tensor: torch.Tensor) -> bool:
        """Whether the innermost scope made a tensor's memory."""
        return not self.scopes or internals.storage_id(tensor) in self.scopes[-1].own

    def is_computed_here(self, tensor: torch.Tensor) -> bool:
        """Whether a call in the graph that is being recorded returned a tensor: it is not an argument of the graph."""
        assert self.recorder is not None
        node = self.recorder.frame.nodes.get(id(tensor))
        return node is not None and node.op == "call_function"

    def tie(self, *tensors: torch.Tensor) -> None:
        """Notes that these may be one tensor or may not, so that a write to one of them has no one meaning."""
        for tensor in tensors:
            self.tied.setdefault(internals.storage_id(tensor), self.place)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in runtime_values.flatten(value)[0] if isinstance(leaf, torch.Tensor)]


def _mutated_tensors(
    func: internals.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[torch.Tensor]:
    return _tensors(internals.mutated_values(func, args, kwargs))


def _keep_strides(base: torch.Tensor, copy: torch.Tensor) -> bool:
    return [internals.expr_of(s) for s in base.stride()] == [internals.expr_of(s) for s in copy.stride()]
