"""Peers that run an ONNX file: with the same threads, one call at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.models import THREADS


def onnx_runtime(path: Path, inputs: tuple[torch.Tensor, ...], threads: int = THREADS) -> Callable[[], torch.Tensor]:
    """A call of ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feed = {given.name: x.numpy() for given, x in zip(session.get_inputs(), inputs, strict=True)}
    return lambda: torch.from_numpy(session.run(None, feed)[0])


def openvino(path: Path, inputs: tuple[torch.Tensor, ...]) -> Callable[[], torch.Tensor]:
    """A call of OpenVINO, in float32 where the file has floats."""
    from openvino import Core

    core = Core()
    settings = {"INFERENCE_NUM_THREADS": THREADS, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(core.read_model(str(path)), "CPU", settings).create_infer_request()
    feed = [x.numpy() for x in inputs]
    return lambda: torch.from_numpy(request.infer(feed, share_inputs=True, share_outputs=True)[0])
