"""What quantization costs: a small convolutional network and a small transformer, trained here, in one table.

    python benchmarks/accuracy.py --write docs/reports/quantize.md

The network reads scikit-learn's digits. The transformer predicts the next character of the docstrings of Python's own
library. Both are trained in float first; everything else starts from that. Under four minutes on two cores.
"""

from __future__ import annotations

import argparse
import inspect
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # not this folder: cuda.py would hide the package of its name

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import ingot
from ingot.quantize import (
    PreparedProgram,
    Recipe,
    calibrate,
    convert,
    int4_weight_only,
    int8_dynamic,
    int8_static,
    int8_weight_only,
    prepare,
    prepare_qat,
)

THREADS = 2
LONGER = "float, trained as long as QAT"
CONTEXT = 64
# Modules whose docstrings are the text; all come with Python.
MODULES = (
    *("argparse", "ast", "asyncio", "base64", "bisect", "calendar", "codecs", "collections", "configparser", "copy"),
    *("csv", "datetime", "decimal", "difflib", "dis", "email", "enum", "fractions", "functools", "gettext", "glob"),
    *("heapq", "http", "inspect", "io", "ipaddress", "itertools", "json", "locale", "logging", "math", "optparse"),
    *("os", "pathlib", "pickle", "pprint", "random", "re", "shutil", "socket", "ssl", "statistics", "string"),
    *("subprocess", "tarfile", "tempfile", "textwrap", "threading", "tokenize", "types", "unittest.mock"),
    *("urllib.parse", "uuid", "warnings", "weakref", "zipfile"),
)


@dataclass(frozen=True)
class Subject:
    """A task: how to make its model, its batches for training, and its test data."""

    name: str
    model: Callable[[], nn.Module]
    batch: Callable[[], tuple[torch.Tensor, torch.Tensor]]
    test: tuple[torch.Tensor, torch.Tensor]
    steps: int
    rate: float


# ---------------------------------------------------------------------- digits


def conv_net() -> nn.Module:
    def block(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
        return [
            nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.03),
            nn.ReLU(inplace=True),
        ]

    return nn.Sequential(
        *block(1, 16, 1), *block(16, 32, 2), *block(32, 32, 1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(512, 10)
    )


def digits() -> Subject:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images.reshape(-1, 1, 8, 8) / 8.0 - 1.0, dtype=torch.float32)
    y = torch.tensor(labels)
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(y)))
    train, test = order[:1297], order[1297:]

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        chosen = train[torch.randint(0, len(train), (64,))]
        return x[chosen], y[chosen]

    return Subject("conv net on digits", conv_net, batch, (x[test], y[test]), 300, 2e-3)


# ---------------------------------------------------------------------- characters


class Block(nn.Module):
    """Attention with its products written out, and a layer of neurons."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("mask", torch.full((CONTEXT, CONTEXT), -1e4).triu(1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        y = self.before(x)
        q, k, v = (
            layer(y).view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(2, 3) / math.sqrt(width // self.heads) + self.mask[:length, :length]
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(mixed)
        return x + self.down(nn.functional.gelu(self.up(self.after(x))))


class Characters(nn.Module):
    def __init__(self, letters: int, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(letters, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, letters)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.letter(ids) + self.place(torch.arange(ids.shape[1]))
        return self.head(self.norm(self.blocks(x))).transpose(1, 2)


def corpus() -> str:
    """The docstrings of Python's own modules, classes and functions, as plain characters."""
    found: dict[str, None] = {}
    for name in MODULES:
        module = import_module(name)
        for owner in (module, *(v for k, v in sorted(vars(module).items()) if inspect.isclass(v))):
            members = [owner, *(v for k, v in sorted(vars(owner).items()) if callable(v))]
            found.update((inspect.cleandoc(m.__doc__), None) for m in members if isinstance(m.__doc__, str))
    return "".join(c for c in "\n".join(found) if c == "\n" or " " <= c <= "~")


def characters() -> Subject:
    text = corpus()
    letters = {c: i for i, c in enumerate(sorted(set(text)))}
    ids = torch.tensor([letters[c] for c in text])
    cut = int(0.9 * len(ids))

    def rows(starts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        places = starts[:, None] + torch.arange(CONTEXT)
        return ids[places], ids[places + 1]

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        return rows(torch.randint(0, cut - CONTEXT - 1, (32,)))

    test = rows(torch.arange(cut, len(ids) - CONTEXT - 1, CONTEXT)[:256])
    return Subject("transformer on characters", lambda: Characters(len(letters)), batch, test, 600, 3e-3)


# ---------------------------------------------------------------------- the table


def fit(module: nn.Module, subject: Subject, steps: int, rate: float) -> None:
    optimizer = torch.optim.AdamW(module.parameters(), rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    module.train()
    for _ in range(steps):
        x, y = subject.batch()
        optimizer.zero_grad()
        cross_entropy(module(x), y).backward()
        optimizer.step()
        schedule.step()
    module.eval()


@torch.no_grad()
def accuracy(model: Callable[[torch.Tensor], torch.Tensor], subject: Subject) -> float:
    """Percent of the test data that the model gets right."""
    x, y = subject.test
    return 100 * float((model(x).argmax(1) == y).double().mean())


def measure(subject: Subject) -> dict[str, float]:
    torch.manual_seed(0)
    model = subject.model()
    fit(model, subject, subject.steps, subject.rate)
    example = subject.batch()[0]
    batches = [subject.batch()[0] for _ in range(8)]
    dynamic = {next(iter(inspect.signature(model.forward).parameters)): {0: "batch"}}
    program = ingot.capture(model, (example,), dynamic_shapes=dynamic)
    found = {"float": accuracy(program, subject)}

    def ptq(recipe: Recipe) -> float:
        prepared = calibrate(prepare(program, recipe), batches, progress=False)
        return accuracy(convert(prepared), subject)

    every = ("conv", "linear", "matmul", "embedding", "add")
    found["PTQ, int8 static"] = ptq(int8_static())
    found["PTQ, int8 dynamic"] = ptq(int8_dynamic(kinds=every))
    found["PTQ, int8 weights only"] = ptq(int8_weight_only())
    found["PTQ, int4 weights only"] = ptq(int4_weight_only(group_size=32))
    four = int4_weight_only(group_size=32)
    longer: dict[str, Recipe | None] = {LONGER: None, "QAT, int8 static": int8_static(), "QAT, int4 weights only": four}
    for name, recipe in longer.items():
        before = {key: tensor.clone() for key, tensor in program.state_dict.items()}
        module = program.module() if recipe is None else prepare_qat(program, recipe)
        torch.manual_seed(1)
        fit(module, subject, subject.steps // 3, subject.rate / 10)
        found[name] = accuracy(convert(module) if isinstance(module, PreparedProgram) else module, subject)
        program.load_state_dict(before)  # parameters are shared with the program
    return found


def table(results: dict[str, dict[str, float]]) -> str:
    names = list(results)
    lines = [f"| | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    for row in next(iter(results.values())):
        cells = []
        for name in names:
            score, base = results[name][row], results[name][LONGER if row.startswith("QAT") else "float"]
            cells.append(f"{score:.2f} %" + ("" if row.startswith("float") else f" ({score - base:+.2f})"))
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines)


HEAD = """# Accuracy of quantized models

`python benchmarks/accuracy.py --write docs/reports/quantize.md`, or `make report-quantize`

Share of the test data that each model gets right, and points against float. The convolutional network (three
convolutions with batch norm, eps 1e-3 and momentum 0.03) reads scikit-learn's digits; the transformer (two layers, 64
wide) predicts the next character of the docstrings of Python's library. PTQ is calibrated on eight batches. QAT starts
from the float weights and trains a third as long, at a tenth of the rate; it is held against float weights that were
trained on in the same way.

"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    began = time.perf_counter()
    results = {}
    for subject in (digits(), characters()):
        results[subject.name] = measure(subject)
        print(f"{subject.name}: {time.perf_counter() - began:.0f} s", flush=True)
    made = table(results)
    print(made)
    if options.write is not None:
        options.write.write_text(HEAD + made + "\n")


if __name__ == "__main__":
    main()
