"""Compiles and runs many small programs at once: they share one C file, and a crash is attributed to the right one.

    for case, outcome in run(cases(...)): ...

An Outcome is passed, refused (a named error of Ingot says why), wrong (a number is), or crashed (anything else).
"""

from __future__ import annotations

import ctypes
import itertools
import os
import pickle
import re
import signal
import subprocess
import tempfile
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

import ingot
from ingot.codegen.build.isa import host
from ingot.codegen.entry_points import DTYPES
from ingot.compiler import run_cpu_pipeline
from ingot.ir.program import Program
from ingot.lowering.loop_module import Module
from ingot.scheduling.buffer_planning import plan
from ingot.targets.cpu.codegen import module_emitter as c_file
from ingot.targets.cpu.codegen.runtime_library import RuntimeLibrary
from ingot.targets.cpu.target import CPU
from ingot_runtime.native.native_library import NativeTensor
from tests.support.operator_samples.core_aten import outside
from tests.support.operator_samples.samples import Case, Expectation, expectation, fresh, judge

BATCH = 256
# As models are compiled, but for -O3: what the optimizer does is its own affair, and takes most of the time. It also
# adds up in vectors, where -Og adds one element after another: what is wrong without it is tried with it.
FLAGS = ("-Og", "-fPIC", "-shared", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off",
         "-fwrapv", "-fno-strict-aliasing", "-w")  # fmt: skip
# Seconds that one program may run.
PATIENCE = 20


class Machine:
    """What runs the samples: this machine."""

    compiler: Sequence[str] = ("gcc", *host().flags)

    def load(self, library: Path) -> Any:
        """Functions by their names, as ctypes calls them."""
        return ctypes.CDLL(str(library))


HERE = Machine()

# What a part of a file defines: functions and tables begin at the first column, and constants are of enums.
_DEFINED = re.compile(r"^[A-Za-z_][\w *]*[ *](\w+)(?=\(|\[)|^enum \{ (\w+)", re.MULTILINE)
_MACRO = re.compile(r"^#define (IG_\w+)", re.MULTILINE)


def join_parts(library: str, parts: Sequence[tuple[str, str]]) -> str:
    """One C file of the text that all share and of parts, each with the prefix that its own names get."""
    texts = [library]
    for prefix, text in parts:
        own = {name for names in _DEFINED.findall(text) for name in names if name}
        words = re.compile(rf"\b(?:{'|'.join(sorted(own))})\b")
        texts.append(words.sub(lambda match, prefix=prefix: f"{prefix}{match[0]}", text))
        texts += [f"#undef {name}" for name in sorted(set(_MACRO.findall(text)))]
    return "\n".join(texts)


@dataclass(frozen=True)
class Outcome:
    """`outside` is what keeps the sample from core ATen, where it was asked (`run`'s `classify`): nothing if empty."""

    kind: str  # passed | refused | wrong | crashed
    reason: str = ""
    outside: tuple[str, ...] = ()


@dataclass
class Part:
    """A case on its way: lowered, and later with the place of its functions in the shared library."""

    case: Case
    expected: Expectation
    program: Program
    module: Module
    source: c_file.CSource
    library: RuntimeLibrary = field(default_factory=RuntimeLibrary)
    prefix: str = ""


def run(
    cases: Iterable[Case],
    *,
    size: int = BATCH,
    flags: Sequence[str] = FLAGS,
    classify: bool = False,
    machine: Machine = HERE,
) -> Iterator[tuple[Case, Outcome]]:
    """Each case with its outcome, in order. Cases that eager refuses are left out."""
    with tempfile.TemporaryDirectory() as folder:
        for number, group in enumerate(
            itertools.batched(cases, size) if hasattr(itertools, "batched") else _batched(cases, size)
        ):
            yield from _run_batch(group, Path(folder) / f"batch{number}", flags, classify, machine)


def _batched(items: Iterable[Case], size: int) -> Iterator[tuple[Case, ...]]:
    iterator = iter(items)
    while group := tuple(itertools.islice(iterator, size)):
        yield group


def _run_batch(
    group: Sequence[Case], path: Path, flags: Sequence[str], classify: bool, machine: Machine
) -> Iterator[tuple[Case, Outcome]]:
    outcomes: dict[int, Outcome] = {}
    parts: dict[int, Part] = {}
    foreign: dict[int, tuple[str, ...]] = {}
    for number, case in enumerate(group):
        expected = expectation(case)
        if expected is None:
            continue
        captured = _captured(case)
        made = _part(case, expected, captured) if isinstance(captured, Program) else captured
        if classify:
            foreign[number] = outside(case, captured if isinstance(captured, Program) else None)
        if isinstance(made, Outcome):
            outcomes[number] = made
        else:
            parts[number] = made
    outcomes |= _compiled(parts, path, flags, machine)
    wrong = {number: part for number, part in parts.items() if outcomes[number].kind == "wrong"}
    if "-Og" in flags:
        harder = ["-O3" if flag == "-Og" else flag for flag in flags]
        outcomes |= _compiled(wrong, path.with_name(f"{path.name}o"), harder, machine)
    for number, case in enumerate(group):
        if number in outcomes:
            yield case, replace(outcomes[number], outside=foreign.get(number, ()))


def _captured(case: Case) -> Program | Outcome:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ingot.capture(case.module, fresh(case))
        except Exception as error:
            return _failure(error)


def _part(case: Case, expected: Expectation, captured: Program) -> Part | Outcome:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = run_cpu_pipeline(captured)
            module = CPU.schedule(CPU.lower(program))
            library = RuntimeLibrary()
            source = c_file.emit_body(module, plan(module), library)
        except Exception as error:
            return _failure(error)
    if module.draws:  # its own random numbers, not torch's: only their type can be compared
        expected = Expectation(expected.own, expected.exact, True)
    return Part(case, expected, program, module, source, library)


def _failure(error: Exception) -> Outcome:
    if isinstance(error, ingot.IngotError):
        return Outcome("refused", f"{type(error).__name__}: {error}")
    return Outcome("crashed", f"compiling: {type(error).__name__}: {error}\n{traceback.format_exc(limit=-6)}")


def _compiled(parts: dict[int, Part], path: Path, flags: Sequence[str], machine: Machine) -> dict[int, Outcome]:
    if not parts:
        return {}
    shared = RuntimeLibrary()
    for part in parts.values():
        shared.add(part.library)
    prefixes: dict[str, str] = {}  # of each text: samples that differ in their numbers alone share their code
    for number, part in parts.items():
        part.prefix = prefixes.setdefault(part.source.text, f"m{number}_")
    text = join_parts(shared.text(), [(prefix, text) for text, prefix in prefixes.items()])
    source, library = path.with_suffix(".c"), path.with_suffix(".so")
    source.write_text(text)
    done = subprocess.run(
        [*machine.compiler, *flags, str(source), "-o", str(library), "-lpthread", "-Wl,-z,defs"],
        capture_output=True,
        text=True,
    )
    if done.returncode == 0:
        return _run_forked(parts, library, machine)
    if len(parts) == 1:
        (number,) = parts
        return {number: Outcome("crashed", f"the C compiler: {done.stderr[:600]}")}
    # One of them does not compile: halves tell which.
    items = list(parts.items())
    middle = len(items) // 2
    name = path.name
    return {
        **_compiled(dict(items[:middle]), path.with_name(f"{name}a"), flags, machine),
        **_compiled(dict(items[middle:]), path.with_name(f"{name}b"), flags, machine),
    }


def _run_forked(parts: dict[int, Part], library: Path, machine: Machine) -> dict[int, Outcome]:
    """Runs the parts in a child, which says after each how it went; a child that dies took one part with it."""
    outcomes: dict[int, Outcome] = {}
    left = list(parts)
    while left:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            torch.set_num_threads(1)  # torch's own threads did not come along into the child
            status = 1
            try:
                with os.fdopen(writer, "wb") as out:
                    loaded = machine.load(library)
                    for number in left:
                        signal.alarm(PATIENCE)
                        pickle.dump((number, _run_part(loaded, parts[number])), out)
                        out.flush()
                status = 0
            finally:
                os._exit(status)
        os.close(writer)
        with os.fdopen(reader, "rb") as said:
            while left:
                try:
                    number, outcome = pickle.load(said)
                except EOFError:
                    break
                outcomes[number] = outcome
                left.remove(number)
        _, status = os.waitpid(child, 0)
        if left:
            died = os.waitstatus_to_exitcode(status)
            outcomes[left.pop(0)] = Outcome("crashed", f"running: the process ended with {died}")
    return outcomes


# ---------------------------------------------------------------------- one call


def _arguments(tensors: Sequence[torch.Tensor]) -> Any:
    made = (NativeTensor * max(len(tensors), 1))()
    for place, tensor in enumerate(tensors):
        shape = (ctypes.c_int64 * max(tensor.dim(), 1))(*tensor.shape)
        code = DTYPES.index(str(tensor.dtype).removeprefix("torch."))
        made[place] = NativeTensor(tensor.data_ptr(), code, tensor.dim(), shape, None)
    return made


def _run_part(library: Any, part: Part) -> Outcome:
    try:
        complaint = judge(part.case, part.expected, call(library, part))
    except Exception as error:
        return Outcome("wrong", f"running: {error}")
    return Outcome("wrong", complaint) if complaint else Outcome("passed")


def call(library: Any, part: Part) -> list[torch.Tensor]:
    """Opens the model, runs it on the case's inputs, closes it. Raises RuntimeError with the library's message."""
    prefix = part.prefix
    blob = CPU.pack_weights(part.program, part.module, part.source)
    model = ctypes.c_void_p()
    status = library[f"{prefix}ingot_open"](ctypes.c_void_p(blob.array.ctypes.data), 1, ctypes.byref(model))
    assert status == 0, f"open gave {status}"
    inputs = [tensor.contiguous() for tensor in fresh(part.case)]
    given = _arguments(inputs)
    message = ctypes.create_string_buffer(400)
    sizes = (ctypes.c_int64 * max(sum(len(o.shape) for o in part.module.outputs), 1))()
    status = library[f"{prefix}ingot_sizes"](model, given, sizes, message, ctypes.c_size_t(400))
    if status:
        raise RuntimeError(f"status {status}: {message.value.decode()}")
    outputs, at = [], 0
    for output in part.module.outputs:
        shape = [sizes[at + d] for d in range(len(output.shape))]
        at += len(shape)
        outputs.append(torch.empty(shape, dtype=getattr(torch, output.dtype)))
    status = library[f"{prefix}ingot_run"](model, given, _arguments(outputs), message, ctypes.c_size_t(400))
    library[f"{prefix}ingot_close"](model)
    if status:
        raise RuntimeError(f"status {status}: {message.value.decode()}")
    return outputs
