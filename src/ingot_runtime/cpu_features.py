"""Features of this machine's processor, and the instruction sets that it supports.

    missing("x86-64-v4")                          ["avx512f", …]: what this machine lacks to run such a library
    best(["x86-64-v3", "x86-64-v4", "plain"])     the most able of those that it can run

A feature is named as Linux names it in /proc/cpuinfo; the architecture is a feature too ("x86_64", "aarch64"), and so
is "macos".
Python's standard library only, and no state but a cache: the compiler asks the same questions through this file.
"""

import contextlib
import functools
import os
import platform
import re
import sys
from collections.abc import Callable, Iterable, Sequence

_X86_64 = ("x86_64", "sse2")
_X86_64_V2 = ("pni", "ssse3", "sse4_1", "sse4_2", "popcnt", "cx16", "lahf_lm")
# xsave stands for what the psABI calls OSXSAVE: the kernel saves the wide registers, without which none may be used.
_X86_64_V3 = ("avx", "avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe", "xsave")
_X86_64_V4 = ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_X86_64_V4_BF16 = (*_X86_64, *_X86_64_V2, *_X86_64_V3, *_X86_64_V4, "avx512_vnni", "avx512_bf16")
_AARCH64 = ("aarch64", "asimd")
# Besides the products themselves, what compilers may use of Armv8.2, of which they are an option.
_DOT_PRODUCTS = ("atomics", "asimdrdm", "asimddp")

# Every instruction set that a library may be compiled for, the most able first: best() goes down this list.
FEATURES: dict[str, tuple[str, ...]] = {
    "x86-64-v4-amx": (*_X86_64_V4_BF16, "amx_tile", "amx_int8", "amx_bf16"),
    "x86-64-v4-bf16": _X86_64_V4_BF16,
    "x86-64-v4": (*_X86_64, *_X86_64_V2, *_X86_64_V3, *_X86_64_V4),
    "x86-64-v3": (*_X86_64, *_X86_64_V2, *_X86_64_V3),
    "x86-64": _X86_64,
    "aarch64-bf16": (*_AARCH64, *_DOT_PRODUCTS, "i8mm", "bf16"),
    "aarch64-dotprod": (*_AARCH64, *_DOT_PRODUCTS),
    "aarch64": _AARCH64,
    "plain": (),
}
# The same for another system: "aarch64-macos". A name without a system is Linux's.
MACOS = ("x86-64-v4", "x86-64-v3", "x86-64", "aarch64-bf16", "aarch64-dotprod", "aarch64")
FEATURES |= {f"{isa}-macos": (*FEATURES[isa], "macos") for isa in MACOS}

# Where Linux says of an Arm processor what all of its cores have: the entries of the auxiliary vector, and their bits.
_HWCAPS = (16, 26)
_HWCAP_BITS = {
    (0, 0): "fp", (0, 1): "asimd", (0, 7): "crc32", (0, 8): "atomics", (0, 9): "fphp", (0, 10): "asimdhp",
    (0, 12): "asimdrdm", (0, 20): "asimddp", (1, 13): "i8mm", (1, 14): "bf16",
}  # fmt: skip
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
_DARWIN_X86 = ("machdep.cpu.features", "machdep.cpu.extfeatures", "machdep.cpu.leaf7_features")
_DARWIN_ARM = {
    "hw.optional.arm.FEAT_LSE": "atomics",
    "hw.optional.arm.FEAT_RDM": "asimdrdm",
    "hw.optional.arm.FEAT_DotProd": "asimddp",
    "hw.optional.arm.FEAT_I8MM": "i8mm",
    "hw.optional.arm.FEAT_BF16": "bf16",
}


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
        return from_sysctl(_ask_darwin, architecture())
    if architecture() == "aarch64" and (hwcaps := _hwcaps()) is not None:
        return from_hwcaps(hwcaps)
    text = ""
    with contextlib.suppress(OSError), open(_CPUINFO, encoding="utf-8", errors="replace") as file:
        text = file.read()
    return from_cpuinfo(text, architecture())


def from_hwcaps(hwcaps: Sequence[int]) -> frozenset[str]:
    """The features of an Arm processor in AT_HWCAP and AT_HWCAP2, which tell of what all of its cores have."""
    return _complete((name for (word, bit), name in _HWCAP_BITS.items() if hwcaps[word] >> bit & 1), "aarch64")


def from_cpuinfo(text: str, architecture: str) -> frozenset[str]:
    """The features that every processor of a Linux machine has: its cores need not be alike."""
    found = re.findall(r"^(?:flags|Features)[ \t]*:(.*)$", text, re.MULTILINE)
    common = frozenset.intersection(*(frozenset(line.split()) for line in found)) if found else frozenset[str]()
    return _complete(common, architecture)


def from_sysctl(ask: Callable[[str], bytes], architecture: str) -> frozenset[str]:
    """The features of a Mac. `ask` gives the value that the system has under a name, or nothing where it has none."""
    if architecture == "aarch64":
        found = [feature for name, feature in _DARWIN_ARM.items() if any(ask(name))]
        return _complete((*found, "macos"), architecture)
    names = b" ".join(ask(name).rstrip(b"\0") for name in _DARWIN_X86).decode("ascii", "replace").lower().split()
    return _complete(("macos", *(_DARWIN.get(name, name) for name in names)), architecture)


def missing(isa: str, having: frozenset[str] | None = None) -> list[str]:
    """The features that `isa`, a name in FEATURES, needs and that are not in `having`, or not in this machine."""
    there = features() if having is None else having
    lacking = [feature for feature in FEATURES[isa] if feature not in there]
    return [*lacking, "linux"] if "macos" in there and "macos" not in FEATURES[isa] else lacking


def best(isas: Iterable[str], having: frozenset[str] | None = None) -> str | None:
    """The most able of `isas` that this machine can run, or None. Names that are not in FEATURES do not count."""
    given = set(isas)
    return next((isa for isa in FEATURES if isa in given and not missing(isa, having)), None)


def _complete(found: Iterable[str], architecture: str) -> frozenset[str]:
    return frozenset({*found, *_ALWAYS.get(architecture, ()), architecture})


def _hwcaps() -> tuple[int, ...] | None:
    """What the kernel handed this process; None where libc has no function for it."""
    import ctypes  # here, because only these systems need it

    with contextlib.suppress(OSError, AttributeError):
        ask = ctypes.CDLL(None).getauxval
        ask.restype, ask.argtypes = ctypes.c_ulong, (ctypes.c_ulong,)
        return tuple(ask(entry) for entry in _HWCAPS)
    return None


def _ask_darwin(name: str) -> bytes:
    import ctypes

    value = ctypes.create_string_buffer(4096)
    size = ctypes.c_size_t(len(value))
    with contextlib.suppress(OSError, AttributeError):
        if ctypes.CDLL(None).sysctlbyname(name.encode(), value, ctypes.byref(size), None, ctypes.c_size_t(0)) == 0:
            return value.raw[: size.value]
    return b""
