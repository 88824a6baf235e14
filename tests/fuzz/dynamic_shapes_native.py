"""Programs as native code, many to a C file: lowered one by one, compiled together, called through the C interface."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ingot.codegen.build.isa import host
from ingot.compiler import run_cpu_pipeline
from ingot.ir.execution import finish
from ingot.lowering.loop_module import Module
from ingot.scheduling.buffer_planning import plan
from ingot.targets.cpu.codegen import module_emitter as c_file
from ingot.targets.cpu.codegen.runtime_library import RuntimeLibrary
from ingot.targets.cpu.target import CPU
from tests.support.operator_samples.batched_compile import _arguments, join_parts

FLAGS = ("-O0", "-fPIC", "-shared", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast",
         "-fwrapv", "-fno-strict-aliasing", "-w")  # fmt: skip


@dataclass
class Part:
    """A program that is lowered and, later, compiled; or why it could not be."""

    program: Any
    module: Module
    source: c_file.CSource
    library: RuntimeLibrary = field(default_factory=RuntimeLibrary)
    prefix: str = ""
    loaded: Any = None
    error: str = ""


def lower_part(captured: Any) -> Part:
    program = run_cpu_pipeline(captured)
    module = CPU.schedule(CPU.lower(program))
    library = RuntimeLibrary()
    return Part(program, module, c_file.emit_body(module, plan(module), library), library)


def compile_parts(parts: Sequence[Part], folder: Path, name: str = "programs") -> None:
    """Gives each part its functions in a library, or the error of the C compiler, which halving lays at one part."""
    if not parts:
        return
    shared = RuntimeLibrary()
    for part in parts:
        shared.add(part.library)
    for number, part in enumerate(parts):
        part.prefix = f"m{number}_"
    source, library = folder / f"{name}.c", folder / f"{name}.so"
    source.write_text(join_parts(shared.text(), [(part.prefix, part.source.text) for part in parts]))
    command = ["gcc", *host().flags, *FLAGS, str(source), "-o", str(library), "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        loaded = ctypes.CDLL(str(library))
        for part in parts:
            part.loaded = loaded
    elif len(parts) == 1:
        parts[0].error = done.stderr[:600]
    else:
        middle = len(parts) // 2
        compile_parts(parts[:middle], folder, f"{name}a")
        compile_parts(parts[middle:], folder, f"{name}b")


def run_part(part: Part, args: Sequence[torch.Tensor]) -> Sequence[torch.Tensor] | str:
    """The results, or the message of the error that the library gives."""
    functions, prefix = part.loaded, part.prefix
    blob = CPU.pack_weights(part.program, part.module, part.source)
    model = ctypes.c_void_p()
    status = functions[f"{prefix}ingot_open"](ctypes.c_void_p(blob.array.ctypes.data), 1, ctypes.byref(model))
    if status:
        raise RuntimeError(f"open gave {status}")
    try:
        given = _arguments(args)
        message = ctypes.create_string_buffer(400)
        sizes = (ctypes.c_int64 * max(sum(len(o.shape) for o in part.module.outputs), 1))()
        status = functions[f"{prefix}ingot_sizes"](model, given, sizes, message, ctypes.c_size_t(400))
        if status:
            return message.value.decode(errors="replace")
        outputs, at = [], 0
        for output in part.module.outputs:
            shape = [sizes[at + d] for d in range(len(output.shape))]
            at += len(shape)
            if any(size < 0 for size in shape):
                raise RuntimeError(f"an output has the shape {shape}")
            outputs.append(torch.full(shape, -7, dtype=getattr(torch, output.dtype)))
        status = functions[f"{prefix}ingot_run"](model, given, _arguments(outputs), message, ctypes.c_size_t(400))
        if status:
            return message.value.decode(errors="replace")
    finally:
        functions[f"{prefix}ingot_close"](model)
    results: Sequence[torch.Tensor] = finish(part.program, outputs, {})
    return results
