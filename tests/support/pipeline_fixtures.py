"""The pipeline with its knobs in reach: other compiler flags, another compiler, without fusion."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from ingot.api import capture
from ingot.artifacts.compiled_model import CompiledModel
from ingot.codegen.build.isa import Isa, host
from ingot.codegen.build.toolchain import WARNINGS, Toolchain, find_for
from ingot.compiler import run_cpu_pipeline
from ingot.ir.program import Program
from ingot.lowering.loop_module import Module, Precision
from ingot.scheduling.buffer_planning import plan
from ingot.targets.cpu.codegen.module_emitter import emit
from ingot.targets.cpu.target import CPU, CpuTarget

# clang says of a loop that it did not vectorize it, which is not a fault of the loop.
QUICK = ("-O1", "-Werror", *WARNINGS, "-Wno-pass-failed")


def lowered(
    model: nn.Module | Callable[..., Any],
    args: Sequence[Any],
    *,
    dynamic_shapes: Any = None,
    fused: bool = True,
    precision: Precision = "float32",
) -> tuple[Program, Module]:
    program = run_cpu_pipeline(capture(model, args, dynamic_shapes=dynamic_shapes))
    module = CPU.lower(program, precision)
    return program, CPU.schedule(module) if fused else module


def emit_program(
    program: Program, *, precision: Precision = "float32", disabled: Collection[str] = ()
) -> tuple[str, bytes]:
    """The C text and the packed weights of a program that `run_cpu_pipeline` gave."""
    module = CPU.schedule(CPU.lower(program, precision, disabled), disabled)
    source = emit(module, plan(module), title="test")
    blob = CPU.pack_weights(program, module, source)
    return source.text, b"".join(blob.array[place.offset :][: place.size].tobytes() for place in source.weights)


def assemble(
    program: Program,
    module: Module,
    *,
    flags: Sequence[str] = QUICK,
    tools: Toolchain | None = None,
    threads: int = 1,
    isa: Isa | None = None,
    target: CpuTarget = CPU,
) -> CompiledModel:
    """Native code of a lowered program. A warning of the compiler is an error. `target` is what it runs on."""
    isa = isa or host()
    source = emit(module, plan(module), title="test")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "model.so"
        (tools or find_for(isa)).compile_library(
            source.text, isa, library, extra_flags=(f'-DIG_ISA="{isa.name}"', *flags)
        )
        blob = CPU.pack_weights(program, module, source)
        return CompiledModel(program, module, source, blob, {isa.name: library.read_bytes()}, target, threads, isa.name)


def build(
    model: nn.Module | Callable[..., Any],
    args: Sequence[Any],
    *,
    dynamic_shapes: Any = None,
    fused: bool = True,
    flags: Sequence[str] = QUICK,
    tools: Toolchain | None = None,
    threads: int = 1,
) -> CompiledModel:
    program, module = lowered(model, args, dynamic_shapes=dynamic_shapes, fused=fused)
    return assemble(program, module, flags=flags, tools=tools, threads=threads)
