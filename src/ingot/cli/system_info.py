"""The machine we run on: its processor, its C compilers, its packages."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

INSTRUCTION_SETS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "neon")
_SECONDS = 60
_SOURCE = "int ingot_answer(void) { return 42; }\n"


@dataclass(frozen=True, slots=True)
class Processor:
    """`cores` are those of the machine, `usable` those that this process may run on."""

    model: str
    architecture: str
    cores: int
    usable: int
    instruction_sets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C compiler: how it is called, what it says it is, and why it cannot make a shared library, if so."""

    name: str
    command: tuple[str, ...]
    version: str
    problem: str | None

    @property
    def works(self) -> bool:
        return self.problem is None


def version_of(package: str) -> str | None:
    """The version of an installed package, without importing it; None where it is not there."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> Processor:
    text = ""
    with contextlib.suppress(OSError):
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    # "asimd" is the kernel's name for NEON on 64-bit ARM.
    flags = {"neon" if flag == "asimd" else flag for flag in _features(text)}
    from ingot_runtime.cpu_features import cores  # brings numpy, which --help does without

    return Processor(
        model=_model(text) or _find_processor_name(),
        architecture=platform.machine(),
        cores=os.cpu_count() or 1,
        usable=cores(),
        instruction_sets=tuple(name for name in INSTRUCTION_SETS if name in flags),
    )


def _features(cpuinfo: str) -> frozenset[str]:
    """What the processors of a machine have, by the text of its /proc/cpuinfo; where that is empty, by asking it."""
    from ingot_runtime.cpu_features import (  # brings numpy, which --help does without
        architecture,
        features,
        from_cpuinfo,
    )

    return from_cpuinfo(cpuinfo, architecture()) if cpuinfo else features()


def _model(cpuinfo: str) -> str | None:
    """The first processor's name."""
    found = re.search(r"^model name[ \t]*:[ \t]*(.*\S)", cpuinfo, re.MULTILINE)
    return found[1] if found else None


def _find_processor_name() -> str:
    if sys.platform == "darwin":
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            asked = ("sysctl", "-n", "machdep.cpu.brand_string")
            return subprocess.run(asked, capture_output=True, text=True, timeout=_SECONDS, check=True).stdout.strip()
    return platform.processor() or "unknown"


def compilers(named: str = "") -> tuple[Compiler, ...]:
    """The C compilers that can be found, or the one that CC names, each tried on a function of one line."""
    from ingot.codegen.build.toolchain import candidates  # brings numpy too

    return tuple(
        Compiler(name, command, _version(command), try_compiler(command)) for name, command in candidates(named)
    )


def _version(command: tuple[str, ...]) -> str:
    try:
        asked = subprocess.run((*command, "--version"), capture_output=True, text=True, timeout=_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    lines = asked.stdout.strip().splitlines()
    return lines[0] if lines else "unknown"


def try_compiler(command: tuple[str, ...]) -> str | None:
    """Compiles a shared library, loads it and calls it; the reason why that failed, or None."""
    with tempfile.TemporaryDirectory(prefix="ingot-doctor-") as folder:
        source, library = Path(folder, "answer.c"), Path(folder, "answer.so")
        source.write_text(_SOURCE, encoding="utf-8")
        try:
            built = subprocess.run(
                (*command, "-shared", "-fPIC", "-O1", "-o", str(library), str(source)),
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=False,
            )
            if built.returncode != 0:
                said = built.stderr.strip().splitlines()
                return f"it exits with {built.returncode}" + (f": {said[0]}" if said else "")
            answer = ctypes.CDLL(str(library)).ingot_answer()
        except (OSError, subprocess.SubprocessError) as error:
            return f"{type(error).__name__}: {error}"
    return None if answer == 42 else f"the library it makes answers {answer} instead of 42"


@dataclass(frozen=True, slots=True)
class CudaSupport:
    """What runs and what compiles models for NVIDIA's GPUs; where something is missing, a sentence in its place."""

    driver: str
    devices: tuple[str, ...]
    compiler: str
    runs: bool
    compiles: bool


def cuda_support() -> CudaSupport:
    """Asks the driver and NVRTC."""
    from ingot.errors import CompileError
    from ingot.targets.cuda.build import nvrtc
    from ingot_runtime import IngotError
    from ingot_runtime.native.cuda_driver import find_driver

    try:
        driver = find_driver()
        devices = tuple(f"{one.name}, {one.architecture}, {one.memory / 2**30:.0f} GiB" for one in driver.devices())
        found = f"supports CUDA {'.'.join(map(str, driver.version))}"
    except IngotError as error:
        devices, found = (), _shorten(error)
    try:
        compiler, compiles = ".".join(map(str, nvrtc.version())), True
    except CompileError as error:
        compiler, compiles = _shorten(error), False
    return CudaSupport(found, devices, compiler, bool(devices), compiles)


def _shorten(error: Exception) -> str:
    """What happened and why, on one line."""
    lines = [line.strip().removeprefix("why: ") for line in str(error).splitlines()]
    return " ".join(lines[:2])


def writable(folder: Path) -> str | None:
    """Why nothing can be written in a folder, or in the one it would be made in; None where it can."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        return f"{place} is not a folder"
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".ingot-doctor-"):
            return None
    except OSError as error:
        return f"{place}: {error.strerror or error}"
