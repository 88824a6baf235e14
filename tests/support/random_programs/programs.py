"""Random programs: a list of numbers decides what is done to which value, so that any list is a program.

    program = make([17, 4, 99], dynamic=False)
    program.run(program.inputs(0), eager=True)     what torch gives
    str(program)                                   readable, one line per step

Every step is tried in torch first, at four sizes where sizes are dynamic; one that torch refuses is left out. A value
is *exact* where every correct implementation gives the same bits; whatever would turn a rounding error into another
integer is asked of exact values only. Integers and bools are therefore exact always.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tests.support.random_programs.operations import OPS, Op

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
DTYPES = (torch.float32, torch.float32, torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64,
          torch.int32, torch.uint8, torch.bool)  # fmt: skip
# Beyond these a half overflows, and how far a sum of rounding errors reaches is no longer known.
LARGEST = {torch.float16: 500.0, torch.bfloat16: 1e5, torch.float32: 1e6, torch.float64: 1e6}
SIZES = (0, 1, 1, 2, 3, 3, 5, 7, 17, 49, 67)
# The bounds of a dynamic size, and the sizes that every step must accept: the first is the one it is captured at.
BOUNDS = (2, 29)
EXAMPLES = (11, 3, *BOUNDS)
MOST = 3000


class Choices:
    """Decisions drawn from one number, mixed so that neighbours decide otherwise."""

    def __init__(self, number: int) -> None:
        self._random = random.Random(number * 0x9E3779B97F4A7C15)

    def below(self, count: int) -> int:
        return self._random.randrange(count)

    def pick(self, items: Sequence[Any]) -> Any:
        return items[self.below(len(items))]

    def recent(self, items: Sequence[Any]) -> Any:
        """The last with a chance of one half, the one before with a quarter, …"""
        place = len(items) - 1
        while place > 0 and self.below(2):
            place -= 1
        return items[place]


@dataclass(frozen=True)
class Step:
    op: str
    operands: tuple[int, ...]
    arguments: tuple[Any, ...]
    constants: tuple[int, ...] = ()

    def __str__(self) -> str:
        parts = [f"v{o}" for o in self.operands]
        parts += [f"c{c}" for c in self.constants] + [str(a) for a in self.arguments]
        return f"{self.op}({', '.join(parts)})"


@dataclass(frozen=True)
class Source:
    """How an input is made: dims as sizes, or None for the dynamic one."""

    shape: tuple[int | None, ...]
    dtype: torch.dtype
    layout: str  # "dense", "transposed", "sliced", "expanded"
    special: bool
    seed: int
    values: tuple[float, ...] = ()  # that stand here and there among the others

    def make(self, size: int) -> torch.Tensor:
        shape = tuple(size if s is None else s for s in self.shape)
        if self.layout == "transposed":
            return self._fill(tuple(reversed(shape))).permute(*reversed(range(len(shape))))
        if self.layout == "sliced":
            return self._fill((*shape[:-1], 2 * shape[-1] + 1))[..., 1::2]
        if self.layout == "expanded":
            return self._fill((1, *shape[1:])).expand(shape)
        return self._fill(shape)

    def _fill(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Eighths between -4 and 4, so that every dtype holds them exactly; ints likewise small."""
        made = self._draw(shape)
        flat = made.reshape(-1)
        for number, value in enumerate(self.values if flat.numel() else ()):
            flat[(self.seed * (number + 5) + 11 * number) % flat.numel()] = value
        return flat.reshape(shape)

    def _draw(self, shape: tuple[int, ...]) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        whole = torch.randint(-32, 33, shape, generator=generator)
        if self.dtype is torch.bool:
            return whole > 0
        if self.dtype is torch.uint8:
            return (whole + 32).to(self.dtype)
        if not self.dtype.is_floating_point:
            return whole.to(self.dtype)
        made = (whole / 8).to(self.dtype)
        if self.special and made.numel():
            flat = made.reshape(-1)
            for number, value in enumerate((float("nan"), float("inf"), -float("inf"), -0.0)):
                flat[(self.seed * (number + 3) + 7 * number) % flat.numel()] = value
            made = flat.reshape(shape)
        return made

    def __str__(self) -> str:
        dims = ", ".join("s" if s is None else str(s) for s in self.shape)
        values = f" with {', '.join(map(repr, self.values))}" if self.values else ""
        return f"{str(self.dtype)[6:]}[{dims}] {self.layout}{' with nan and inf' if self.special else ''}{values}"


@dataclass(frozen=True)
class Language:
    """What programs are made of: operators by name, as often as they are to be chosen, how inputs are made, the sizes
    that a dynamic dim has, and the largest int64."""

    ops: dict[str, Op]
    names: Sequence[str]
    source: Callable[[Choices, bool], Source]
    examples: tuple[int, ...] = EXAMPLES
    largest: int = 2**40

    @property
    def bounds(self) -> tuple[int, int]:
        return min(self.examples), max(self.examples)


@dataclass
class Program:
    sources: list[Source]
    steps: list[Step] = field(default_factory=list)
    constants: list[torch.Tensor] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    language: Language | None = None  # None: the usual one
    exact: list[bool] = field(default_factory=list)  # of each value, whether every correct one has the same bits
    refusal: str = ""  # what eager raises at the last step

    @property
    def tongue(self) -> Language:
        return self.language or USUAL

    def inputs(self, size: int = EXAMPLES[0]) -> list[torch.Tensor]:
        return [source.make(size) for source in self.sources]

    @property
    def dynamic(self) -> bool:
        return any(None in source.shape for source in self.sources)

    def run(
        self,
        inputs: Sequence[torch.Tensor],
        *,
        eager: bool = False,
        wide: bool = False,
        constants: Sequence[torch.Tensor] | None = None,
        everything: bool = False,
    ) -> list[torch.Tensor]:
        """The outputs, or every value. `wide` computes all floats in float64, constants and casts too."""
        constants = self.constants if constants is None else constants
        if wide:
            constants = [widened(c) for c in constants]
        values = [widened(x) for x in inputs] if wide else list(inputs)
        for step in self.steps:
            arguments = [torch.float64 if wide and a in FLOATS else a for a in step.arguments]
            op = self.tongue.ops[step.op]
            function = op.eager if eager and op.eager is not None else op.function
            if wide and op.meaning is not None:
                function = op.meaning
            values.append(function(*(values[o] for o in step.operands), *(constants[c] for c in step.constants),
                                   *arguments))  # fmt: skip
        return values if everything else [values[o] for o in self.outputs]

    def __str__(self) -> str:
        lines = [f"v{number} = {source}" for number, source in enumerate(self.sources)]
        lines += [f"v{len(self.sources) + number} = {step}" for number, step in enumerate(self.steps)]
        return "\n".join([*lines, "return " + ", ".join(f"v{o}" for o in self.outputs)])


def widened(x: torch.Tensor) -> torch.Tensor:
    return x.double() if x.is_floating_point() else x.clone()


def make(numbers: Sequence[int], *, dynamic: bool = False, language: Language | None = None) -> Program:
    """The program that the numbers decide: the first its inputs, each other one a step."""
    choices = Choices(numbers[0])
    source = (language or USUAL).source
    program = Program([source(choices, dynamic) for _ in range(1 + choices.below(3))], language=language)
    sizes = program.tongue.examples if dynamic else EXAMPLES[:1]
    exact = program.exact
    exact += [True] * len(program.sources)
    samples = [program.inputs(size) for size in sizes]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for place, number in enumerate(numbers[1:]):
            choices = Choices(number)
            for _ in range(6):
                if _extend(program, choices, samples, exact, first=place == 0):
                    break
    made = len(program.steps)
    if made:
        last = len(program.sources) + made - 1
        program.outputs = sorted({last, Choices(numbers[-1]).recent(range(len(program.sources), last + 1))})
    else:
        program.outputs = [0]
    return program


def _source(choices: Choices, dynamic: bool) -> Source:
    rank = 1 + choices.below(3) if dynamic else choices.pick((0, 1, 2, 2, 3, 3, 4))
    dims: list[int | None] = []
    for _ in range(rank):
        limit = [s for s in SIZES if s * _product(dims) <= MOST // 4]
        dims.append(choices.pick([s for s in limit if s > 0 or not dynamic]))
    if dynamic:
        dims = [min(d or 1, 7) for d in dims]
        dims[choices.below(rank)] = None
    dtype = choices.pick(DTYPES)
    layouts = ["dense", "dense"]
    if rank >= 2:
        layouts.append("transposed")
    if rank >= 1 and not dynamic:
        layouts += ["sliced", "expanded"]
    special = dtype.is_floating_point and choices.below(5) == 0
    return Source(tuple(dims), dtype, choices.pick(layouts), special, choices.below(1000))


def _product(dims: Sequence[int | None]) -> int:
    total = 1
    for size in dims:
        total *= max(EXAMPLES) if size is None else max(size, 1)
    return total


def _extend(
    program: Program, choices: Choices, samples: list[list[torch.Tensor]], exact: list[bool], first: bool
) -> bool:
    """Tries one step; whether torch took it and its result is tame."""
    name = choices.pick(program.tongue.names)
    op = program.tongue.ops[name]
    if op.mutates and not first:
        return False
    operands = _operands(op, choices, samples, exact)
    if operands is None:
        return False
    places = tuple(operands)
    arguments, wanted = op.arguments(choices, [samples[0][o] for o in places])
    constants = [_constant(choices, shape, dtype, high) for shape, dtype, high in wanted]
    before = len(program.constants)
    step = Step(name, places, tuple(arguments), tuple(range(before, before + len(constants))))
    results = []
    try:
        for values in samples:
            given = [values[o].clone() if op.mutates else values[o] for o in places]
            results.append((op.eager or op.function)(*given, *constants, *step.arguments))
    except Exception:  # whatever torch does not take is not part of the language
        return False
    if any(isinstance(r, torch.Tensor) and r.dim() != results[0].dim() for r in results):
        return False  # no graph has a rank that depends on a size
    largest = program.tongue.largest
    if not all(_tame(result, [v[o] for o in places], largest) for result, v in zip(results, samples, strict=True)):
        return False
    if op.mutates:
        for values in samples:
            (op.eager or op.function)(*(values[o] for o in places), *constants, *step.arguments)
    program.constants += constants
    program.steps.append(step)
    whole = not results[0].is_floating_point()
    kept = (
        op.exact not in ("never", "needs, rounds")
        and all(exact[o] for o in places)
        and not any(c.is_floating_point() for c in constants)
    )
    if op.exact == "rounds":  # correctly; but wider floats may be computed as one with the operator before
        kept = kept and results[0].dtype in (torch.bfloat16, torch.float16)
    exact.append(whole or kept)
    if op.mutates:
        exact[places[0]] = exact[-1]
    for values, result in zip(samples, results, strict=True):
        values.append(result)
    return True


def _operands(op: Op, choices: Choices, samples: list[list[torch.Tensor]], exact: list[bool]) -> list[int] | None:
    values = samples[0]
    chosen: list[int] = []
    for want in op.operands:
        fits = [
            n
            for n, v in enumerate(values)
            if WANTED[want](v) and (not op.exact.startswith("needs") or (exact[n] and v.isfinite().all()))
        ]
        if op.mutates:
            fits = [n for n in fits if n < 3 and values[n].is_contiguous() and values[n].numel()]
        if not fits:
            return None
        chosen.append(choices.recent(fits))
    return chosen


WANTED: dict[str, Callable[[torch.Tensor], bool]] = {
    "any": lambda v: True,
    "float": lambda v: v.is_floating_point(),
    "number": lambda v: v.dtype is not torch.bool,
    "whole": lambda v: not v.is_floating_point(),
    "int": lambda v: not v.is_floating_point() and v.dtype is not torch.bool,
    "bool": lambda v: v.dtype is torch.bool,
}


def _constant(choices: Choices, shape: Sequence[int], dtype: torch.dtype, high: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(choices.below(1000))
    if dtype.is_floating_point:
        return (torch.randint(-8, 9, tuple(shape), generator=generator) / 8).to(dtype)
    return torch.randint(-high, max(high, 1), tuple(shape), generator=generator).to(dtype)


def _tame(result: Any, operands: Sequence[torch.Tensor], largest: int) -> bool:
    """Small enough to go on with, and no infinity that was not there before."""
    if not isinstance(result, torch.Tensor) or result.numel() > MOST or result.dim() > 5:
        return False
    if result.dtype in LARGEST:
        finite = result[result.isfinite()]
        if finite.numel() and finite.abs().max() > LARGEST[result.dtype]:
            return False
        if not result.isfinite().all() and all(o.isfinite().all() for o in operands if o.is_floating_point()):
            return False
    elif result.dtype is torch.int64 and result.numel() and int(result.abs().max()) > largest:
        return False
    return True


USUAL = Language(OPS, sorted(OPS), _source)
