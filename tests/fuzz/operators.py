"""Random programs of operators: chains on inputs of random dtype, shape and layout, compared with eager.

    python -m tests.fuzz operators 0 1000

A program is as in `tests.native.programs`, in the language of `operators_language`. Integers, bools and what is exact
must be eager's bits; other floats may be four times as far from float64 as eager is.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence

import torch

from ingot.errors import IngotError
from tests.fuzz.operators_language import LANGUAGE
from tests.fuzz.verdict import Verdict
from tests.native.building import build
from tests.native.comparing import Batch, complaints, dynamic_shapes, shorten, sizes_of
from tests.native.programs import Program
from tests.native.programs import make as make_program

# Programs that share a C file.
GROUP = 24
FLAGS = ("-O1", "-w")


def make(seed: int) -> Program:
    """One in four programs has a dynamic size."""
    drawn = torch.Generator().manual_seed(seed)
    count = 4 + int(torch.randint(6, (), generator=drawn))
    numbers = torch.randint(2**60, (count,), generator=drawn).tolist()
    return make_program(numbers, dynamic=seed % 4 == 0, language=LANGUAGE)


def check(seeds: list[int]) -> Iterator[tuple[int, Verdict]]:
    """Compiles many programs as one model, and each alone where one of them does not compile."""
    torch.set_num_threads(1)
    for still in (True, False):
        chosen = [seed for seed in seeds if bool(seed % 4) is still]
        for start in range(0, len(chosen), GROUP):
            group = chosen[start : start + GROUP]
            yield from _judge(group, [make(seed) for seed in group])


def _judge(seeds: Sequence[int], programs: Sequence[Program]) -> Iterator[tuple[int, Verdict]]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled = build(
                Batch(programs),
                ([p.inputs() for p in programs],),
                dynamic_shapes=dynamic_shapes(programs),
                flags=FLAGS,
            )
    except Exception as error:
        if len(seeds) > 1:
            middle = len(seeds) // 2
            yield from _judge(seeds[:middle], programs[:middle])
            yield from _judge(seeds[middle:], programs[middle:])
        elif isinstance(error, IngotError) and type(error).__name__ != "CompilerFailed":
            yield seeds[0], Verdict("refused", _group(error))
        else:
            yield seeds[0], Verdict("wrong", f"{type(error).__name__}: {error}\n{programs[0]}")
        return
    wrong: dict[int, str] = {}
    try:
        for size in sizes_of(programs):
            try:
                for number, complaint in complaints(compiled, programs, size):
                    wrong.setdefault(number, f"{complaint} at size {size}\n{shorten(programs[number], size)}")
            except IngotError as error:
                if len(seeds) == 1:
                    yield seeds[0], Verdict("refused", _group(error))
                    return
                for seed, program in zip(seeds, programs, strict=True):
                    yield from _judge([seed], [program])
                return
    finally:
        compiled.close()
    for number, seed in enumerate(seeds):
        yield seed, Verdict("wrong", wrong[number]) if number in wrong else Verdict("right")


def _group(error: Exception) -> str:
    """The class, the reason without numbers and names, and the operators."""
    lines = str(error).splitlines()
    operators = sorted({m for line in lines for m in re.findall(r"aten\.[\w.]+", line)})
    first = re.sub(r"\d+|\bd\d+\b|\"[^\"]*\"|'[^']*'", "…", lines[0] if lines else "")
    return f"{type(error).__name__}: {first}" + (f" {', '.join(operators)}" if operators else "")
