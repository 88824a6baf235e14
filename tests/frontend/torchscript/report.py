"""Every script of the tests, compared with torch's converter, as one table.

python -m tests.frontend.torchscript.report --write docs/reports/torchscript.md
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import logging
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import ingot
from ingot.ir import pytree
from ingot.ir.outlining import graph_modules
from tests import progress
from tests.frontend.torchscript import models, models_dynamic_lists, models_exits, models_loops, models_numbers
from tests.frontend.torchscript.cases import CASES, Case

FILES = (models, models_loops, models_exits, models_numbers, models_dynamic_lists)  # they fill CASES

_TITLE = """# TorchScript: compared with torch's converter

Made by `make report-torchscript` with torch {version}. Each script is imported, verified, and run on five sets of
arguments, the first of which is the example that it was imported with; its results must equal the script's, bit for
bit, those of quantized modules within 1e-6 and 1e-5 (a step of theirs is 3e-3), of one optimized for oneDNN within
1e-5, and numbers that functions of math give within 1e-14. "Wrong" says on how many of the five the results differ.

{ours} of {total} scripts equal. torch's converter (`torch._export.converter.TS2EPConverter`): {right} equal, {refused}
refused, {wrong} wrong. A script whose loop or branch depends on values keeps it as an operator: the third column counts
them.

| script | ours | cond, while_loop | nodes | torch's converter |
|---|---|---|---|---|
"""


def judge(case: Case, run: Callable[[Any], Callable[..., Any]]) -> tuple[str, Any]:
    """`equal`, `wrong on …` or `refuses: …`, and what was made."""
    try:
        made = run(case.script())
    except Exception as failure:
        return f"refuses: {_reason(failure)}", None
    before, differing, raised = case.script(), 0, ""
    call = before if case.method == "forward" else getattr(before, case.method)
    for args in case.arguments():
        wanted = call(*copy.deepcopy(args))
        try:
            got = made(*copy.deepcopy(args))
            differing += not _equal(got, wanted, case.within)
        except Exception as failure:
            differing += 1
            raised = raised or f" (raises {_reason(failure)})"
    return ("equal" if not differing else f"wrong on {differing} of 5{raised}"), made


def _equal(got: Any, wanted: Any, within: float) -> bool:
    got, wanted = (pytree.flatten(value)[0] for value in (got, wanted))
    if len(got) != len(wanted):
        return False
    for one, other in zip(got, wanted, strict=True):
        if isinstance(other, torch.Tensor):
            if not isinstance(one, torch.Tensor) or one.dtype != other.dtype or one.shape != other.shape:
                return False
            if not torch.allclose(one, other, rtol=0, atol=within, equal_nan=True):
                return False
        elif type(one) is not type(other) or not (one == other or _near(one, other, within)):
            return False
    return True


def _near(one: Any, other: Any, within: float) -> bool:
    return isinstance(one, float) and abs(one - other) <= within


def _reason(failure: Exception) -> str:
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    text = f"{type(failure).__name__}: {lines[0] if lines else ''}"
    return (text if len(text) < 110 else text[:107] + "…").replace("|", "\\|").replace("`", "'")


def ours(case: Case) -> Callable[[Any], Callable[..., Any]]:
    def run(script: Any) -> ingot.Program:
        options = {"method": case.method, "dynamic_shapes": case.dynamic, **case.options}
        program = ingot.from_torchscript(script, case.arguments()[0], **options)
        program.verify()
        return program

    return run


def theirs(case: Case) -> Callable[[Any], Callable[..., Any]]:
    from torch._export.converter import TS2EPConverter

    def run(script: Any) -> Callable[..., Any]:
        if case.method != "forward":
            raise NotImplementedError("only forward can be converted")
        return TS2EPConverter(script, copy.deepcopy(case.arguments()[0])).convert().module()

    return run


def table() -> tuple[str, dict[str, int]]:
    """The report's text, and how many of which kind there are."""
    rows, counts = [], {"ours": 0, "right": 0, "refused": 0, "wrong": 0, "better": 0}
    for case in progress.count_done("models", CASES):
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            verdict, program = judge(case, ours(case))
            other, _ = judge(case, theirs(case))
        names = [str(n.target) for m in graph_modules(program.graph_module) for n in m.graph.nodes] if program else []
        operators = [name for name in names if name in ("cond", "while_loop")]
        nodes = sum(n.op == "call_function" for m in graph_modules(program.graph_module) for n in m.graph.nodes)
        kept = f"{operators.count('cond')}, {operators.count('while_loop')}"
        rows.append(f"| {case.name} | {verdict} | {kept} | {nodes} | {other} |")
        counts["ours"] += verdict == "equal"
        counts["right"] += other == "equal"
        counts["refused"] += other.startswith("refuses")
        counts["wrong"] += other.startswith("wrong")
        counts["better"] += verdict == "equal" and other != "equal"
    title = _TITLE.format(version=torch.__version__.split("+")[0], total=len(CASES), **counts)
    return title + "\n".join(rows) + "\n", counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    begin = time.perf_counter()
    text, counts = table()
    if options.write is not None:
        options.write.write_text(text)
    else:
        print(text)
    print(f"{counts}, {time.perf_counter() - begin:.0f} s")
    assert counts["ours"] == len(CASES) and counts["better"] >= 10


if __name__ == "__main__":
    main()
