"""How long prepare and convert of ResNet-50 take, beside torchao's prepare_pt2e and convert_pt2e in the same run.

    python benchmarks/preparing.py --json benchmarks/results/preparing.json

Capture, export and calibration on one image are not counted. Both have activations by tensor and weights by channel.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ingot
from benchmarks.models import SUBJECTS, THREADS
from ingot.quantize import convert, int8_static, prepare


def ours(model: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> dict[str, float]:
    program = ingot.capture(model, args)
    began = time.perf_counter()
    prepared = prepare(program, int8_static())
    middle = time.perf_counter()
    with torch.no_grad():
        prepared(*args)
    again = time.perf_counter()
    convert(prepared)
    return {"prepare": middle - began, "convert": time.perf_counter() - again}


def torchao(model: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> dict[str, float]:
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.testing.pt2e._xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config

    exported = torch.export.export(model, args).module()
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True))
    began = time.perf_counter()
    prepared = prepare_pt2e(exported, quantizer)
    middle = time.perf_counter()
    with torch.no_grad():
        prepared(*args)
    again = time.perf_counter()
    convert_pt2e(prepared)
    return {"prepare": middle - began, "convert": time.perf_counter() - again}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", choices=("ours", "torchao"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    subject = next(s for s in SUBJECTS if s.name == "resnet-50")
    model, args = subject.build().eval(), subject.inputs(1)
    results: dict[str, Any] = {}
    for side in (ours, torchao):
        if options.only in (None, side.__name__):
            results[side.__name__] = side(model, args)
            print(side.__name__, {k: round(v, 2) for k, v in results[side.__name__].items()}, flush=True)
    if len(results) == 2:
        total = {name: sum(seconds.values()) for name, seconds in results.items()}
        results["times_faster"] = total["torchao"] / total["ours"]
        print(f"{results['times_faster']:.1f} times faster")
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
