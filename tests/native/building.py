"""The pipeline with its knobs in reach: other compiler flags, another compiler, without fusion."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from ingot.codegen.compiled import Compiled
from ingot.codegen.file import emit
from ingot.codegen.isa import Isa, host
from ingot.codegen.toolchain import WARNINGS, Toolchain, find
from ingot.codegen.weights import fill
from ingot.entry import capture
from ingot.lowering.ir import Module, Precision
from ingot.lowering.lower import lower
from ingot.lowering.memory import plan
from ingot.lowering.schedule import schedule
from ingot.pipeline import for_native
from ingot.program.program import Program

# clang says of a loop that it did not vectorize it, which is no fault of the loop.
QUICK = ("-O1", "-Werror", *WARNINGS, "-Wno-pass-failed")


def lowered(
    model: nn.Module | Callable[..., Any],
    args: Sequence[Any],
    *,
    dynamic_shapes: Any = None,
    fused: bool = True,
    precision: Precision = "float32",
) -> tuple[Program, Module]:
    program = for_native(capture(model, args, dynamic_shapes=dynamic_shapes))
    module = lower(program, precision)
    return program, schedule(module) if fused else module


def assemble(
    program: Program,
    module: Module,
    *,
    flags: Sequence[str] = QUICK,
    tools: Toolchain | None = None,
    threads: int = 1,
    isa: Isa | None = None,
) -> Compiled:
    """Native code of a lowered program. A warning of the compiler is an error."""
    isa = isa or host()
    source = emit(module, plan(module), title="test")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "model.so"
        (tools or find()).compile_library(source.text, isa, library, extra_flags=(f'-DIG_ISA="{isa.name}"', *flags))
        blob = fill(program, module, source)
        return Compiled(program, module, source, blob, {isa.name: library.read_bytes()}, isa, threads)


def build(
    model: nn.Module | Callable[..., Any],
    args: Sequence[Any],
    *,
    dynamic_shapes: Any = None,
    fused: bool = True,
    flags: Sequence[str] = QUICK,
    tools: Toolchain | None = None,
    threads: int = 1,
) -> Compiled:
    program, module = lowered(model, args, dynamic_shapes=dynamic_shapes, fused=fused)
    return assemble(program, module, flags=flags, tools=tools, threads=threads)
