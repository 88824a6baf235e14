"""What kernels call: collected while they are written, then written out before them.

library.functions    the math library's, by name: see math_library.py
library.pack(…)      copies that widen and turn what a product reads
library.share(…)     the inner loops of products and the like: one function, called by kernels of all parts
library.routines     hand-written kernels: a C header and a macro in it
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from ingot.codegen.c_expressions import STORED
from ingot.codegen.math_library import functions as math_functions
from ingot.codegen.math_library import source_of
from ingot.targets.cpu.codegen.headers import resource

Shared: TypeAlias = Literal[
    "tile", "window", "tile_amx", "window_amx", "depth", "depths", "attention", "scores", "winograd", "stream", "widen"
]  # fmt: skip

_MATH_CALL = re.compile(r"\big_\w+")
# What every file begins with, and what stands between the library and the model's own part.
_PRELUDE = ("includes.h", "prelude.h", "index_arithmetic.h", "checked_sizes.h", "parts.h", "thread_pool.h")
_RUN = ("run_includes.h", "abi.h", "run.h", "argument_checks.h")
_CODED = ("s4", "s8", "s4z", "s8z")  # see weight_only_gemm.h
_REALS = {"f32": "float", "f64": "double", "bf16": "uint16_t", "u8": "uint8_t", "i32": "int32_t"}
_REALS |= dict.fromkeys(_CODED, "float")
# What products of a kind are summed in, and the header of their tiles, where they are not summed in their own kind.
_SUMS = {"bf16": ("f32", "bf16.h"), "u8": ("i32", "int8.h")}
_READS = {"bfloat16": "ig_bf16_to_f32", "float16": "ig_f16_to_f32"}
# Of the hand-written kernels, those that are written with vectors.
_ON_VECTORS = frozenset({"dft.h"})
_HEADERS: dict[Shared, str] = {
    "depth": "depthwise.h", "scores": "attention.h", "winograd": "winograd.h", "stream": "weight_only_gemm.h"
}  # fmt: skip
# Products that are computed with AMX where the machine has it.
_AMX = ("tile_amx", "window_amx")
# What computes the weight of a score: an exp of a number from -80 to 0, or nan.
_NARROW_EXP = {"f32": "ig_exp_narrow_f32", "f64": "ig_exp_f64"}


@dataclass
class RuntimeLibrary:
    """The parts of the library that a file needs. A kind is "f32" or "f64", or "bf16" or "u8" for products of such."""

    functions: set[str] = field(default_factory=set)
    routines: set[tuple[str, str]] = field(default_factory=set)
    sources: dict[str, str] = field(default_factory=dict)  # of the user's C kernels, by their functions
    _packs: set[tuple[str, str]] = field(default_factory=set)
    _shared: set[tuple[Shared, str, tuple[int, ...]]] = field(default_factory=set)
    by_lanes: bool = False  # vectors by hand: simd.h
    amx_attention: bool = False
    _outside: dict[tuple[str, int], int] = field(default_factory=dict)

    def pack(self, kind: str, dtype: str) -> str:
        """The name of the function that copies a matrix of `dtype`."""
        self._packs.add((kind, dtype))
        if dtype in _READS:
            self.functions.add(_READS[dtype])
        return f"ig_pack_{kind}_from_{dtype}"

    def share(self, name: Shared, kind: str, *sizes: int) -> None:
        """A function that is declared in all parts of the file and defined in one; `sizes` are known in it."""
        self._shared.add((name, kind, sizes))
        if name == "attention":
            self.functions |= {f"ig_exp_{kind}", _NARROW_EXP[kind]}

    def add_source(self, function: str, source: str) -> None:
        """A C kernel of the user's, and what it calls of the math library."""
        self.sources[function] = source
        self.functions |= set(_MATH_CALL.findall(source)) & set(math_functions())

    def padding_array(self, kind: str, value: int, channels: int) -> str:
        """The name of as many times this value as a window reads where it leaves its image."""
        self._outside[kind, value] = max(self._outside.get((kind, value), 0), channels)
        return f"ig_outside_{kind}_{value}"

    @property
    def shared(self) -> int:
        """How many functions are shared."""
        return len(self._shared)

    def add(self, other: RuntimeLibrary) -> None:
        """What either needs."""
        self.functions |= other.functions
        self.routines |= other.routines
        self.sources |= other.sources
        self.by_lanes |= other.by_lanes
        self.amx_attention |= other.amx_attention
        self._packs |= other._packs
        self._shared |= other._shared
        for (kind, value), channels in other._outside.items():
            self.padding_array(kind, value, channels)

    def text(self, group: Callable[[], int] = lambda: 0) -> str:
        """What stands before a model's own part, or before those of several. `group` gives the group of each shared
        function, in the order in which they stand."""
        shared = sorted(self._shared)
        has_products = bool(shared or self._packs or self.by_lanes)
        on_vectors = any(header in _ON_VECTORS for header, _ in self.routines)
        parts = [*map(resource, _PRELUDE), source_of(sorted(self.functions))]
        parts += [resource("vectors.h")] if has_products or on_vectors else []
        parts += [self._routines()]
        parts += [resource("gemm.h")] if has_products else []
        parts += [resource("simd.h")] if self.by_lanes else []
        tiled = {kind for name, kind, _ in shared if name in ("tile", "window")}
        parts += [resource("quarters.h")] if tiled.intersection(_SUMS) else []
        parts += [resource(header) for kind, (_, header) in _SUMS.items() if kind in tiled]
        for kind in sorted({kind for name, kind, _ in shared if name == "window"}):
            parts.append(f"IG_WINDOWS({kind})")
        parts += _amx_parts({(kind, sizes[0]) for name, kind, sizes in shared if name in _AMX})
        parts += [resource("amx_attention.h")] if self.amx_attention else []
        for (kind, value), channels in sorted(self._outside.items()):
            start = f" = {{[0 ... {channels - 1}] = {value}}}" if value else ""
            parts.append(f"static const {_REALS[kind]} ig_outside_{kind}_{value}[{channels}]{start};")
        parts += [resource(_HEADERS[name]) for name in _HEADERS if any(name == one for one, *_ in shared)]
        for one in shared:
            parts += _declare_and_define(*one, group())
        for kind, dtype in sorted(self._packs):
            read = _READS.get(dtype, "IG_AS_IT_IS")
            parts.append(f"IG_PACK({kind}, {_REALS[kind]}, {dtype}, {STORED[dtype]}, {read})")
        return "\n".join([*parts, *map(resource, _RUN), *self._c_kernels()])

    def _c_kernels(self) -> list[str]:
        """The user's C kernels: each is declared in all parts of the file, and stands in one."""
        if not self.sources:
            return []
        parts = [resource("c_kernels.h")]
        parts += [f"IG_C_KERNEL({function});" for function in sorted(self.sources)]
        return [*parts, "#if IG_IN(0)", *(self.sources[function] for function in sorted(self.sources)), "#endif"]

    def _routines(self) -> str:
        """Each header once, and behind it what is written out of it."""
        found = sorted(self.routines)
        parts: list[str] = []
        for header in dict.fromkeys(header for header, _ in found):
            parts.append(resource(header))
            parts += [macro for h, macro in found if h == header]
        return "\n".join(parts)


def _amx_parts(products: set[tuple[str, int]]) -> list[str]:
    """What the shared functions of products on AMX have in common, for each kind and width."""
    if not products:
        return []
    blocks = [f"IG_AMX_BLOCKS({kind})" for kind in sorted({kind for kind, _ in products})]
    return [resource("amx.h"), *blocks, *(f"IG_AMX_BLOCK({kind}, {width})" for kind, width in sorted(products))]


def _sum(name: Shared, kind: str) -> str:
    """What a function sums in. One channel's integers are few: float32 holds their sums."""
    if kind in _CODED:
        return "f32"
    return "f32" if name in ("depth", "depths") and kind == "u8" else _SUMS[kind][0] if kind in _SUMS else kind


def _declare_and_define(name: Shared, kind: str, sizes: tuple[int, ...], group: int) -> list[str]:
    macro, arguments = f"IG_{name.upper()}", ", ".join([kind, _REALS[kind], *map(str, sizes)])
    if name in ("depth", "depths"):
        sums = _sum(name, kind)
        read = "IG_READ_U8" if kind == "u8" else "IG_READ_F"
        arguments = ", ".join([kind, sums, _REALS[sums], _REALS[kind], read, *map(str, sizes)])
    elif name in ("tile", "window", *_AMX):
        arguments = ", ".join([kind, *map(str, sizes)])
    head = f"{macro}_HEAD({arguments})"
    if name == "attention":
        arguments += f", INF_{kind.upper()}, {_NARROW_EXP[kind]}"
    return [head, f"#if IG_IN({group})", f"{macro}({arguments})", "#endif"]
