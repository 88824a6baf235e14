"""Epilogues of pairs of columns: `fetch` and `finish`, as epilogue.py has them, of a run of neighbouring pairs.

Ranges of pairs have epilogues of their own. Those that differ by their buffers, by numbers in their indices and by
their first pair only, such as the rotations of queries and of keys, are written once. What ranges load is in the same
registers: a run is in one of them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ingot.codegen.c_expressions import STORED
from ingot.lowering.dependence import reads_and_writes
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter
from ingot.targets.cuda.codegen.loop_kernels.loop_points import loop_type, unflatten
from ingot.targets.cuda.codegen.products.epilogue import EpilogueRuns, number_pointers
from ingot.targets.cuda.schedule.bulk.paired_columns import PairedEpilogue

_TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|\s+|.")
# Between the parts of a text.
_SEPARATOR = "\f"


@dataclass
class _RangeText:
    """The text of a range in tokens, its pointers called q0, q1, …"""

    pairs: PairedEpilogue
    tokens: list[str]
    pointers: list[str]
    loads: list[str]  # the types of what it loads


@dataclass
class _AlikeRanges:
    """Ranges that one text is for, with what differs between them by its name in the text."""

    ranges: list[PairedEpilogue]
    loads: str
    results: str
    names: dict[str, tuple[str, ...]]


def write_paired_finish(
    out: CudaKernelWriter, pairs: Sequence[PairedEpilogue], count: int, dtype: str, each: int
) -> None:
    """Declares `fetch` and `finish` of `each` of `count` pairs: sums of their second columns follow those of the
    first."""
    type_ = "int64_t" if any(_find_type(out, part) == "int64_t" for part in pairs) else "int"
    parts = [_write_part(out, part, type_, each) for part in pairs]
    alike = [_join_parts(group) for group in _group_parts(parts)]
    whole = pairs[0].count == count
    out.open("struct loaded")
    for number, types in enumerate(itertools.zip_longest(*(part.loads for part in parts))):
        for name in dict.fromkeys(type_ for type_ in types if type_ is not None):
            out.line(f"ig_vector<{name}, {each}> {_name_load(number, name)};")
    out.depth -= 1
    out.line("};")
    out.open("const auto fetch = [&](const int line, const int place)")
    out.line("loaded found;")
    for one in alike:
        if one.loads:
            _write_ranges(out, one, one.loads, whole, type_)
    out.line("return found;")
    out.depth -= 1
    out.line("};")
    sums = f"const {STORED[dtype]} *sums"
    out.open(f"const auto finish = [&](const int line, const int place, {sums}, const loaded &given)")
    for one in alike:
        _write_ranges(out, one, one.results, whole, type_)
    out.depth -= 1
    out.line("};")


def _find_type(out: CudaKernelWriter, part: PairedEpilogue) -> str:
    read, written = reads_and_writes(part.step)
    return loop_type(out, sorted(read | written), part.step.loops, [part.step.body])


def _write_part(out: CudaKernelWriter, part: PairedEpilogue, type_: str, each: int) -> _RangeText:
    """The text of one range, of the pair `own` in it: how it loads, and what it stores."""
    runs = EpilogueRuns(out, part.step, each)
    code = runs.write_statements()
    types = [STORED[out.buffers[buffer].dtype] for buffer, _ in runs.loads]

    def write_place() -> None:
        loops = part.step.loops
        rows, columns = loops[: -part.columns], loops[-part.columns :]
        if rows:
            out.line(f"const {type_} at = ({type_})line;")
            unflatten(out, "at", type_, rows)
        *outer, column = columns
        if outer:
            out.line(f"const {type_} begin = own % {column.extent}u, head = own / {column.extent}u;")
            unflatten(out, "head", type_, outer)
        else:
            out.line(f"const {type_} begin = own;")

    def write_loads() -> None:
        if runs.loads:
            write_place()
            runs.write_loads()

    def write_results() -> None:
        write_place()
        runs.write_results(code, type_)

    text = _SEPARATOR.join(_take_text(out, write) for write in (write_loads, write_results))
    for number, name in reversed(list(enumerate(types))):
        text = re.sub(rf"\b(found|given)\.in{number}\b", rf"\1.{_name_load(number, name)}", text)
    text, pointers = number_pointers(text)
    return _RangeText(part, _TOKEN.findall(text), pointers, types)


def _name_load(number: int, type_: str) -> str:
    return f"{type_}_{number}"


def _group_parts(parts: Sequence[_RangeText]) -> list[list[_RangeText]]:
    """Ranges whose texts have the same tokens, but for numbers."""
    groups: list[list[_RangeText]] = []
    for part in parts:
        for group in groups:
            first = group[0].tokens
            if len(first) == len(part.tokens) and all(
                one == other or (one.isdigit() and other.isdigit())
                for one, other in zip(first, part.tokens, strict=True)
            ):
                group.append(part)
                break
        else:
            groups.append([part])
    return groups


def _join_parts(group: Sequence[_RangeText]) -> _AlikeRanges:
    names = {f"q{number}": found for number, found in enumerate(zip(*(part.pointers for part in group), strict=True))}
    numbers: dict[tuple[str, ...], str] = {}
    text: list[str] = []
    for tokens in zip(*(part.tokens for part in group), strict=True):
        if len(set(tokens)) == 1:
            text.append(tokens[0])
        else:
            text.append(numbers.setdefault(tokens, f"number{len(numbers)}"))
    loads, results = "".join(text).split(_SEPARATOR)
    names |= {name: tokens for tokens, name in numbers.items()}
    return _AlikeRanges([part.pairs for part in group], loads, results, names)


def _take_text(out: CudaKernelWriter, write: Callable[[], None]) -> str:
    """The lines that a function writes, which are not a part of the kernel yet."""
    begin = len(out.lines)
    out.depth += 2
    write()
    out.depth -= 2
    text = "\n".join(out.lines[begin:])
    del out.lines[begin:]
    return text


def _write_text(out: CudaKernelWriter, text: str) -> None:
    out.lines += text.split("\n") if text else []


def _write_ranges(out: CudaKernelWriter, one: _AlikeRanges, text: str, whole: bool, type_: str) -> None:
    """A text, for the pairs of its ranges; of the `whole` product it needs no test."""
    tests = [f"(unsigned)(place - {part.first}) < {part.count}u" for part in one.ranges]
    if not whole:
        out.open(f"if ({' || '.join(tests)})")

    def choose(values: Sequence[str]) -> str:
        if len(set(values)) == 1:
            return values[0]
        return "".join(f"{test} ? {value} : " for test, value in zip(tests[:-1], values, strict=False)) + values[-1]

    for name, values in one.names.items():
        if re.search(rf"\b{name}\b", text):
            out.line(f"const {'auto' if name[0] == 'q' else type_} {name} = {choose(values)};")
    out.line(f"const unsigned own = place - ({choose([str(part.first) for part in one.ranges])});")
    _write_text(out, text)
    if not whole:
        out.close()
