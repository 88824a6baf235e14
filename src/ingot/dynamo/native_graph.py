"""A functional graph as native code, called as AOTAutograd calls it: with a list, which it empties."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ingot import compiler
from ingot import torch_internals as internals
from ingot.dynamo.arguments import Arguments, GraphModel, Values, capture_graph, only_ingot_errors
from ingot.dynamo.memory_order import find_anchored
from ingot.dynamo.native_calls import NativeCalls
from ingot.dynamo.options import BackendOptions
from ingot.dynamo.report import log
from ingot.dynamo.results import GraphNotSupported, Results, Step, finish, is_lazy
from ingot.errors import AssertionFailed, CallError, IngotError, format_error
from ingot.ir.metadata import where
from ingot_runtime.errors import DivisionByZero

# How often weights may change before a graph is left to eager: packing them takes longer than a call.
REPACKS = 8
# Of how many sizes code of their own is made, where one code cannot serve all of them.
VARIANTS = 8

_LIMIT = 256

Key = tuple[Any, ...]


class NativeGraph:
    """Native code for a functional graph.

    `state` are arguments that stay the same from call to call: their values are packed into the code, and again where
    they have changed. Where no code serves all sizes, there is one for each of the first few.
    """

    def __init__(self, graph: fx.GraphModule, state: Mapping[int, torch.Tensor], options: BackendOptions) -> None:
        """Raises IngotError where the graph cannot be native code."""
        self._boxed_call = True  # of this object: torch copies its attributes to a wrapper
        self.graph = graph
        self._options = options
        self._arguments = Arguments(graph)
        self._results = Results(graph, self._arguments.nodes, self._arguments.symbols, bool(self._arguments.mutated))
        written = [place for place in self._arguments.mutated if is_lazy(self._arguments.fakes[place])]
        if written:
            name = self._arguments.nodes[written[0]].name
            raise GraphNotSupported(
                format_error(f"The argument {name} is written to.", why="it is negated or conjugated when it is read")
            )
        self._state = {place: tensor for place, tensor in state.items() if place not in self._arguments.mutated}
        self._steps: dict[Key, tuple[Step, ...]] = {}
        self._codes: dict[Key, _Code] = {}
        self._anchored = find_anchored(graph)
        self._is_specialized = bool(self._arguments.fixed)
        self._lock = threading.Lock()
        self._repacks = 0
        self._sizes: Collection[int] = ()  # numbers that are passed as sizes
        self._eager: Callable[..., Any] | None = None
        self._has_said = False
        self.kernels = 0
        self._is_idle = not self._results.computed and not self._arguments.mutated
        if not self._is_idle:
            self._check_fixed()
            self._build_first()

    def __call__(self, arguments: list[Any]) -> list[Any]:
        args = arguments.copy()
        arguments.clear()
        if self._eager is not None:
            return self._run_eager(args)
        if self._anchored and any(args[place].storage_offset() for place in self._anchored):
            self._say("An argument begins inside its memory, whose places the graph counts.")
            return self._run_eager(args)
        read = self._arguments.read_symbols(args) if self._arguments.is_dynamic else ()
        steps = self._steps.get(read)
        if steps is None:
            if len(self._steps) >= _LIMIT:
                self._steps.clear()
            steps = self._results.steps(self._arguments.values(read))
            if [*steps] == [("result", number) for number in range(len(self._results.computed))]:
                steps = ()  # what native code computes, as it is
            self._steps[read] = steps
        if self._is_idle:
            return finish(steps, args, ())
        code = self._find_code(read, args)
        if code is None:
            return self._run_eager(args)
        try:
            made = code.calls.run(args, read)
        except (CallError, AssertionFailed) as error:  # nothing was written yet; eager's assertion is the one to see
            self._say(error)
            return self._run_eager(args)
        except DivisionByZero as error:
            raise RuntimeError("ZeroDivisionError") from error  # as torch's kernels do
        return finish(steps, args, made) if steps else made

    def _run_eager(self, args: Sequence[Any]) -> list[Any]:
        found = self.graph(*args)
        return list(found) if isinstance(found, list | tuple) else [found]

    def _say(self, why: Exception | str) -> None:
        if not self._has_said:
            operations = sum(node.op == "call_function" for node in self.graph.graph.nodes)
            log.warning("A call of a graph of %d operations runs in eager. %s", operations, why)
            self._has_said = True

    # ------------------------------------------------------------------ code for a call

    def _find_code(self, read: Key, args: Sequence[Any]) -> _Code | None:
        """Code for these sizes with the state of this call; None where eager takes the call."""
        known = (*self._arguments.fixed, *self._arguments.numbers)
        key = (*read, *(args[place] for place in known)) if self._is_specialized else ()
        code = self._codes.get(key)
        if code is not None and code.is_current(args):
            return code
        with self._lock:
            code = self._codes.get(key)
            if code is not None and code.is_current(args):
                return code
            if code is None and len(self._codes) >= VARIANTS:
                self._say(f"Each of its sizes needs code of its own, and {VARIANTS} have some.")
                return None
            try:
                self._codes[key] = made = self._build_again(code, read, args)
                return made
            except IngotError as error:
                self._eager = self.graph
                self._say(error)
                return None

    def _build_again(self, code: _Code | None, read: Key, args: Sequence[Any]) -> _Code:
        self._repacks += code is not None
        if self._repacks > REPACKS:
            why = "its weights keep changing, and packing them takes longer than a call"
            raise GraphNotSupported(format_error("The graph is left to eager.", why=why))
        state = {place: args[place] for place in self._state}
        fixed = {place: args[place] for place in (*self._arguments.fixed, *self._arguments.numbers)}
        return self._build(self._arguments.values(read), state, fixed if self._is_specialized else {}, self._sizes)

    def _check_fixed(self) -> None:
        for place in self._arguments.fixed:
            fake, node = self._arguments.fakes[place], self._arguments.nodes[place]
            if not isinstance(fake, int | float | bool | str | torch.dtype | torch.device | None):
                why = f"it is a {type(fake).__name__}, of which no code can be made"
                raise GraphNotSupported(format_error(f"The argument {node.name} is used.", where=where(node), why=why))

    def _build_first(self) -> None:
        """Code for all sizes and numbers; where there is none, code for those of the example tells whether there is
        any."""
        arguments = self._arguments
        values = arguments.example_values()
        if self._is_specialized:
            self._build_for_example(values)
            return
        for sizes in dict.fromkeys((arguments.used_as_sizes, (), arguments.numbers)):
            try:
                self._codes[()] = self._build(values, self._state, {}, sizes)
                self._sizes = sizes
                return
            except IngotError as error:
                failure = error
            if not arguments.numbers:
                break
        if not arguments.is_dynamic:
            raise failure
        self._is_specialized = True
        self._build_for_example(values)

    def _build_for_example(self, values: Values) -> None:
        """Code for the sizes and numbers that the graph was made with, which are those of the first call."""
        fixed = self._arguments.example_numbers(values)
        self._codes[(*values.values(), *fixed.values())] = self._build(values, self._state, fixed)

    def _build(
        self,
        values: Values,
        state: Mapping[int, torch.Tensor],
        fixed: Mapping[int, Any],
        sizes: Collection[int] = (),
    ) -> _Code:
        copies: dict[fx.Node, fx.Node] = {}
        graph = fx.Graph()
        output = graph.graph_copy(self.graph.graph, copies)
        graph.output(output)
        module = fx.GraphModule(self.graph, graph)
        self._results.rewrite(module, copies)
        known = values if self._is_specialized else {}
        with internals.leave_torch_compile(), internals.ignore_warnings(".*train mode"):
            model = GraphModel(module, self._arguments, state, fixed, known, sizes)
            packed = [tensor.detach() for tensor in state.values()]
            with only_ingot_errors():
                program = capture_graph(model, values)
                target = compiler.choose_target(self._arguments.fakes)
                compiled = compiler.compile(program, target=target, **self._options.for_compiler)
        compiled.program.example_inputs = None  # would keep tensors as large as the model's own
        self.kernels = max(self.kernels, compiled.kernels)
        calls = NativeCalls(
            compiled,
            model.given,
            model.sizes,
            model.scalars,
            mutated=tuple(sorted(self._arguments.mutated)),
            complex_given=frozenset(p for p in model.given if self._arguments.fakes[p].is_complex()),
            complex_made=frozenset(
                n for n, f in enumerate(self._results.fakes) if isinstance(f, torch.Tensor) and f.is_complex()
            ),
            # Of a complex number that eager computed, the fake does not always say whether it is conjugated.
            lazy=tuple(p for p in model.given if (f := self._arguments.fakes[p]).is_neg() or f.is_complex()),
        )
        return _Code(calls, tuple(state), packed, _versions(list(state.values())))


@dataclass(frozen=True)
class _Code:
    """Native code, and the state that was packed into it."""

    calls: NativeCalls
    state: tuple[int, ...]
    packed: list[torch.Tensor]  # alive, so that no other tensor has their addresses
    versions: list[int]

    def is_current(self, args: Sequence[Any]) -> bool:
        """Whether the state is what was packed."""
        return not self.state or self.versions == _versions([args[place] for place in self.state])


_data_ptr: Callable[[torch.Tensor], int] = torch.Tensor.data_ptr
_version: Callable[[torch.Tensor], int] = vars(torch._C.TensorBase)["_version"].__get__


def _versions(state: Sequence[torch.Tensor]) -> list[int]:
    try:
        return [*map(_data_ptr, state), *map(_version, state)]
    except RuntimeError:  # tensors of inference mode count no writes
        return [*map(_data_ptr, state), *(0 if tensor.is_inference() else tensor._version for tensor in state)]
