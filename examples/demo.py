"""The main job: two models captured, read, checked against eager, saved, loaded and rebuilt. `make demo` runs it."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.export import Dim
from transformers import BertConfig, BertModel, ResNetConfig, ResNetForImageClassification

import ingot

T = TypeVar("T")
Inputs = dict[str, torch.Tensor]
console = Console(highlight=False, soft_wrap=True)


def bert() -> nn.Module:
    """A BERT of four layers with random weights."""
    return BertModel(BertConfig(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024))


def resnet() -> nn.Module:
    """A residual network of four stages with random weights."""
    config = ResNetConfig(
        embedding_size=32, hidden_sizes=[32, 64, 128, 256], depths=[2, 2, 2, 2], layer_type="basic", num_labels=10
    )
    return ResNetForImageClassification(config)


def sentences(batch: int, length: int) -> Inputs:
    """Token ids, and a mask over them."""
    ids = torch.randint(0, 1000, (batch, length))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def images(batch: int) -> Inputs:
    """Images of 64×64."""
    return {"pixel_values": torch.randn(batch, 3, 64, 64)}


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """What `work` gives, and the seconds it took."""
    begin = time.perf_counter()
    result = work()
    return result, time.perf_counter() - begin


def check(what: str, eager: nn.Module, other: Callable[..., object], inputs: Inputs) -> None:
    """Says that `other` gives what `eager` gives, or stops the demo."""
    with torch.no_grad():
        expected, found = eager(**inputs).to_tuple(), other(**inputs).to_tuple()
    for want, have in zip(expected, found, strict=True):
        torch.testing.assert_close(have, want)
    sizes = ", ".join(f"{name} {'×'.join(map(str, value.shape))}" for name, value in inputs.items())
    console.print(f"  equal to eager: {what} ({sizes})")


def show(name: str, model: nn.Module, trials: list[Inputs], dynamic: dict | None, folder: Path) -> tuple[str, ...]:
    """Takes one model down the whole road, and gives its row of the table."""
    console.rule(name, align="left")
    model.eval()
    first = trials[0]

    program, capturing = timed(lambda: ingot.capture(model, (), first, dynamic_shapes=dynamic))
    lines = str(program).splitlines()
    console.print("\n".join(lines[:15]), markup=False)
    console.print(f"  … {len(lines) - 15} more lines\n")

    _, verifying = timed(program.verify)
    for inputs in trials:
        check("the program", model, program, inputs)

    path = folder / f"{name}.ingot"
    _, saving = timed(lambda: program.save(path))
    loaded, loading = timed(lambda: ingot.load(path))
    check("the program, saved and loaded", model, loaded, trials[-1])

    rebuilt = program.unflatten()
    check("an nn.Module again, unflattened", model, rebuilt, trials[-1])
    console.print(f"  its children: {', '.join(key for key, _ in rebuilt.named_children())}\n")

    weights = sum(value.nbytes for value in model.state_dict().values())
    seconds = (f"{value:.2f} s" for value in (capturing, verifying, saving, loading))
    return name, *seconds, f"{path.stat().st_size / 1e6:.2f} MB", f"{weights / 1e6:.2f} MB"


def main() -> None:
    """Runs the demo."""
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    batch, length = Dim("batch", max=64), Dim("length", max=512)
    free = {"input_ids": {0: batch, 1: length}, "attention_mask": {0: batch, 1: length}}

    table = Table("model", "capture", "verify", "save", "load", "file", "weights", title="The road of a model")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table.add_row(*show("bert", bert(), [sentences(2, 16), sentences(5, 40)], free, folder))
        table.add_row(*show("resnet", resnet(), [images(2)], None, folder))
    console.print(table)


if __name__ == "__main__":
    main()
