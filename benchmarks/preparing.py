"""How long prepare and convert of ResNet-50 take, calibrated and trained, beside torchao in the same run.

    python benchmarks/preparing.py --json benchmarks/results/preparing.json

Capture, export and calibration on two images are not counted. Both have activations by tensor and weights by channel.
In rounds, one side after the other, and the medians of the rounds.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # not this folder: onnx.py would hide the package of its name

import torch

import ingot
from benchmarks.models import SUBJECTS, THREADS
from ingot.quantize import convert, int8_static, prepare, prepare_qat

ROUNDS = 7


def ours(model: torch.nn.Module, args: tuple[torch.Tensor, ...], training: bool) -> dict[str, float]:
    program = ingot.capture(model.train(training), args)
    gc.collect()
    began = time.perf_counter()
    prepared = (prepare_qat if training else prepare)(program, int8_static())
    middle = time.perf_counter()
    with torch.no_grad():
        prepared(*args)
    again = time.perf_counter()
    convert(prepared)
    return {"prepare": middle - began, "convert": time.perf_counter() - again}


def torchao(model: torch.nn.Module, args: tuple[torch.Tensor, ...], training: bool) -> dict[str, float]:
    from torchao.quantization.pt2e import move_exported_model_to_eval
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e
    from torchao.testing.pt2e._xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config

    exported = torch.export.export(model.train(training), args).module()
    config = get_symmetric_quantization_config(is_per_channel=True, is_qat=training)
    quantizer = XNNPACKQuantizer().set_global(config)
    gc.collect()
    began = time.perf_counter()
    prepared = (prepare_qat_pt2e if training else prepare_pt2e)(exported, quantizer)
    middle = time.perf_counter()
    with torch.no_grad():
        prepared(*args)
    if training:
        move_exported_model_to_eval(prepared)
    again = time.perf_counter()
    convert_pt2e(prepared)
    return {"prepare": middle - began, "convert": time.perf_counter() - again}


def compared(training: bool, rounds: int) -> dict[str, Any]:
    """Both sides in turn, so many rounds; the medians of their sums and how they compare."""
    torch.manual_seed(0)
    subject = next(s for s in SUBJECTS if s.name == "resnet-50")
    model, args = subject.build().eval(), subject.inputs(2)
    found: dict[str, list[dict[str, float]]] = {"ours": [], "torchao": []}
    for _ in range(rounds):
        for side in (ours, torchao):
            found[side.__name__].append(side(model, args, training))
    total = {side: statistics.median(sum(times.values()) for times in seen) for side, seen in found.items()}
    return {"rounds": found, "seconds": total, "times_faster": total["torchao"] / total["ours"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", choices=("calibrated", "trained"))
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of the calibrated one")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(THREADS)
    results: dict[str, Any] = {}
    for name, training in (("calibrated", False), ("trained", True)):
        if options.only in (None, name):  # torchao takes half a minute to prepare for training: once is enough
            found = results[name] = compared(training, 1 if training else options.rounds)
            mine, theirs = found["seconds"].values()
            print(f"{name}: {mine:.3f} s, torchao {theirs:.3f} s, {found['times_faster']:.1f} times", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
