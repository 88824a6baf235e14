"""Many small programs for a GPU at once: their kernels are one text, which NVRTC compiles once.

    lowered = [lower(program, CUDA) for program in programs]
    for one in build(lowered, CUDA): ...          a CompiledModel each, or the exception that came instead

To begin a compilation and to read the headers takes NVRTC longer than a small program's kernels do. Everything else is
as `ingot.compile` does it, but for names: a kernel is called after its program, and each model finds its own. The
host's text is compiled without optimization: it launches. An image is for the architecture of one GPU.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ingot.artifacts.compiled_model import CompiledModel
from ingot.codegen.build.page_prefault import Pages
from ingot.codegen.build.toolchain import find
from ingot.compiler import run_cpu_pipeline
from ingot.ir.program import Program
from ingot.lowering.loop_module import Module, Precision
from ingot.scheduling.buffer_planning import plan
from ingot.targets.cuda.build import nvrtc
from ingot.targets.cuda.codegen.device_library import DeviceLibrary
from ingot.targets.cuda.codegen.module_emitter import CudaModuleEmitter, CudaSource
from ingot.targets.cuda.target import CudaTarget, baseline
from tests.targets.cuda.gpu.stages import Stages

ARCHITECTURE = "sm_90a"
_LOOKUP = '"k%d"'
_PARTS = re.compile(r"#define IG_IMAGE_PARTS \d+")
_PART_OF = re.compile(r"(ig_kernel_parts\[\] = \{)[^}]*")


@dataclass(frozen=True)
class LoweredProgram:
    """A program that is ready to be built: its texts, and what its kernels use of the device's library."""

    program: Program
    module: Module
    source: CudaSource
    library: DeviceLibrary
    kernels: tuple[str, ...]


def lower(
    program: Program, target: CudaTarget, precision: Precision = "float32", disabled: Collection[str] = ()
) -> LoweredProgram:
    """The passes, the loops and the texts of a program. Raises what `ingot.compile` raises."""
    off = frozenset(disabled)
    made = run_cpu_pipeline(program, off, target)
    module = target.schedule(target.lower(made, precision, off), off)
    emitter = CudaModuleEmitter(module, plan(module), "model")
    source = emitter.emit()
    return LoweredProgram(made, module, source, emitter.library, tuple(emitter.texts))


def build(
    lowered: Sequence[LoweredProgram], target: CudaTarget, spent: Stages | None = None
) -> list[CompiledModel | Exception]:
    """A model of each program. Halves tell which one's text NVRTC does not take."""
    if not lowered:
        return []
    spent = spent or Stages()
    try:
        texts, prefixes = join_kernels(lowered)
        with spent("NVRTC"):
            image = compile_device(texts, target)
    except Exception as error:
        if len(lowered) == 1:
            return [error]
        middle = len(lowered) // 2
        return [*build(lowered[:middle], target, spent), *build(lowered[middle:], target, spent)]
    libraries: dict[str, bytes] = {}  # of each host text: programs that differ in their numbers alone share it
    made: list[CompiledModel | Exception] = []
    with tempfile.TemporaryDirectory(prefix="ingot-hosts-") as folder:
        for one, prefix in zip(lowered, prefixes, strict=True):
            try:
                made.append(_open(one, prefix, image, target, libraries, Path(folder)))
            except Exception as error:
                made.append(error)
    return made


def join_kernels(lowered: Sequence[LoweredProgram]) -> tuple[str, list[str]]:
    """The text of all kernels, and what the names of each program's kernels begin with. Programs with the same kernels
    have the same ones."""
    library = DeviceLibrary()
    prefixes: dict[tuple[str, ...], str] = {}
    texts = []
    for number, one in enumerate(lowered):
        if one.kernels in prefixes:
            continue
        prefix = prefixes[one.kernels] = f"m{number}_"
        library.functions |= one.library.functions
        for header in one.library.headers:
            library.use(header)
            for macro in one.library.macros.get(header, ()):
                library.use(header, macro)
        texts += [rename_kernel(text, place, prefix) for place, text in enumerate(one.kernels)]
    return "\n".join([library.text(), *texts]), [prefixes[one.kernels] for one in lowered]


def rename_kernel(text: str, number: int, prefix: str) -> str:
    """A kernel's text under another name: in its head, and in the entry behind it."""
    head, entry = f") k{number}(", f"_ENTRY(k{number}"
    assert text.count(head) == 1 and text.count(entry) == 1, f"kernel {number} is not written as it was"
    return text.replace(head, f") {prefix}k{number}(").replace(entry, f"_ENTRY({prefix}k{number}")


def host_of(one: LoweredProgram, prefix: str) -> str:
    """The host's text for an image of one part, whose kernels have this prefix."""
    text = one.source.host
    assert text.count(_LOOKUP) == 1, "kernels are not looked up as they were"
    zeros = ", ".join("0" * (len(one.kernels) + 1))
    text = _PART_OF.sub(rf"\g<1>{zeros}", _PARTS.sub("#define IG_IMAGE_PARTS 1", text))
    return text.replace(_LOOKUP, f'"{prefix}k%d"')


def compile_device(text: str, target: CudaTarget) -> bytes:
    """The image of a text. A target of tests makes its own."""
    build_part: Any = getattr(target, "build_part", None)
    made: bytes = build_part(text, ARCHITECTURE) if build_part else nvrtc.compile_text(text, ARCHITECTURE)
    return made


def _open(
    one: LoweredProgram, prefix: str, image: bytes, target: CudaTarget, libraries: dict[str, bytes], folder: Path
) -> CompiledModel:
    host = host_of(one, prefix)
    if host not in libraries:
        isa, file = baseline(), folder / "model.so"
        flags = ("-O0", f"-DIG_CUDA_VERSION={target.toolkit_version()}", f'-DIG_ISA="{isa.name}"')
        find().compile_library(host, isa, file, extra_flags=flags, work=folder)
        libraries[host] = file.read_bytes()
    source = replace(one.source, host=host)
    with Pages(0) as pages:
        blob = target.pack_weights(one.program, one.module, one.source, pages)
    built = {baseline().name: libraries[host], ARCHITECTURE: image}
    return CompiledModel(one.program, one.module, source, blob, built, target)
