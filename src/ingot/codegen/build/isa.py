"""Instruction sets: what the C is generated and compiled for.

    isa.host()                     the best one of this machine
    isa.find_isas(["portable"])    others, for `--isa`
    isa.missing_features(that)     what this machine lacks to run it

Which processor features an instruction set needs is in ingot_runtime/cpu_features.py alone: the runtime asks the same
question before it loads a library, and cannot import this package.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from ingot.errors import UnsupportedMachine, format_error
from ingot_runtime import cpu_features


@dataclass(frozen=True, slots=True)
class Isa:
    """An instruction set: the flags of gcc and clang for it, zig's name for it, and what generated code may count on.

    `vector_bits` is the width of a vector register and `registers` how many there are: 0 where nothing may be assumed.
    """

    name: str
    architecture: str | None  # None: whatever the compiler makes code for
    flags: tuple[str, ...]
    zig_cpu: str
    vector_bits: int
    registers: int
    has_fma: bool = False
    has_half: bool = False  # float16 ↔ float32 in one instruction
    has_masks: bool = False  # loads, stores and arithmetic under a mask
    has_vnni: bool = False  # int8 dot products into int32
    has_bf16: bool = False  # bfloat16 dot products into float32
    has_amx: bool = False  # the same two for matrices of 16 rows by 64 bytes
    system: Literal["linux", "macos"] = "linux"

    @property
    def features(self) -> tuple[str, ...]:
        """What a processor must have, as Linux names it."""
        return cpu_features.FEATURES[self.name]

    def lanes(self, bits: int) -> int:
        """How many elements of that many bits one vector register holds; 1 where there are no vectors."""
        return max(1, self.vector_bits // bits)

    def __str__(self) -> str:
        return self.name


# Left to itself a compiler vectorizes loops for AVX-512 with half of the register.
_V4 = ("-march=x86-64-v4", "-mprefer-vector-width=512")

ISAS: dict[str, Isa] = {
    isa.name: isa
    for isa in (
        Isa(
            "x86-64-v4-amx",
            "x86_64",
            (*_V4, "-mavx512vnni", "-mavx512bf16", "-mamx-tile", "-mamx-int8", "-mamx-bf16"),
            "x86_64_v4+avx512vnni+avx512bf16+amx_tile+amx_int8+amx_bf16",
            vector_bits=512,
            registers=32,
            has_fma=True,
            has_half=True,
            has_masks=True,
            has_vnni=True,
            has_bf16=True,
            has_amx=True,
        ),
        Isa(
            "x86-64-v4-bf16",
            "x86_64",
            (*_V4, "-mavx512vnni", "-mavx512bf16"),
            "x86_64_v4+avx512vnni+avx512bf16",
            vector_bits=512,
            registers=32,
            has_fma=True,
            has_half=True,
            has_masks=True,
            has_vnni=True,
            has_bf16=True,
        ),
        Isa("x86-64-v4", "x86_64", _V4, "x86_64_v4", 512, 32, has_fma=True, has_half=True, has_masks=True),
        Isa("x86-64-v3", "x86_64", ("-march=x86-64-v3",), "x86_64_v3", 256, 16, has_fma=True, has_half=True),
        Isa("x86-64", "x86_64", ("-march=x86-64",), "x86_64", 128, 16),
        Isa(
            "aarch64-bf16",
            "aarch64",
            ("-march=armv8.2-a+dotprod+bf16+i8mm",),
            "generic+v8_2a+dotprod+bf16+i8mm",
            128,
            32,
            has_fma=True,
            has_half=True,
            has_vnni=True,
            has_bf16=True,
        ),
        Isa(
            "aarch64-dotprod",
            "aarch64",
            ("-march=armv8.2-a+dotprod",),
            "generic+v8_2a+dotprod",
            128,
            32,
            has_fma=True,
            has_half=True,
            has_vnni=True,
        ),
        Isa("aarch64", "aarch64", ("-march=armv8-a",), "generic", 128, 32, has_fma=True, has_half=True),
        Isa("plain", None, (), "baseline", vector_bits=0, registers=0),
    )
}

ISAS |= {f"{name}-macos": replace(ISAS[name], name=f"{name}-macos", system="macos") for name in cpu_features.MACOS}

# What "portable" stands for: one file that is fast on every x86-64 processor since AVX2.
PORTABLE = ("x86-64-v4-amx", "x86-64-v4-bf16", "x86-64-v4", "x86-64-v3")
# Names that stand for several. With "+aarch64" the file is for Arm processors, too, with "+macos" for Macs as well.
_ARM = ("aarch64-bf16", "aarch64-dotprod", "aarch64")
GROUPS: dict[str, tuple[str, ...]] = {
    "portable": PORTABLE,
    "portable+aarch64": (*PORTABLE, *_ARM),
    "portable+aarch64+macos": (*PORTABLE, *_ARM, *(f"{name}-macos" for name in ("x86-64-v3", *_ARM))),
}


@functools.cache
def host() -> Isa:
    """The best instruction set that this machine has."""
    return ISAS[cpu_features.best(ISAS) or "plain"]


def find_isa(name: str) -> Isa:
    """The instruction set of that name; raises UnsupportedMachine, which lists the names, if there is none."""
    if name in ISAS:
        return ISAS[name]
    raise UnsupportedMachine(
        format_error(
            f"there is no instruction set called {name!r}",
            why="Ingot generates code for " + ", ".join(ISAS) + ", and several of them for " + ", ".join(GROUPS),
            fix=f"use one of those names; this machine's own is {host()}",
        )
    )


def find_isas(names: Iterable[str]) -> list[Isa]:
    """The instruction sets of these names, those of GROUPS among them; raises what `find_isa` raises."""
    found = (one for name in names for one in GROUPS.get(name, (name,)))
    return list({name: find_isa(name) for name in found}.values())


def missing_features(isa: Isa) -> list[str]:
    """What this machine's processor lacks to run code for `isa`, in Linux's names; empty if nothing."""
    return cpu_features.missing(isa.name)
