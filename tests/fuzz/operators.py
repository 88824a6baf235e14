"""Random programs of operators: chains on inputs of random dtype, shape and layout, compared with eager.

    python -m tests.fuzz operators --count 1000

A program is as in `tests.support.random_programs.programs`, in the language of `grammars.operators_language`. Integers,
bools and exact must be eager's bits; other floats may be four times as far from float64 as eager is. One program in
twelve ends with a call that eager refuses, and must be refused.
"""

from __future__ import annotations

import re
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch

import ingot
from ingot.errors import IngotError
from tests.fuzz.grammars.operators_language import LANGUAGE, add_illegal_call
from tests.fuzz.networks_native import Part, call, compile_parts, lower_part
from tests.fuzz.verdict import Verdict
from tests.support.random_programs.differential import Batch, complain, dynamic_shapes, shorten, sizes_of
from tests.support.random_programs.programs import Program
from tests.support.random_programs.programs import make as make_program

# Programs that share a C file. Every second file is optimized: gcc is then a third of the time, and wrong casts and
# contractions of products show.
GROUP = 64


def make(seed: int) -> Program:
    """One in four programs has a dynamic size."""
    drawn = torch.Generator().manual_seed(seed)
    count = 4 + int(torch.randint(6, (), generator=drawn))
    numbers = torch.randint(2**60, (count,), generator=drawn).tolist()
    program = make_program(numbers, dynamic=seed % 4 == 0, language=LANGUAGE)
    if seed % 12 == 5:
        add_illegal_call(program, numbers[0])
    return program


def check(seeds: list[int]) -> Iterator[tuple[int, Verdict]]:
    """Captures and lowers programs one by one, and compiles many to a C file."""
    torch.set_num_threads(1)
    for number, start in enumerate(range(0, len(seeds), GROUP)):
        waiting: list[tuple[int, Program, Part]] = []
        for seed in seeds[start : start + GROUP]:
            program = make(seed)
            made = _lower(program)
            if isinstance(made, Verdict):
                yield seed, made
            else:
                waiting.append((seed, program, made))
        with tempfile.TemporaryDirectory() as folder:
            compile_parts([part for _, _, part in waiting], Path(folder), optimize=number % 2 == 0)
        for seed, program, part in waiting:
            yield seed, _judge(program, part)


def _lower(program: Program) -> Part | Verdict:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            captured = ingot.capture(Batch([program]), ([program.inputs()],), dynamic_shapes=dynamic_shapes([program]))
            if program.refusal:
                return Verdict("wrong", f"captured, but eager raises {program.refusal}\n{program}")
            return lower_part(captured, "float32", ())
    except IngotError as error:
        return Verdict("right") if program.refusal else Verdict("refused", _group(error))
    except Exception as error:
        return Verdict("wrong", f"{type(error).__name__}: {error}\n{program}")


def _judge(program: Program, part: Part) -> Verdict:
    if part.error:
        return Verdict("wrong", f"the C compiler: {part.error}\n{program}")
    for size in sizes_of([program]):
        given = program.inputs(size)
        try:
            # One that is written to is contiguous.
            ours = call(part, held := [x.contiguous() for x in given], 1)
        except RuntimeError as error:
            return Verdict("wrong", f"{error} at size {size}\n{program}")
        complaint = complain(program, size, ours, held)
        if complaint:
            return Verdict("wrong", f"{complaint} at size {size}\n{shorten(program, size)}")
    return Verdict("right")


def _group(error: Exception) -> str:
    """The class, the reason without numbers and names, and the operators."""
    lines = str(error).splitlines()
    operators = sorted({m for line in lines for m in re.findall(r"aten\.[\w.]+", line)})
    first = re.sub(r"\d+|\bd\d+\b|\"[^\"]*\"|'[^']*'", "…", lines[0] if lines else "")
    return f"{type(error).__name__}: {first}" + (f" {', '.join(operators)}" if operators else "")
