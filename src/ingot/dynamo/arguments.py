"""The arguments of a functional graph: which are tensors, which tell a size, and how a capture declares them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from ingot import api
from ingot import torch_internals as internals
from ingot.dynamo.memory_order import UNBACKED_EXAMPLE
from ingot.dynamo.operator_rules import replace_operators
from ingot.errors import CompileError, IngotError, InputError, format_error
from ingot.frontend.source_locations import SourceLocationInterpreter
from ingot.ir.metadata import tensors_in, value_of
from ingot.ir.program import Program

# What a dim of `ingot.capture` may be besides a symbol: a multiple of one, moved.
_LINEAR = re.compile(r"^(\d+\*)?[A-Za-z_]\w*( [+-] \d+)?$")
# Numbers that are passed as the size of a tensor without elements worth reading.
_LARGEST_SIZE = 2**31

Values = dict[sympy.Basic, int]


@dataclass(frozen=True)
class SymbolArgument:
    """Where a call tells a symbol: an argument, or a dim of one, is `scale` times the symbol plus `offset`."""

    argument: int
    dim: int | None = None
    scale: int = 1
    offset: int = 0

    def read(self, args: Sequence[Any]) -> int:
        value = args[self.argument]
        return (int(value if self.dim is None else value.shape[self.dim]) - self.offset) // self.scale


class Arguments:
    """What each argument of a functional graph is, by place."""

    def __init__(self, graph: fx.GraphModule) -> None:
        self.nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
        self.fakes = [value_of(node) for node in self.nodes]
        self.tensors = tuple(place for place, fake in enumerate(self.fakes) if isinstance(fake, torch.Tensor))
        self.mutated = find_mutated_arguments(graph, self.nodes)
        self.symbols: dict[sympy.Basic, SymbolArgument] = {}
        self._bind_symbols()
        in_tensors = {symbol for place in self.tensors for symbol in _free(self.fakes[place].shape)}
        read = [place for place, node in enumerate(self.nodes) if node.users and place not in self.tensors]
        # Numbers that no tensor tells.
        self.numbers = tuple(
            place for place in read if _is_open(self.fakes[place]) and not _free([self.fakes[place]]) <= in_tensors
        )
        shapes = [size for value in _tensors_inside(graph) for size in value.shape]
        in_shapes = {symbol for symbol in _free(shapes)}
        self.used_as_sizes = tuple(place for place in self.numbers if _free([self.fakes[place]]) & in_shapes)
        # Any other value becomes a part of the code, unless the graph only hands it through.
        self.fixed = tuple(
            place
            for place in read
            if not _is_open(self.fakes[place]) and any(user.op != "output" for user in self.nodes[place].users)
        )
        self.is_dynamic = bool(self.symbols)

    def _bind_symbols(self) -> None:
        found = [(fake, SymbolArgument(number)) for number, fake in enumerate(self.fakes)]
        for number in self.tensors:
            found += [(size, SymbolArgument(number, dim)) for dim, size in enumerate(self.fakes[number].shape)]
        sizes = [(internals.expr_of(size), place) for size, place in found if isinstance(size, torch.SymInt)]
        for expr, place in sizes:
            if expr.is_Symbol:
                self.symbols.setdefault(expr, place)
        for expr, place in sizes:  # a symbol that is bound by a multiple of it only
            unknown = expr.free_symbols - self.symbols.keys()
            if len(unknown) == 1:
                (symbol,) = unknown
                scale, offset = expr.coeff(symbol, 1), expr.subs(symbol, 0)
                if scale.is_Integer and offset.is_Integer and expr == scale * symbol + offset:
                    self.symbols[symbol] = SymbolArgument(place.argument, place.dim, int(scale), int(offset))
        for expr, place in sizes:
            if expr.free_symbols - self.symbols.keys():
                raise CompileError(
                    format_error(
                        f"A size of the argument {self.nodes[place.argument].name} is {expr}.",
                        why="no argument binds the symbols in it",
                    )
                )

    def read_symbols(self, args: Sequence[Any]) -> tuple[int, ...]:
        """The values of all symbols in a call, in their order."""
        return tuple(place.read(args) for place in self.symbols.values())

    def values(self, read: tuple[int, ...]) -> Values:
        return dict(zip(self.symbols, read, strict=True))

    def example_values(self) -> Values:
        """What the symbols were when the graph was made."""
        found: Values = {}
        for symbol, place in self.symbols.items():
            fake = self.fakes[place.argument]
            hint = internals.hint_of(fake if place.dim is None else fake.shape[place.dim])
            found[symbol] = UNBACKED_EXAMPLE if hint is None else (hint - place.offset) // place.scale
        return found

    def example_numbers(self, values: Values) -> dict[int, Any]:
        """What the arguments were that the graph computes with and that are not tensors, as a call's key has them."""
        found = {place: self.fakes[place] for place in self.fixed}
        return found | {place: _example(self.fakes[place], values) for place in self.numbers}


def evaluate(size: Any, values: Mapping[sympy.Basic, int]) -> int:
    """A size as a number."""
    if isinstance(size, int):
        return size
    return int(internals.evaluate_expr(internals.expr_of(size), values))


def _is_open(fake: Any) -> bool:
    """Whether a number may be another one in the next call."""
    return isinstance(fake, torch.SymInt | torch.SymFloat)


def _tensors_inside(graph: fx.GraphModule) -> list[torch.Tensor]:
    return [tensor for node in graph.graph.nodes for tensor in tensors_in(value_of(node))]


def _free(sizes: Sequence[Any]) -> set[sympy.Basic]:
    found: set[sympy.Basic] = set()
    for size in sizes:
        if _is_open(size):
            found |= internals.expr_of(size).free_symbols
    return found


def find_mutated_arguments(graph: fx.GraphModule, placeholders: Sequence[fx.Node]) -> frozenset[int]:
    places = {node: place for place, node in enumerate(placeholders)}
    written = set()
    for node in graph.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if node.op == "call_function" and schema is not None and schema.is_mutable:
            written |= {places[given] for given in node.all_input_nodes[:1] if given in places}
    return frozenset(written)


class GraphModel(nn.Module):
    """A functional graph, which becomes its own, as a model to capture: state are buffers, numbers come from sizes.

    `given` are the places of the tensors that a call passes. After them come numbers: those of `sizes` as the size of a
    tensor, those of `scalars` as a tensor without dims. Complex tensors are pairs of real numbers, as results, too.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        arguments: Arguments,
        state: Mapping[int, torch.Tensor],
        fixed: Mapping[int, Any],
        known: Values,
        sizes: Collection[int] = (),
    ) -> None:
        super().__init__()
        replace_operators(graph)
        self.graph = graph
        self.arguments = arguments
        self.fixed = dict(fixed)
        self.names = {place: f"input_{place}" for place in sorted(state)}
        self.given = tuple(p for p in arguments.tensors if p not in state and arguments.nodes[p].users)
        # Where the sizes are known, they become a part of the code.
        self.known = dict(known)
        self.sizes = tuple(place for place in arguments.numbers if place in sizes)
        self.scalars = tuple(place for place in arguments.numbers if place not in (*sizes, *fixed))
        for place, name in self.names.items():
            self.register_buffer(name, state[place].detach())

    def forward(self, *tensors: torch.Tensor) -> Any:
        arguments = self.arguments
        found: list[Any] = [self.fixed.get(place) for place in range(len(arguments.nodes))]
        for place, tensor in zip((*self.given, *self.sizes, *self.scalars), tensors, strict=True):
            if place in self.sizes:
                found[place] = tensor.shape[0]
            elif place in self.scalars:
                found[place] = tensor.item()
            else:
                found[place] = torch.view_as_complex(tensor) if arguments.fakes[place].is_complex() else tensor
        for place, name in self.names.items():
            found[place] = getattr(self, name)
        bound = None
        for place, fake in enumerate(arguments.fakes):
            if found[place] is None and isinstance(fake, torch.SymInt) and arguments.nodes[place].users:
                bound = self._symbols_of(found) if bound is None else bound
                found[place] = internals.evaluate_expr(internals.expr_of(fake), bound)
        return pytree.tree_map(as_pairs, SourceLocationInterpreter(self.graph).run(*found))

    def _symbols_of(self, found: Sequence[Any]) -> dict[sympy.Basic, Any]:
        """The symbols as the sizes of the tensors that are being traced."""
        bound: dict[sympy.Basic, Any] = dict(self.known)
        for place in self.given:
            for dim, size in enumerate(self.arguments.fakes[place].shape):
                if isinstance(size, torch.SymInt) and internals.expr_of(size).is_Symbol:
                    bound.setdefault(internals.expr_of(size), found[place].shape[dim])
        for place in (*self.sizes, *self.scalars):
            bound.setdefault(internals.expr_of(self.arguments.fakes[place]), found[place])
        return bound

    def examples(self, values: Values) -> tuple[torch.Tensor, ...]:
        """Tensors like those of a call with these sizes. Their values are not read."""
        fakes = self.arguments.fakes
        tensors = [as_pairs(_zeros(fakes[place], values)) for place in self.given]
        sizes = [size_carrier(evaluate(fakes[place], values)) for place in self.sizes]
        return (*tensors, *sizes, *(scalar_carrier(_example(fakes[place], values)) for place in self.scalars))

    def dims(self) -> list[dict[int, Any] | None]:
        """The sizes that are open, as `ingot.capture` wants them declared."""
        fakes = self.arguments.fakes
        tensors = [_dims(fakes[place].shape, place) for place in self.given]
        return [*tensors, *(_dims((fakes[place],), place) for place in self.sizes), *(None for _ in self.scalars)]


def capture_graph(model: GraphModel, values: Values) -> Program:
    """A Program of the graph, for all sizes that it leaves open. Nothing of torch.compile's may be in force."""
    dims = [] if model.known else model.dims()
    return api.capture(model, model.examples(values), dynamic_shapes=dims if any(dims) else None)


@contextlib.contextmanager
def only_ingot_errors() -> Iterator[None]:
    """Inside, what fails otherwise is a CompileError: graphs of torch's compiler have what no user's model has."""
    try:
        yield
    except IngotError:
        raise
    except Exception as error:
        if internals.is_for_dynamo(error):
            raise
        why = f"{type(error).__name__}: {error}"
        raise CompileError(format_error("The graph cannot be native code.", why=why)) from error


def as_pairs(value: Any) -> Any:
    """A complex tensor as real and imaginary parts, in a last dim; anything else as it is."""
    if not isinstance(value, torch.Tensor) or not value.is_complex():
        return value
    return torch.view_as_real(value.resolve_neg().resolve_conj())


def size_carrier(size: int) -> torch.Tensor:
    """A tensor that tells a number by its size; its memory is never touched. Raises InputError where none can."""
    if not 0 <= size < _LARGEST_SIZE:
        raise InputError(f"A number is {size}, and the graph was compiled for numbers that are a size.")
    return torch.empty(size, dtype=torch.uint8)


def scalar_carrier(number: float) -> torch.Tensor:
    return torch.tensor(number, dtype=torch.float64 if isinstance(number, float) else torch.int64)


def _zeros(fake: torch.Tensor, values: Values) -> torch.Tensor:
    """With the strides that the graph relies on."""
    shape, strides = ([evaluate(size, values) for size in sizes] for sizes in (fake.shape, fake.stride()))
    return torch.empty_strided(shape, strides, dtype=fake.dtype, device=fake.device).zero_()


def _example(fake: Any, values: Values) -> Any:
    return internals.float_hint_of(fake) if isinstance(fake, torch.SymFloat) else evaluate(fake, values)


def _dims(sizes: Sequence[Any], place: int) -> dict[int, Any] | None:
    found: dict[int, Any] = {}
    for dim, size in enumerate(sizes):
        if not isinstance(size, torch.SymInt):
            continue
        expr = internals.expr_of(size)
        if expr.is_Symbol:
            low, high = internals.range_of(size)
            found[dim] = torch.export.Dim(str(expr), min=max(low, 0), max=high)
        elif not expr.is_Integer:
            found[dim] = str(expr) if _LINEAR.match(str(expr)) else f"size_{place}_{dim}"
    return found or None
