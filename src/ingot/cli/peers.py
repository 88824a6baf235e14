"""What `ingot bench` compares with: the same model in eager, torch.compile, ONNX Runtime and OpenVINO.

Every peer runs in this process, with the same threads, on the same example.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ingot.ir.program import Program

Call = Callable[[], Any]

# Each with the package that it needs, if that is another than torch.
PEERS = {"eager": None, "torch.compile": None, "onnxruntime": "onnxruntime", "openvino": "openvino"}


@dataclass(frozen=True, slots=True)
class Subject:
    """What is timed: the model, the program that it was captured as, and the arguments of the example."""

    model: Callable[..., Any]
    program: Program
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    threads: int
    folder: Path


def is_installed(peer: str) -> bool:
    package = PEERS[peer]
    return package is None or importlib.util.find_spec(package) is not None


def prepare(peer: str, subject: Subject) -> Call:
    """A call of the model through a peer. Raises whatever the peer raises where it does not take the model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a peer's own, about its own ways
        call = _PREPARE[peer](subject)
        call()
    return call


def _eager(subject: Subject) -> Call:
    return lambda: subject.model(*subject.args, **subject.kwargs)


def _torch_compile(subject: Subject) -> Call:
    import torch

    made = torch.compile(subject.model)
    return lambda: made(*subject.args, **subject.kwargs)


def _onnx_runtime(subject: Subject) -> Call:
    import onnxruntime

    path, names = _export(subject)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = subject.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feed = _arrays(subject, names)
    return lambda: session.run(None, feed)


def _openvino(subject: Subject) -> Call:
    import openvino  # type: ignore[import-untyped]

    path, names = _export(subject)
    core = openvino.Core()
    settings = {
        "INFERENCE_NUM_THREADS": subject.threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }
    request = core.compile_model(core.read_model(str(path)), "CPU", settings).create_infer_request()
    feed = _arrays(subject, names)
    return lambda: request.infer(feed, share_inputs=True, share_outputs=True)


def _export(subject: Subject) -> tuple[Path, Sequence[str]]:
    """The ONNX file of the subject, written once, and the names of its inputs."""
    from ingot.onnx.api import export_onnx

    path, names = subject.folder / "model.onnx", subject.folder / "inputs.txt"
    if not path.exists():
        report = export_onnx(subject.program, path, verify=False)
        names.write_text("\n".join(report.inputs), encoding="utf-8")
    return path, names.read_text(encoding="utf-8").splitlines()


def _arrays(subject: Subject, names: Sequence[str]) -> dict[str, Any]:
    """The example's values under the names of the ONNX model's inputs."""
    import numpy as np
    import torch

    from ingot.ir import pytree

    leaves, _ = pytree.flatten((subject.args, subject.kwargs))
    passed = subject.program.signature.argument_paths()
    given = [
        leaf for one, leaf in zip(subject.program.signature.user_inputs, leaves, strict=True) if one.name in passed
    ]
    return {
        name: leaf.detach().numpy() if isinstance(leaf, torch.Tensor) else np.array(leaf)
        for name, leaf in zip(names, given, strict=True)
    }


_PREPARE: dict[str, Callable[[Subject], Call]] = {
    "eager": _eager,
    "torch.compile": _torch_compile,
    "onnxruntime": _onnx_runtime,
    "openvino": _openvino,
}
