"""BERT-base and ResNet-50 in bfloat16 and int8 on a machine with AMX: Ingot compared with torch, whose oneDNN uses AMX.

    python benchmarks/amx.py                                 # all cores and one thread; writes results/amx.json
    python benchmarks/amx.py bert --threads 8 --rounds 3     # one model; writes nothing unless --json names a file

First layers of integers are computed, which must be exact, and Linux is asked whether the process has got its
permission to use AMX by then. Every model is prepared in a process of its own, all at the same time; then one after
another measures, its peers taking turns. Ingot's results come from a file that holds libraries with and without AMX, of
which the runtime chooses. "Ingot without amx" is the same program with that pass switched off, which multiplies with
AVX-512. Peers: eager and torch.compile in bfloat16; torch's int8, for ResNet-50 static (torch.ao's FX mode), for
BERT dynamic; and ONNX Runtime where it is installed, on the int8 program that `ingot.export_onnx` writes.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # not this folder: onnx.py would hide the package of its name

import torch
from torch import nn

import ingot
import ingot_runtime
from benchmarks.models import SUBJECTS, Subject
from benchmarks.support import report
from benchmarks.support.onnx_peers import onnx_runtime
from ingot.artifacts.compiled_model import CompiledModel
from ingot.benchmarking import time_interleaved
from ingot_runtime.cpu_features import cores

ISA = "x86-64-v4-amx"
KINDS = ("bfloat16", "int8")
MODELS = ("bert-base", "resnet-50")
OURS, PLAIN = "Ingot", "Ingot without amx"
PEERS = ("eager", "torch.compile", "torch int8", "ONNX Runtime int8")
PAUSE, TURN = 0.1, 0.1  # seconds before a turn, and of counted calls in it at least
KERNELS = 12  # of a profile
# Where Linux says what a process may use, and the bit of AMX's registers.
ARCH_PRCTL, GET_PERMISSION, TILES = 158, 0x1022, 1 << 18


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="parts of names such as bert-base:int8; all where none is given")
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({cores(), 1}, reverse=True))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without", nargs="*", default=[], choices=PEERS, help="peers to leave out")
    parser.add_argument("--seconds", type=int, default=300, help="for torch.compile of one model")
    parser.add_argument("--minutes", type=float, default=60, help="ends what is not done by then")
    parser.add_argument("--commit", help="the commit of this tree, where git does not know it")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--step", help=argparse.SUPPRESS)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.step:
        run_step(given)
        return
    names = ["exact", *(f"{model}:{kind}" for kind in KINDS for model in MODELS)]
    names = [name for name in names if not given.models or any(part in name for part in given.models)]
    rows = run_all(names, given)
    checks, rows = rows.pop("exact", {}), {name: row for name, row in rows.items() if name != "exact"}
    print(json.dumps(checks))
    for name, row in rows.items():
        print(format_row(name, row), flush=True)
    found = {**report.commit(given.commit), "exact": checks, "rows": rows, "summary": summarize(rows)}
    print(*(f"{name}: {value:.2f}" for name, value in found["summary"].items()), sep="\n")
    if given.json or not given.models:
        print(report.write("amx", found, given.json))


def run_all(names: Sequence[str], given: argparse.Namespace) -> dict[str, Any]:
    """Every step in a process of its own: all prepare at once, then each waits for its turn."""
    end = time.monotonic() + 60 * given.minutes
    started: dict[str, subprocess.Popen[str]] = {}
    rows: dict[str, Any] = {}
    for name in names:
        command = [sys.executable, __file__, *sys.argv[1:], "--step", name]
        started[name] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    killer = signal.signal(signal.SIGALRM, lambda *_: [process.kill() for process in started.values()])
    signal.alarm(max(1, int(end - time.monotonic())))
    for process in started.values():  # all are ready before the first one measures
        assert process.stdout
        process.stdout.readline()
    for name, process in started.items():
        try:
            said, _ = process.communicate("go\n")
            rows[name] = json.loads(said.strip().splitlines()[-1])
        except (OSError, ValueError, IndexError) as failure:
            rows[name] = {"failed": {"all": f"{type(failure).__name__}, exit code {process.wait()}"}}
    signal.alarm(0)
    signal.signal(signal.SIGALRM, killer)
    return rows


def run_step(given: argparse.Namespace) -> None:
    """Prepares, says that it is ready, waits for a word, measures, and prints what it found."""
    if given.step == "exact":
        print("ready", flush=True)
        sys.stdin.readline()
        print(json.dumps(check_exact()))
        return
    model, kind = given.step.split(":")
    (subject,) = (s for s in SUBJECTS if s.name == model)
    with torch.no_grad(), tempfile.TemporaryDirectory(prefix="ingot-amx-") as folder:
        prepared = Prepared(subject, kind, Path(folder), given)
        print("ready", flush=True)
        sys.stdin.readline()
        print(json.dumps(prepared.measure(given)))


# ---------------------------------------------------------------------- exact sums


class Layers(nn.Module):
    """Products and convolutions beside each other, with integers, each with an input of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [
                nn.Linear(768, 768), nn.Linear(769, 50), nn.Linear(31, 16), nn.Linear(1500, 100), nn.Linear(64, 64),
                nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(3, 64, 7, stride=2, padding=3),
                nn.Conv2d(600, 48, 3, stride=2), nn.Conv2d(34, 40, (5, 2), dilation=(1, 2), padding=1),
                nn.Conv2d(48, 96, 3, groups=2),
            ]
        )  # fmt: skip

    def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(layer(x) for layer, x in zip(self.layers, given, strict=True))


SHAPES = (
    (128, 768), (13, 769), (70, 31), (1, 1500), (333, 64), (2, 64, 28, 28), (1, 3, 61, 57), (3, 600, 9, 9),
    (2, 34, 20, 13), (1, 48, 14, 14),
)  # fmt: skip


def permitted() -> bool:
    """Whether Linux lets this process use AMX's registers; it asks first."""
    mask = ctypes.c_uint64()
    done = ctypes.CDLL(None).syscall(ARCH_PRCTL, GET_PERMISSION, ctypes.byref(mask))
    return done == 0 and bool(mask.value & TILES)


def check_exact() -> dict[str, Any]:
    """Whether sums of integers are exact, the library that computed them, and the permission before and after."""
    torch.manual_seed(0)
    model = Layers().eval()
    for parameter in model.parameters():
        parameter.data = torch.randint(-4, 5, parameter.shape).float()
    inputs = tuple(torch.randint(-4, 5, shape).float() for shape in SHAPES)
    found: dict[str, Any] = {"permitted before": permitted()}
    with torch.no_grad():
        compiled = ingot.compile(model, inputs, precision="bfloat16")
        for number in range(2):
            results = compiled(*inputs)
            expected = copy.deepcopy(model).double()(*(x.double() for x in inputs))
            wrong = [i for i, (ours, right) in enumerate(zip(results, expected, strict=True)) if (ours != right).any()]
            found[f"wrong layers, call {number}"] = wrong
    return {**found, "permitted after": permitted(), "isa": compiled.isa, "is_amx": compiled.isa == ISA}


# ---------------------------------------------------------------------- models


class Prepared:
    """A model and its peers, ready to be measured."""

    def __init__(self, subject: Subject, kind: str, folder: Path, given: argparse.Namespace) -> None:
        torch.manual_seed(0)
        self.kind, self.folder, self.given = kind, folder, given
        self.failed: dict[str, str] = {}
        self.model = settle(build(subject), subject)
        self.inputs = subject.inputs(given.batch)
        self.program = ingot.capture(self.model, self.inputs)
        if kind == "int8":
            observed = ingot.quantize.prepare(self.program, ingot.quantize.int8_static())
            ingot.quantize.calibrate(observed, [self.inputs])
            self.program = ingot.quantize.convert(observed)
        precision = "float32" if kind == "int8" else "bfloat16"
        self.ours: CompiledModel = ingot.compile(self.program, isa="x86-64-v4-bf16", precision=precision)
        plain = ingot.compile(self.program, precision=precision, disable_passes={"amx"})
        self.files = {OURS: folder / "ours.ingot", PLAIN: folder / "plain.ingot"}
        self.ours.save(self.files[OURS])
        plain.save(self.files[PLAIN])
        self.peers = {name: make for name, make in self.makers().items() if name not in given.without}
        if "torch.compile" in self.peers:
            self.attempt("torch.compile", lambda: self.peers["torch.compile"](max(given.threads))())

    def makers(self) -> dict[str, Callable[[int], Callable[[], Any]]]:
        """What makes a peer's call for a number of threads."""
        if self.kind == "bfloat16":
            self.narrow = copy.deepcopy(self.model).bfloat16()
            self.given_narrow = tuple(x.bfloat16() if x.is_floating_point() else x for x in self.inputs)
            return {
                "eager": lambda threads: lambda: self.narrow(*self.given_narrow),
                "torch.compile": self.inductor,
            }
        return {"torch int8": self.torch_int8, "ONNX Runtime int8": self.onnx_runtime}

    def inductor(self, threads: int) -> Callable[[], Any]:
        """torch.compile's code for all threads, compiled once."""
        if threads != max(self.given.threads):
            raise ValueError("compiled for all threads only")
        if not hasattr(self, "compiled"):
            torch.set_num_threads(threads)
            self.compiled = torch.compile(self.narrow)
        return lambda: self.compiled(*self.given_narrow)

    def torch_int8(self, threads: int) -> Callable[[], Any]:
        if not hasattr(self, "quantized"):
            from torch.ao import quantization
            from torch.ao.quantization import quantize_fx

            torch.backends.quantized.engine = "x86"
            if not self.inputs[0].is_floating_point():
                self.quantized = quantization.quantize_dynamic(copy.deepcopy(self.model), {nn.Linear})
            else:
                from torchvision.models import resnet50  # the other one's code cannot be traced

                mapping = quantization.get_default_qconfig_mapping("x86")
                observed = quantize_fx.prepare_fx(resnet50().eval(), mapping, example_inputs=self.inputs)
                observed(*self.inputs)
                self.quantized = quantize_fx.convert_fx(observed)
        return lambda: self.quantized(*self.inputs)

    def onnx_runtime(self, threads: int) -> Callable[[], Any]:
        import onnxruntime  # noqa: F401, before the file is written

        path = self.folder / "model.onnx"
        if not path.exists():
            ingot.export_onnx(self.program, path, verify=False)
        return onnx_runtime(path, self.inputs, threads)

    def attempt(self, name: str, make: Callable[[], Any]) -> Any:
        """What it gives, or None and a note of why it failed or that it took too long."""

        def stop(*_: object) -> None:
            raise TimeoutError(f"took longer than {self.given.seconds} s")

        before = signal.signal(signal.SIGALRM, stop)
        signal.alarm(self.given.seconds)
        try:
            return make()
        except Exception as failure:
            traceback.print_exc(limit=3)
            self.failed[name] = f"{type(failure).__name__}: {failure}"[:200]
            self.peers.pop(name, None)
            return None
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)

    def measure(self, given: argparse.Namespace) -> dict[str, Any]:
        """Milliseconds of every peer by the number of threads, errors, and where Ingot's time goes."""
        arrays = [x.numpy() for x in self.inputs]
        results: dict[str, Any] = {}
        found: dict[str, Any] = {"ms": {}, "failed": self.failed}
        for threads in given.threads:
            torch.set_num_threads(threads)
            loaded = {name: ingot_runtime.load(path, threads) for name, path in self.files.items()}
            found["isa"] = loaded[OURS].isa
            calls: dict[str, Callable[[], Any]] = {
                name: lambda model=model: model(*arrays) for name, model in loaded.items()
            }
            for name, make in list(self.peers.items()):
                if name == "torch.compile" and threads != max(given.threads):
                    continue
                call = self.attempt(name, partial(make, threads))
                if call is not None and self.attempt(name, lambda call=call: (call(), 1)):
                    calls[name] = call
            results = {name: first(calls[name]()) for name in (OURS, PLAIN)}
            times = time_interleaved(calls, given.rounds, pause=PAUSE, least=TURN)
            found["ms"][str(threads)] = {name: statistics.median(one) * 1e3 for name, one in times.items()}
            for model in loaded.values():
                model.close()
        found["same bits without amx"] = bool((results[OURS] == results[PLAIN]).all())
        exact = first(self.model.double()(*(x.double() if x.is_floating_point() else x for x in self.inputs)))
        for name, ours in results.items():
            found[f"error, {name}"] = float((ours.double() - exact).norm() / exact.norm())
        if self.kind == "bfloat16":
            narrow = first(self.narrow(*self.given_narrow)).double()
            found["error, eager"] = float((narrow - exact).norm() / exact.norm())
        profile = self.ours.profile(*self.inputs, repeat=5)
        rows = profile.group_by_kernel()[:KERNELS]
        found["kernels"] = [
            f"{row.seconds * 1e3:.3f} ms {row.gflops:.0f} GFLOP/s {row.op} {row.module}" for row in rows
        ]
        found["kernels, ms"] = profile.seconds * 1e3
        return found


def build(subject: Subject) -> nn.Module:
    model = subject.build()
    for module in model.modules():  # as benchmarks/quantize.py has it
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
            module.reset_running_stats()
    return model


def settle(model: nn.Module, subject: Subject) -> nn.Module:
    """The model with statistics in its batch norms."""
    if any(isinstance(module, nn.BatchNorm2d) for module in model.modules()):
        model.train()(*subject.inputs(8))
    return model.eval()


def first(result: Any) -> torch.Tensor:
    one = result[0] if isinstance(result, tuple | list) else result
    return one if isinstance(one, torch.Tensor) else torch.from_numpy(one)


# ---------------------------------------------------------------------- the report


def summarize(rows: dict[str, Any]) -> dict[str, float]:
    """How many times faster Ingot is than its best peer, and than itself without AMX."""
    found: dict[str, float] = {}
    for name, row in rows.items():
        for threads, times in row.get("ms", {}).items():
            peers = [times[peer] for peer in PEERS if peer in times]
            if peers:
                found[f"{name}, {threads} threads, best peer / Ingot"] = min(peers) / times[OURS]
            found[f"{name}, {threads} threads, without amx / Ingot"] = times[PLAIN] / times[OURS]
    return found


def format_row(name: str, row: dict[str, Any]) -> str:
    lines = [f"{name}: {row.get('isa')}"]
    for threads, times in row.get("ms", {}).items():
        lines.append(f"  {threads} threads: " + "  ".join(f"{peer} {ms:.2f}" for peer, ms in times.items()) + " ms")
    known = ("ms", "kernels", "isa", "failed")
    lines.append("  " + ", ".join(f"{key}: {value}" for key, value in row.items() if key not in known))
    lines += [f"  failed: {peer}: {why}" for peer, why in row.get("failed", {}).items()]
    lines += [f"    {kernel}" for kernel in row.get("kernels", ())]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
