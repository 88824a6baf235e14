"""How long the default pipeline takes, against `run_decompositions()` of `torch.export`, on the same models.

    python benchmarks/passes.py            # nine models at full size, and growth with depth; writes results/passes.json
    python benchmarks/passes.py --only BERT

Each model is captured once by either side; then `ingot.transform(program, passes.DEFAULT_PIPELINE)`, with the checks
that are its default, and `exported.run_decompositions()` run in turn, the one that goes first changing from round to
round. The first round is thrown away; the medians of the others are compared. Depth: a Llama of 4, 16 and 64 layers,
the least time of each, for only growth counts there; time a layer says whether it grows faster than the model.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # not this folder: onnx.py would hide the package of its name

import torch
import transformers
from torch import nn
from transformers.initialization import no_init_weights

import ingot
from benchmarks.capture import FULL, IMAGE, LLAMA, Subject, image, of_class, text
from benchmarks.support import report
from ingot import passes

GOAL = 0.5  # of torch's time, as a geometric mean
LAYERS = (4, 16, 64)


@dataclass(slots=True)
class Row:
    """One model: the kept rounds of each side in seconds, and how many nodes came of it."""

    model: str
    torch_seconds: list[float] = field(default_factory=list)
    ingot_seconds: list[float] = field(default_factory=list)
    torch_nodes: int = 0
    ingot_nodes: int = 0
    by_pass: dict[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        return statistics.median(self.ingot_seconds) / statistics.median(self.torch_seconds)

    def cells(self) -> tuple[str, ...]:
        """The row as the table shows it."""
        theirs, ours = (f"{statistics.median(s):.3f}" for s in (self.torch_seconds, self.ingot_seconds))
        return self.model, theirs, ours, f"{self.ratio:.2f}", str(self.torch_nodes), str(self.ingot_nodes)

    def record(self) -> dict[str, Any]:
        """The row as the JSON file holds it."""
        return {
            "model": self.model,
            "run_decompositions_s": self.torch_seconds,
            "ingot_s": self.ingot_seconds,
            "ratio": self.ratio,
            "run_decompositions_nodes": self.torch_nodes,
            "ingot_nodes": self.ingot_nodes,
            "ingot_pass_s": self.by_pass,
        }


def sound(sizes: dict[str, int]) -> dict[str, Any]:
    """Thirty seconds of sound as whisper takes it."""
    return {"input_features": torch.randn(sizes["batch"], 80, 3000)}


def whisper_encoder() -> nn.Module:
    """The encoder of whisper-tiny."""
    settings = {"d_model": 384, "encoder_layers": 4, "encoder_attention_heads": 6, "encoder_ffn_dim": 1536}
    with no_init_weights():
        return transformers.WhisperModel(transformers.WhisperConfig(**settings)).encoder.eval()


def llama(layers: int, **settings: Any) -> Callable[[], nn.Module]:
    return of_class("LlamaForCausalLM", **{**LLAMA, "num_hidden_layers": layers, **settings})


SUBJECTS = (
    *FULL,
    Subject("ConvNeXt-T", "full", of_class("ConvNextForImageClassification"), image, {"batch": 1}, IMAGE, {}),
    Subject("MobileNetV2", "full", of_class("MobileNetV2ForImageClassification"), image, {"batch": 1}, IMAGE, {}),
    Subject("whisper-tiny encoder", "full", whisper_encoder, sound, {"batch": 1}, None, {}),
)


def measure(subject: Subject, rounds: int) -> Row:
    """Both sides on one model, in turn, `rounds` times, the first of them not kept."""
    model, inputs = subject.build(), subject.inputs(subject.sizes)
    program = ingot.capture(model, (), inputs)
    exported = torch.export.export(model, (), inputs, strict=False)
    row = Row(subject.name)

    def theirs() -> float:
        began = time.perf_counter()
        made = exported.run_decompositions()
        seconds = time.perf_counter() - began
        row.torch_nodes = len(made.graph.nodes)
        return seconds

    def ours() -> float:
        began = time.perf_counter()
        made = ingot.transform(program, passes.DEFAULT_PIPELINE)
        seconds = time.perf_counter() - began
        row.ingot_nodes = len(made.graph.nodes)
        row.by_pass = {step.name: round(step.seconds, 4) for step in made.history[len(program.history) :]}
        return seconds

    sides = [(row.torch_seconds, theirs), (row.ingot_seconds, ours)]
    for number in range(rounds):
        for kept, run in sides if number % 2 == 0 else reversed(sides):
            gc.collect()
            seconds = run()
            if number > 0:
                kept.append(seconds)
    return row


def growth(rounds: int) -> list[dict[str, Any]]:
    """The default pipeline on Llamas of several depths, narrow ones, for only nodes count here."""
    narrow = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "vocab_size": 1000}
    programs = {
        layers: ingot.capture(llama(layers, **narrow)(), (), text({"batch": 1, "seq": 32})) for layers in LAYERS
    }
    seconds: dict[int, list[float]] = {layers: [] for layers in LAYERS}
    for number in range(rounds):
        for layers, program in programs.items():
            gc.collect()
            began = time.perf_counter()
            ingot.transform(program, passes.DEFAULT_PIPELINE)
            if number > 0:
                seconds[layers].append(time.perf_counter() - began)
    return [
        {
            "layers": layers,
            "nodes": len(programs[layers].graph.nodes),
            "seconds": seconds[layers],
            "ms_per_layer": 1000 * min(seconds[layers]) / layers,
        }
        for layers in LAYERS
    ]


def main() -> int:
    """Runs the benchmark; 1 where the goal is missed, else 0."""
    parser = argparse.ArgumentParser(description="Time of Ingot's default pipeline against run_decompositions().")
    parser.add_argument("--rounds", type=int, default=5, help="rounds a model, the first of which is thrown away")
    parser.add_argument("--only", metavar="TEXT", help="only the models whose name contains TEXT; no file by default")
    parser.add_argument("--json", type=Path, metavar="PATH", help="where to write (default results/passes.json)")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds must be at least 2: the first one is thrown away")

    torch.set_num_threads(2)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()

    subjects = [subject for subject in SUBJECTS if (options.only or "").lower() in subject.name.lower()]
    rows = []
    for number, subject in enumerate(subjects, 1):
        print(f"[{number}/{len(subjects)}] {subject.name}", file=sys.stderr, flush=True)
        rows.append(measure(subject, options.rounds))
    depths = growth(options.rounds)
    mean = report.geomean([row.ratio for row in rows])
    linear = depths[-1]["ms_per_layer"] <= depths[0]["ms_per_layer"]

    headers = ["model", "run_decompositions s", "ingot s", "ratio", "nodes", "ingot nodes"]
    print(report.table(headers, [row.cells() for row in rows]))
    print(f"\ningot over run_decompositions, geometric mean of {len(rows)}: {mean or 0:.2f} (goal: at most {GOAL})\n")
    cells = [(str(d["layers"]), str(d["nodes"]), f"{d['ms_per_layer']:.1f}") for d in depths]
    print(report.table(["layers", "nodes", "ms a layer"], cells))
    print(f"\ngrowth with depth is {'no worse than' if linear else 'worse than'} linear")
    print(f"medians of {options.rounds - 1} interleaved rounds after one warm-up round; capture not counted")
    if options.json or not options.only:
        versions = {"transformers": transformers.__version__, "rounds": options.rounds, "discarded_rounds": 1}
        measured = {**versions, "geomean": mean, "rows": [row.record() for row in rows], "depth": depths}
        print(f"written: {report.write('passes', measured, options.json)}")
    return int(mean is None or mean > GOAL or not linear)


if __name__ == "__main__":
    sys.exit(main())
