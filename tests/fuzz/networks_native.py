"""Networks as native code, many to a C file: lowered one by one, compiled together, called through the C interface."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import ingot
from ingot.compiler import run_cpu_pipeline
from ingot.lowering.loop_module import Module, Precision
from ingot.scheduling.buffer_planning import plan
from ingot.targets.cpu.codegen import module_emitter as c_file
from ingot.targets.cpu.codegen.runtime_library import RuntimeLibrary
from ingot.targets.cpu.target import CPU
from tests.fuzz.driver import ISA
from tests.support.operator_samples.batched_compile import HERE, Machine, _arguments

# As models are compiled, but for -O3: what the optimizer does is its own affair, and takes most of the time. One file
# in so many is compiled with -O1, which contracts products and sums as -O3 does.
OPTIMIZED = 6
FLAGS = ("-fPIC", "-shared", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast",
         "-fwrapv", "-fno-strict-aliasing", "-w")  # fmt: skip


@dataclass
class Part:
    """A program that is lowered and, later, compiled; or why it could not be."""

    program: ingot.Program
    module: Module
    source: c_file.CSource
    library: RuntimeLibrary = field(default_factory=RuntimeLibrary)
    prefix: str = ""
    loaded: Any = None
    error: str = ""


def lower_part(program: ingot.Program, precision: Precision, disabled: Collection[str]) -> Part:
    program = run_cpu_pipeline(program, disabled)
    module = CPU.schedule(CPU.lower(program, precision, disabled), disabled)
    library = RuntimeLibrary()
    return Part(program, module, c_file.emit_body(module, plan(module), library), library)


# What a model's own part of its file defines.
_DEFINED = re.compile(
    r"^(?:IG_CALLS )?(?:static|INGOT_EXPORT|IG_KERNEL|enum)\b[^\n(\[]*?\b(?P<name>\w+)\s*(?:\(|\[|= \d+ })", re.M
)


def rename_own(text: str, prefix: str) -> str:
    """The model's own part with a prefix on every name that it defines, so that many can stand in one file."""
    names = {match["name"] for match in _DEFINED.finditer(text)} - {"__attribute__"}
    return re.sub(rf"\b({'|'.join(sorted(names))})\b", lambda match: f"{prefix}{match[0]}", text)


@functools.cache
def find_machine() -> Machine:
    """What the networks run on: this machine, or an emulated Arm processor, by the instruction set that ISA names."""
    isa = os.environ.get(ISA)
    if not isa:
        return HERE
    from tests.support.arm_emulation.emulator import EmulatedMachine

    return EmulatedMachine(isa)


def compile_parts(parts: Sequence[Part], folder: Path, optimize: bool, name: str = "networks") -> None:
    """Gives each part its functions in a library, or the error of the C compiler, which halving lays at one part."""
    if not parts:
        return
    shared = RuntimeLibrary()
    for part in parts:
        shared.add(part.library)
    texts = [shared.text()]
    for number, part in enumerate(parts):
        part.prefix = f"m{number}_"
        texts.append(rename_own(part.source.text, part.prefix))
        texts += [f"#undef {macro}" for macro in sorted(set(re.findall(r"^#define (IG_\w+)", part.source.text, re.M)))]
    source, library = folder / f"{name}.c", folder / f"{name}.so"
    source.write_text("\n".join(texts))
    machine = find_machine()
    command = [*machine.compiler, "-O1" if optimize else "-O0", *FLAGS, str(source), "-o", str(library), "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        loaded = machine.load(library)
        for part in parts:
            part.loaded = loaded
    elif len(parts) == 1:
        parts[0].error = done.stderr[:600]
    else:
        middle = len(parts) // 2
        compile_parts(parts[:middle], folder, optimize, f"{name}a")
        compile_parts(parts[middle:], folder, optimize, f"{name}b")


def call(part: Part, args: Sequence[torch.Tensor], threads: int) -> list[torch.Tensor]:
    """Opens the model, runs it, closes it. Raises RuntimeError with the library's message."""
    functions, prefix = part.loaded, part.prefix
    blob = CPU.pack_weights(part.program, part.module, part.source)
    model = ctypes.c_void_p()
    status = functions[f"{prefix}ingot_open"](ctypes.c_void_p(blob.array.ctypes.data), threads, ctypes.byref(model))
    if status:
        raise RuntimeError(f"open gave {status}")
    try:
        given = _arguments([arg.contiguous() for arg in args])
        message = ctypes.create_string_buffer(400)
        sizes = (ctypes.c_int64 * max(sum(len(o.shape) for o in part.module.outputs), 1))()
        status = functions[f"{prefix}ingot_sizes"](model, given, sizes, message, ctypes.c_size_t(400))
        if status:
            raise RuntimeError(f"status {status}: {message.value.decode()}")
        outputs, at = [], 0
        for output in part.module.outputs:
            shape = [sizes[at + d] for d in range(len(output.shape))]
            at += len(shape)
            outputs.append(torch.empty(shape, dtype=getattr(torch, output.dtype)))
        status = functions[f"{prefix}ingot_run"](model, given, _arguments(outputs), message, ctypes.c_size_t(400))
        if status:
            raise RuntimeError(f"status {status}: {message.value.decode()}")
    finally:
        functions[f"{prefix}ingot_close"](model)
    return outputs
