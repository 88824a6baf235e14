"""Numbers for symbolic sizes, so that a program with dynamic dims can be counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import sympy
import torch

from ingot import torch_internals as internals
from ingot.errors import IngotError, format_error
from ingot.ir import metadata, pytree, symbolic_dims
from ingot.ir.program import Program
from ingot.ir.signature import InputKind

Shape = tuple[int, ...]


class SizeError(IngotError):
    """A size was requested that the program does not have."""

    exit_code = 2


class UnknownSize(Exception):
    """A size that is known only when the program runs: how many elements of a tensor are nonzero, for one."""


class SymbolValues:
    """One number for each dynamic dim: the one chosen, else the example's, else the one that it was traced with."""

    def __init__(self, program: Program, chosen: Mapping[str, int]) -> None:
        _check(program, chosen)
        found = {**_collect_hints(program), **_examples(program), **chosen}
        self.by_name = {dim.name: found.get(dim.name, max(dim.low, 1)) for dim in program.dims}
        self._known: dict[sympy.Basic, int] = {}

    def number(self, value: Any) -> int:
        """An int or a SymInt as a number. Raises UnknownSize."""
        if isinstance(value, int):
            return value
        expr = internals.expr_of(value)
        if expr not in self._known:
            names = {symbol: symbolic_dims.name_of(symbol) for symbol in expr.free_symbols}
            if not set(names.values()) <= self.by_name.keys():
                raise UnknownSize(str(expr))
            self._known[expr] = int(symbolic_dims.evaluate(expr, {s: self.by_name[name] for s, name in names.items()}))
        return self._known[expr]

    def shape(self, tensor: torch.Tensor) -> Shape:
        return tuple(self.number(size) for size in tensor.shape)

    def shapes(self, value: Any) -> Any:
        """A node's value with a shape in place of every tensor and a number in place of every SymInt."""
        if isinstance(value, torch.Tensor):
            return self.shape(value)
        if isinstance(value, torch.SymInt):
            return self.number(value)
        if isinstance(value, list | tuple):
            return [self.shapes(item) for item in value]
        return value

    def stand_in(self, value: Any) -> Any:
        """A node's value with a meta tensor of the same strides in place of every tensor."""
        if isinstance(value, torch.Tensor):
            strides = tuple(self.number(stride) for stride in value.stride())
            return torch.empty_strided(self.shape(value), strides, dtype=value.dtype, device="meta")
        if isinstance(value, torch.SymInt):
            return self.number(value)
        if isinstance(value, list | tuple):
            return [self.stand_in(item) for item in value]
        return value

    def bytes_of(self, value: Any) -> int:
        """The size of a value's tensors in bytes."""
        total = 0
        for tensor in metadata.tensors_in(value):
            count = tensor.element_size()
            for size in self.shape(tensor):
                count *= size
            total += count
        return total


def _check(program: Program, chosen: Mapping[str, int]) -> None:
    ranges = {dim.name: dim for dim in program.dims}
    for name, size in chosen.items():
        dim = ranges.get(name)
        if dim is None:
            names = ", ".join(ranges) or "none"
            raise SizeError(format_error(f"The program has no dynamic dim {name!r}.", why=f"its dynamic dims: {names}"))
        if size < dim.low or (dim.high is not None and size > dim.high):
            raise SizeError(format_error(f"{name}={size} is outside the range of {dim}."))


def _dynamic_dims(program: Program) -> Iterator[tuple[str, str, int, torch.SymInt]]:
    """(dim name, placeholder, index, SymInt) for each input dim that is a dynamic dim and nothing else."""
    arguments = {i.name for i in program.signature.inputs_of_kind(InputKind.ARGUMENT)}
    for node in program.graph.nodes:
        value = metadata.value_of(node) if node.op == "placeholder" and node.name in arguments else None
        if not isinstance(value, torch.Tensor):
            continue
        for index, size in enumerate(value.shape):
            if isinstance(size, torch.SymInt):
                expr = internals.expr_of(size)
                if isinstance(expr, sympy.Symbol):
                    yield symbolic_dims.name_of(expr), node.name, index, size


def _collect_hints(program: Program) -> dict[str, int]:
    hints = {name: size.node.hint for name, _, _, size in _dynamic_dims(program)}
    return {name: int(hint) for name, hint in hints.items() if hint is not None}


def _examples(program: Program) -> dict[str, int]:
    if program.example_inputs is None:
        return {}
    leaves, _ = pytree.flatten(program.example_inputs)
    inputs = program.signature.user_inputs
    if len(leaves) != len(inputs):
        return {}
    by_name = {i.name: leaf for i, leaf in zip(inputs, leaves, strict=True) if i.kind is InputKind.ARGUMENT}
    return {name: int(by_name[node].shape[index]) for name, node, index, _ in _dynamic_dims(program)}
