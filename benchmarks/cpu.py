"""Ingot beside eager, torch.compile, ONNX Runtime and OpenVINO: the same models, float32, two threads for everybody.

    python benchmarks/cpu.py                       # every model at batch 1 and 8; writes results/cpu.json
    python benchmarks/cpu.py bert resnet --batch 1 # some of them; writes nothing unless --json names a file

One process, one model at a time. Peers are prepared first, then take turns, the order changing from round to round;
medians are compared. A turn begins with a pause, for the threads of some peers spin on a core for a while after their
work is done, and with a call that is not counted, which finds the caches full of another peer's weights. The limit is the model's multiplications over the peak measured here by a plain loop of
multiply-adds, or its weights over the bandwidth measured here, whichever is longer. Peers get their models through
torch.onnx.export, whose time does not count for them; torch.compile's and Ingot's compile times are cold.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import transformers
from torch import nn

import ingot
from benchmarks import report

THREADS = 2
PAUSE = 0.3  # seconds before each turn
TURN = 0.06  # seconds of counted calls that a turn has at least
PEERS = ("eager", "torch.compile", "ONNX Runtime", "OpenVINO", "Ingot")


class Plain(nn.Module):
    """A model whose result is a tuple of tensors, which every exporter understands."""

    def __init__(self, model: nn.Module, **fixed: Any) -> None:
        super().__init__()
        self.model, self.fixed = model, fixed

    def forward(self, *args: torch.Tensor) -> Any:
        result = self.model(*args, **self.fixed)
        return result[0]


class Decoder(nn.Module):
    """One token of a Llama against `past` cached ones."""

    def __init__(self, model: nn.Module, layers: int) -> None:
        super().__init__()
        self.model, self.layers = model, layers

    def forward(self, token: torch.Tensor, *cache: torch.Tensor) -> Any:
        pairs = [(cache[2 * n], cache[2 * n + 1]) for n in range(self.layers)]
        past = transformers.DynamicCache(pairs)
        result = self.model(input_ids=token, past_key_values=past, use_cache=True)
        return result.logits


@dataclass(frozen=True, slots=True)
class Subject:
    """A model by name: how to build it, and its inputs for a batch."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[int], tuple[torch.Tensor, ...]]


def _ids(size: int, length: int) -> torch.Tensor:
    return torch.randint(0, 1000, (size, length))


def _image(size: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(size, 3, 224, 224),)


LLAMA = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12, "num_attention_heads": 16,
         "num_key_value_heads": 16, "vocab_size": 32000}  # fmt: skip


def _llama() -> nn.Module:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))


def _t5() -> nn.Module:
    class T5(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = transformers.T5Model(transformers.T5Config(vocab_size=32128))

        def forward(self, ids: torch.Tensor, decoder_ids: torch.Tensor) -> Any:
            return self.model(input_ids=ids, decoder_input_ids=decoder_ids, use_cache=False)[0]

    return T5()


def _whisper() -> nn.Module:
    return Plain(transformers.WhisperModel(transformers.WhisperConfig()).encoder)


SUBJECTS = (
    Subject("resnet-50", lambda: Plain(transformers.ResNetModel(transformers.ResNetConfig())), _image),
    Subject("mobilenet-v2", lambda: Plain(transformers.MobileNetV2Model(transformers.MobileNetV2Config())), _image),
    Subject("convnext-t", lambda: Plain(transformers.ConvNextModel(transformers.ConvNextConfig())), _image),
    Subject("vit-b16", lambda: Plain(transformers.ViTModel(transformers.ViTConfig())), _image),
    Subject("bert-base", lambda: Plain(transformers.BertModel(transformers.BertConfig())), lambda n: (_ids(n, 128),)),
    Subject(
        "gpt2",
        lambda: Plain(transformers.GPT2LMHeadModel(transformers.GPT2Config()), use_cache=False),
        lambda n: (_ids(n, 128),),
    ),
    Subject("t5-small", _t5, lambda n: (_ids(n, 64), _ids(n, 64))),
    Subject("llama-200m", lambda: Plain(_llama(), use_cache=False), lambda n: (_ids(n, 128),)),
    Subject(
        "llama-200m-decode",
        lambda: Decoder(_llama(), 12),
        lambda n: (_ids(n, 1), *(torch.randn(n, 16, 128, 64) for _ in range(24))),
    ),
    Subject("whisper-tiny-encoder", _whisper, lambda n: (torch.randn(n, 80, 3000),)),
)


@dataclass(slots=True)
class Row:
    """What was measured of one model at one batch: milliseconds by peer, and what else there is to say."""

    name: str
    batch: int
    times: dict[str, float] = field(default_factory=dict)
    compile_seconds: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    error: float = 0.0
    gflop: float = 0.0
    weight_bytes: int = 0
    limit: float = 0.0
    file_bytes: int = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="parts of names; all of them where none is given")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--without", nargs="*", default=[], help="peers to leave out")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(THREADS)
    peak, bandwidth = measured_peak(), measured_bandwidth()
    print(f"peak {peak:.0f} GFLOP/s, bandwidth {bandwidth:.1f} GB/s, {THREADS} threads", flush=True)
    rows = []
    for subject in SUBJECTS:
        if options.models and not any(part in subject.name for part in options.models):
            continue
        for batch in options.batch:
            row = measure(subject, batch, options.rounds, set(options.without), peak, bandwidth)
            rows.append(row)
            print(_line(row), flush=True)
            gc.collect()
    print()
    print(report.table(*_table(rows)))
    summary = _summary(rows)
    for name, value in summary.items():
        print(f"{name}: {value:.2f}" if value is not None else f"{name}: nothing to compare")
    if options.json or not options.models:
        found = {
            "peak_gflops": peak,
            "bandwidth_gbytes": bandwidth,
            "summary": summary,
            "rows": [{name: getattr(row, name) for name in Row.__slots__} for row in rows],
        }
        print(report.write("cpu", found, options.json))


def measure(subject: Subject, batch: int, rounds: int, without: set[str], peak: float, bandwidth: float) -> Row:
    torch.manual_seed(0)
    model, inputs = subject.build().eval(), subject.inputs(batch)
    row = Row(subject.name, batch)
    with torch.no_grad():
        row.gflop = _gflop(model, inputs)
        row.weight_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
        row.limit = max(row.gflop / peak, row.weight_bytes / bandwidth / 1e9) * 1e3
        calls = prepared(model, inputs, row, without)
        reference = model(*inputs)
        result = calls["Ingot"]() if "Ingot" in calls else reference
        row.error = float((result - reference).abs().max() / reference.abs().max())
        times: dict[str, list[float]] = {name: [] for name in calls}
        names = list(calls)
        for turn in range(rounds):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                times[name] += _turn(calls[name])
    row.times = {name: statistics.median(found) * 1e3 for name, found in times.items()}
    return row


def _turn(call: Callable[[], object]) -> list[float]:
    """The seconds of each call of one turn."""
    time.sleep(PAUSE)
    call()
    found: list[float] = []
    while sum(found) < TURN:
        begin = time.perf_counter()
        call()
        found.append(time.perf_counter() - begin)
    return found


def prepared(
    model: nn.Module, inputs: tuple[torch.Tensor, ...], row: Row, without: set[str]
) -> dict[str, Callable[[], torch.Tensor]]:
    """A call for every peer that can run the model; what cannot says why in the row."""
    makers = {
        "eager": lambda: lambda: model(*inputs),
        "torch.compile": lambda: _torch_compiled(model, inputs, row),
        "Ingot": lambda: _ingot(model, inputs, row),
    }
    calls: dict[str, Callable[[], torch.Tensor]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        if not {"ONNX Runtime", "OpenVINO"} <= without:
            try:
                torch.onnx.export(model, inputs, path, dynamo=True, verbose=False)
                makers["ONNX Runtime"] = lambda: _onnx_runtime(path, inputs)
                makers["OpenVINO"] = lambda: _openvino(path, inputs)
            except Exception as failure:
                row.failures["ONNX Runtime"] = row.failures["OpenVINO"] = f"export: {failure}"[:200]
        for name in PEERS:
            if name in without or name not in makers:
                continue
            try:
                calls[name] = makers[name]()
                calls[name]()
            except Exception as failure:
                calls.pop(name, None)
                row.failures[name] = f"{type(failure).__name__}: {failure}"[:200]
    return calls


def _torch_compiled(model: nn.Module, inputs: tuple[torch.Tensor, ...], row: Row) -> Callable[[], torch.Tensor]:
    torch._dynamo.reset()
    with tempfile.TemporaryDirectory() as cache, torch._inductor.utils.fresh_cache():
        del cache
        begin = time.perf_counter()
        compiled = torch.compile(model)
        compiled(*inputs)
        row.compile_seconds["torch.compile"] = time.perf_counter() - begin
    return lambda: compiled(*inputs)


def _ingot(model: nn.Module, inputs: tuple[torch.Tensor, ...], row: Row) -> Callable[[], torch.Tensor]:
    begin = time.perf_counter()
    compiled = ingot.compile(model, inputs, threads=THREADS, cache=False)
    compiled(*inputs)
    row.compile_seconds["Ingot"] = time.perf_counter() - begin
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.ingot"
        compiled.save(path)
        row.file_bytes = path.stat().st_size
    return lambda: compiled(*inputs)


def _onnx_runtime(path: Path, inputs: tuple[torch.Tensor, ...]) -> Callable[[], torch.Tensor]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feed = {given.name: x.numpy() for given, x in zip(session.get_inputs(), inputs, strict=True)}
    return lambda: torch.from_numpy(session.run(None, feed)[0])


def _openvino(path: Path, inputs: tuple[torch.Tensor, ...]) -> Callable[[], torch.Tensor]:
    import openvino

    core = openvino.Core()
    settings = {"INFERENCE_NUM_THREADS": THREADS, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(core.read_model(str(path)), "CPU", settings).create_infer_request()
    feed = [x.numpy() for x in inputs]
    return lambda: torch.from_numpy(request.infer(feed, share_inputs=True, share_outputs=True)[0])


# ---------------------------------------------------------------------- the machine's limits


def _gflop(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> float:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        model(*inputs)
    return counter.get_total_flops() / 1e9


_PEAK = """
#include <pthread.h>
#include <stdio.h>
#include <time.h>
typedef float v __attribute__((vector_size(64)));
static void *work(void *out) {
    v a[12]; v x = {0.999f}, y = {1e-9f};
    for (int i = 0; i < 12; ++i) a[i] = (v){(float)i};
    for (long n = 0; n < 40000000; ++n)
        for (int i = 0; i < 12; ++i) a[i] = a[i] * x + y;
    v s = a[0]; for (int i = 1; i < 12; ++i) s += a[i];
    *(v *)out = s; return 0;
}
int main(void) {
    pthread_t t[%d]; static v sink[%d]; struct timespec b, e;
    clock_gettime(CLOCK_MONOTONIC, &b);
    for (int i = 0; i < %d; ++i) pthread_create(&t[i], 0, work, &sink[i]);
    for (int i = 0; i < %d; ++i) pthread_join(t[i], 0);
    clock_gettime(CLOCK_MONOTONIC, &e);
    printf("%%f\\n", %d * 40000000.0 * 12 * 16 * 2 / ((e.tv_sec - b.tv_sec) * 1e9 + (e.tv_nsec - b.tv_nsec)));
    return 0;
}
"""


def measured_peak() -> float:
    """GFLOP/s of multiply-adds on registers, on all threads: the best of three."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "peak.c"
        source.write_text(_PEAK % ((THREADS,) * 5))
        binary = Path(folder) / "peak"
        flags = ["-O3", "-march=native", "-ffp-contract=fast", "-pthread", "-lm"]
        subprocess.run(["cc", str(source), "-o", str(binary), *flags], check=True)
        found = [subprocess.run([str(binary)], capture_output=True, text=True, check=True).stdout for _ in range(3)]
    return max(map(float, found))


def measured_bandwidth() -> float:
    """GB/s of reading more memory than any cache holds: the best of five sums over 1 GiB."""
    data = torch.ones(1 << 28)
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        data.sum()
        best = min(best, time.perf_counter() - begin)
    return data.numel() * 4 / best / 1e9


# ---------------------------------------------------------------------- the report


def _best_peer(row: Row) -> float | None:
    others = [row.times[name] for name in ("torch.compile", "ONNX Runtime", "OpenVINO", "eager") if name in row.times]
    return min(others, default=None)


def _summary(rows: list[Row]) -> dict[str, float | None]:
    def ratio(other: Callable[[Row], float | None]) -> list[float]:
        return [t / row.times["Ingot"] for row in rows if "Ingot" in row.times and (t := other(row))]

    against_best = ratio(_best_peer)
    colds = [
        row.compile_seconds["torch.compile"] / row.compile_seconds["Ingot"]
        for row in rows
        if len(row.compile_seconds) == 2
    ]
    return {
        "speed against the best peer, geomean": report.geomean(against_best),
        "speed against the best peer, least": min(against_best, default=None),
        "speed against torch.compile, geomean": report.geomean(ratio(lambda row: row.times.get("torch.compile"))),
        "speed against ONNX Runtime, geomean": report.geomean(ratio(lambda row: row.times.get("ONNX Runtime"))),
        "speed against OpenVINO, geomean": report.geomean(ratio(lambda row: row.times.get("OpenVINO"))),
        "cold compile against torch.compile, geomean": report.geomean(colds),
        "cold compile against torch.compile, least": min(colds, default=None),
        "share of the limit, geomean": report.geomean([r.limit / r.times["Ingot"] for r in rows if "Ingot" in r.times]),
    }  # fmt: skip


def _line(row: Row) -> str:
    times = "  ".join(f"{name} {row.times[name]:.2f}" for name in PEERS if name in row.times)
    failed = "".join(f"\n    {name} failed: {why}" for name, why in row.failures.items())
    return f"{row.name} batch {row.batch}: {times} ms, limit {row.limit:.2f}, error {row.error:.1e}{failed}"


def _table(rows: list[Row]) -> tuple[list[str], list[list[str]]]:
    headers = ["model", "batch", *PEERS, "limit", "best peer / Ingot", "compile s", "torch.compile s", "file MB"]
    lines = []
    for row in rows:
        best = _best_peer(row)
        ours = row.times.get("Ingot")
        lines.append(
            [
                row.name,
                str(row.batch),
                *(f"{row.times[name]:.1f}" if name in row.times else "–" for name in PEERS),
                f"{row.limit:.1f}",
                f"{best / ours:.2f}" if best and ours else "–",
                f"{row.compile_seconds.get('Ingot', float('nan')):.1f}",
                f"{row.compile_seconds.get('torch.compile', float('nan')):.1f}",
                f"{row.file_bytes / 1e6:.0f}",
            ]
        )
    return headers, lines


if __name__ == "__main__":
    main()
