"""Calling a Program: the arguments are checked against what was captured, then the graph runs through torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import sympy
import torch

from ingot import torch_internals as internals
from ingot.analysis.side_effects import explain_assertions
from ingot.errors import InputError, LiteralError, StructureError, format_error
from ingot.ir import metadata, pytree, symbolic_dims
from ingot.ir.signature import Input, InputKind, OutputKind

if TYPE_CHECKING:
    from ingot.ir.program import Program


def run(program: Program, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Checks the arguments, runs the graph, writes mutations back, and rebuilds the user's result."""
    leaves = check_call(program, args, kwargs)
    return run_leaves(program, leaves)


def run_leaves(program: Program, leaves: list[Any]) -> Any:
    """Runs the graph on arguments that are checked already."""
    tensors = [
        leaf for leaf, i in zip(leaves, program.signature.user_inputs, strict=True) if i.kind is InputKind.ARGUMENT
    ]
    names = _argument_names(program)
    _check_written(program, dict(zip(names, tensors, strict=True)))
    state = [program.state_of(i) for i in program.signature.state_inputs]
    with explain_assertions(), internals.restore_modes():
        values = program.graph_module(*tokens_of(program), *state, *tensors)
    return finish(program, list(values), dict(zip(names, tensors, strict=True)))


def _check_written(program: Program, arguments: Mapping[str, Any]) -> None:
    """What a functional graph writes back must not alias anything: it computed with the old values."""
    for output in program.signature.outputs:
        if output.kind is not OutputKind.ARGUMENT_MUTATION:
            continue
        name = str(output.target)
        tensor = arguments[name]
        if internals.overlaps_itself(tensor):
            raise InputError(
                format_error(
                    f"{name} is written to, and several of its elements share memory.",
                    why=f"its shape is {tuple(tensor.shape)}, and its strides are {tensor.stride()}",
                    fix="pass a copy of it",
                )
            )
        for other, another in arguments.items():
            if other != name and isinstance(another, torch.Tensor) and internals.may_overlap(tensor, another):
                raise InputError(
                    format_error(
                        f"{name} and {other} share memory, and the program writes to {name}.",
                        fix="pass a copy of one of them",
                    )
                )


def tokens_of(program: Program) -> list[torch.Tensor]:
    """The first token of each chain of effects. It stands for an order and holds nothing."""
    return [torch.empty(0) for _ in program.signature.inputs_of_kind(InputKind.TOKEN)]


def _argument_names(program: Program) -> list[str]:
    return [i.name for i in program.signature.inputs_of_kind(InputKind.ARGUMENT)]


def finish(
    program: Program,
    values: list[Any],
    arguments: Mapping[str, torch.Tensor],
    state: Callable[[str], torch.Tensor] | None = None,
) -> Any:
    """Applies the mutations that a functional graph returns, and nests the rest as the user's result.

    `state` finds the tensor of a state key; without it, the program's own is taken.
    """
    find = state or (lambda name: program.state_dict[name] if name in program.state_dict else program.constants[name])
    produced = iter(values)
    results: list[Any] = []
    for output in program.signature.outputs:
        if output.kind is OutputKind.LITERAL:
            results.append(output.value)
            continue
        value = next(produced)
        if output.kind is OutputKind.RESULT:
            results.append(value)
        elif output.kind is OutputKind.ARGUMENT_MUTATION:
            _write(arguments[str(output.target)], value)
        elif output.kind in (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION):
            _write(find(str(output.target)), value)
    return pytree.unflatten(results, program.signature.out_tree)


def _write(target: torch.Tensor, value: torch.Tensor) -> None:
    with torch.no_grad():
        target.copy_(value)


# ---------------------------------------------------------------------- checks


def check_call(
    program: Program, args: tuple[Any, ...], kwargs: dict[str, Any], *, dtypes: bool = True, devices: bool = True
) -> list[Any]:
    """The leaves of the arguments, in the program's order. Raises CallError if they do not fit.

    Without `dtypes` any dtype and device will do: a module that was converted takes what it was converted to. Without
    `devices`, tensors may lie anywhere.
    """
    signature = program.signature
    args, kwargs = _arrange(program, args, kwargs)
    leaves, given = pytree.flatten((args, kwargs))
    if given != signature.in_tree:
        for expected, got in zip(signature.in_tree.children, given.children, strict=True):
            _check_top(program, expected, got)
        pytree.check_same(signature.in_tree, given)
    paths = pytree.leaf_paths(signature.in_tree)
    arguments: list[tuple[str, Input, Any]] = []
    for leaf, spec, path in zip(leaves, signature.user_inputs, paths, strict=True):
        place = pytree.format_path(named_path(program, path))
        if spec.kind is InputKind.LITERAL:
            _check_literal(program, spec, leaf, place)
        else:
            arguments.append((place, spec, leaf))
    _check_arguments(program, arguments, dtypes, dtypes and devices)
    return leaves


def named_path(program: Program, path: pytree.Path) -> pytree.Path:
    """A leaf's path with positional arguments under their names."""
    side, key, *rest = path
    if side == 0 and isinstance(key, int) and key < len(program.parameter_names):
        return (program.parameter_names[key], *rest)
    return (f"args[{key}]" if side == 0 else key, *rest)


def _arrange(program: Program, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Moves arguments between position and keyword to where they were when the program was captured."""
    expected_args, expected_kwargs = program.signature.in_tree.children
    names = program.parameter_names
    kwargs = dict(kwargs)
    while len(args) < len(expected_args.children) and len(args) < len(names) and names[len(args)] in kwargs:
        args = (*args, kwargs.pop(names[len(args)]))
    while len(args) > len(expected_args.children) and len(args) <= len(names):
        name = names[len(args) - 1]
        if name in kwargs:
            break
        args, kwargs[name] = args[:-1], args[-1]
    order = [str(key) for key in expected_kwargs.keys]
    if set(order) == set(kwargs):
        kwargs = {key: kwargs[key] for key in order}
    return args, kwargs


def _check_top(program: Program, expected: pytree.Tree, got: pytree.Tree) -> None:
    """Missing and unexpected arguments, by the names the user knows."""
    if expected.kind == "tuple" and len(expected.children) != len(got.children):
        names = program.parameter_names
        captured = ", ".join(names[: len(expected.children)]) or "none"
        raise StructureError(
            format_error(
                f"The program takes {len(expected.children)} positional arguments ({captured}), "
                f"but got {len(got.children)}.",
                fix="call the program with the arguments it was captured with",
            )
        )
    if expected.kind == "dict" and expected.keys != got.keys:
        missing = [str(k) for k in expected.keys if k not in got.keys]
        extra = [str(k) for k in got.keys if k not in expected.keys]
        problem = [
            f"{label} {', '.join(keys)}" for label, keys in (("missing", missing), ("unexpected", extra)) if keys
        ]
        raise StructureError(
            format_error(
                f"The program was captured with other keyword arguments: {'; '.join(problem)}.",
                fix="call the program with the arguments it was captured with, or capture it again with these",
            )
        )


def _check_literal(program: Program, spec: Input, value: Any, place: str) -> None:
    if spec.target is not None:
        expected = program.constants[spec.target]
        same = isinstance(value, torch.Tensor) and value.shape == expected.shape and bool((value == expected).all())
        shown = "another tensor"
    else:
        expected = spec.value
        same = type(value) is type(expected) and (_equal(value, expected) or _both_nan(value, expected))
        if isinstance(value, float | complex):
            same = same and repr(value) == repr(expected)  # 0.0 and -0.0 are equal, and not the same
        shown = repr(value)
    if not same:
        raise LiteralError(
            format_error(
                f"{place} is {shown}, but the program was captured with {_format(expected)}.",
                why="values that are not tensors are constants of a program",
                fix=f"capture the model again with {place}={shown}",
            )
        )


def _format(value: Any) -> str:
    return "a fixed tensor" if isinstance(value, torch.Tensor) else repr(value)


def _equal(a: Any, b: Any) -> bool:
    try:
        return a is b or bool(a == b)
    except Exception:  # an object of TorchScript cannot be compared
        return False


def _both_nan(a: Any, b: Any) -> bool:
    return isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b)


def _check_arguments(program: Program, arguments: list[tuple[str, Input, Any]], dtypes: bool, devices: bool) -> None:
    fakes = _argument_values(program)
    sizes: dict[sympy.Symbol, int] = {}
    first: dict[sympy.Symbol, str] = {}
    derived: list[tuple[sympy.Basic, int, str]] = []
    for place, spec, given in arguments:
        fake = fakes[spec.name]
        if isinstance(fake, torch.Tensor):
            _check_tensor(place, given, fake, dtypes, devices)
            asked = [(f"dim {d} of {place}", size, fake.shape[d]) for d, size in enumerate(given.shape)]
        elif type(given) is not int:
            raise InputError(format_error(f"{place} is {given!r}, but the program was captured with any int there."))
        else:
            asked = [(place, given, fake)]
        for where, size, expected in asked:
            if isinstance(expected, int):
                continue
            expr = expected.node.expr
            if not isinstance(expr, sympy.Symbol):
                derived.append((expr, size, where))
            elif sizes.setdefault(expr, size) != size:
                raise InputError(
                    format_error(
                        f"{where} is {size}, but {first[expr]} is {sizes[expr]}; "
                        f"both are the dim {symbolic_dims.name_of(expr)}."
                    )
                )
            else:
                first.setdefault(expr, where)
    _check_sizes(program, sizes, first, derived)


def _check_tensor(place: str, tensor: Any, fake: torch.Tensor, dtypes: bool, devices: bool) -> None:
    """Everything of a tensor but its dynamic sizes."""
    if not isinstance(tensor, torch.Tensor):
        raise InputError(format_error(f"{place} is {tensor!r}, but the program was captured with a tensor there."))
    if dtypes and tensor.dtype != fake.dtype:
        raise InputError(
            format_error(
                f"{place} is {_dtype(tensor)}, but the program was captured with {_dtype(fake)}.",
                fix=f"convert it with .to({fake.dtype}), or capture again with this dtype",
            )
        )
    if devices and tensor.device != fake.device:
        raise InputError(
            format_error(
                f"{place} is on {tensor.device}, but the program was captured with a tensor on {fake.device}.",
                fix=f'move it with .to("{fake.device}"), or capture again with the model and its inputs there',
            )
        )
    if tensor.dim() != fake.dim():
        raise InputError(
            format_error(
                f"{place} has {tensor.dim()} dims, but the program was captured with {fake.dim()}.",
                why=f"it is {tuple(tensor.shape)}, and {show_shape(fake)} was captured",
            )
        )
    for dim, (size, expected) in enumerate(zip(tensor.shape, fake.shape, strict=True)):
        if isinstance(expected, int) and size != expected:
            raise InputError(
                format_error(
                    f"dim {dim} of {place} is {size}, but the program was captured with {expected}.",
                    fix=f'declare it dynamic when capturing: dynamic_shapes={{"{place}": {{{dim}: "name"}}}}',
                )
            )


def _check_sizes(
    program: Program,
    sizes: dict[sympy.Symbol, int],
    first: dict[sympy.Symbol, str],
    derived: list[tuple[sympy.Basic, int, str]],
) -> None:
    for expr, size, where in derived:
        for symbol in expr.free_symbols - sizes.keys():
            solved = _solve(expr, symbol, size, sizes)
            if solved is None:
                raise InputError(
                    format_error(f"{where} is {size}, which is not of the form {symbolic_dims.format_dim(expr)}.")
                )
            sizes[symbol] = solved
            first[symbol] = f"{symbolic_dims.name_of(symbol)}, by {where},"
        if symbolic_dims.evaluate(expr, sizes) != size:
            known = ", ".join(f"{symbolic_dims.name_of(s)} = {sizes[s]}" for s in expr.free_symbols)
            raise InputError(
                format_error(f"{where} is {size}, but must be {symbolic_dims.format_dim(expr)} with {known}.")
            )
    ranges = {dim.name: dim for dim in program.dims}
    for symbol, size in sizes.items():
        dim = ranges.get(symbolic_dims.name_of(symbol))
        if dim is not None and not (dim.low <= size and (dim.high is None or size <= dim.high)):
            broken = (c.source for c in program.constraints if _speaks_of(c, symbol) and not _holds(c, sizes))
            raise InputError(
                format_error(
                    f"{first[symbol]} is {size}, outside the range of {dim}.",
                    where=next(broken, None),
                    fix="use a size in the range, or capture again with a wider one",
                )
            )
    for constraint in program.constraints:
        if not _holds(constraint, sizes):
            raise InputError(
                format_error(
                    f"These sizes break what the program needs: {symbolic_dims.format_dim(constraint.condition)}.",
                    where=constraint.source,
                    why=", ".join(f"{symbolic_dims.name_of(s)} = {size}" for s, size in sizes.items()),
                )
            )


def _solve(expr: sympy.Basic, symbol: sympy.Symbol, size: int, sizes: Mapping[sympy.Symbol, int]) -> int | None:
    """The value of a symbol at which an expression linear in it has this size, if there is one."""
    others = dict.fromkeys(expr.free_symbols, 0) | dict(sizes)
    at_zero, at_one = (int(symbolic_dims.evaluate(expr, {**others, symbol: value})) for value in (0, 1))
    value, left = divmod(size - at_zero, at_one - at_zero) if at_one != at_zero else (0, 1)
    return None if left else value


def _speaks_of(constraint: symbolic_dims.Constraint, symbol: sympy.Symbol) -> bool:
    return bool(constraint.condition.free_symbols == {symbol})


def _holds(constraint: symbolic_dims.Constraint, sizes: Mapping[sympy.Symbol, int]) -> bool:
    try:
        return bool(symbolic_dims.evaluate(constraint.condition, sizes))
    except ZeroDivisionError:
        return False


def _argument_values(program: Program) -> dict[str, torch.Tensor]:
    return {node.name: metadata.value_of(node) for node in program.graph.nodes if node.op == "placeholder"}


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def show_shape(tensor: torch.Tensor) -> str:
    """A shape as print(program) shows it: float32[batch, 768]"""
    sizes = (str(size) if isinstance(size, int) else symbolic_dims.format_dim(size) for size in tensor.shape)
    return f"{_dtype(tensor)}[{', '.join(sizes)}]"
