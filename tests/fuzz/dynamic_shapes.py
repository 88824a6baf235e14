"""Random programs of dynamic-shape arithmetic, captured at one size and run at others.

A program is right if the native code gives what eager gives at the example's sizes, at others, and at all that its dims
and constraints allow, and raises a named error at all other sizes and where eager raises. "narrowed" then names what
excludes sizes that were declared and that eager runs. It is refused if capture or compilation refuses it by name, or a
call does inside the stated range, or at all sizes but the example's. Inputs lie in the midst of poison, so that a
read outside them shows.
"""

from __future__ import annotations

import re
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import ingot
from ingot.ir import symbolic_dims
from tests.fuzz.dynamic_shapes_native import Part, compile_parts, lower_part, run_part
from tests.fuzz.grammars.dynamic_shapes_programs import HEAD, Drawing, Program
from tests.fuzz.verdict import Verdict

BATCH = 64


def make(seed: int) -> Program:
    return Drawing(seed).draw()


class _Model(nn.Module):
    def __init__(self, function: Any, names: Sequence[str]) -> None:
        super().__init__()
        space: dict[str, Any] = {"function": function}
        exec(f"def forward(self, {', '.join(names)}):\n    return function({', '.join(names)})", space)
        self.forward = space["forward"].__get__(self)


def check(seeds: list[int]) -> Iterator[tuple[int, Verdict]]:
    """One verdict for each seed."""
    for start in range(0, len(seeds), BATCH):
        yield from _check_batch(seeds[start : start + BATCH])


def _check_batch(seeds: Sequence[int]) -> Iterator[tuple[int, Verdict]]:
    parts: dict[int, Part] = {}
    programs = {seed: make(seed) for seed in seeds}
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        for seed, program in programs.items():
            found = _lower(program)
            if isinstance(found, Verdict):
                yield seed, found
            else:
                parts[seed] = found
        compile_parts(list(parts.values()), Path(folder))
        for seed, part in parts.items():
            yield seed, judge(programs[seed], part)


def _lower(program: Program) -> Part | Verdict:
    model = _Model(program.function(), list(program.inputs))
    try:
        captured = ingot.capture(model, tuple(program.tensors({})), dynamic_shapes=program.dynamic_shapes())
        return lower_part(captured)
    except ingot.IngotError as error:
        what, _, rest = str(error).partition("\n")
        return Verdict("refused", f"capture: {type(error).__name__}: {_general(what)} ({program.construct(rest)})")
    except Exception as error:
        return Verdict("wrong", f"capture: {type(error).__name__}: {error}\n{program}")


def _general(text: str) -> str:
    """A message without the names and numbers of one program."""
    text = re.sub(r"\(dim \d+ of \w+\)|\b[abnmv]\d?_?\d*\b", "_", text)
    text = re.sub(r"must satisfy .*", "must satisfy …", re.sub(r"holds for .* only", "holds for … only", text))
    return re.sub(r"-?\d+", "#", text)[:110]


def points(program: Program) -> list[dict[str, int]]:
    """Sizes to run at: the example, small ones, the bounds, and one outside each bound."""
    found: list[dict[str, int]] = [{}]
    choices = {}
    for root in program.roots:
        sizes = {root.low, 1, 2, 3, root.example + 1, 2 * root.example + 1, *(range(root.low, root.low + 2))}
        if root.high is not None:
            sizes |= {root.high, root.high + 1}
        if root.low > 0:
            sizes.add(root.low - 1)
        choices[root.name] = sorted(sizes)
        found += [{root.name: size} for size in choices[root.name]]
    if len(program.roots) > 1:
        found += [{root.name: size for root in program.roots} for size in (1, 2, 3, 4, 7)]
    return [dict(items) for items in dict.fromkeys(tuple(sorted(point.items())) for point in found)]


def judge(program: Program, part: Part) -> Verdict:
    if part.error:
        return Verdict("wrong", f"the C compiler: {part.error}\n{program}")
    refused, narrowed, right = "", "", 0
    function = program.function()
    for number, point in enumerate(points(program)):
        sizes = {root.name: point.get(root.name, root.example) for root in program.roots}
        if any(size < 0 for name in program.inputs for size in program.shape(name, sizes)):
            continue
        allowed = all(r.low <= sizes[r.name] and (r.high is None or sizes[r.name] <= r.high) for r in program.roots)
        given = program.tensors(sizes, number)
        try:
            expected = function(*given)
            exact = _run_wide(function, given)
            failure: Exception | None = None
        except Exception as error:
            expected, failure = None, error
        try:
            outcome = run_part(part, given)
        except ingot.IngotError as error:
            outcome = str(error)
        except Exception as error:
            return Verdict("wrong", f"at {sizes}: {type(error).__name__}: {error}\n{program}")
        if isinstance(outcome, str):
            if allowed and expected is not None:
                excluding = find_excluding(program, part.program, sizes)
                if excluding and point:
                    narrowed = narrowed or f"narrowed: {excluding}"
                else:
                    refused = refused or f"call: {_general(outcome.splitlines()[0])}"
            continue
        if not allowed:
            return Verdict("wrong", f"at {sizes}: outside the declared range, and accepted\n{program}")
        if isinstance(failure, IndexError) and not reads_all(program, failure, outcome, given):
            continue  # indices of elements that nothing reads are not checked
        if expected is None:
            return Verdict("wrong", f"at {sizes}: eager raises, and the program does not\n{program}")
        complaint = compare(expected, exact, outcome)
        if complaint:
            return Verdict("wrong", f"at {sizes}: {complaint}\n{program}")
        right += any(sizes[root.name] != root.example for root in program.roots)
    if narrowed and not right:
        refused = refused or f"the example's sizes only: {narrowed}"
    return Verdict("refused", refused) if refused else Verdict("right", narrowed)


def reads_all(
    program: Program, failure: Exception, results: Sequence[torch.Tensor], given: Sequence[torch.Tensor]
) -> bool:
    """Whether results have elements that depend on what the failing statement computes."""
    lines = [f.lineno for f in traceback.extract_tb(failure.__traceback__) if f.filename.startswith("<program ")]
    assert lines and lines[0] is not None
    number = lines[0] - len(HEAD.splitlines())
    return all(r.numel() for r in results) and program.reads_values_of(number, program.empty_names(given))


def find_excluding(program: Program, captured: Any, sizes: dict[str, int]) -> str:
    """What excludes these sizes from the range that a captured program states; "" if it does not exclude them."""
    spelled = {f"s_{root.name}": sizes[root.name] for root in program.roots}
    spelled |= {f"s_{root.name[0]}_{root.name[1:]}": sizes[root.name] for root in program.roots if not root.declared}
    for constraint in captured.constraints:
        names = {symbol: spelled.get(symbol.name) for symbol in constraint.condition.free_symbols}
        if None not in names.values() and not holds(constraint.condition, names):
            return program.construct(constraint.source)
    bounds = {f"s_{dim.name}": (dim.low, dim.high) for dim in captured.dims}
    for name, (low, high) in bounds.items():
        if not (low <= spelled[name] and (high is None or spelled[name] <= high)):
            return "a bound"
    return "equal automatic dims" if len(bounds) < len(program.roots) else ""


def holds(condition: Any, sizes: dict[Any, Any]) -> bool:
    try:
        return bool(symbolic_dims.evaluate(condition, sizes))
    except ZeroDivisionError:
        return False


def _run_wide(function: Any, given: Sequence[torch.Tensor]) -> Any:
    """The function in float64, tensors that it makes included."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return function(*(tensor.double() for tensor in given))
    finally:
        torch.set_default_dtype(before)


def compare(expected: Sequence[torch.Tensor], exact: Sequence[torch.Tensor], found: Sequence[torch.Tensor]) -> str:
    """What differs, or nothing. Errors may be a few times eager's own."""
    for place, (mine, wide, theirs) in enumerate(zip(expected, exact, found, strict=True)):
        if theirs.shape != mine.shape or theirs.dtype != mine.dtype:
            return f"output {place} is {theirs.dtype} {tuple(theirs.shape)}, not {mine.dtype} {tuple(mine.shape)}"
        if not bool((mine.isnan() == theirs.isnan()).all()):
            return f"output {place} has nan elsewhere"
        finite = mine.isfinite() & wide.isfinite()
        if not torch.equal(mine[~finite].nan_to_num(0), theirs[~finite].nan_to_num(0)):
            return f"output {place} has inf elsewhere"
        if not bool(finite.any()):
            continue
        own = (mine.double() - wide)[finite].abs().max()
        scale = wide[finite].abs().max()
        error = (theirs.double() - wide)[finite].abs().max()
        if error > 8 * own + 1e-5 * scale + 1e-6:
            return f"output {place} is off by {float(error):.3g} of {float(scale):.3g}"
    return ""
