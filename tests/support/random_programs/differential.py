"""Programs against torch: many in one C file, each compared with eager at float64, the culprit shown alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import nn

from ingot.artifacts.compiled_model import CompiledModel
from ingot.errors import CaptureError, UnsupportedOperator
from tests.support.pipeline_fixtures import build, lowered
from tests.support.random_programs.programs import EXAMPLES, Program, widened

# Units in the last place, of the least precise dtype on the way, that no eager run may be asked to beat.
ULPS = 16
# What a compiler may answer to a program that it cannot take. Torch's own tracing refuses some, too.
REFUSALS = (UnsupportedOperator, CaptureError)


class Batch(nn.Module):
    """Several programs as one model: a list of inputs each, a list of outputs each."""

    def __init__(self, programs: Sequence[Program]) -> None:
        super().__init__()
        self.programs = programs
        self.counts = [len(p.constants) for p in programs]
        for number, program in enumerate(programs):
            for place, constant in enumerate(program.constants):
                self.register_buffer(f"c{number}_{place}", constant)

    def forward(self, inputs: list[list[torch.Tensor]]) -> list[list[torch.Tensor]]:
        results = []
        for number, (program, given) in enumerate(zip(self.programs, inputs, strict=True)):
            constants = [getattr(self, f"c{number}_{place}") for place in range(self.counts[number])]
            results.append(program.run(given, constants=constants))
        return results


@dataclass
class Verdict:
    """How many programs were right, and the texts of those that were refused or wrong."""

    right: int
    refused: list[str]
    wrong: list[str]


def dynamic_shapes(programs: Sequence[Program]) -> dict[str, object] | None:
    if not any(p.dynamic for p in programs):
        return None
    low, high = programs[0].tongue.bounds
    dims = [torch.export.Dim(f"d{number}", min=low, max=high) for number in range(len(programs))]
    return {
        "inputs": [
            [{d: dim for d, size in enumerate(source.shape) if size is None} for source in program.sources]
            for program, dim in zip(programs, dims, strict=True)
        ]
    }


def try_all(programs: Sequence[Program]) -> Verdict:
    """Compiles the programs together and compares each; ones that cannot be compiled are set aside first."""
    verdict = Verdict(0, [], [])
    kept = list(programs)
    try:
        compiled: CompiledModel | None = _compiled(kept)
    except Exception:  # one of them is refused, or makes the compiler itself fail: which?
        kept = [p for p in programs if _compilable(p, verdict)]
        compiled = _compiled(kept) if kept else None
    if compiled is None:
        return verdict
    try:
        for size in sizes_of(kept):
            for number, complaint in complaints(compiled, kept, size):
                verdict.wrong.append(f"{complaint} at size {size}\n{shorten(kept[number], size)}")
    finally:
        compiled.close()
    verdict.right = len(programs) - len(verdict.refused) - len(verdict.wrong)
    return verdict


def sizes_of(programs: Sequence[Program]) -> tuple[int, ...]:
    return programs[0].tongue.examples if any(p.dynamic for p in programs) else EXAMPLES[:1]


def _compiled(programs: Sequence[Program]) -> CompiledModel:
    example = [p.inputs() for p in programs]
    return build(Batch(programs), (example,), dynamic_shapes=dynamic_shapes(programs))


def _compilable(program: Program, verdict: Verdict) -> bool:
    try:
        lowered(Batch([program]), ([program.inputs()],), dynamic_shapes=dynamic_shapes([program]))
    except REFUSALS as error:
        verdict.refused.append(f"{error}\n{program}")
        return False
    except Exception as error:
        verdict.wrong.append(f"the compiler fails: {type(error).__name__}: {error}\n{program}")
        return False
    return True


def complaints(compiled: CompiledModel, programs: Sequence[Program], size: int) -> Iterator[tuple[int, str]]:
    """The numbers of programs whose results are not what they should be, each with why."""
    given = [p.inputs(size) for p in programs]
    ours = compiled(given)
    for number, program in enumerate(programs):
        complaint = complain(program, size, ours[number], given[number])
        if complaint:
            yield number, complaint


def complain(program: Program, size: int, ours: Sequence[torch.Tensor], given: Sequence[torch.Tensor]) -> str:
    """Why these results are not what they should be, or nothing; `given` is what the call left of its arguments."""
    mutated = program.inputs(size)
    narrow = program.run(mutated, eager=True, everything=True)
    with default_dtype(torch.float64):
        wide_inputs = [widened(x) for x in program.inputs(size)]
        wide = program.run(wide_inputs, eager=True, wide=True, everything=True)
    eager = [narrow[o] for o in program.outputs]
    exact = [wide[o] for o in program.outputs]
    if any(step.op.startswith("mutate") for step in program.steps):
        ours = [*ours, *given]
        eager = [*eager, *mutated]
        exact = [*exact, *wide[: len(mutated)]]
    reach = _reach(narrow, wide)
    for place, (a, b, c) in enumerate(zip(ours, eager, exact, strict=True)):
        complaint = compare(a, b, c, reach)
        if not complaint and program.exact and place < len(program.outputs) and program.exact[program.outputs[place]]:
            complaint = compare_bits(a, b)
        if complaint:
            return f"result {place}: {complaint}"
    return ""


def _reach(narrow: Sequence[torch.Tensor], wide: Sequence[torch.Tensor]) -> float:
    """The rounding error that correct operations may have: that of the coarsest dtype, at the largest value."""
    coarsest = max((torch.finfo(v.dtype).eps for v in narrow if v.is_floating_point()), default=0.0)
    largest = 1.0
    for value in wide:
        finite = value[value.isfinite()] if value.is_floating_point() else value
        if finite.numel():
            largest = max(largest, float(finite.double().abs().max()))
    return ULPS * coarsest * largest


def compare(ours: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, reach: float) -> str:
    """Why a result is wrong, or nothing: integers equal, floats as near to float64 as eager is, four times."""
    if ours.dtype != eager.dtype or ours.shape != eager.shape:
        return f"{ours.dtype}{list(ours.shape)}, and eager {eager.dtype}{list(eager.shape)}"
    if not ours.is_floating_point():
        different = int((ours != eager).sum())
        return (
            f"{different} of {ours.numel()} differ: {ours.flatten()[:8]}, eager {eager.flatten()[:8]}"
            if different
            else ""
        )
    # Eager's own vectorized functions are not always right there: gelu(inf) is nan in float32, and inf in float64.
    kinds = [_kind(ours), _kind(eager), _kind(exact)]
    strange = (kinds[0] != kinds[1]) & (kinds[0] != kinds[2])
    if strange.any():
        return (
            f"nan or inf at other places: {ours[strange][:8]}, eager {eager[strange][:8]}, exact {exact[strange][:8]}"
        )
    finite = ours.isfinite() & eager.isfinite() & exact.isfinite()
    mine = (ours.double() - exact)[finite].abs()
    theirs = (eager.double() - exact)[finite].abs()
    if not mine.numel() or float(mine.max()) <= 4 * float(theirs.max()) + reach:
        return ""
    return f"off by {float(mine.max()):.3g}, eager by {float(theirs.max()):.3g}, allowed beside that {reach:.3g}"


def compare_bits(ours: torch.Tensor, eager: torch.Tensor) -> str:
    """Why a result that must be eager's is not: a half that differs, a zero of another sign."""
    if not ours.is_floating_point():
        return ""
    zeros = (ours == 0) & (eager == 0) & (ours.signbit() != eager.signbit())
    if zeros.any():
        return f"{int(zeros.sum())} zeros of {zeros.numel()} have another sign"
    different = (ours != eager) & ~(ours.isnan() & eager.isnan())
    if ours.dtype in (torch.bfloat16, torch.float16) and different.any():
        return f"{int(different.sum())} of {ours.numel()} differ: {ours[different][:4]}, eager {eager[different][:4]}"
    return ""


def _kind(x: torch.Tensor) -> torch.Tensor:
    """0 finite, 1 nan, 2 inf, 3 -inf."""
    return x.isnan() * 1 + x.isposinf() * 2 + x.isneginf() * 3


def shorten(program: Program, size: int) -> str:
    """The shortest beginning of the program that is wrong when it is compiled alone."""
    for length in range(1, len(program.steps) + 1):
        last = len(program.sources) + length - 1
        part = replace(program, steps=program.steps[:length], outputs=[last])
        compiled = _compiled([part])
        found = list(complaints(compiled, [part], size))
        compiled.close()
        if found:
            return f"already {found[0][1]} in\n{part}"
    return f"only as a whole:\n{program}"


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
