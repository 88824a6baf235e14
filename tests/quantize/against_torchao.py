"""Every situation beside torchao, trained step by step on the same data with the same quantizer, to a report.

    python -m tests.quantize.against_torchao --write docs/reports/quantize_torchao.md [situations to run, by number]

torchao captures its patterns anew for each conversion, about half a minute, so this is no part of `make test`.
"""

from __future__ import annotations

import argparse
import copy
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

import ingot
from ingot.quantize import convert, prepare_qat
from tests.quantize.situations import Situation, situations

STEPS = 4


def quantizer(situation: Situation) -> Any:
    """torchao's quantizer for XNNPACK, with moving averages of activations and weights."""
    from torchao.testing.pt2e._xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config

    config = get_symmetric_quantization_config(is_per_channel=situation.per_channel, is_qat=True)
    return XNNPACKQuantizer().set_global(config)


def train(module: nn.Module, batches: list[torch.Tensor]) -> list[torch.Tensor]:
    """Plain gradient descent; returns what the module gave at each step."""
    results = []
    for batch in batches:
        result = module(batch)
        results.append(result.detach())
        module.zero_grad()
        result.square().mean().backward()
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.grad is not None:
                    parameter -= 0.1 * parameter.grad
    return results


def compare(situation: Situation, eps: float) -> dict[str, Any]:
    """The largest differences of results in training and after convert, and the seconds that both took."""
    from torchao.quantization.pt2e import move_exported_model_to_eval
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_qat_pt2e

    model = situation.model(eps=eps).train()
    twin = copy.deepcopy(model)
    torch.manual_seed(2)
    batches = [situation.batch() for _ in range(STEPS)]
    began = time.perf_counter()
    theirs = prepare_qat_pt2e(torch.export.export(twin, (batches[0],)).module(), quantizer(situation))
    their_seconds = time.perf_counter() - began
    program = ingot.capture(model, (batches[0],))
    began = time.perf_counter()
    ours = prepare_qat(program, quantizer(situation))
    our_seconds = time.perf_counter() - began
    pairs = list(zip(train(theirs, batches), train(ours, batches), strict=True))
    began = time.perf_counter()
    move_exported_model_to_eval(theirs)
    converted = convert_pt2e(theirs)
    their_seconds += time.perf_counter() - began
    began = time.perf_counter()
    made = convert(ours)
    our_seconds += time.perf_counter() - began
    made.verify()
    ours.eval()
    with torch.no_grad():
        result, expected, simulated = made(batches[0]), converted(batches[0]), ours(batches[0])
    scales = [
        n.args[1] for n in made.graph.nodes if str(n.target).startswith("quantized_decomposed.quantize_per_tensor")
    ]
    step = float(scales[-1])
    return {
        "training": max(float((a - b).abs().max()) for a, b in pairs),
        "converted": float((result - expected).abs().max()) / step,
        "own": float((result - simulated).abs().max()) / step,
        "ours_s": our_seconds,
        "theirs_s": their_seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--eps", type=float, default=1e-5)
    parser.add_argument("which", type=int, nargs="*")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    every = list(situations((1, 2), (False, True)))
    lines = [
        "| situation | training | converted | converted against itself |",
        "|---|---|---|---|",
    ]
    for index in options.which or range(len(every)):
        try:
            found = compare(every[index], options.eps)
        except Exception as problem:
            lines.append(f"| {every[index]} | {type(problem).__name__}: {str(problem)[:80]} | | |")
        else:
            cells = f"{found['training']:.1e} | {found['converted']:.2g} steps | {found['own']:.2g} steps"
            lines.append(f"| {every[index]} | {cells} |")
            print(f"ours {found['ours_s']:.2f} s, torchao {found['theirs_s']:.1f} s")
        print(lines[-1], flush=True)
        if options.write is not None:  # after each, for it takes long
            options.write.write_text(_HEAD.format(steps=STEPS, eps=options.eps) + "\n".join(lines) + "\n")


_HEAD = """# Quantization-aware training beside torchao 0.18.0

`python -m tests.quantize.against_torchao --write docs/reports/quantize_torchao.md`

Each model is trained for {steps} steps by torchao and by Ingot, on the same batches, with torchao's XNNPACKQuantizer;
batch norm has eps {eps:g}. *training*: the largest difference of a result in training. *converted*: the largest
difference of the converted models' results, in steps of the result's scale. *converted against itself*: the same
between Ingot's converted program and its own module in eval mode.

"""

if __name__ == "__main__":
    main()
