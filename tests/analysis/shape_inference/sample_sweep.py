"""Every float32 sample of torch's operators, to docs/reports/shapes.md.

python -m tests.analysis.shape_inference.sample_sweep --write docs/reports/shapes.md [--keep FILE…]
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import logging
import os
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests import progress
from tests.analysis.shape_inference import torchscript
from tests.analysis.shape_inference.samples import GRADES, KINDS, Tally, judge, operators

_TITLE = """# Shape analysis of torch's operator samples

Made by `make opinfo-shapes` with torch {version}: {samples:,} float32 samples of {operators} of the {total} entries of
torch's `op_db`. For each sample the type of the result is inferred from the types of the arguments: as they are, with
each dim of each tensor unknown, and with the rank of each tensor unknown; arguments of one type are asked about once.

The inferred type must contain the real result, its dtype, rank and dims, and also what the operator really gives for
other tensors of the same types: other values, four other sizes of the unknown dim, four other ranks ({runs:,} real
results in all; those that the operator refuses do not count).

- *known*: dtype, rank and all dims are known, as numbers;
- *as far as can be*: all is known but what was seen to differ between those real results, so that nobody can say more:
  `relu(f32[?, 3])` is `f32[?, 3]`;
- the rest leaves more open than that: some dims, the rank, or everything.

| arguments | asked | known | as far as can be | some dims unknown | rank unknown | unknown | wrong |
|---|---|---|---|---|---|---|---|
"""

_BESIDE = """
TorchScript's pass (`torch._C._jit_pass_complete_shape_analysis`) is run on the traced call, all dims of all arguments
known; it or the trace refuses {refused:,} more, or ends the process over them.

## Every sample

| samples | |
|---|---|
"""

_UNSAFE = """
{count} operators write or read beyond their memory where the sizes of several tensors do not fit together, and take the
process with them; they were held against their samples' own results only, and what differs was seen on the meta device:
{names}.
"""

_WHY = """
## Why no more is known

Of the answers that leave something open that was not seen to differ:

| | all dims known | one dim unknown | rank unknown |
|---|---|---|---|
"""

_DISPUTED = """
## Where torch disagrees with itself

Among the other sizes and ranks that were tried, operators' real kernels took some that their fake kernels refuse or see
another result of, asked about exactly these sizes.

| operator | results | for example |
|---|---|---|
"""

_COMMON = """
## Common operators, one dim unknown

| operator | asked | known | as far as can be | some dims unknown | rank unknown | unknown |
|---|---|---|---|---|---|---|
"""

# What users' models are made of; each line is one entry of op_db or several.
COMMON = (
    "add:",
    "matmul:",
    "addmm:",
    "bmm:",
    "nn.functional.linear:",
    "nn.functional.conv1d:",
    "nn.functional.conv2d:",
    "nn.functional.conv_transpose2d:",
    "nn.functional.max_pool2d:",
    "nn.functional.avg_pool2d:",
    "nn.functional.adaptive_avg_pool2d:",
    "nn.functional.interpolate:bilinear",
    "nn.functional.layer_norm:",
    "nn.functional.batch_norm:",
    "nn.functional.embedding:",
    "nn.functional.scaled_dot_product_attention:",
    "softmax:",
    "sum:",
    "mean:",
    "amax:",
    "cat:",
    "stack:",
    "split:",
    "reshape:",
    "view:",
    "permute:",
    "expand:",
    "squeeze:",
    "index_select:",
    "gather:",
    "where:",
    "topk:",
)


def judged_line(op: Any, most: int | None) -> dict[str, Any]:
    """One operator's judgement, as the journal keeps it.

    Some operators write beyond their memory where the sizes of several tensors do not fit together, and TorchScript's
    pass breaks down over some. So each is judged in a process of its own, and if that dies, with less: the meta device
    shows what differs, TorchScript is left alone, at last the sample that it died over is left out.
    """
    skipped: list[int] = []
    while True:
        for scripts, variants in itertools.product((True, False), ("cpu", "meta")):
            line, last = _in_a_child(functools.partial(_line, op, most, scripts, variants, skipped))
            if line is not None:
                return line
        skipped.append(last)


def _in_a_child(work: Callable[[Callable[[int], object]], dict[str, Any]]) -> tuple[dict[str, Any] | None, int]:
    """What a fork of this process found out, None if a signal ended it; and the last place that it had come to."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with os.fdopen(into, "w") as file:
                print(json.dumps(work(lambda place: print(place, file=file, flush=True))), file=file)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(into)
    with os.fdopen(out) as file:
        *places, said = file.read().splitlines() or ["0"]
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return None, int(said)
    if status != 0:
        raise RuntimeError("judging failed; the traceback is above")
    return json.loads(said), len(places)


def _line(
    op: Any,
    most: int | None,
    scripts: bool,
    variants: str,
    skipped: list[int],
    on_sample: Callable[[int], object],
) -> dict[str, Any]:
    started = time.process_time()
    found = judge(op, most, scripts, variants, skipped, on_sample)
    if not scripts:
        found.kinds[KINDS[0]].theirs[torchscript.REFUSED] += found.judged
    return {
        "name": f"{op.name}:{op.variant_test_name}",
        "samples": found.samples,
        "seconds": round(time.process_time() - started, 2),
        "judged": found.judged,
        "left_out": dict(found.left_out),
        "variants": variants == "cpu",
        **{field: {kind: dict(getattr(found.kinds[kind], field)) for kind in KINDS} for field in COUNTERS},
        "runs": {kind: found.kinds[kind].runs for kind in KINDS},
        "wrong": {kind: found.kinds[kind].wrong for kind in KINDS},
        "disputed": [line for kind in KINDS for line in found.kinds[kind].disputed],
    }


COUNTERS = ("ours", "theirs", "doubts")


def tallied(lines: list[dict[str, Any]]) -> dict[str, Tally]:
    """The sums over operators."""
    tally = {kind: Tally() for kind in KINDS}
    for line in lines:
        for kind in KINDS:
            for counter in COUNTERS:
                getattr(tally[kind], counter).update(line[counter][kind])
            tally[kind].runs += line["runs"][kind]
            tally[kind].wrong += line["wrong"][kind]
    return tally


def text(lines: list[dict[str, Any]], most: int | None) -> str:
    lines = sorted(lines, key=lambda line: line["name"])
    tally = tallied(lines)
    samples = sum(line["samples"] for line in lines)
    out = _TITLE.format(
        version=torch.__version__.split("+")[0],
        samples=samples,
        operators=len(lines),
        total=len(operators()),
        runs=sum(one.runs for one in tally.values()),
    )
    if most is not None:
        out = out.replace("float32 samples of", f"float32 samples, at most {most} each, of")
    for kind in KINDS:
        out += f"| {kind} | {_row(tally[kind].ours)} |\n"
    theirs = tally[KINDS[0]].theirs
    out += f"| all dims known, TorchScript's own pass | {_row(theirs)} |\n"
    out += _BESIDE.format(refused=theirs[torchscript.REFUSED]) + _whole(lines, samples)
    out += _why(tally) + _common(lines)
    disputed = {line["name"]: line["disputed"] for line in lines if line["disputed"]}
    if disputed:
        rows = "".join(f"| {name.rstrip(':')} | {len(said):,} | `{said[0]}` |\n" for name, said in disputed.items())
        out += _DISPUTED + rows
    wrong = [line for kind in KINDS for line in tally[kind].wrong]
    out += "\n## Wrong\n\n" + ("\n".join(f"- `{line}`" for line in wrong) if wrong else "None.") + "\n"
    return out


def _whole(lines: list[dict[str, Any]], samples: int) -> str:
    """What became of every sample; the rows add up."""
    left_out: Counter[str] = Counter()
    for line in lines:
        left_out.update(line["left_out"])
    judged = sum(line["judged"] for line in lines)
    assert judged + left_out.total() == samples
    rows = [("judged", judged), *sorted(left_out.items(), key=lambda item: -item[1]), ("**all**", samples)]
    out = "".join(f"| {count:,} | {what} |\n" for what, count in rows)
    unsafe = [f"`{line['name'].rstrip(':')}`" for line in lines if not line["variants"]]
    return out + (_UNSAFE.format(count=len(unsafe), names=", ".join(unsafe)) if unsafe else "")


def _why(tally: dict[str, Tally]) -> str:
    doubts = sum((tally[kind].doubts for kind in KINDS), Counter[str]())
    rows = (
        f"| {why} | {' | '.join(f'{tally[kind].doubts[why]:,}' for kind in KINDS)} |\n"
        for why, _ in doubts.most_common()
    )
    return _WHY + "".join(rows)


def _common(lines: list[dict[str, Any]]) -> str:
    found = {line["name"]: Counter(line["ours"][KINDS[1]]) for line in lines}
    rows = []
    for name in COMMON:
        counts = found.get(name, Counter())
        asked = sum(counts.values())
        rows.append(f"| {name.rstrip(':')} | {asked:,} | {' | '.join(f'{counts[grade]:,}' for grade in GRADES)} |\n")
    return _COMMON + "".join(rows)


def _row(counts: Counter[str]) -> str:
    graded = {grade: counts[grade] for grade in (*GRADES, "wrong")}
    asked = sum(graded.values())
    return " | ".join([f"{asked:,}", *(f"{n:,} ({n / max(asked, 1):.1%})" for n in graded.values())])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--keep", type=Path, help="results so far, one operator a line")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--only", nargs="*", help="operators by name, with their variant: split:, interpolate:area")
    parser.add_argument("--except", dest="left", nargs="*", default=(), help="operators to leave for another run")
    parser.add_argument("--most", type=int, help="samples of each operator; all of them where it is not given")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)  # threads do not survive a fork
    kept = options.keep.read_text().splitlines() if options.keep and options.keep.exists() else []
    lines = [json.loads(line) for line in kept]
    done = {line["name"] for line in lines}
    begin = time.perf_counter()
    everyone = operators()
    # Widely spread ones first, so that a sweep that is stopped has seen something of everything.
    spread = [op for start in range(16) for op in everyone[start::16]]
    for op in progress.count_done("operators", spread):
        name = f"{op.name}:{op.variant_test_name}"
        if name in done or name in options.left or (options.only is not None and name not in options.only):
            continue
        if time.perf_counter() - begin > options.seconds:
            break
        line = judged_line(op, options.most)
        lines.append(line)
        if options.keep:
            with options.keep.open("a") as file:
                file.write(json.dumps(line) + "\n")
    if options.write:
        options.write.write_text(text(lines, options.most))
    else:
        print(text(lines, options.most))


if __name__ == "__main__":
    main()
