"""Random programs of views, aliases and in-place writes, compared with eager: results, arguments and buffers.

A program is a Python function over two arguments and a buffer. Statements are drawn one by one and run in eager while
they are drawn, so that every program is one that eager accepts.
"""

from __future__ import annotations

import functools
import random
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import ingot
from ingot import passes
from ingot.errors import CompilerFailed, IngotError
from tests.fuzz.grammars import aliasing_statements as statements
from tests.fuzz.verdict import Verdict

BATCH = 8  # programs that share one C file
_VALUES = (1e8, float("inf"), float("nan"), -0.0, 1.0, 2.0, -3.0, 0.5, 7.0, -1e8)
_LAYOUTS = ("plain", "transposed", "sliced", "stepped", "expanded")
_SHAPES = ((3, 4), (4, 3), (2, 3, 4), (6,), (1, 4), (2, 2), (4, 1, 2), ())


@dataclass(frozen=True)
class Tensor:
    """An argument: its values, and how they lie in memory."""

    shape: tuple[int, ...]
    layout: str
    dtype: torch.dtype
    seed: int

    def make(self) -> torch.Tensor:
        rng = random.Random(self.seed)
        count = torch.Size(self.shape).numel()
        exact = [rng.randrange(-4, 5) for _ in range(count)]
        values: Sequence[Any] = [rng.choice(_VALUES) for _ in range(count)] if self.dtype.is_floating_point else exact
        x = torch.tensor(values, dtype=self.dtype).reshape(self.shape)
        if self.layout == "transposed" and x.dim() > 1:
            return x.transpose(0, -1).contiguous().transpose(0, -1)
        if self.layout == "sliced" and x.dim():
            return torch.cat([x, x, x])[x.shape[0] : 2 * x.shape[0]]
        if self.layout == "stepped" and x.dim():
            return torch.stack([x, x], -1).flatten(-2)[..., ::2].copy_(x)
        if self.layout == "expanded" and x.dim():
            return x[:1].expand(x.shape)
        return x


@dataclass
class Program:
    arguments: list[Tensor]
    buffer: Tensor
    lines: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        names = ", ".join(f"v{i}" for i in range(len(self.arguments)))
        given = "\n".join(
            f"# {n}: {a}" for n, a in zip([*names.split(", "), "b"], [*self.arguments, self.buffer], strict=True)
        )
        body = "\n".join(f"    {line}" for text in self.lines for line in text.split("\n"))
        return f"{given}\ndef forward(b, {names}):\n{body}\n"


def make(seed: int) -> Program:
    """The program of a seed."""
    rng = random.Random(seed)
    dtypes = [torch.float32] * 5 + [torch.int64, torch.float64]
    tensors = [
        Tensor(rng.choice(_SHAPES), rng.choice(_LAYOUTS), rng.choice(dtypes), rng.randrange(2**32)) for _ in range(2)
    ]
    buffer = Tensor(rng.choice(_SHAPES[:3]), "plain", torch.float32, rng.randrange(2**32))
    program = Program(tensors, buffer)
    values = _start(program)
    own: set[str] = set()  # made inside, so that they may change their shape
    wanted = rng.randrange(3, 12)
    for _ in range(6 * wanted):
        if len(program.lines) >= wanted:
            break
        text = statements.draw(rng, values, own)
        before, seen = dict(values), _look(values)
        if text is not None and _run(text, values) and not _writes_shared(program, values):
            program.lines.append(text)
        else:
            values.clear()
            values.update(before)
            if _look(values) != seen:  # it was refused halfway: out= resizes before it warns
                values.clear()
                values.update(_start(program))
                assert all(_run(line, values) for line in program.lines)
    chosen = rng.sample(sorted(values), min(len(values), rng.randrange(1, 5)))
    copies = [name if rng.random() < 0.3 and name not in ("v0", "v1", "b") else f"{name} * 1" for name in chosen]
    program.lines.append(f"return ({', '.join([*copies, 'b * 1'])},)")
    return program


def _start(program: Program) -> dict[str, torch.Tensor]:
    return {f"v{i}": tensor.make() for i, tensor in enumerate(program.arguments)} | {"b": program.buffer.make()}


def _look(values: dict[str, torch.Tensor]) -> list[Any]:
    """What a write, a resize or a view in place changes."""
    return [(v._version, v.shape, v.stride(), v.untyped_storage().nbytes()) for v in values.values()]


def _writes_shared(program: Program, values: dict[str, torch.Tensor]) -> bool:
    """Whether an argument was written whose elements share memory."""
    return any(
        tensor.layout == "expanded" and tensor.shape and values[name]._version
        for name, tensor in zip(("v0", "v1"), program.arguments, strict=True)
    )


def _run(text: str, values: dict[str, torch.Tensor]) -> bool:
    """Runs a statement in eager; says whether it is one that eager accepts."""
    scope = {**_EAGER, **values}
    once = not torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # else a program would depend on those drawn before it in the process
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            exec(text, scope)
    except Exception:
        return False
    finally:
        torch.set_warn_always(not once)
    values.update({k: v for k, v in scope.items() if isinstance(v, torch.Tensor) and re.fullmatch(r"[vb]\d*", k)})
    return all(v.numel() <= 4096 and v.dim() <= 6 for v in values.values())


# ---------------------------------------------------------------------- running


def _eager_cond(pred: torch.Tensor, yes: Any, no: Any, operands: Any) -> Any:
    return (yes if pred else no)(*operands)


def _eager_map(function: Any, xs: torch.Tensor) -> torch.Tensor:
    return torch.stack([function(x) for x in xs])


def _traced_map(function: Any, xs: torch.Tensor) -> torch.Tensor:
    from torch._higher_order_ops.map import map as traced

    return traced(function, xs)


_EAGER: dict[str, Any] = {"torch": torch, "F": F, "cond": _eager_cond, "map_": _eager_map}
_TRACED: dict[str, Any] = {"torch": torch, "F": F, "cond": torch.cond, "map_": _traced_map}


class Model(nn.Module):
    """A program as a module."""

    def __init__(self, program: Program, names: dict[str, Any]) -> None:
        super().__init__()
        self.register_buffer("b", program.buffer.make())
        scope = dict(names)
        exec(str(program), scope)
        self.function = scope["forward"]

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(self.b, *args)


class Models(nn.Module):
    """Several programs as one module; each takes two arguments."""

    def __init__(self, programs: Sequence[Program]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Model(program, _TRACED) for program in programs)

    def forward(self, *args: torch.Tensor) -> Any:
        return [part(*args[2 * place : 2 * place + 2]) for place, part in enumerate(self.parts)]


Observed = list[torch.Tensor]


def expect(program: Program) -> list[Observed]:
    """What eager leaves behind after each of two calls: results, then arguments."""
    return _observe(Model(program, _EAGER), program)


@functools.cache
def clamp_ignores_nan() -> bool:
    """Whether eager takes a limit that is nan for no limit, as torch 2.11 does where there is one limit only.

    Elsewhere, clamp_max and clamp with two limits of 2.11 among it, nan is the result.
    """
    return not torch.ones(1).clamp(max=float("nan")).isnan().any()


def expect_of_native(program: Program, eager: list[Observed]) -> list[Observed]:
    """What native code must leave behind: eager's, without its fault."""
    faulty, right = ".clamp_(max=float('nan'))", ".clamp_max_(float('nan'))"
    if not clamp_ignores_nan() or not any(faulty in line for line in program.lines):
        return eager
    return expect(replace(program, lines=[line.replace(faulty, right) for line in program.lines]))


def _observe(call: Any, program: Program) -> list[Observed]:
    given = [tensor.make() for tensor in program.arguments]
    seen = []
    for _ in range(2):
        results = call(*given)
        seen.append([tensor.clone() for tensor in (*results, *given)])
    return seen


def compare(got: Sequence[Observed], want: Sequence[Observed]) -> str:
    """What differs, or nothing. Numbers are compared bit for bit; one nan is like another."""
    for number, (mine, theirs) in enumerate(zip(got, want, strict=True)):
        for place, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            if a.dtype != b.dtype or a.shape != b.shape:
                return f"value {place} of call {number} is {a.dtype}{list(a.shape)} for {b.dtype}{list(b.shape)}"
            same = (a == b) | ((a != a) & (b != b))
            if a.is_floating_point():
                same &= (a.signbit() == b.signbit()) | (b != b)
            if not bool(same.all()):
                return f"value {place} of call {number} is {a.tolist()} for {b.tolist()}"
    return ""


# ---------------------------------------------------------------------- judging


def check(seeds: list[int]) -> Iterator[tuple[int, Verdict]]:
    """A verdict for each seed: of the captured program, of its functional form, and of native code."""
    for begin in range(0, len(seeds), BATCH):
        waiting: list[tuple[int, Program, list[Observed]]] = []
        for seed in seeds[begin : begin + BATCH]:
            program = make(seed)
            want = expect(program)
            verdict = _judge(program, want)
            if verdict.kind == "right":
                waiting.append((seed, program, expect_of_native(program, want)))
            else:
                yield seed, verdict
        yield from _judge_native(waiting)


def _judge(program: Program, want: Sequence[Observed]) -> Verdict:
    try:
        model = Model(program, _TRACED)
        captured = ingot.capture(model, tuple(tensor.make() for tensor in program.arguments))
        functional = ingot.transform(captured, [passes.functionalize])
        for name, one in (("captured", captured.copy()), ("functional", functional)):
            one.state_dict["b"] = program.buffer.make()
            found = compare(_observe(one, program), want)
            if found:
                return Verdict("wrong", f"{name}: {found}\n{program}")
    except IngotError as error:
        return Verdict("refused", describe(error))
    except Exception as error:
        return Verdict("wrong", f"{type(error).__name__}: {error}\n{program}")
    return Verdict("right")


def _judge_native(waiting: Sequence[tuple[int, Program, list[Observed]]]) -> Iterator[tuple[int, Verdict]]:
    if not waiting:
        return
    programs = [program for _, program, _ in waiting]
    try:
        args = [tensor.make() for program in programs for tensor in program.arguments]
        compiled = ingot.compile(Models(programs), tuple(args), threads=1)
        given = [tensor.make() for program in programs for tensor in program.arguments]
        seen = []
        for _ in range(2):
            results = compiled(*given)
            seen.append(([[t.clone() for t in part] for part in results], [t.clone() for t in given]))
        compiled.close()
    except Exception as error:
        if len(waiting) > 1:
            for one in waiting:
                yield from _judge_native([one])
        elif isinstance(error, IngotError) and not isinstance(error, CompilerFailed):
            yield waiting[0][0], Verdict("refused", describe(error))
        else:
            yield waiting[0][0], Verdict("wrong", f"native: {type(error).__name__}: {error}\n{programs[0]}")
        return
    for place, (seed, program, want) in enumerate(waiting):
        got = [[*results[place], *arguments[2 * place : 2 * place + 2]] for results, arguments in seen]
        found = compare(got, want)
        yield seed, Verdict("wrong", f"native: {found}\n{program}") if found else Verdict("right")


def describe(error: Exception) -> str:
    """An error's class and words, without the names and numbers of this program."""
    words = " ".join(str(error).split("where:")[0].split())
    return f"{type(error).__name__}: {re.sub(r'[^ ]*[0-9][^ ]*', '…', words)[:160]}"
