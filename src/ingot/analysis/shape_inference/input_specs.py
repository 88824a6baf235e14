"""What a caller says about a program's arguments, read and checked before analysis begins.

inputs := {argument: spec}         by its own name, its place ("past[0].keys"), or its placeholder's name
spec   := (dim, …) | TensorType    of a tensor; None: its rank is unknown
        | NumberType               of an int, float or bool; None: its value is unknown
        | {key: spec} | [spec, …]  of an argument that holds several; what is left out is as captured
dim    := int | "name" | "2*name + 1" | sympy expression | None
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, SupportsIndex, TypeAlias

import sympy
import torch
from torch import fx

from ingot.analysis.shape_inference.lattice import Dim, NumberType, TensorType, Type, symbols_of, type_of
from ingot.errors import ShapeError, format_error
from ingot.ir import metadata, pytree, symbolic_dims
from ingot.ir.execution import named_path
from ingot.ir.program import Program
from ingot.ir.signature import Input, InputKind

Spec: TypeAlias = "TensorType | NumberType | Mapping[Any, Any] | Sequence[Any] | None"
_DIMS = (
    'give dims as a tuple, each a number, a name, an expression of names such as "2*n + 1", or None: ("batch", None, 3)'
)


def argument_types(program: Program, inputs: Mapping[str, Spec] | None) -> list[Type]:
    """The type of every placeholder: as captured, or as `inputs` says. Raises ShapeError."""
    if not isinstance(inputs, Mapping | None):
        raise _spec_error(
            f"`inputs` is {_describe_value(inputs)}.", 'give a dict by the arguments\' names: {"x": ("batch", None, 3)}'
        )
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    types = {node.name: type_of(metadata.value_of(node)) for node in placeholders}
    taken = {symbol.name for symbol in _unbacked_symbols(program.graph_module)}
    for name, place, spec in _match_placeholders(program, inputs or {}, types):
        types[name] = _type(types[name], place, spec)
        for symbol in sorted(symbols_of(types[name]), key=str):
            if symbol.name in taken:
                raise _spec_error(
                    f"A size of {place} is given the name {symbol.name}.",
                    "choose another name",
                    "that is the name of a data-dependent size of the program",
                )
    return list(types.values())


def symbol(name: str) -> sympy.Symbol:
    """The symbol of a size, as types speak of it: by its name, with nothing assumed but that it is whole."""
    return sympy.Symbol(name, integer=True)


def _spec_error(what: str, fix: str | None = None, why: str | None = None) -> ShapeError:
    return ShapeError(format_error(what, why=why, fix=fix))


def _describe_value(value: object) -> str:
    text = "a tensor" if isinstance(value, torch.Tensor) else repr(value)
    return text if len(text) < 60 else f"{text[:60]}…"


def _unbacked_symbols(module: fx.GraphModule) -> Iterator[sympy.Symbol]:
    """The names of data-dependent numbers in a program and the graphs inside it."""
    for graph in module.modules():
        if isinstance(graph, fx.GraphModule):
            for node in graph.graph.nodes:
                yield from (symbol(symbolic_dims.name_of(s)) for s in metadata.bindings_of(node) or ())


# ---------------------------------------------------------------------- which argument


def _match_placeholders(
    program: Program, inputs: Mapping[str, Spec], types: Mapping[str, Type]
) -> Iterator[tuple[str, str, Any]]:
    """What is said of each placeholder: its name, how the user calls it, the spec."""
    paths = [named_path(program, path) for path in pytree.leaf_paths(program.signature.in_tree)]
    places = [
        (pytree.format_path(path), path, spec) for path, spec in zip(paths, program.signature.user_inputs, strict=True)
    ]
    for key, spec in inputs.items():
        whole = [(place, given) for place, _, given in places if place == key]
        inside = [(place, path[1:], given) for place, path, given in places if len(path) > 1 and path[0] == key]
        for place, given in whole:
            yield _name(given, place), place, spec
        for place, path, given in inside:
            said = _follow(key, spec, path)
            if said is not _NOTHING:
                yield _name(given, place), place, said
        if not whole and not inside:
            if key not in types:
                named = ", ".join(place for place, _, given in places if given.kind is InputKind.ARGUMENT)
                raise _spec_error(f"The program has no argument {key}.", why=f"its arguments are {named}")
            yield key, key, spec


def _name(given: Input, place: str) -> str:
    if given.kind is InputKind.LITERAL:
        raise _spec_error(
            f"A type is given for {place}, which is a constant of the program.",
            "leave it out, or capture the program with another value",
            f"it was captured as the constant {_describe_value(given.value)}",
        )
    return given.name


_NOTHING = object()


def _follow(key: str, spec: Any, path: Sequence[Any]) -> Any:
    """The part of a nested spec that stands at a leaf's path; _NOTHING where it says nothing of it."""
    for step in path:
        if isinstance(spec, Mapping):
            spec = spec.get(step, _NOTHING)
        elif isinstance(spec, list | tuple) and isinstance(step, int):
            spec = spec[step] if step < len(spec) else _NOTHING
        elif spec is not _NOTHING:
            raise _spec_error(
                f"{key} is given as {_describe_value(spec)}, and it holds several values.",
                "give a dict by their keys or a list, with the dims of each",
            )
    return spec


# ---------------------------------------------------------------------- what it is like


def _type(known: Type, place: str, spec: Any) -> Type:
    if isinstance(known, NumberType):
        if spec is None:
            return NumberType(known.kind)
        if isinstance(spec, NumberType) and spec.kind is known.kind and isinstance(spec.value, known.kind | None):
            return spec
        raise _spec_error(
            f"{place} is given as {_describe_value(spec)}, and it is {known}.",
            f"give NumberType({known.kind.__name__}, its value), or None for any value",
        )
    if not isinstance(known, TensorType):
        raise _spec_error(f"Dims are given for {place}, which is {known}.", why="only tensors have dims")
    if spec is None:
        return TensorType(known.dtype, known.device, None)
    dtype, device, given = known.dtype, known.device, spec
    if isinstance(spec, TensorType):
        dtype, device, given = spec.dtype, spec.device, spec.dims
        if not isinstance(dtype, torch.dtype | None):
            raise _spec_error(f"The type of {place} has the dtype {dtype!r}.", "give torch.float32 …, or None")
        if not isinstance(device, torch.device | None):
            raise _spec_error(f"The type of {place} has the device {device!r}.", 'give torch.device("cpu") …, or None')
        if given is None:
            return spec
    if not isinstance(given, list | tuple):
        raise _spec_error(f"{place} is given as {_describe_value(given)}.", _DIMS)
    return TensorType(dtype, device, tuple(_dim(place, index, dim) for index, dim in enumerate(given)))


def _dim(place: str, index: int, dim: Any) -> Dim:
    def dim_error(why: str) -> ShapeError:
        return _spec_error(f"Dim {index} of {place} is given as {_describe_value(dim)}.", _DIMS, why)

    if dim is None:
        return None
    expr: Any = dim
    if isinstance(dim, str):
        try:
            expr = _parse(ast.parse(dim.strip(), mode="eval").body)
        except (SyntaxError, ValueError, KeyError):
            raise dim_error("that is neither a name nor an expression of names") from None
    if isinstance(expr, sympy.Basic) and not expr.is_number:
        expr = expr.xreplace({s: symbol(s.name) for s in expr.free_symbols if isinstance(s, sympy.Symbol)})
        if not expr.is_integer:
            raise dim_error("it is not an integer for all values of its names; use // for integer division")
        return expr
    if isinstance(expr, bool | torch.SymInt) or not isinstance(expr, SupportsIndex):
        raise dim_error("that is not a size")
    size = operator.index(expr)
    if not 0 <= size < 2**63:
        raise dim_error("no tensor has such a size")
    return size


_OPERATIONS = {ast.Add: "add", ast.Mult: "mul", ast.FloorDiv: "floordiv", ast.Mod: "mod"}


def _parse(text: ast.expr) -> Any:
    """An expression as types print them; KeyError or ValueError on any other."""
    if isinstance(text, ast.Constant) and type(text.value) is int:
        return sympy.Integer(text.value)
    if isinstance(text, ast.Name):
        return symbol(text.id)
    if isinstance(text, ast.UnaryOp) and isinstance(text.op, ast.USub):
        return -_parse(text.operand)
    if isinstance(text, ast.BinOp) and isinstance(text.op, ast.Sub):
        return _parse(text.left) - _parse(text.right)
    if isinstance(text, ast.BinOp):
        return symbolic_dims.OPERATIONS[_OPERATIONS[type(text.op)]].build(_parse(text.left), _parse(text.right))
    if isinstance(text, ast.Call) and isinstance(text.func, ast.Name) and text.func.id in ("max", "min"):
        return symbolic_dims.OPERATIONS[text.func.id].build(*map(_parse, text.args))
    raise ValueError
