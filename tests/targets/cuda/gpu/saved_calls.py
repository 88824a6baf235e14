"""Saved models beside calls that were made of them, which a process without torch repeats.

A model is compared by its bits: what a file computes elsewhere is what was judged here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch.utils import _pytree as pytree

import ingot
from ingot.artifacts.compiled_model import CompiledModel

# Seconds for one folder.
PATIENCE = 300


def save_calls(compiled: CompiledModel, file: Path, calls: Sequence[tuple[Sequence[object], object]]) -> None:
    """Saves a model to `file`, and these calls beside it: arguments, and the results that they gave."""
    compiled.save(file)
    for number, (args, results) in enumerate(calls):
        arrays = {}
        for kind, values in (("in", pytree.tree_leaves(args)), ("out", pytree.tree_leaves(results))):
            tensors = (value for value in values if isinstance(value, torch.Tensor))
            arrays |= dict(name_array(f"{kind}.{place:04}", tensor) for place, tensor in enumerate(tensors))
        np.savez(file.with_name(f"{file.stem}.{number}.npz"), **arrays)


def name_array(name: str, tensor: torch.Tensor) -> tuple[str, np.ndarray]:
    """A tensor by its name in a file of arrays. bfloat16 is kept as its bits, and the name says so."""
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        return f"{name}.bfloat16", tensor.contiguous().view(torch.uint16).numpy()
    return name, tensor.numpy()


def tensor_of(name: str, array: np.ndarray) -> torch.Tensor:
    """The tensor of an array with such a name."""
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if name.endswith(".bfloat16") else tensor


WITHOUT_TORCH = """
import json, pathlib, sys
import numpy as np
import ingot_runtime
from ingot_runtime import BFloat16Array

def bits(result):
    return np.asarray(getattr(result, "bits", result))

wrong = {}
for file in sorted(pathlib.Path(sys.argv[1]).glob("*.ingot")):
    try:
        with ingot_runtime.load(file) as model:
            for call in sorted(file.parent.glob(file.stem + ".*.npz")):
                stored = np.load(call)
                names = sorted(stored.files)
                leaves = [BFloat16Array(stored[n]) if n.endswith(".bfloat16") else stored[n]
                          for n in names if n.startswith("in.")]
                wanted = [stored[n] for n in names if n.startswith("out.")]
                got = [bits(result) for result in model.run(leaves)]
                if len(got) != len(wanted):
                    wrong[file.stem] = f"{len(got)} results instead of {len(wanted)}"
                for number, (one, other) in enumerate(zip(got, wanted)):
                    if one.shape != other.shape or one.tobytes() != np.ascontiguousarray(other).tobytes():
                        wrong[file.stem] = f"result {number} of {call.stem} has other bits"
    except Exception as error:
        wrong[file.stem] = f"{type(error).__name__}: {error}"
assert "torch" not in sys.modules and "ingot" not in sys.modules
print(json.dumps(wrong))
"""


def repeat_without_torch(folder: Path) -> dict[str, str]:
    """Repeats the calls of every file of a folder in a process without torch: what differs, by the file's stem. The key
    "" is for the process itself."""
    environment = {**os.environ, "PYTHONPATH": str(Path(ingot.__file__).parents[1])}
    command = [sys.executable, "-c", WITHOUT_TORCH, str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return {"": f"took more than {PATIENCE} s"}
    if done.returncode:
        return {"": done.stderr[-2000:]}
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found
