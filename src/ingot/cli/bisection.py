"""Bisection: disables optional passes to find the one that makes compiled code wrong.

A program is compiled with the first n of OPTIONAL_PASSES on and the others off. With none it is right, with all it is
wrong; bisection finds the n at which it turns wrong, and the last pass of those n is named.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch

from ingot import compiler
from ingot.errors import CompilerFailed, PassError, ScheduleError, format_error
from ingot.ir import pytree
from ingot.ir.program import Program
from ingot.lowering.loop_module import Precision
from ingot.passes.instrumentation.differential_check import Trial, compare_values, trials


@dataclass(frozen=True, slots=True)
class OutputDifference:
    """The first output that differs from eager, and how; or the error that compiling ends with."""

    output: str
    problem: str

    def __str__(self) -> str:
        return f"{self.output} {self.problem}"


@dataclass(frozen=True, slots=True)
class BisectionResult:
    """`difference` is None where the compiled program is right. `culprit` is None where no optional pass is to blame:
    the result is wrong without any of them too. `alone`: leaving out the culprit alone makes the result right."""

    difference: OutputDifference | None
    culprit: str | None = None
    alone: bool = False
    compilations: int = 1


def bisect(
    program: Program,
    *,
    precision: Precision = "float32",
    threads: int | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> BisectionResult:
    """Compares the compiled program with eager, and finds the pass that makes them differ. `report` is called for each
    attempt. Raises PassError where there is nothing to compare: no example inputs, or random numbers."""
    if program.example_inputs is None:
        raise PassError(format_error("The program has no example inputs to compare results on."))
    samples = list(trials(program))
    count = 0

    def differs(disabled: Collection[str]) -> OutputDifference | None:
        nonlocal count
        count += 1
        found = _difference(program, samples, precision, threads, disabled)
        report(f"without {', '.join(disabled) or 'none'}: {found or 'right'}")
        return found

    names = compiler.OPTIONAL_PASSES
    whole = differs(())
    if whole is None:
        return BisectionResult(None, compilations=count)
    if differs(names) is not None:
        return BisectionResult(whole, compilations=count)
    right, wrong = 0, len(names)  # with so many passes on
    while wrong - right > 1:
        middle = (right + wrong) // 2
        if differs(names[middle:]) is None:
            right = middle
        else:
            wrong = middle
    culprit = names[right]
    return BisectionResult(whole, culprit, differs((culprit,)) is None, count)


def _difference(
    program: Program, samples: list[Trial], precision: Precision, threads: int | None, disabled: Collection[str]
) -> OutputDifference | None:
    try:
        compiled = compiler.compile(program.copy(), threads=threads, precision=precision, disable_passes=disabled)
    except (ScheduleError, CompilerFailed) as error:
        return OutputDifference("compilation", f"fails: {error}")
    try:
        if compiled.draws:
            raise PassError(
                format_error(
                    "Results cannot be compared with eager's.",
                    why="the program draws random numbers, and native code draws others than torch",
                )
            )
        names = [i.name for i in program.signature.user_inputs]
        for sample in samples if not _writes_state(program) else samples[:1]:
            given = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in sample.leaves]
            args, kwargs = pytree.unflatten(given, program.signature.in_tree)
            made, out_tree = pytree.flatten(compiled(*args, **kwargs))
            paths = pytree.leaf_paths(out_tree)
            values = {f"result {pytree.format_path(path)}": value for path, value in zip(paths, made, strict=True)}
            values |= {f"argument {place}": value for place, value in enumerate(given)}
            for name, value in values.items():
                problem = compare_values(sample.own[name], value, False, getattr(torch, precision))
                if problem is not None:
                    shown = f"argument {names[int(name.split()[1])]}" if name.startswith("argument ") else name
                    return OutputDifference(shown, problem)
        return None
    finally:
        compiled.close()


def _writes_state(program: Program) -> bool:
    """Whether one call changes the result of the next."""
    return any("MUTATION" in output.kind.name for output in program.signature.outputs)
