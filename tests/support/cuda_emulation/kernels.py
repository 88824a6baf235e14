"""Runs the kernels of a module, step by step, without the host text.

    run_module(module, weights, inputs) -> outputs

Control flow, sizes that steps find out, and steps that no writer is for are the reference target's. The whole target,
with its host text, is tested through the emulated driver.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingot.lowering.dependence import all_steps, local_buffers
from ingot.lowering.dtypes import BYTES
from ingot.lowering.index_expr import evaluate
from ingot.lowering.loop_ir import Stmt
from ingot.lowering.loop_module import Module
from ingot.targets.cuda.codegen.device_library import DeviceLibrary
from ingot.targets.cuda.codegen.kernel import MAP_WORDS, CudaKernel, map_words
from ingot.targets.cuda.codegen.kernel_rules import KERNELS
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter, StepScratch
from ingot.targets.cuda.codegen.module_emitter import kernel_text
from ingot.targets.cuda.codegen.products.stream_kernel import BARRIER

_HEADER = Path(__file__).with_name("emulator.h")
_FLAGS = ("-std=c++17", "-O1", "-DIG_EMULATED", "-fPIC", "-fvisibility=hidden", "-w", "-ffp-contract=off")
_NUMPY = {"bfloat16": "uint16"}
# Bytes around every buffer that no kernel may write.
_GUARD = 64
_LOCK = threading.Lock()


class KernelContext(ctypes.Structure):
    _fields_ = (
        ("status", ctypes.c_void_p),
        ("site", ctypes.c_int),
        ("seed", ctypes.c_uint64),
        ("draw", ctypes.c_uint64),
    )


@dataclass(frozen=True)
class WrittenStep:
    """The kernels of a step, by name, and the memory that they share."""

    step: Stmt
    kernels: tuple[tuple[str, CudaKernel], ...]
    scratch: StepScratch


def write_kernels(module: Module) -> tuple[str, list[WrittenStep]]:
    """The device text of a module's steps, and their kernels."""
    library = DeviceLibrary()
    steps, text = write_steps(module, library)
    return f"{library.text()}\n{text}", steps


def write_steps(module: Module, library: DeviceLibrary, prefix: str = "k") -> tuple[list[WrittenStep], str]:
    """The kernels of every step that has a writer, steps inside others among them, and their text; names begin with the
    prefix."""
    steps, texts = [], []
    number = 0
    for step in all_steps(module.steps):
        if type(step) not in KERNELS:
            continue
        writer = CudaKernelWriter(module.buffers, library, module.hints)
        made = KERNELS[type(step)](writer, step)
        kernels = (made,) if isinstance(made, CudaKernel) else tuple(made)
        named = []
        for kernel in kernels:
            name = f"{prefix}{number}"
            number += 1
            named.append((name, kernel))
            texts.append(kernel_text(name, kernel))
        steps.append(WrittenStep(step, tuple(named), writer.scratch))
    return steps, "\n".join(texts)


def build_text(text: str, folder: Path | None = None) -> ctypes.CDLL:
    """The device text as a library for this machine, loaded."""
    return ctypes.CDLL(str(build_library(text, folder)))


def build_library(text: str, folder: Path | None = None) -> Path:
    """The device text as a library for this machine."""
    whole = f'#include "{_HEADER.name}"\n{text}'
    name = hashlib.sha256(whole.encode() + _HEADER.read_bytes()).hexdigest()[:20]
    folder = folder or Path(tempfile.gettempdir()) / "ingot-cuda-emulation"
    folder.mkdir(exist_ok=True)
    library = folder / f"{name}.so"
    with _LOCK:  # two images of one text are asked for at the same time
        if not library.exists():
            with tempfile.TemporaryDirectory(dir=folder) as own:  # other processes may write the same one
                source, made = Path(own, "device.cpp"), Path(own, "device.so")
                source.write_text(whole)
                _compile("-shared", f"-I{_precompile_header(folder)}", "-o", made, source)
                made.rename(library)
    return library


def _precompile_header(folder: Path) -> Path:
    """A folder with the header as g++ has read it: half of the time of a small kernel is that of the header."""
    name = hashlib.sha256(f"{_FLAGS} {_find_version()}".encode() + _HEADER.read_bytes()).hexdigest()[:20]
    place = folder / f"header-{name}"
    if not place.exists():
        with tempfile.TemporaryDirectory(dir=folder) as own:
            made = Path(own, "header")
            made.mkdir()
            (made / _HEADER.name).write_bytes(_HEADER.read_bytes())  # where a compiler has no use for the other file
            _compile("-x", "c++-header", "-o", made / f"{_HEADER.name}.gch", made / _HEADER.name)
            with contextlib.suppress(OSError):  # another process was faster
                made.rename(place)
    return place


def _compile(*arguments: str | Path) -> None:
    done = subprocess.run(["g++", *_FLAGS, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]


@functools.cache
def _find_version() -> str:
    return subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True).stdout


class GuardedMemory:
    """An array with bytes around it that must keep their value."""

    def __init__(self, size: int, shift: int = 0) -> None:
        self.bytes: NDArray[np.uint8] = np.full(size + 2 * _GUARD + 256 + shift, 0xA5, np.uint8)
        self.begin = -(-(self.bytes.ctypes.data + _GUARD) // 256) * 256 - self.bytes.ctypes.data + shift
        self.size = size

    @property
    def view(self) -> NDArray[np.uint8]:
        return self.bytes[self.begin : self.begin + self.size]

    @property
    def address(self) -> int:
        return int(self.bytes.ctypes.data) + self.begin

    def check(self, name: str) -> None:
        before, after = self.bytes[: self.begin], self.bytes[self.begin + self.size :]
        assert (before == 0xA5).all() and (after == 0xA5).all(), f"a kernel wrote outside {name}"


def run_module(
    module: Module,
    values: Mapping[str, NDArray[Any]],
    sizes: Mapping[str, int] | None = None,
    *,
    seed: int = 0,
    draw: int = 0,
    shift: int = 0,
) -> dict[str, NDArray[Any]]:
    """All buffers of the module after its steps. `values` has inputs, weights and state by buffer, bfloat16 as uint16;
    they begin `shift` bytes behind a multiple of 256.
    Raises RuntimeError with the status word where a kernel reports a fault."""
    from tests.support.cuda_emulation.emulated_model import EmulatedInterpreter  # which uses this module

    text, steps = write_kernels(module)
    run = EmulatedInterpreter(module, {}, build_text(text), steps, seed=seed, first_draw=draw)
    run.sizes.update(sizes or {})
    run.memory.shift = shift
    for name, value in values.items():
        run.memory.assign(name, value)
    run.run_steps(module.steps)
    local = {name for step in all_steps(module.steps) for name in local_buffers(step)}
    return {
        name: run.memory.array(name).view(_NUMPY.get(buffer.dtype, buffer.dtype))
        for name, buffer in module.buffers.items()
        if name not in local
    }


def run_step(
    library: ctypes.CDLL,
    written: WrittenStep,
    memory: Mapping[str, GuardedMemory],
    known: Mapping[str, int],
    context: KernelContext,
) -> None:
    scratch = GuardedMemory(evaluate(written.scratch.size, known))
    barrier = GuardedMemory(4)
    for name, kernel in written.kernels:
        grid = [evaluate(one, known) for one in (kernel.grid.x, kernel.grid.y, kernel.grid.z)]
        if not all(grid):
            continue

        def find(buffer: str, inside: StepScratch = written.scratch, own: GuardedMemory = scratch) -> int:
            if buffer == BARRIER:
                return barrier.address
            offset = inside.offsets.get(buffer)
            return memory[buffer].address if offset is None else own.address + evaluate(offset, known)

        arguments: list[Any] = []
        for made in kernel.maps:
            begin = find(made.buffer) + evaluate(made.offset, known) * BYTES[made.dtype]
            words = [begin, *(evaluate(size, known) for size in map_words(made))]
            arguments.append((ctypes.c_uint64 * MAP_WORDS)(*words))
        if kernel.table:
            addresses = [find(buffer) for layer in kernel.table for buffer in layer]
            arguments.append((ctypes.c_uint64 * len(addresses))(*addresses))
        arguments += [ctypes.c_void_p(find(buffer)) for buffer in kernel.buffers]
        arguments += [ctypes.c_int64(known[size]) for size in kernel.sizes]
        arguments.append(context)
        pointers = (ctypes.c_void_p * len(arguments))(*[ctypes.addressof(one) for one in arguments])
        blocks = (ctypes.c_uint * 3)(*grid)
        shared = evaluate(kernel.shared, known)
        assert kernel.block <= 1024 and shared <= 227 << 10, f"{name}: {kernel.block} threads, {shared} bytes"
        getattr(library, f"{name}__entry")(pointers, blocks, kernel.block, ctypes.c_size_t(shared))
        scratch.check("the step's scratch")


def check_cubin(text: str, architectures: Sequence[str] = ("sm_80", "sm_90a")) -> dict[str, bytes]:
    """The text compiled by NVRTC for each architecture. Raises CompileError."""
    from ingot.targets.cuda.build.nvrtc import compile_text

    return {architecture: compile_text(text, architecture) for architecture in architectures}
