"""Features of this machine's processor, and the instruction sets that it supports.

    missing("x86-64-v4")                          ["avx512f", …]: what this machine lacks to run such a library
    best(["x86-64-v3", "x86-64-v4", "plain"])     the most able of those that it can run

A feature is named as Linux names it in /proc/cpuinfo; the architecture is a feature too ("x86_64", "aarch64").
Python's standard library only, and no state but a cache: the compiler asks the same questions through this file.
"""

import contextlib
import functools
import os
import platform
import re
import sys
from collections.abc import Iterable

_X86_64 = ("x86_64", "sse2")
_X86_64_V2 = ("pni", "ssse3", "sse4_1", "sse4_2", "popcnt", "cx16", "lahf_lm")
# xsave stands for what the psABI calls OSXSAVE: the kernel saves the wide registers, without which none may be used.
_X86_64_V3 = ("avx", "avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe", "xsave")
_X86_64_V4 = ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_X86_64_V4_BF16 = (*_X86_64, *_X86_64_V2, *_X86_64_V3, *_X86_64_V4, "avx512_vnni", "avx512_bf16")

# Every instruction set that a library may be compiled for, the most able first: best() goes down this list.
FEATURES: dict[str, tuple[str, ...]] = {
    "x86-64-v4-amx": (*_X86_64_V4_BF16, "amx_tile", "amx_int8", "amx_bf16"),
    "x86-64-v4-bf16": _X86_64_V4_BF16,
    "x86-64-v4": (*_X86_64, *_X86_64_V2, *_X86_64_V3, *_X86_64_V4),
    "x86-64-v3": (*_X86_64, *_X86_64_V2, *_X86_64_V3),
    "x86-64": _X86_64,
    "aarch64": ("aarch64", "asimd"),
    "plain": (),
}

_CPUINFO = "/proc/cpuinfo"
_ARCHITECTURES = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}
# What a 64-bit processor of the architecture always has, whether or not anything can be asked about it.
_ALWAYS = {"x86_64": ("fpu", "fxsr", "sse", "sse2"), "aarch64": ("fp", "asimd")}
# Darwin's names, where they are not Linux's in capitals.
_DARWIN = {
    "sse3": "pni",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "avx1.0": "avx",
    "lzcnt": "abm",
    "lahf": "lahf_lm",
    "avx512vnni": "avx512_vnni",
    "avx512bf16": "avx512_bf16",
}
_SECONDS = 20


def cores() -> int:
    """How many cores this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


def architecture(machine: str | None = None) -> str:
    """The processor's architecture under one name: "x86_64", "aarch64", or what the system calls another one."""
    name = (platform.machine() if machine is None else machine).lower()
    return _ARCHITECTURES.get(name, name)


@functools.cache
def features() -> frozenset[str]:
    """What this machine's processor has; of a machine that says nothing, what its architecture always has."""
    if sys.platform == "darwin":
        return from_sysctl(_sysctl(), architecture())
    text = ""
    with contextlib.suppress(OSError), open(_CPUINFO, encoding="utf-8", errors="replace") as file:
        text = file.read()
    return from_cpuinfo(text, architecture())


def from_cpuinfo(text: str, architecture: str) -> frozenset[str]:
    """The features that every processor of a Linux machine has: its cores need not be alike."""
    found = re.findall(r"^(?:flags|Features)[ \t]*:(.*)$", text, re.MULTILINE)
    common = frozenset.intersection(*(frozenset(line.split()) for line in found)) if found else frozenset[str]()
    return _complete(common, architecture)


def from_sysctl(text: str, architecture: str) -> frozenset[str]:
    """The features in what `sysctl -n machdep.cpu.features …` prints on a Mac with an Intel processor."""
    names = text.lower().split()
    return _complete((_DARWIN.get(name, name) for name in names), architecture)


def missing(isa: str, having: frozenset[str] | None = None) -> list[str]:
    """The features that `isa`, a name in FEATURES, needs and that are not in `having`, or not in this machine."""
    there = features() if having is None else having
    return [feature for feature in FEATURES[isa] if feature not in there]


def best(isas: Iterable[str], having: frozenset[str] | None = None) -> str | None:
    """The most able of `isas` that this machine can run, or None. Names that are not in FEATURES do not count."""
    given = set(isas)
    return next((isa for isa in FEATURES if isa in given and not missing(isa, having)), None)


def _complete(found: Iterable[str], architecture: str) -> frozenset[str]:
    return frozenset({*found, *_ALWAYS.get(architecture, ()), architecture})


def _sysctl() -> str:
    """What Darwin says of an Intel processor; a Mac with another one does not know the names and says nothing."""
    import subprocess  # here, because what it imports costs more time than asking Linux

    keys = ("machdep.cpu.features", "machdep.cpu.extfeatures", "machdep.cpu.leaf7_features")
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        asked = subprocess.run(
            ("sysctl", "-n", *keys), capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False
        )
        return asked.stdout
    return ""
