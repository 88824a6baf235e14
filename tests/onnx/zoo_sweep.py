"""Every model of the zoo as an ONNX file: exported, checked, run in ONNX Runtime, and the table of what became of it.

    python -m tests.onnx.zoo_sweep RESULTS.jsonl [kind:name …]            judge; what RESULTS has already is left out
    python -m tests.onnx.zoo_sweep RESULTS.jsonl --report FILE.md [NOTE]  write the table, with a note on how it came

A dynamic model runs at the example's sizes and at three others. One process judges a few dozen models; one that
hangs or crashes is ended, its model noted, and the rest go on.
"""

from __future__ import annotations

import copy
import functools
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

import ingot
from ingot.errors import IngotError, InputError, OnnxMismatch
from ingot.ir import pytree
from ingot.ir.execution import check_call
from ingot.ir.program import Program
from ingot.ir.signature import InputKind
from ingot.onnx.api import export_onnx
from ingot.onnx.verification import check_file
from tests import progress
from tests.e2e.test_zoo import every
from tests.support.oracle import (
    DRAWS,
    LUCK,
    MORE,
    TIES,
    Verdict,
    Wrong,
    in_double,
    own_errors,
    run,
    verdict_on,
    worst_ratio,
)
from tests.support.zoo import Entry
from tests.support.zoo_page import Row, left_of, page, read

CHUNK = 36
DRAWN = "eager's error was taken from several draws"
SECONDS = 300.0  # of its own work that one model may take


def judge(item: Entry, kind: str, folder: Path, opset: int | None = None) -> Verdict:
    """Exports an entry of the zoo, "static" or "dynamic", and compares the file with eager in float64."""
    model, inputs = item.build(), item.inputs(item.sizes)
    if kind == "static":
        run(model, inputs)  # some keep what they make at the first call, which is for its sizes then
    begin = time.perf_counter()
    path = folder / f"{kind}-{item.name}.onnx"
    try:
        program = ingot.capture(
            model, (), copy.deepcopy(inputs), dynamic_shapes=item.dynamic if kind == "dynamic" else None
        )
        report = export_onnx(program, path, opset=opset, verify=False)
        check_file(path)
    except OnnxMismatch as error:
        return Verdict(item.name, kind, "wrong", str(error), time.perf_counter() - begin)
    except IngotError as error:
        return Verdict(item.name, kind, "refused", f"{type(error).__name__}: {error}", time.perf_counter() - begin)
    seconds = time.perf_counter() - begin
    try:
        ratio, count, drawn = _compare(item, model, program, path, kind, report.random)
    except Wrong as error:
        return Verdict(item.name, kind, "wrong", str(error), seconds)
    finally:
        path.unlink()
    return Verdict(item.name, kind, "right", DRAWN if drawn else "", seconds, ratio, count, report.random)


def _compare(
    item: Entry, model: torch.nn.Module, program: Program, path: Path, kind: str, random: bool
) -> tuple[float, int, bool]:
    """The largest error in units of eager's own, at how many sizes, and whether draws of eager's had to be made."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    wide = in_double(model)
    others = [more for more in MORE if kind == "dynamic" and more not in TIES.get(item.name, ())]
    worst, count, drawn = 0.0, 0, False
    for size in [item.sizes, *({n: s + more for n, s in item.sizes.items()} for more in others)]:
        inputs = item.inputs(size)
        try:
            leaves = check_call(program, (), copy.deepcopy(inputs))
        except InputError:
            if size is item.sizes:
                raise
            continue  # the model's Python code takes another path at this size, and the program says so
        got = _called(session, program, leaves)
        if not random:
            single = run(model, inputs)
            ratio, more = _ratio(model, wide, inputs, got, single, f"at {size}")
            worst, drawn = max(worst, ratio), drawn or more
        count += 1
    return worst, count, drawn


def _ratio(
    model: torch.nn.Module, wide: Any, inputs: dict[str, Any], got: Any, single: Any, label: str
) -> tuple[float, bool]:
    """The error in units of eager's own; of more draws of it where one was not enough, and whether it was not."""
    exact = wide(**copy.deepcopy(inputs))
    try:
        return worst_ratio(got, single, exact, label), False
    except Wrong:
        return worst_ratio(got, single, exact, label, own=own_errors(model, wide, inputs)), True


def _called(session: onnxruntime.InferenceSession, program: Program, leaves: Sequence[Any]) -> Any:
    """The user's result, of the arguments' leaves."""
    given = [
        leaf for leaf, i in zip(leaves, program.signature.user_inputs, strict=True) if i.kind is InputKind.ARGUMENT
    ]
    arrays = [leaf.numpy() if isinstance(leaf, torch.Tensor) else np.array(leaf) for leaf in given]
    names = [i.name for i in session.get_inputs()]
    found = iter(session.run(None, dict(zip(names, arrays, strict=True))))
    results = []
    for output in program.signature.user_outputs:
        if output.name:
            value = torch.from_numpy(np.asarray(next(found)))
            results.append(value)
        else:
            results.append(output.value)
    return pytree.unflatten(results, program.signature.out_tree)


# ---------------------------------------------------------------------- the sweep


def sweep(names: Sequence[str], results: Path) -> None:
    """Judges these models and appends a line for each to `results`."""
    left = list(names)
    with results.open("a", encoding="utf-8") as file, progress.open_bar("models", len(left)) as step:
        while left:
            for row in _chunk(left[:CHUNK]):
                print(json.dumps(row), file=file, flush=True)
                del left[0]
                step()


def _chunk(names: Sequence[str]) -> Iterator[Row]:
    """The verdicts on the first of these models, as many as one process comes to."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.onnx.zoo_sweep", "--child", *names]
    count = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            count += 1
            yield json.loads(line)
        ended = f"ended the process with {process.wait()}"
    if count < len(names):
        kind, _, name = names[count].partition(":")
        yield asdict(Verdict(name, kind, "failed", ended))


def child(names: Sequence[str]) -> None:
    torch.set_num_threads(1)
    for name in names:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        with tempfile.TemporaryDirectory() as folder:
            verdict = verdict_on(name, functools.partial(judge, folder=Path(folder)))
        print(json.dumps(asdict(verdict)), flush=True)


# ---------------------------------------------------------------------- the table


def report(rows: Sequence[Row], note: str = "") -> str:
    """The verdicts as a page."""
    about = [
        "Every model of the capture tests exported, checked and run in ONNX Runtime, against the same model run by",
        "torch in float64: static, and with dynamic batch and sequence at the example's sizes and three others.",
        f"The error may be four times eager's own; where it is more, eager's is the largest of {DRAWS} draws, at",
        f"inputs a rounding or two away, but no more than {LUCK:.0f} times what it is in the call itself: one call's",
        "error may be small by luck, and a decision that falls otherwise at such an input must excuse nothing.",
        "Written by `make report-onnx-zoo`.",
        *(["", note] if note else []),
    ]
    drawn = sorted(f"{row['name']} ({row['kind']})" for row in rows if row["detail"] == DRAWN)
    remarks = [f"Right by such draws, and not without: {', '.join(drawn) or 'none'}."]
    return page("The zoo as ONNX files", about, rows, every(), done="Exported", maker="exporter", remarks=remarks)


def main() -> None:
    first, *rest = sys.argv[1:]
    if first == "--child":
        child(rest)
    elif rest[:1] == ["--report"]:
        Path(rest[1]).write_text(report(read(Path(first)), " ".join(rest[2:])), encoding="utf-8")
    else:
        sweep(rest or left_of(every(), Path(first)), Path(first))


if __name__ == "__main__":
    main()
