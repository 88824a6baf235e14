"""Recipes: which operators are quantized, and how.

    ingot.quantize.int8_static()                           activations by calibration, weights by channel
    ingot.quantize.int8_dynamic()                          activations by what each call holds
    ingot.quantize.int8_weight_only()                      weight-only
    ingot.quantize.int4_weight_only(group_size=32)         weight-only, one scale per 32 neighbours

A recipe is a frozen dataclass. `overrides` maps module paths to another recipe, or to None for float:

    int8_static(overrides={"classifier": None, "encoder.layer.*.output": int8_weight_only()})
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Literal

import torch

from ingot.quantization.qscheme import Scheme, signed_scheme, unsigned_scheme

# What recipes speak of. "add" joins in where everything that reads the sum is quantized.
KINDS = ("conv", "linear", "matmul", "attention", "embedding", "add")
_STATIC = frozenset(("conv", "linear", "matmul", "embedding", "add"))
_NOTHING: Mapping[str, Recipe | None] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the operators of `kinds` are quantized: their activations and their weights; None is float.

    `overrides` maps patterns of module paths to the recipe that is used inside these modules; "@conv2d_3" is the node
    of that name. If several patterns match, the last one counts.
    """

    name: str
    activation: Scheme | None
    weight: Scheme | None
    kinds: frozenset[str] = _STATIC
    overrides: Mapping[str, Recipe | None] = field(default_factory=lambda: _NOTHING)

    def __post_init__(self) -> None:
        unknown = sorted(set(self.kinds) - set(KINDS))
        if unknown:
            raise ValueError(f"there is no kind {unknown[0]!r}: give some of {', '.join(KINDS)}")

    def select(self, paths: Collection[str]) -> Recipe | None:
        """The recipe for a node inside the modules with these paths."""
        found: Recipe | None = self
        for pattern, other in self.overrides.items():
            if any(fnmatchcase(path, pattern) for path in paths):
                found = other
        return found

    def leaving(self, paths: Collection[str]) -> Recipe:
        """This recipe with the modules at these paths, or the nodes of these "@names", left in float."""
        return replace(self, overrides={**self.overrides, **dict.fromkeys(paths)})


def _weights(per_channel: bool) -> Scheme:
    return signed_scheme(granularity="channel" if per_channel else "tensor")


def _activations(dtype: Literal["uint8", "int8"], symmetric: bool) -> Scheme:
    if dtype == "int8":
        return Scheme(torch.int8, -128, 127, symmetric=symmetric)
    if dtype != "uint8":
        raise ValueError(f"activations as {dtype!r}: give 'uint8' or 'int8'")
    return replace(unsigned_scheme(), symmetric=symmetric)


def int8_static(
    *,
    activation_dtype: Literal["uint8", "int8"] = "uint8",
    symmetric: bool = False,
    per_channel: bool = True,
    observer: str = "auto",
    kinds: Collection[str] = _STATIC,
    overrides: Mapping[str, Recipe | None] = _NOTHING,
) -> Recipe:
    """Activations with static scales from calibration or training; int8 weights, symmetric, one scale per channel.

    `observer` is one of ingot.quantization.observers.OBSERVERS.
    """
    activation = replace(_activations(activation_dtype, symmetric), observer=observer)
    return Recipe("int8_static", activation, _weights(per_channel), frozenset(kinds), overrides)


def int8_dynamic(
    *,
    activation_dtype: Literal["uint8", "int8"] = "uint8",
    symmetric: bool = False,
    per_channel: bool = True,
    per_token: bool = False,
    kinds: Collection[str] = ("linear", "embedding"),
    overrides: Mapping[str, Recipe | None] = _NOTHING,
) -> Recipe:
    """Activations with scales computed in each call, one per tensor or, `per_token`, one per row; weights as static.

    Scales per row are for int8 with a zero point, as in torch.
    """
    if per_token:
        activation = Scheme(torch.int8, -128, 127, granularity="token", dynamic=True)
    else:
        activation = replace(_activations(activation_dtype, symmetric), dynamic=True)
    return Recipe("int8_dynamic", activation, _weights(per_channel), frozenset(kinds), overrides)


def int8_weight_only(
    *,
    per_channel: bool = True,
    kinds: Collection[str] = ("linear", "conv", "embedding"),
    overrides: Mapping[str, Recipe | None] = _NOTHING,
) -> Recipe:
    """int8 weights, symmetric; everything else stays float."""
    return Recipe("int8_weight_only", None, _weights(per_channel), frozenset(kinds), overrides)


def int4_weight_only(
    *,
    group_size: int = 32,
    kinds: Collection[str] = ("linear",),
    overrides: Mapping[str, Recipe | None] = _NOTHING,
) -> Recipe:
    """4-bit weights, one scale per `group_size` values of a row; everything else stays float.

    Where the length of a row is not a multiple of `group_size`, the largest divisor of both is taken.
    """
    weight = Scheme(torch.int8, -8, 7, symmetric=True, granularity="group", group_size=group_size)
    return Recipe("int4_weight_only", None, weight, frozenset(kinds), overrides)


RECIPES = {made.__name__: made for made in (int8_static, int8_dynamic, int8_weight_only, int4_weight_only)}
