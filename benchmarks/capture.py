"""How long `ingot.capture` takes, against `torch.export.export(strict=False)`, on the same models in the same run.

    python benchmarks/capture.py            # six models at full size and twenty small ones; writes results/capture.json
    python benchmarks/capture.py --quick    # the small ones, two rounds; writes nothing unless --json names a file

Each model is built once, then captured by both in turn, the one that goes first changing from round to round. The
first round is thrown away, so imports and lazily filled caches count for neither; the medians of the others are
compared. Static: the example's own sizes. Dynamic: batch, and for text the sequence, are symbols. A row on which
either side raises is shown and counts in no mean.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # not this folder: onnx.py would hide the package of its name

import torch
import transformers
from torch import nn
from torch.export import Dim
from transformers.initialization import no_init_weights

import ingot
from benchmarks.support import report

# Chosen by name, over all families, so that the list stays what it is while the zoo grows.
# fmt: off
SMALL = (
    "albert", "bert", "distilbert", "roberta", "bloom", "gpt-neox", "llama-no-cache", "opt",
    "convnext", "mobilenet-v2", "regnet", "segformer", "swin", "vit",
    "bart-no-cache", "t5-no-cache", "ast", "whisper-no-cache", "olmoe", "lfm2",
)
# fmt: on


@dataclass(frozen=True, slots=True)
class Subject:
    """A model to capture: how to build it, its inputs at given sizes, and which of their dimensions may change."""

    name: str
    scale: str  # "full" or "small"
    build: Callable[[], nn.Module]
    inputs: Callable[[dict[str, int]], dict[str, Any]]
    sizes: dict[str, int]
    dynamic: dict[str, dict[int, str]] | None
    limits: dict[str, int]  # the largest value of a size, where the model has one


@dataclass(slots=True)
class Row:
    """What one model gave in one mode: the kept rounds of each side in seconds, or why a side gave none."""

    model: str
    scale: str
    mode: str  # "static" or "dynamic"
    torch_seconds: list[float] = field(default_factory=list)
    ingot_seconds: list[float] = field(default_factory=list)
    torch_error: str | None = None
    ingot_error: str | None = None

    @property
    def ratio(self) -> float | None:
        """Ingot's median over torch.export's; None where either side failed."""
        if not self.torch_seconds or not self.ingot_seconds:
            return None
        return statistics.median(self.ingot_seconds) / statistics.median(self.torch_seconds)

    def cells(self) -> tuple[str, ...]:
        """The row as the table shows it."""
        theirs = f"{statistics.median(self.torch_seconds):.3f}" if self.torch_seconds else "torch.export fails"
        ours = f"{statistics.median(self.ingot_seconds):.3f}" if self.ingot_seconds else "ingot fails"
        return self.model, self.mode, theirs, ours, "" if self.ratio is None else f"{self.ratio:.2f}"

    def record(self) -> dict[str, Any]:
        """The row as the JSON file holds it."""
        return {
            "model": self.model,
            "scale": self.scale,
            "mode": self.mode,
            "torch_export_s": self.torch_seconds,
            "ingot_s": self.ingot_seconds,
            "ratio": self.ratio,
            "torch_export_error": self.torch_error,
            "ingot_error": self.ingot_error,
        }


def ids(*shape: int) -> torch.Tensor:
    """Token ids that every vocabulary here has."""
    return torch.randint(3, 1000, shape)


def text(sizes: dict[str, int]) -> dict[str, Any]:
    """Token ids, and a mask that hides nothing."""
    shape = sizes["batch"], sizes["seq"]
    return {"input_ids": ids(*shape), "attention_mask": torch.ones(shape, dtype=torch.int64)}


def translation(sizes: dict[str, int]) -> dict[str, Any]:
    """Token ids for an encoder and for a decoder, of independent lengths."""
    batch = sizes["batch"]
    return {"input_ids": ids(batch, sizes["seq"]), "decoder_input_ids": ids(batch, sizes["target"])}


def image(sizes: dict[str, int]) -> dict[str, Any]:
    """Images of 224×224."""
    return {"pixel_values": torch.randn(sizes["batch"], 3, 224, 224)}


TEXT = {"input_ids": {0: "batch", 1: "seq"}, "attention_mask": {0: "batch", 1: "seq"}}
TRANSLATION = {"input_ids": {0: "batch", 1: "seq"}, "decoder_input_ids": {0: "batch", 1: "target"}}
IMAGE = {"pixel_values": {0: "batch"}}

LLAMA = {
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 2048,
    "use_cache": False,
}
T5 = {"use_cache": False, "decoder_start_token_id": 0}


def of_class(model: str, **settings: Any) -> Callable[[], nn.Module]:
    """Builds the `transformers` class of that name; what its weights are does not matter here, so none is drawn."""

    def build() -> nn.Module:
        cls = getattr(transformers, model)
        with no_init_weights():
            module = cls(cls.config_class(**settings)).eval()
        module.tie_weights()  # part of the initialization that was left out
        return module

    return build


FULL = (
    Subject("BERT-base", "full", of_class("BertModel"), text, {"batch": 1, "seq": 128}, TEXT, {"seq": 512}),
    Subject(
        "GPT-2",
        "full",
        of_class("GPT2LMHeadModel", use_cache=False),
        text,
        {"batch": 1, "seq": 128},
        TEXT,
        {"seq": 1024},
    ),
    Subject(
        "Llama, 12 layers",
        "full",
        of_class("LlamaForCausalLM", **LLAMA),
        text,
        {"batch": 1, "seq": 128},
        TEXT,
        {"seq": 2048},
    ),
    Subject("ResNet-50", "full", of_class("ResNetForImageClassification"), image, {"batch": 1}, IMAGE, {}),
    Subject("ViT-B/16", "full", of_class("ViTForImageClassification"), image, {"batch": 1}, IMAGE, {}),
    Subject(
        "T5-small",
        "full",
        of_class("T5ForConditionalGeneration", **T5),
        translation,
        {"batch": 1, "seq": 64, "target": 64},
        TRANSLATION,
        {"seq": 512, "target": 512},
    ),
)


def small() -> Iterator[Subject]:
    """Twenty small models out of the tests' zoo, in which no text is longer than 64 tokens."""
    from tests.support.zoo import ZOO

    zoo = {entry.name: entry for entry in ZOO}
    for name in SMALL:
        if name not in zoo:
            raise SystemExit(f"tests/support/zoo has no entry named {name!r}; correct SMALL in {__file__}")
        entry = zoo[name]
        yield Subject(name, "small", entry.build, entry.inputs, entry.sizes, entry.dynamic, {"seq": 64, "target": 64})


def measure(subject: Subject, rounds: int) -> Iterator[Row]:
    """Captures the subject with both, statically and, where it has dimensions that may change, dynamically."""
    model = subject.build()
    yield compare(Row(subject.name, subject.scale, "static"), model, subject.inputs(subject.sizes), None, rounds)
    if subject.dynamic:
        # A size of 1 is a constant to torch.export, whatever the declaration says.
        inputs = subject.inputs({name: max(2, size) for name, size in subject.sizes.items()})
        row = Row(subject.name, subject.scale, "dynamic")
        yield compare(row, model, inputs, symbols(subject.dynamic, subject.limits), rounds)


def symbols(dynamic: dict[str, dict[int, str]], limits: dict[str, int]) -> dict[str, dict[int, Dim]]:
    """The named dimensions as `torch.export.Dim`, one object a name."""
    names = sorted({name for dims in dynamic.values() for name in dims.values()})
    dims = {name: Dim(name, max=limits[name]) if name in limits else Dim(name) for name in names}
    return {key: {index: dims[name] for index, name in named.items()} for key, named in dynamic.items()}


def compare(
    row: Row, model: nn.Module, inputs: dict[str, Any], dynamic: dict[str, dict[int, Dim]] | None, rounds: int
) -> Row:
    """Fills the row: both sides in turn, `rounds` times, the first of them not kept. A side that raises is out."""

    # torch.export wants every input named in dynamic_shapes, those that stay as they are too.
    complete = None if dynamic is None else {name: dynamic.get(name) for name in inputs}

    def theirs() -> object:
        return torch.export.export(model, (), inputs, dynamic_shapes=complete, strict=False)

    def ours() -> object:
        return ingot.capture(model, (), inputs, dynamic_shapes=dynamic)

    for number in range(rounds):
        sides = [("torch", theirs), ("ingot", ours)]
        for side, capture in sides if number % 2 == 0 else reversed(sides):
            if getattr(row, f"{side}_error") is not None:
                continue
            gc.collect()
            try:
                begin = time.perf_counter()
                capture()
                seconds = time.perf_counter() - begin
            except Exception as error:  # whatever it is, the table says so and goes on
                first_line = next(iter(str(error).strip().splitlines()), "")
                setattr(row, f"{side}_error", f"{type(error).__name__}: {first_line[:300]}")
                getattr(row, f"{side}_seconds").clear()
            else:
                if number > 0:
                    getattr(row, f"{side}_seconds").append(seconds)
    return row


def summary(rows: list[Row]) -> dict[str, float | None]:
    """Geometric means of the ratios: by mode, by scale, and of all."""

    def mean(**wanted: str) -> float | None:
        chosen = [row for row in rows if all(getattr(row, key) == value for key, value in wanted.items())]
        return report.geomean([row.ratio for row in chosen if row.ratio is not None])

    return {
        "static": mean(mode="static"),
        "dynamic": mean(mode="dynamic"),
        "full": mean(scale="full"),
        "small": mean(scale="small"),
        "overall": mean(),
    }


def main() -> int:
    """Runs the benchmark; 1 where ingot failed on a model, else 0."""
    parser = argparse.ArgumentParser(description="Capture time of ingot against torch.export (strict=False).")
    parser.add_argument("--quick", action="store_true", help="the small models only, two rounds, no file by default")
    parser.add_argument("--rounds", type=int, help="rounds a model, the first of which is thrown away (default 5)")
    parser.add_argument("--only", metavar="TEXT", help="only the models whose name contains TEXT; no file by default")
    parser.add_argument("--json", type=Path, metavar="PATH", help="where to write (default results/capture.json)")
    options = parser.parse_args()
    rounds = options.rounds or (2 if options.quick else 5)
    if rounds < 2:
        parser.error("--rounds must be at least 2: the first one is thrown away")

    torch.set_num_threads(2)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()

    subjects = [*([] if options.quick else FULL), *small()]
    subjects = [subject for subject in subjects if (options.only or "").lower() in subject.name.lower()]
    rows: list[Row] = []
    for number, subject in enumerate(subjects, 1):
        print(f"[{number}/{len(subjects)}] {subject.name}", file=sys.stderr, flush=True)
        rows.extend(measure(subject, rounds))

    means = summary(rows)
    print(report.table(["model", "sizes", "torch.export s", "ingot s", "ratio"], [row.cells() for row in rows]))
    print()
    counted = sum(row.ratio is not None for row in rows)
    print(f"ingot over torch.export, geometric mean of {counted} of {len(rows)} rows:")
    for name, value in means.items():
        print(f"  {name:8} {'—' if value is None else f'{value:.2f}'}")
    print(f"medians of {rounds - 1} interleaved rounds after one warm-up round; imports and building not counted")
    for row in rows:
        for side, error in (("torch.export", row.torch_error), ("ingot", row.ingot_error)):
            if error is not None:
                print(f"{side} fails on {row.model}, {row.mode}: {error[:160]}")

    if options.json or not (options.quick or options.only):
        versions = {"transformers": transformers.__version__, "rounds": rounds, "discarded_rounds": 1}
        measured = {**versions, "geomean": means, "rows": [row.record() for row in rows]}
        print(f"written: {report.write('capture', measured, options.json)}")
    return int(any(row.ingot_error for row in rows))


if __name__ == "__main__":
    sys.exit(main())
