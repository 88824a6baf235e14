"""Inputs to run a program on: the example's, and generated ones at other sizes within the range of each dim."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import sympy
import torch

from ingot import torch_internals as internals
from ingot.errors import InputError
from ingot.ir import execution, metadata, pytree, symbolic_dims
from ingot.ir.program import Program
from ingot.ir.signature import InputKind
from ingot.passes.instrumentation.state_copies import SEED


def generate_inputs(program: Program) -> Iterator[list[list[Any]]]:
    """Arguments to run a program on; at each size several, of which the first that the program takes is to serve."""
    if program.example_inputs is None:
        return
    args, kwargs = program.example_inputs
    leaves, _ = pytree.flatten((args, kwargs))
    yield [leaves]
    yield from _other_sizes(program, leaves)


def _other_sizes(program: Program, example: list[Any]) -> Iterator[list[list[Any]]]:
    """The example's arguments at the least sizes, and at larger, unrelated ones: drawn, or else its own values."""
    if not program.dims:
        return
    fakes = {n.name: metadata.value_of(n) for n in program.graph.nodes if n.op == "placeholder"}
    specs = program.signature.user_inputs
    for steps in ((0,), (7, 12, 4, 10)):
        sizes = {}
        for index, dim in enumerate(program.dims):
            size = dim.low + steps[index % len(steps)]
            sizes[dim.name] = size if dim.high is None else min(size, dim.high)
        generator = torch.Generator().manual_seed(SEED)
        shapes = [_sizes_at(fakes[i.name], sizes) if i.kind is InputKind.ARGUMENT else None for i in specs]
        pairs = list(zip(example, shapes, strict=True))
        attempts = [
            [leaf if shape is None else _draw(leaf, shape, generator) for leaf, shape in pairs],
            [leaf if shape is None else _repeat(leaf, shape) for leaf, shape in pairs],
        ]
        args, kwargs = pytree.unflatten(attempts[0], program.signature.in_tree)
        try:
            execution.check_call(program, args, kwargs)
        except InputError:
            continue  # a constraint rules these sizes out
        yield attempts


def _sizes_at(fake: Any, sizes: Mapping[str, int]) -> list[int]:
    return [int(symbolic_dims.evaluate(internals.expr_of(s), _map_symbols(s, sizes))) for s in fake.shape]


def _draw(example: torch.Tensor, shape: list[int], generator: torch.Generator) -> torch.Tensor:
    """A tensor of the example's dtype and range in another shape, in order where the example is: offsets, say."""
    if _ascends(example):
        return _spread(example, shape, generator).sort(-1).values
    return _spread(example, shape, generator)


def _ascends(example: torch.Tensor) -> bool:
    if example.dim() == 0 or example.shape[-1] < 3 or example.dtype.is_complex or example.dtype is torch.bool:
        return False
    return example.numel() > 0 and bool((example[..., 1:] >= example[..., :-1]).all())


def _spread(example: torch.Tensor, shape: list[int], generator: torch.Generator) -> torch.Tensor:
    if example.dtype.is_floating_point or example.dtype.is_complex:
        scale = float(example.abs().float().mean()) if example.numel() else 1.0
        made = torch.randn(shape, generator=generator, dtype=torch.float64) * (scale if math.isfinite(scale) else 1.0)
        return made.to(example.dtype)
    low, high = (int(example.min()), int(example.max())) if example.numel() else (0, 1)
    return torch.randint(low, high + 1, shape, generator=generator).to(example.dtype)


def _repeat(example: torch.Tensor, shape: list[int]) -> torch.Tensor:
    """The example repeated and cut to another shape, so that a number stays where it means something: a row, say."""
    if not example.numel():
        return example.new_zeros(shape)
    made = example.detach()
    for axis, size in enumerate(shape):
        made = made.index_select(axis, torch.arange(size) % made.shape[axis])
    return made


def _map_symbols(size: Any, sizes: Mapping[str, int]) -> dict[sympy.Symbol, int]:
    return {
        s: sizes[symbolic_dims.name_of(s)]
        for s in internals.expr_of(size).free_symbols
        if symbolic_dims.name_of(s) in sizes
    }
