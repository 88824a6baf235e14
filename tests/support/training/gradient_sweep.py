"""torch's operator samples that have a gradient, as models that train: results and gradients against float64.

python -m tests.support.training.gradient_sweep --journal J.jsonl --most 2 --write docs/reports/gradient_samples.md
python -m tests.support.training.gradient_sweep --ops sort topk                       a look at a few

Each operator runs in a child process, which a crash ends alone. A sample is passed, refused (a named error of Ingot),
wrong, or crashed. A result may be `TIMES` as far from float64 as eager is, or so many units in the last place of its
largest value, or of the largest number that goes into it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

import ingot
from tests import progress
from tests.support.operator_samples.samples import Call, operators

TIMES = 4.0
ULPS = 64.0
PATIENCE = 120  # seconds of an operator and sample
_REASON = re.compile(r"^ {4}(\S+): (.*?)(?: \(|$)", re.MULTILINE)
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description="gradients of torch's operator samples")
    parser.add_argument("--journal", type=Path, help="one line per sample; operators that it has are not run again")
    parser.add_argument("--ops", nargs="*")
    parser.add_argument("--most", type=int, help="samples of an operator, spread over all of them")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no operator after so many")
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    known = [json.loads(line) for line in given.journal.open()] if given.journal and given.journal.exists() else []
    done, end, names = (
        {row["op"] for row in known},
        time.monotonic() + 60 * given.minutes,
        given.ops or differentiable(),
    )
    rows = list(known)
    for name in progress.count_done("operators", names):
        if name in done or time.monotonic() > end:
            continue
        for row in run(name, given.most):
            rows.append(row)
            if given.journal:
                with given.journal.open("a", encoding="utf-8") as out:
                    out.write(json.dumps(row) + "\n")
            if row["outcome"] in ("wrong", "crashed") or given.ops:
                print(f"{row['outcome']}: {row['op']}#{row['number']}: {row['reason'][:400]}", flush=True)
    print(Counter(row["outcome"] for row in rows))
    if given.write:
        given.write.write_text(page(rows, given.most), encoding="utf-8")


def differentiable() -> list[str]:
    """The operators that torch has a float32 gradient of on the CPU."""
    return [name for name, op in operators().items() if torch.float32 in op.supported_backward_dtypes("cpu")]


def run(name: str, most: int | None) -> Iterator[Row]:
    """Each sample of an operator with its outcome, but for those that eager refuses or that need no gradient."""
    number = 0
    while True:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            torch.set_num_threads(1)  # torch's own threads did not come along into the child
            with os.fdopen(writer, "w") as out:
                for place, row in _outcomes(name, most, number):
                    out.write(json.dumps((place, row)) + "\n")
                    out.flush()
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as said:
            for line in said:
                place, row = json.loads(line)
                number = place + 1
                if row is not None:
                    yield {"op": name, "number": place, **row}
        _, status = os.waitpid(child, 0)
        if not status:
            return
        yield {"op": name, "number": number, "outcome": "crashed", "reason": f"the process ended with {status}"}
        number += 1


def _outcomes(name: str, most: int | None, begin: int) -> Iterator[tuple[int, Row | None]]:
    warnings.simplefilter("ignore")
    op = operators()[name]
    torch.manual_seed(0)
    samples = list(op.sample_inputs("cpu", torch.float32, requires_grad=True))
    chosen = range(len(samples)) if most is None else _spread(len(samples), most)
    for place in chosen:
        if place >= begin:
            signal.alarm(PATIENCE)
            yield place, _outcome(op, samples[place])


def _spread(count: int, most: int) -> list[int]:
    return sorted({(2 * k + 1) * count // (2 * most) for k in range(most)} if count else ())


def _outcome(op: Any, sample: Any) -> Row | None:
    leaves, spec = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
    call = Call(op.op, spec, leaves, sample.output_process_fn_grad)
    given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if not any(t.requires_grad for t in given):
        return None
    try:
        own, again, exact = _eager(call, given, False), _eager(call, given, False), _eager(call, given, True)
    except Exception:  # eager has no such gradient, or none in float64
        return None
    if not own or [o.shape for o in own] != [e.shape for e in exact]:
        return None
    try:
        trained = ingot.compile(call, [_fresh(t, False) for t in given], training=True, threads=1)
        found = _gradients(trained, [_fresh(t, False) for t in given])
        # Some samples set the seed themselves; native code has draws of its own.
        halves = [half for graph in trained.graphs for half in (graph.forward, graph.backward) if half is not None]
        draws = any(half.draws for half in halves)
        trained.close()
    except ingot.IngotError as error:
        return {"outcome": "refused", "reason": f"{type(error).__name__}: {error}"}
    except Exception as error:
        return {"outcome": "crashed", "reason": f"{type(error).__name__}: {error}"}
    if draws or not all(
        torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) for a, b in zip(own, again, strict=True)
    ):  # it draws random numbers
        same = [(f.shape, f.dtype) for f in found] == [(o.shape, o.dtype) for o in own]
        return {"outcome": "passed" if same else "wrong", "reason": "" if same else "another shape or dtype"}
    complaint = judge(given, own, exact, found)
    return {"outcome": "wrong" if complaint else "passed", "reason": complaint or ""}


def _fresh(tensor: torch.Tensor, double: bool) -> torch.Tensor:
    made = tensor.detach().clone()
    made = made.double() if double and made.dtype == torch.float32 else made
    made = made.to(torch.complex128) if double and made.dtype == torch.complex64 else made
    return made.requires_grad_(tensor.requires_grad)


def _eager(call: Call, given: Sequence[torch.Tensor], double: bool) -> list[torch.Tensor]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if double else before)
    try:
        return _gradients(call, [_fresh(t, double) for t in given])
    finally:
        torch.set_default_dtype(before)


def _gradients(call: Any, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The results, and the gradients of all that requires one; zeros where a result does not depend on it."""
    results = [r for r in call(*given) if isinstance(r, torch.Tensor)]
    asked = [t for t in given if t.requires_grad]
    needed = [r for r in results if r.requires_grad]
    if not needed:
        raise ValueError("no result has a gradient")
    draws = torch.Generator().manual_seed(1)
    weights = [torch.randn(r.shape, generator=draws, dtype=torch.float32).to(r.dtype) for r in needed]
    found = torch.autograd.grad(needed, asked, weights, allow_unused=True)
    grads = [torch.zeros_like(t) if g is None else g for t, g in zip(asked, found, strict=True)]
    return [r.detach().clone() for r in (*results, *grads)]


def judge(
    given: Sequence[torch.Tensor],
    own: Sequence[torch.Tensor],
    exact: Sequence[torch.Tensor],
    found: Sequence[torch.Tensor],
) -> str | None:
    """What is wrong with results and gradients, or None."""
    if len(found) != len(own):
        return f"{len(found)} results and gradients, not {len(own)}"
    scale = max((float(t.detach().abs().max()) for t in given if t.is_floating_point() and t.numel()), default=0.0)
    for place, (mine, eager, truth) in enumerate(zip(found, own, exact, strict=True)):
        if (mine.shape, mine.dtype) != (eager.shape, eager.dtype):
            return f"result {place} is {mine.dtype}{list(mine.shape)}, not {eager.dtype}{list(eager.shape)}"
        if mine.is_complex():
            mine, eager, truth = (torch.view_as_real(t.resolve_conj()) for t in (mine, eager, truth))
        if not mine.is_floating_point():
            if not torch.equal(mine, eager):
                return f"result {place}: other integers"
            continue
        finite = eager.isfinite() & truth.isfinite()
        if not torch.equal(mine.isfinite() | ~finite, torch.ones_like(finite)):
            return f"result {place}: not finite where eager is"
        values = [t.double()[finite] for t in (mine, eager, truth)]
        if not values[0].numel():
            continue
        ours, theirs = (float((t - values[2]).abs().max()) for t in values[:2])
        size = max(float(values[2].abs().max()), scale if values[2].numel() < 64 else 0.0)
        if ours > max(TIMES * theirs, ULPS * torch.finfo(mine.dtype).eps * size):
            return f"result {place}: off by {ours:.2e}, eager by {theirs:.2e}, of {size:.2e}"
    return None


# ---------------------------------------------------------------------- the page


def page(rows: Sequence[Row], most: int | None) -> str:
    counted = Counter(row["outcome"] for row in rows)
    names = {row["op"] for row in rows}
    every = "every sample" if most is None else f"at most {most} samples"
    lines = [
        "# Gradients of torch's operator samples",
        "",
        f"{every.capitalize()} of {len(names)} of the {len(differentiable())} operators of torch's own table (`op_db`)"
        " that have a float32 gradient on the CPU,",
        "compiled with `training=True`: results and gradients are compared with eager in float64. An error may be",
        f"{TIMES:.0f} times eager's own, or {ULPS:.0f} units in the last place of the largest value. A refusal names",
        "what has no rule. Written by `make opinfo-gradients`.",
        "",
        "| samples | passed | refused | wrong | crashed |",
        "|---|---|---|---|---|",
        f"| {len(rows)} | {counted['passed']} | {counted['refused']} | {counted['wrong']} | {counted['crashed']} |",
        "",
        "## Refused",
        "",
        "| operator or error | why | samples | met in |",
        "|---|---|---|---|",
    ]
    refused: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in rows:
        if row["outcome"] == "refused":
            for reason in dict.fromkeys(_reasons(row["reason"])):
                refused[reason].append(row["op"])
    for (target, why), met in sorted(refused.items()):
        shown = sorted(set(met))
        more = f" and {len(shown) - 6} more" if len(shown) > 6 else ""
        lines.append(f"| `{target}` | {why.replace('|', '/')[:160]} | {len(met)} | {', '.join(shown[:6])}{more} |")
    bad = [row for row in rows if row["outcome"] in ("wrong", "crashed")]
    if bad:
        lines += ["", "## Wrong or crashed", ""]
        lines += [f"- {row['op']}#{row['number']}: {row['reason'].splitlines()[0][:200]}" for row in bad]
    return "\n".join(lines) + "\n"


def _reasons(text: str) -> list[tuple[str, str]]:
    found = _REASON.findall(text)
    if found:
        return [(target, why) for target, why in found]
    error, _, rest = text.partition(": ")
    why = next((line.partition("why: ")[2] for line in text.splitlines() if line.strip().startswith("why: ")), "")
    return [(error, why or (rest.splitlines()[0] if rest else ""))]


if __name__ == "__main__":
    main()
