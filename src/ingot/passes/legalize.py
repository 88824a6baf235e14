"""Replaces what native code has no rule for by what it has one for.

before                                          after legalize
up = aten.upsample_bilinear2d(x, [4, 4], False) index = aten._unsafe_index(x, [None, None, rows, columns]); …

Where speed matters an operator has a rule of its own; those in `EXPANDED` are worth no more than torch's own way of
saying them with others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import torch

from ingot import torch_internals as internals
from ingot.ir.dialects import CORE, FUNCTIONAL, SHAPE_QUERY_OPS
from ingot.ir.outlining import graph_modules
from ingot.ir.program import Program
from ingot.passes.decompose import overloads, replace_operators
from ingot.passes.decompositions.aten import RESAMPLED, Rules
from ingot.passes.decompositions.special import find_expansion
from ingot.passes.functionalize import replace_writes
from ingot.passes.manager import register

# Core operators, and some outside the core set, that torch has a decomposition for.
EXPANDED = (
    *(
        "_addmm_activation",
        "_batch_norm_no_update",
        "_batch_norm_with_update_functional",
        "_native_batch_norm_legit",
        "_native_batch_norm_legit_functional",
    ),
    *("addmv", "bitwise_and", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "cauchy"),
    *("conj_physical", "copysign", "dist", "exponential", "geometric", "grid_sampler_2d", "ldexp", "lift"),
    *("linalg_vector_norm", "log_normal", "max_pool2d_with_indices_backward", "narrow_copy", "native_batch_norm"),
    *("special_spherical_bessel_j0", "tril_indices", "triu_indices", "upsample_nearest2d", "upsample_trilinear3d"),
)
# Overloads of these that native code has rules for.
RULED = ("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift", "copysign")


@register(takes=FUNCTIONAL, gives=CORE, exact=False, retraces=True)
def legalize(program: Program, *, keep: Sequence[Any] = ()) -> int:
    """Replays the graph with these decompositions and those of `decompose`, in one go. `keep` is as in `decompose`.

    Returns the number of operators that were replaced, and of autocast regions.
    """
    kept = overloads(keep)
    count = replace_operators(program, kept, _Rules(kept))
    if count and any(node.target._schema.is_mutable for node in _calls(program)):
        replace_writes(program)  # some of torch's decompositions are written with updates in place
    return count


def _calls(program: Program) -> Iterator[Any]:
    """Calls of operators, in regions too."""
    for module in graph_modules(program.graph_module):
        for node in module.graph.nodes:
            if isinstance(node.target, internals.OpOverload):
                yield node


class _Rules:
    """What to call for an operator: an entry of the table, or what `decompose` would, which its parts may need."""

    def __init__(self, kept: set[Any]) -> None:
        self._kept = kept
        self._core = Rules(kept)

    def get(self, op: Any, /) -> Callable[..., Any] | None:
        if op in self._kept or op in SHAPE_QUERY_OPS:
            return None
        return _table().get(op) or find_expansion(op) or self._core.get(op)


@cache
def _table() -> dict[Any, Callable[..., Any]]:
    every = internals.all_decompositions()
    left = {getattr(packet, "Tensor", None) for packet in (getattr(torch.ops.aten, name) for name in RULED)}
    left |= {getattr(packet, "Scalar", None) for packet in (getattr(torch.ops.aten, name) for name in RULED[:3])}
    return {op: every[op] for op in overloads(EXPANDED) if op in every and op not in left} | {
        torch.ops.aten._pdist_forward.default: _pdist,
        torch.ops.aten.rrelu_with_noise_functional.default: _rrelu,
        **RESAMPLED,
    }


def _pdist(x: torch.Tensor, p: float = 2.0) -> torch.Tensor:
    """Of the distances of all rows from all rows, those above the diagonal."""
    aten = torch.ops.aten
    count = x.shape[0]
    places = aten.triu_indices.default(count, count, 1)
    every: torch.Tensor = aten._cdist_forward.default(x, x, p, None)
    return aten.index.Tensor(every, [places[0], places[1]])  # type: ignore[no-any-return]


def _rrelu(
    x: torch.Tensor, noise: torch.Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False,
    generator: torch.Generator | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Each element that is not positive is multiplied by a number drawn for it; `noise` says which."""
    if not training:
        return torch.nn.functional.leaky_relu(x, (lower + upper) / 2), noise
    drawn = torch.ops.aten.rand_like.default(x) * (upper - lower) + lower
    noise = torch.where(x <= 0, drawn, 1.0)
    return x * noise, noise
