"""From the start of a process to the first result on a GPU: BERT-base in bfloat16 from a compiled file without torch,
beside importing torch and loading the same weights, without and with the model's own first call.

    python benchmarks/cuda_start.py [--rounds 5] [--json results/cuda_start.json] [--commit HASH]
    python benchmarks/cuda_start.py --read results/cuda_start.json [--write]    the table, or put it into the report

Processes take turns; medians. torch's model is built on the device "meta", so that nothing is initialized, and takes
the tensors of a safetensors file, which lie on the GPU from the beginning. Files are in the system's cache. The runtime
is imported as pip would have installed it, with its bytecode, as torch is.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.support import marked_text

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "cuda_start.json"
REPORT = ROOT / "docs" / "reports" / "cuda.md"
BEGIN, END = "<!-- table of cuda_start.json: begin -->", "<!-- table of cuda_start.json: end -->"
GOAL = 3.0  # times as fast as importing torch and loading the same weights
# How far the two results may lie apart, of the largest value: both are of bfloat16.
APART = 0.1

_MARK = "began = time.perf_counter()\nmarks = {}\ndef mark(name): marks[name] = time.perf_counter() - began\n"
WITHOUT_TORCH = f"""
import json, sys, time
{_MARK}
import numpy, ingot_runtime
mark("import")
model = ingot_runtime.load(sys.argv[1])
mark("load")
result = model(numpy.load(sys.argv[2]))
mark("call")
assert "torch" not in sys.modules
bits = numpy.asarray(getattr(result, "bits", result))
if bits.dtype == numpy.uint16:
    bits = (bits.astype(numpy.uint32) << 16).view(numpy.float32)
numpy.save(sys.argv[3], bits)
print(json.dumps(marks))
"""
WEIGHTS_ONLY = f"""
import json, sys, time
{_MARK}
import torch
from safetensors.torch import load_file
mark("import")
weights = load_file(sys.argv[1], device=sys.argv[2])
if sys.argv[2] != "cpu":
    torch.cuda.synchronize()
mark("load")
print(json.dumps(marks))
"""
WITH_TORCH = f"""
import json, sys, time
{_MARK}
import numpy, torch
from safetensors.torch import load_file
from transformers.models.bert import BertConfig, BertModel
mark("import")
weights = load_file(sys.argv[1], device=sys.argv[2])
with torch.device("meta"):
    model = BertModel(BertConfig(num_hidden_layers=int(sys.argv[5]))).eval()
model.load_state_dict(weights, strict=False, assign=True)
for name, buffer in list(model.named_buffers()):  # those that no state dict has
    owner, _, last = name.rpartition(".")
    setattr(model.get_submodule(owner), last, weights[name])
mark("load")
with torch.no_grad():
    result = model(input_ids=torch.from_numpy(numpy.load(sys.argv[3])).to(sys.argv[2])).last_hidden_state
    numpy.save(sys.argv[4], result.float().cpu().numpy())
mark("call")
assert not any(parameter.is_meta for parameter in model.parameters())
print(json.dumps(marks))
"""


def measure(device: str, rounds: int, layers: int) -> dict[str, Any]:
    """Compiles the model, saves it and its weights, and starts the processes in turn."""
    import numpy as np
    import torch
    import transformers
    from safetensors.torch import save_file

    import ingot
    from benchmarks.start import install_runtime

    torch.manual_seed(0)
    model = transformers.BertModel(transformers.BertConfig(num_hidden_layers=layers)).eval().to(torch.bfloat16)
    ids = torch.randint(0, 30000, (1, 128))

    class LastHiddenState(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.model(input_ids=ids).last_hidden_state
            return found

    with tempfile.TemporaryDirectory(prefix="ingot-start-") as name:
        folder = Path(name)
        file, state, site, given = (folder / part for part in ("m.ingot", "m.safetensors", "site", "ids.npy"))
        ours, theirs = folder / "ours.npy", folder / "theirs.npy"
        with torch.no_grad():
            compiled = ingot.compile(LastHiddenState().eval(), (ids,), target="cpu" if device == "cpu" else "cuda")
            compiled.save(file)
            compiled.close()
        tensors = {**model.state_dict(), **dict(model.named_buffers())}
        save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, state)
        np.save(given, ids.numpy())
        install_runtime(site)
        commands = {
            "Ingot": [WITHOUT_TORCH, file, given, ours],
            "torch, weights only": [WEIGHTS_ONLY, state, device],
            "torch, first call": [WITH_TORCH, state, device, given, theirs, layers],
        }
        if device != "cpu":
            torch.zeros(1, device=device)  # so that the driver stays loaded for all of them alike
        found = _run(commands, site, rounds)
        a, b = np.load(ours), np.load(theirs)
        apart = float(np.abs(a - b).max() / np.abs(b).max())
        assert a.shape == b.shape and apart < APART, f"results lie {apart:.3g} apart"
        return {**found, "apart": apart, "file": file.stat().st_size, "weights": state.stat().st_size, "layers": layers}


def _run(commands: dict[str, list[Any]], site: Path, rounds: int) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {who: [] for who in commands}
    phases: dict[str, list[dict[str, float]]] = {who: [] for who in commands}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])}
    for turn in range(rounds + 1):
        for who, command in commands.items():
            words = [sys.executable, "-c", *map(str, command)]
            began = time.perf_counter()
            done = subprocess.run(words, env=environment, capture_output=True, text=True)
            spent = time.perf_counter() - began
            if done.returncode:
                raise RuntimeError(f"{who}: {done.stderr[-2000:]}")
            if turn:  # the first round brings the files into the system's cache
                seconds[who].append(spent)
                phases[who].append(json.loads(done.stdout.splitlines()[-1]))
    return {"seconds": seconds, "phases": phases}


def table(results: dict[str, Any]) -> str:
    """The medians, the ratios to Ingot's, and the sizes of the files."""
    median = {who: statistics.median(values) for who, values in results["seconds"].items()}
    ours = median["Ingot"]
    device, commit = results["device"], str(results["commit"])[:9]
    count = len(results["seconds"]["Ingot"])
    lines = [
        f"{device}, torch {results['machine']['torch']}, commit `{commit}`; medians of {count} processes each, s.",
        "",
        "| from the start of the process to | s | imports until | weights until | times Ingot's (goal) |",
        "|---|---|---|---|---|",
    ]
    titles = {
        "Ingot": ("Ingot without torch: the first result", ""),
        "torch, weights only": ("torch: imported, weights on the GPU", f" ({GOAL:g})"),
        "torch, first call": ("torch and transformers: the first result", ""),
    }
    for who, (title, goal) in titles.items():
        imports, load = (
            statistics.median(one[phase] for one in results["phases"][who]) for phase in ("import", "load")
        )
        lines.append(f"| {title} | {median[who]:.2f} | {imports:.2f} | {load:.2f} | {median[who] / ours:.1f}{goal} |")
    share = results["file"] / results["weights"]
    lines += [
        "",
        f"The file has {results['file'] / 1e6:.1f} MB, the weights {results['weights'] / 1e6:.1f}: {share:.3f}.",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--commit", help="the commit of this tree, where git does not know it")
    parser.add_argument("--read", type=Path, help="print the table of such a file, and measure nothing")
    parser.add_argument("--write", action="store_true", help="put the table into docs/reports/cuda.md")
    parser.add_argument("--device", default="cuda", help="cpu: to try this script on a machine without a GPU")
    parser.add_argument("--layers", type=int, default=12, help="fewer: to try this script")
    given = parser.parse_args()
    if given.read is None:
        import torch

        from benchmarks.support import report
        from tests.targets.cuda.gpu.code_digest import digest_code

        measured = measure(given.device, given.rounds, given.layers)
        device = "no GPU" if given.device == "cpu" else torch.cuda.get_device_properties(0).name
        state = {**report.commit(given.commit), "code": digest_code()}
        report.write("cuda_start", {**state, "device": device, **measured}, given.json)
    made = table(json.loads((given.read or given.json).read_text(encoding="utf-8")))
    print(made)
    if given.write:
        marked_text.replace(REPORT, BEGIN, END, made)


if __name__ == "__main__":
    main()
