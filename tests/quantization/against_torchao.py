"""Everything beside torchao, with the same quantizers on the same data, to a report.

    python -m tests.quantization.against_torchao --write docs/reports/quantize_torchao.md [parts of names]

Each row goes to a journal as it is found (--keep), and a row that is there already is not found again. The first
rows take a minute, for torchao captures its patterns; the others seconds.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import ingot
from ingot.quantize import convert, prepare_qat
from tests import progress
from tests.quantization import annotation_models, torchao_runner
from tests.quantization.qat_reference import Unfused
from tests.quantization.qat_scenarios import Situation, situations

aten = torch.ops.aten
STEPS = 4
SMALL = 0.1  # what batches are multiplied with where eps is to count
Row = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    section: str
    name: str
    find: Callable[[], Row]


def entries() -> Iterator[Entry]:
    every = list(situations((1, 2), (False, True)))
    for situation in every:
        yield Entry("equal", str(situation), partial(equal, situation))
    for situation in every:
        yield Entry("literals", str(situation), partial(judged, situation))
    for situation in every:
        if situation.activation == "relu" and situation.bias:
            yield Entry("literals", f"{situation}, 3 groups", partial(judged, situation, groups=3))
    yield Entry("switching", "train and eval", switching)
    for case in annotation_models.by_quantizer():
        yield Entry("quantizers", str(case), partial(cased, case))
    for case in annotation_models.by_spec():
        yield Entry("specs", str(case), partial(cased, case))


# ---------------------------------------------------------------------- what is found


def equal(situation: Situation) -> Row:
    """With torch's own literals, where torchao is right."""
    torch.manual_seed(2)
    batches = [(situation.batch(),) for _ in range(STEPS)]
    quantizer = partial(annotation_models.xnnpack, is_per_channel=situation.per_channel, is_qat=True)
    both = torchao_runner.trained(situation.model(), quantizer, batches)
    return torchao_runner.compare(both, batches[0]).record()


def judged(situation: Situation, groups: int = 1) -> Row:
    """With other literals, and the formulas in float64 for a judge: how far each lies from these, in steps."""
    torch.manual_seed(2)
    batches = [(SMALL * situation.batch(),) for _ in range(STEPS)]
    model = situation.model(eps=1e-3, momentum=0.03, groups=groups)
    judge = Unfused(situation, model).train()
    right = torchao_runner.descend(judge, batches)
    judge.eval()
    step = float(judge.last.parameters()[0])

    def far(results: list[torch.Tensor], made: Any) -> list[float]:
        with torch.no_grad():
            last = float((made(*batches[0]) - judge(*batches[0])).abs().max()) / step
        return [max(float((a - b).abs().max()) for a, b in zip(results, right, strict=True)) / step, last]

    ours = prepare_qat(ingot.capture(situation.model(eps=1e-3, momentum=0.03, groups=groups).train(), batches[0]),
                       _unfused_quantizer(situation))  # fmt: skip
    found: Row = {"ours": far(torchao_runner.descend(ours, batches), convert(ours.eval()))}
    try:
        both = torchao_runner.trained(model, partial(_unfused_quantizer, situation), batches)
        found["theirs"] = far([result for _, result in both.training], both.converted)
    except RuntimeError as failure:
        found["theirs"] = f"{type(failure).__name__}: {str(failure).splitlines()[0]}"
    return found


def _unfused_quantizer(situation: Situation) -> Any:
    """XNNPACKQuantizer with the fake-quantizer that trains with the scales that are converted."""
    from torchao.quantization.pt2e import fake_quantize, observer

    def plain(spec: Any, watching: Any) -> Any:
        maker = fake_quantize.FakeQuantize.with_args(observer=watching, eps=2**-12)
        return replace(spec, observer_or_fake_quant_ctr=maker)

    with torchao_runner.captures_kept():
        made = annotation_models.xnnpack(is_per_channel=situation.per_channel, is_qat=True)
    config = made.global_config
    by_channel = observer.MovingAveragePerChannelMinMaxObserver
    activation = plain(config.input_activation, observer.MovingAverageMinMaxObserver)
    weight = plain(config.weight, by_channel if situation.per_channel else observer.MovingAverageMinMaxObserver)
    return made.set_global(replace(config, input_activation=activation, output_activation=activation, weight=weight))


def switching() -> Row:
    """The literals of batch norm and dropout: as captured, prepared for training, in eval mode, in train mode again."""
    from torchao.quantization.pt2e import move_exported_model_to_eval, move_exported_model_to_train
    from torchao.quantization.pt2e.quantize_pt2e import prepare_qat_pt2e

    situation = Situation(2, False, True, "relu")
    model = nn.Sequential(*situation.model(eps=1e-3, momentum=0.03), nn.Dropout(0.1)).train()
    args = (situation.batch(),)

    def literals(graph: Any) -> str:
        (norm,) = [n for n in graph.nodes if n.target is aten.batch_norm.default]
        (dropout,) = [n for n in graph.nodes if n.target is aten.dropout.default]
        return f"eps {norm.args[7]:g}, momentum {norm.args[6]:g}, p {dropout.args[1]:g}"

    quantizer = partial(annotation_models.xnnpack, is_qat=True)
    with torchao_runner.captures_kept():
        exported: Any = torch.export.export(model, args).module()
        theirs = [literals(exported.graph)]
        prepared: Any = prepare_qat_pt2e(exported, quantizer())
        theirs.append(literals(prepared.graph))
        for switch in (move_exported_model_to_eval, move_exported_model_to_train):
            switch(prepared)
            theirs.append(literals(prepared.graph))
        program = ingot.capture(model, args)
        module = prepare_qat(program, quantizer())
    ours = [literals(program.graph), literals(module.graph_module.graph)]
    for mode in (False, True):
        ours.append(literals(module.train(mode).graph_module.graph))
    return {"ours": ours, "theirs": theirs}


def cased(case: annotation_models.Case) -> Row:
    batches = case.batches()
    both = (torchao_runner.trained if case.trains else torchao_runner.calibrated)(case.made(), case.quantizer, batches)
    return {**torchao_runner.compare(both, batches[0]).record(), "why": case.why}


# ---------------------------------------------------------------------- the report


def _steps(value: float) -> str:
    return "0" if value == 0 else f"{value:.1e}" if value < 0.01 else f"{value:.2g}"


def _equal_line(name: str, row: Row) -> str:
    cells = [f"{row['training']:.1e}", *(_steps(row[key]) for key in ("converted", "own", "theirs_own"))]
    return " | ".join((name, *cells))


def _literals_line(name: str, row: Row) -> str:
    theirs = row["theirs"]
    shown = map(_steps, theirs) if isinstance(theirs, list) else (theirs.replace("|", "/"), "")
    return " | ".join((name, *map(_steps, row["ours"]), *shown))


def _switching_lines(rows: dict[str, Row]) -> list[str]:
    (row,) = rows.values()
    stages = ("captured", "prepared for training", "after eval()", "after train() again")
    return [" | ".join(parts) for parts in zip(stages, row["ours"], row["theirs"], strict=True)]


def _case_line(name: str, row: Row) -> str:
    ours, theirs = row["pairs"]
    pairs = str(ours) if ours == theirs else f"{ours}, torchao {theirs}"
    return " | ".join((name, pairs, f"{row['training']:.1e}", _steps(row["converted"]), row["why"]))


_CASES = "case | pairs | training | converted | where they differ"
_SECTIONS: dict[str, tuple[str, str, Callable[[str, Row], str] | None]] = {
    "equal": (
        """## Convolution and batch norm, eps 1e-5

*training*: the largest difference of a result in training. *converted*: the largest difference of the converted models'
results, in steps of the result's scale. *own*: between our converted program and its own module in eval mode, in steps.
*torchao's own*: the same of torchao, its observers turned off: its fused fake-quantizer trains symmetric weights with a
scale off by one part in 256 from the one that is converted; in eval mode we simulate with the latter.""",
        "situation | training | converted | own | torchao's own",
        _equal_line,
    ),
    "literals": (
        """## Convolution and batch norm, eps 1e-3, momentum 0.03

How far each lies, at most, from convolution, batch norm and fake quantization by their formulas in float64, not fused
(`tests/quantization/qat_reference.py`), in steps of the result's scale. Batches are a tenth of it: eps counts. torchao
trains, and folds, with eps 1e-5 and momentum 0.1 whatever the model says, and cannot do a transposed convolution with
groups.""",
        "situation | ours, training | ours, converted | torchao, training | torchao, converted",
        _literals_line,
    ),
    "switching": (
        """## Train and eval

A model with batch norm of eps 1e-3 and momentum 0.03 and dropout of 0.1.""",
        "when | ours | torchao",
        None,
    ),
    "quantizers": (
        """## Every quantizer that ships with torchao

*pairs*: of quantize and dequantize with fixed scales. *training* and *converted* as above; a result in float counts as
255 steps.""",
        _CASES,
        _case_line,
    ),
    "specs": (
        """## Shared, derived and fixed parameters

With torchao's `SharedQuantizationSpec`, `DerivedQuantizationSpec` (a bias of int32 with the scale of its product) and
`FixedQParamsQuantizationSpec`; further situations of torchao's tests.""",
        _CASES,
        _case_line,
    ),
}

_HEAD = """# Quantization compared with torchao 0.18.0

`make test-torchao`

Both are given the same model, the same quantizer of torchao and the same batches; models are trained for {steps} steps
of gradient descent, or calibrated.

{summary}
"""


def _summary(found: dict[str, dict[str, Row]]) -> str:
    lines = []
    rows = found.get("equal", {})
    good = [row for row in rows.values() if "failure" not in row]
    if good:
        most = {key: max(row[key] for row in good) for key in ("training", "converted", "own", "theirs_own")}
        lines.append(
            f"- {len(good)} of {len(rows)} situations run; training differs by {most['training']:.1e} at most,"
            f" converted models by {_steps(most['converted'])} steps; from its own module a converted program of ours"
            f" differs by {_steps(most['own'])} steps, one of torchao's by {_steps(most['theirs_own'])}."
        )
    rows = found.get("literals", {})
    if rows:
        ours = max(max(row["ours"]) for row in rows.values() if "ours" in row)
        theirs = [max(row["theirs"]) for row in rows.values() if isinstance(row.get("theirs"), list)]
        lines.append(
            f"- With eps 1e-3 and momentum 0.03 ours lies within {_steps(ours)} steps of the formulas in {len(rows)}"
            f" situations; torchao is between {_steps(min(theirs))} and {_steps(max(theirs))} steps off in"
            f" {len(theirs)}, and fails in {len(rows) - len(theirs)}."
        )
    for section in ("quantizers", "specs"):
        rows = found.get(section, {})
        good = [row for row in rows.values() if "failure" not in row]
        same = [row for row in good if not row["why"]]
        if same:
            most_off = max(row["converted"] for row in same)
            lines.append(
                f"- {section}: {len(same)} of {len(rows)} cases agree, converted, within {_steps(most_off)} steps;"
                f" in {len(good) - len(same)} the difference is torchao's."
            )
    return "\n".join(lines)


def report(found: dict[str, dict[str, Row]]) -> str:
    parts = [_HEAD.format(steps=STEPS, summary=_summary(found))]
    for section, (text, columns, line) in _SECTIONS.items():
        rows = found.get(section)
        if not rows:
            continue
        if line is None:
            lines = _switching_lines(rows)
        else:
            failed = {name: row["failure"] for name, row in rows.items() if "failure" in row}
            lines = [f"{name} | {failed[name]}" if name in failed else line(name, row) for name, row in rows.items()]
        rule = " | ".join("---" for _ in columns.split("|"))
        parts.append(f"{text}\n\n" + "".join(f"| {each} |\n" for each in (columns, rule, *lines)))
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("which", nargs="*")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    journal: Path | None = options.keep
    lines = journal.read_text().splitlines() if journal is not None and journal.exists() else []
    known = {(each["section"], each["name"]): each["row"] for each in map(json.loads, lines)}
    found: dict[str, dict[str, Row]] = {}
    for entry in progress.count_done("models", list(entries())):
        if options.which and not any(part in f"{entry.section}: {entry.name}" for part in options.which):
            continue
        row = known.get((entry.section, entry.name))
        if row is None:
            try:
                row = entry.find()
            except Exception as failure:
                row = {"failure": f"{type(failure).__name__}: {str(failure)[:120]}".replace("\n", " ")}
            if journal is not None:
                with journal.open("a") as file:
                    file.write(json.dumps({"section": entry.section, "name": entry.name, "row": row}) + "\n")
        found.setdefault(entry.section, {})[entry.name] = row
        print(f"{entry.section}: {entry.name}: {row}", flush=True)
    if options.write is not None:
        options.write.write_text(report(found))


if __name__ == "__main__":
    main()
