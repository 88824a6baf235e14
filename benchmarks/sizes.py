"""One compiled file at many sizes, against peers that know each size: sequences of 1 to 4,096, batches, images.

    python benchmarks/sizes.py                        # every series; writes results/sizes.json
    python benchmarks/sizes.py encoder --minutes 10   # some of them; writes nothing unless --json names a file
    python benchmarks/sizes.py --with-compile         # torch.compile too, compiled for each size

Ingot compiles a model once, with its sizes dynamic. ONNX Runtime and OpenVINO load the model anew for each size, as a
static one; eager takes what comes. Peers take turns at each size, medians are compared. A cliff is a size at which the
time of an element is more than that of both its neighbours in the series; the table shows the time of an element.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # not this folder: onnx.py would hide the package of its name

import torch
import transformers
from torch import nn

import ingot
from benchmarks.models import LLAMA, SUBJECTS, THREADS, Plain
from benchmarks.support import report
from benchmarks.support.onnx_peers import onnx_runtime, openvino
from ingot.benchmarking import time_interleaved

PEERS = ("eager", "torch.compile", "ONNX Runtime", "OpenVINO")
PAUSE, TURN = 0.2, 0.05  # seconds before a turn, and of counted calls in it at least
LENGTHS = (1, 2, 7, 16, 31, 64, 128, 256, 509, 1024, 2048, 4096)
BATCHES = (1, 2, 3, 4, 8, 16, 32, 64)
IMAGES = (128, 160, 192, 224, 256, 320, 384, 448, 512, 640)
LONGEST = 4096
LAYERS = 4  # of the transformers: long sequences take long


@dataclass(frozen=True, slots=True)
class Series:
    """A model and the sizes of one of its dims: an input for each, and which of its dims are dynamic.

    `amount` is by how much the model's work grows with a size, for the time of an element.
    """

    name: str
    build: Callable[[], nn.Module]
    sizes: Sequence[int]
    make_input: Callable[[int], torch.Tensor]
    dims: dict[int, str]
    example: int
    amount: Callable[[int], int]


def _ids(length: int) -> torch.Tensor:
    return torch.randint(0, 1000, (1, length))


def _encoder() -> nn.Module:
    config = transformers.BertConfig(num_hidden_layers=LAYERS, max_position_embeddings=LONGEST)
    return Plain(transformers.BertModel(config))


def _decoder() -> nn.Module:
    config = transformers.LlamaConfig(**LLAMA | {"num_hidden_layers": LAYERS}, max_position_embeddings=LONGEST)
    return Plain(transformers.LlamaForCausalLM(config), use_cache=False)


def list_series() -> list[Series]:
    """Every series: transformers over lengths and batches, convolutional networks over batches and image sizes."""
    built = {subject.name: subject.build for subject in SUBJECTS}
    length = {1: "length"}
    found = [
        Series("encoder, length", _encoder, LENGTHS, _ids, length, 128, lambda n: n),
        Series("decoder, length", _decoder, LENGTHS, _ids, length, 128, lambda n: n),
        Series("encoder, batch", _encoder, BATCHES, lambda n: torch.randint(0, 1000, (n, 64)), {0: "batch"}, 4,
               lambda n: n),
    ]  # fmt: skip
    for name in ("resnet-50", "mobilenet-v2", "convnext-t"):
        found.append(
            Series(f"{name}, batch", built[name], BATCHES, lambda n: torch.randn(n, 3, 224, 224), {0: "batch"}, 4,
                   lambda n: n)
        )  # fmt: skip
    # MobileNetV2 of transformers computes its padding from the size as a plain number: it is static.
    for name in ("resnet-50", "convnext-t"):
        found.append(
            Series(f"{name}, image", built[name], IMAGES, lambda n: torch.randn(1, 3, n, n), {2: "rows", 3: "columns"},
                   224, lambda n: n * n)
        )  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("series", nargs="*", help="parts of names; all of them where none is given")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without", nargs="*", default=[], choices=PEERS, help="peers to leave out")
    parser.add_argument("--with-compile", action="store_true", help="compile with torch.compile for each size too")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no size after this time")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(THREADS)
    peers = [name for name in PEERS if name not in given.without and (name != "torch.compile" or given.with_compile)]
    end = time.monotonic() + 60 * given.minutes
    rows = []
    for series in list_series():
        if not given.series or any(part in series.name for part in given.series):
            rows += measure(series, peers, given.rounds, end)
    summary = summarize(rows)
    print(report.table(["series", "size", "Ingot", *peers, "best peer / Ingot", "Ingot, µs an element"],
                       [_cells(row, peers) for row in rows]))  # fmt: skip
    print(*(f"{name}: {value}" for name, value in summary.items()), sep="\n")
    if given.json or not given.series:
        print(report.write("sizes", {"rows": rows, "summary": summary}, given.json))


def measure(series: Series, peers: Sequence[str], rounds: int, end: float) -> list[dict[str, Any]]:
    """A row for every size of a series."""
    torch.manual_seed(0)
    model = series.build().eval()
    rows = []
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        compiled = ingot.compile(model, (series.make_input(series.example),), dynamic_shapes=(series.dims,),
                                 threads=THREADS, cache=False)  # fmt: skip
        for size in series.sizes:
            if time.monotonic() > end:
                print(f"{series.name}: no time was left for sizes from {size} on", flush=True)
                break
            x = series.make_input(size)
            failures: dict[str, str] = {}
            calls = {"Ingot": lambda x=x: compiled(x)} | _peer_calls(model, x, peers, Path(folder), failures)
            times = time_interleaved(calls, rounds, pause=PAUSE, least=TURN)
            expected = model(x)
            row = {
                "series": series.name,
                "size": size,
                "times": {name: statistics.median(found) * 1e3 for name, found in times.items()},
                "error": float((compiled(x) - expected).abs().max() / expected.abs().max()),
                "failures": failures,
            }
            row["us_an_element"] = row["times"]["Ingot"] * 1e3 / series.amount(size)
            rows.append(row)
            print(f"{series.name} {size}: {_line(row)}", flush=True)
    return rows


def _peer_calls(
    model: nn.Module, x: torch.Tensor, peers: Sequence[str], folder: Path, failures: dict[str, str]
) -> dict[str, Callable[[], torch.Tensor]]:
    """A call of each peer, made for the size of this input; what fails says why in `failures`."""
    path = folder / f"{'x'.join(map(str, x.shape))}.onnx"

    def compile_model() -> Callable[[], torch.Tensor]:
        torch._dynamo.reset()
        compiled = torch.compile(model, dynamic=False)
        return lambda: compiled(x)

    makers: dict[str, Callable[[], Callable[[], torch.Tensor]]] = {
        "eager": lambda: lambda: model(x),
        "torch.compile": compile_model,
        "ONNX Runtime": lambda: onnx_runtime(path, (x,)),
        "OpenVINO": lambda: openvino(path, (x,)),
    }
    calls = {}
    try:
        if {"ONNX Runtime", "OpenVINO"} & set(peers):
            torch.onnx.export(model, (x,), path, dynamo=True, verbose=False)
    except Exception as failure:
        failures["export"] = str(failure)[:200]
    for name in peers:
        try:
            call = makers[name]()
            call()
            calls[name] = call
        except Exception as failure:
            failures[name] = f"{type(failure).__name__}: {failure}"[:200]
    for file in folder.glob(f"{path.name}*"):
        file.unlink()
    return calls


def summarize(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The ratio to the best peer, over all sizes and by series, and the sizes that are cliffs."""
    ratios = {name: [_ratio(row) for row in rows if row["series"] == name and len(row["times"]) > 1]
              for name in dict.fromkeys(row["series"] for row in rows)}  # fmt: skip
    every = [ratio for found in ratios.values() for ratio in found]
    return {
        "speed against the best peer, geomean": report.geomean(every),
        "speed against the best peer, least": min(every, default=None),
        "by series": {name: report.geomean(found) for name, found in ratios.items()},
        "cliffs": find_cliffs(rows),
    }


def find_cliffs(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Sizes whose element takes a tenth longer than one of the next smaller size, and of the next larger one."""
    found = []
    for before, row, after in zip(rows, rows[1:], rows[2:], strict=False):
        if before["series"] == row["series"] == after["series"]:
            beside = max(before["us_an_element"], after["us_an_element"])
            if row["us_an_element"] > 1.1 * beside:
                found.append(f"{row['series']} {row['size']}: {row['us_an_element'] / beside:.2f}")
    return found


def _ratio(row: dict[str, Any]) -> float:
    times = row["times"]
    return float(min(times[name] for name in times if name != "Ingot") / times["Ingot"])


def _line(row: dict[str, Any]) -> str:
    times = "  ".join(f"{name} {value:.2f}" for name, value in row["times"].items())
    ratio = f", best peer / Ingot {_ratio(row):.2f}" if len(row["times"]) > 1 else ""
    failed = "".join(f"\n    {name} failed: {why}" for name, why in row["failures"].items())
    return f"{times} ms, error {row['error']:.1e}{ratio}{failed}"


def _cells(row: dict[str, Any], peers: Sequence[str]) -> list[str]:
    times = row["times"]
    cells = [f"{times[name]:.2f}" if name in times else "–" for name in ("Ingot", *peers)]
    ratio = f"{_ratio(row):.2f}" if len(times) > 1 else "–"
    return [row["series"], str(row["size"]), *cells, ratio, f"{row['us_an_element']:.3g}"]


if __name__ == "__main__":
    main()
