"""One token of a 200M Llama against 128 cached ones, with weights of 32, 8 and 4 bits: Ingot beside its peers.

    python benchmarks/decoding.py                      # builds and measures; writes results/decoding.json
    python benchmarks/decoding.py --prepare FOLDER     # builds only, into a folder
    python benchmarks/decoding.py --measure FOLDER     # measures what was built there: half a minute on a quiet machine

A step takes a token and the keys and values of the tokens before it, and gives the logits and the new token's keys and
values. Nearly all of its time goes into reading weights, so the table has their bytes a second beside what two threads
reach that do nothing but read the same memory. Ingot's programs are made by ingot.quantize (int8 by channel; int4 by
groups of 32); ONNX Runtime quantizes the same float model by its own tool to its own operator, MatMulNBits, in groups
of 32 as well, and multiplies in float32, or, where it says so, in int8, which is coarser. OpenVINO runs the float
model, and ONNX Runtime's int4 model where it can. Peers take turns as in cpu.py; medians are compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)

import numpy as np
import torch
import transformers
from torch import nn

import ingot
import ingot_runtime
from benchmarks.models import LLAMA, THREADS
from benchmarks.support import report
from ingot.artifacts.compiled_model import CompiledModel
from ingot.artifacts.roofline import reading
from ingot.benchmarking import time_interleaved
from ingot.lowering.dtypes import BYTES
from ingot.lowering.index_expr import require_static
from ingot.targets.cpu.schedule.statements import GemmGroup, PackedGemm

PAST = 128
GROUP = 32
PAUSE, TURN = 0.3, 0.06
FLOAT, INT8, INT4 = "Ingot float32", "Ingot int8", "Ingot int4"
RECIPES = {
    FLOAT: None,
    INT8: ingot.quantize.int8_weight_only,
    INT4: lambda: ingot.quantize.int4_weight_only(group_size=GROUP, kinds=("linear", "embedding")),
}


class Step(nn.Module):
    """One token against `past`: logits, and the token's own keys and values, layer by layer."""

    def __init__(self) -> None:
        super().__init__()
        self.model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))

    def forward(self, token: torch.Tensor, *cache: torch.Tensor) -> list[torch.Tensor]:
        past = transformers.DynamicCache(list(zip(cache[::2], cache[1::2], strict=True)))
        logits = self.model(input_ids=token, past_key_values=past, use_cache=True).logits
        return [logits, *(part[:, :, -1:] for layer in past.layers for part in (layer.keys, layer.values))]


def inputs(batch: int) -> tuple[torch.Tensor, ...]:
    heads = LLAMA["num_key_value_heads"]
    shape = (batch, heads, PAST, LLAMA["hidden_size"] // LLAMA["num_attention_heads"])
    caches = (torch.randn(shape) for _ in range(2 * LLAMA["num_hidden_layers"]))
    return (torch.randint(0, 1000, (batch, 1)), *caches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prepare", type=Path, metavar="FOLDER")
    parser.add_argument("--measure", type=Path, metavar="FOLDER")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--without-peers", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(THREADS)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.measure or options.prepare or Path(temporary)
        if not options.measure:
            prepare(folder, options.batch, not options.without_peers)
        if not options.prepare:
            found = measure(folder, options.rounds)
            print(_text(found))
            print(report.write("decoding", found, options.json))


# ---------------------------------------------------------------------- building


def prepare(folder: Path, batch: int, peers: bool) -> None:
    """Every model as a file, with what is to be said of it in facts.json."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model, args = Step().eval(), inputs(batch)
    facts: dict[str, Any] = {"batch": batch, "past": PAST, "models": {}, "failures": {}}
    with torch.no_grad():
        exact = model(*args)[0]
        program = ingot.capture(model, args)
        for name, recipe in RECIPES.items():
            made = program
            if recipe is not None:
                made = ingot.quantize.convert(ingot.quantize.prepare(program, recipe()))
            compiled = ingot.compile(made, args, threads=THREADS)
            result, reference = compiled(*args)[0], made(*args)[0]
            compiled.save(folder / f"{name}.ingot")
            facts["models"][name] = {
                "file": f"{name}.ingot",
                "read_bytes": _read(compiled),
                "file_bytes": (folder / f"{name}.ingot").stat().st_size,
                "error": float((result - reference).abs().max() / reference.abs().max()),
                "off_float": float((result - exact).norm() / exact.norm()),
            }
            compiled.close()
            print(name, facts["models"][name], flush=True)
        np.savez(folder / "inputs.npz", *(x.numpy() for x in args))
        np.save(folder / "logits.npy", exact.numpy())
        if peers:
            _prepare_peers(model, args, folder, facts)
    (folder / "facts.json").write_text(json.dumps(facts))


def _read(compiled: CompiledModel) -> int:
    """Bytes of weights that a step reads: all that products read. Of a table for tokens it reads next to nothing."""
    module = compiled._module
    sizes: dict[str, int] = {}
    for step in module.steps:
        for one in step.steps if isinstance(step, GemmGroup) else (step,):
            if isinstance(one, PackedGemm) and module.buffers[one.b.buffer].kind == "weight":
                for name in (one.b.buffer, *(one.codes.buffers if one.codes else ())):
                    sizes[name] = require_static(module.buffers[name].size) * BYTES[module.buffers[name].dtype]
    return sum(sizes.values())


def _prepare_peers(model: nn.Module, args: tuple[torch.Tensor, ...], folder: Path, facts: dict[str, Any]) -> None:
    from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer

    path = folder / "float.onnx"
    torch.onnx.export(model, args, path, dynamo=True, verbose=False, external_data=True)
    facts["models"]["ONNX Runtime float32"] = {"file": "float.onnx"}
    facts["models"]["OpenVINO float32"] = {"file": "float.onnx"}
    wanted = {
        "ONNX Runtime int8": (8, 0),
        "ONNX Runtime int4": (4, 0),
        "ONNX Runtime int4, multiplied in int8": (4, 4),
    }
    for name, (bits, level) in wanted.items():
        try:
            import onnx

            config = DefaultWeightOnlyQuantConfig(
                block_size=GROUP, is_symmetric=True, accuracy_level=level or None, bits=bits
            )
            quantizer = MatMulNBitsQuantizer(onnx.load(path), algo_config=config)
            quantizer.process()
            made = f"{name}.onnx"
            quantizer.model.save_model_to_file(str(folder / made), use_external_data_format=True)
            facts["models"][name] = {"file": made}
        except Exception as failure:
            facts["failures"][name] = f"{type(failure).__name__}: {failure}"[:200]
    if "ONNX Runtime int4" in facts["models"]:
        facts["models"]["OpenVINO int4"] = facts["models"]["ONNX Runtime int4"]


# ---------------------------------------------------------------------- measuring


def measure(folder: Path, rounds: int) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((folder / "facts.json").read_text())
    with np.load(folder / "inputs.npz") as stored:
        args = [stored[name] for name in stored.files]
    exact = np.load(folder / "logits.npy")
    openers = {"Ingot": _ingot, "ONNX Runtime": _onnx_runtime, "OpenVINO": _openvino}
    calls: dict[str, Callable[[], Any]] = {}
    for name, model in facts["models"].items():
        opener = next(one for peer, one in openers.items() if name.startswith(peer))
        try:
            calls[name] = opener(folder / model["file"], args)
            logits = calls[name]()[0]
            model["off_float"] = float(np.linalg.norm(logits - exact) / np.linalg.norm(exact))
        except Exception as failure:
            calls.pop(name, None)
            facts["failures"][name] = f"{type(failure).__name__}: {failure}"[:200]
    times: dict[str, list[float]] = {name: [] for name in calls}
    rates = []
    weights = np.memmap(folder / facts["models"][FLOAT]["file"], np.uint8, "r")
    reading(THREADS, weights)  # maps it
    for _ in range(rounds):  # memory is faster at one time than at another: what it can do is measured in between
        rates.append(reading(THREADS, weights))
        for name, found in time_interleaved(calls, 1, pause=PAUSE, least=TURN).items():
            times[name] += found
    for name, found in times.items():
        facts["models"][name]["milliseconds"] = statistics.median(found) * 1e3
    facts["bandwidth_gbytes"] = statistics.median(rates) / 1e9
    facts["bandwidth_gbytes_best"] = max(rates) / 1e9
    for model in facts["models"].values():
        if "read_bytes" in model and "milliseconds" in model:
            model["gbytes_a_second"] = model["read_bytes"] / model["milliseconds"] / 1e6
    took = {name: model["milliseconds"] for name, model in facts["models"].items() if "milliseconds" in model}
    peers = [time for name, time in took.items() if "int4" in name and name != INT4]
    facts["summary"] = {
        "int8 against float32": took[FLOAT] / took[INT8],
        "int4 against float32": took[FLOAT] / took[INT4],
        "int4 against the best peer's": min(peers) / took[INT4] if peers else None,
    }
    return facts


def _ingot(path: Path, args: list[Any]) -> Callable[[], Any]:
    model = ingot_runtime.load(path, threads=THREADS)
    return lambda: model(*args)


def _onnx_runtime(path: Path, args: list[Any]) -> Callable[[], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feed = {given.name: x for given, x in zip(session.get_inputs(), args, strict=True)}
    return lambda: session.run(None, feed)


def _openvino(path: Path, args: list[Any]) -> Callable[[], Any]:
    import openvino

    core = openvino.Core()
    settings = {"INFERENCE_NUM_THREADS": THREADS, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(core.read_model(str(path)), "CPU", settings).create_infer_request()
    return lambda: list(request.infer(args, share_inputs=True, share_outputs=True).values())


def _text(found: dict[str, Any]) -> str:
    headers = ["model", "ms", "× Ingot float32", "GB/s of weights", "file MB", "off its program", "off the float model"]
    base = found["models"][FLOAT]["milliseconds"]
    lines = []
    for name, model in found["models"].items():
        if "milliseconds" not in model:
            continue
        rate, size, error = (model.get(key) for key in ("gbytes_a_second", "file_bytes", "error"))
        lines.append(
            [
                name,
                f"{model['milliseconds']:.2f}",
                f"{base / model['milliseconds']:.2f}",
                f"{rate:.1f}" if rate else "–",
                f"{size / 1e6:.0f}" if size else "–",
                f"{error:.1e}" if error is not None else "–",
                f"{model['off_float']:.1e}",
            ]
        )
    failed = "".join(f"\n{name} failed: {why}" for name, why in found["failures"].items())
    limit = (
        f"\n{THREADS} threads that only read the file of {FLOAT}: {found['bandwidth_gbytes']:.1f} GB/s in between, "
        f"{found['bandwidth_gbytes_best']:.1f} at best"
    )
    return report.table(headers, lines) + limit + failed


if __name__ == "__main__":
    main()
