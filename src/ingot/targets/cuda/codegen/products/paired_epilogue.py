"""Epilogues of pairs of columns: `fetch` and `finish`, as epilogue.py has them, of a run of neighbouring pairs.

Ranges of pairs have epilogues of their own. Those that differ by their buffers and their first pair only, such as the
rotations of queries and of keys, are written once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ingot.codegen.c_expressions import STORED
from ingot.lowering.dependence import reads_and_writes
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter
from ingot.targets.cuda.codegen.loop_kernels.loop_points import loop_type, unflatten
from ingot.targets.cuda.codegen.products.epilogue import EpilogueRuns, number_pointers
from ingot.targets.cuda.schedule.bulk.paired_columns import PairedEpilogue

_LOADED = re.compile(r"\bin(\d+)\b")
# Between the parts of a text.
_SEPARATOR = "\n\f\n"


@dataclass
class _Alike:
    """Epilogues of one text: its parts that declare, load and store, and, of each, the range and the pointers."""

    declares: str
    loads: str
    results: str
    ranges: list[PairedEpilogue]
    pointers: list[list[str]]


def write_paired_finish(out: CudaKernelWriter, pairs: Sequence[PairedEpilogue], dtype: str, each: int) -> None:
    """Declares `fetch` and `finish` of `each` pairs: sums of their second columns follow those of the first."""
    type_ = "int64_t" if any(_find_type(out, part) == "int64_t" for part in pairs) else "int"
    alike = _group_texts(out, pairs, type_, each)
    whole = len(pairs) == 1
    out.open("struct loaded")
    for one in alike:
        _write_text(out, one.declares)
    out.depth -= 1
    out.line("};")
    out.open("const auto fetch = [&](const int line, const int place)")
    out.line("loaded found;")
    for one in alike:
        if one.declares:
            _write_ranges(out, one, one.loads, whole)
    out.line("return found;")
    out.depth -= 1
    out.line("};")
    sums = f"const {STORED[dtype]} *sums"
    out.open(f"const auto finish = [&](const int line, const int place, {sums}, const loaded &given)")
    for one in alike:
        _write_ranges(out, one, one.results, whole)
    out.depth -= 1
    out.line("};")


def _find_type(out: CudaKernelWriter, part: PairedEpilogue) -> str:
    read, written = reads_and_writes(part.step)
    return loop_type(out, sorted(read | written), part.step.loops, [part.step.body])


def _group_texts(out: CudaKernelWriter, pairs: Sequence[PairedEpilogue], type_: str, each: int) -> list[_Alike]:
    found: dict[str, _Alike] = {}
    for part in pairs:
        text, pointers = number_pointers(_write_part(out, part, type_, each))
        if text not in found:
            named = _LOADED.sub(rf"in{len(found)}_\1", text)
            declares, loads, results = named.split(_SEPARATOR)
            found[text] = _Alike(declares, loads, results, [], [])
        found[text].ranges.append(part)
        found[text].pointers.append(pointers)
    return list(found.values())


def _write_part(out: CudaKernelWriter, part: PairedEpilogue, type_: str, each: int) -> str:
    """The text of one range, of the pair `own` in it: what it loads, how, and what it stores."""
    runs = EpilogueRuns(out, part.step, each)
    code = runs.write_statements()

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
        write_place()
        runs.write_loads()

    def write_results() -> None:
        write_place()
        runs.write_results(code, type_)

    return _SEPARATOR.join(_take_text(out, write) for write in (runs.declare_loads, write_loads, write_results))


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


def _write_ranges(out: CudaKernelWriter, one: _Alike, text: str, whole: bool) -> None:
    """A text, for the pairs of its ranges; of the `whole` product it needs no test."""
    tests = [f"(unsigned)(place - {part.first}) < {part.count}u" for part in one.ranges]
    if not whole:
        out.open(f"if ({' || '.join(tests)})")
    *others, last = range(len(tests))
    used = sorted(set(re.findall(r"\bq(\d+)\b", text)), key=int)
    for number in map(int, used):
        choice = "".join(f"{tests[at]} ? {one.pointers[at][number]} : " for at in others)
        same = len({names[number] for names in one.pointers}) == 1
        out.line(f"const auto q{number} = {'' if same else choice}{one.pointers[last][number]};")
    first = "".join(f"{tests[at]} ? {one.ranges[at].first} : " for at in others)
    out.line(f"const unsigned own = place - ({first}{one.ranges[last].first});")
    _write_text(out, text)
    if not whole:
        out.close()
