"""Whether an ONNX file is what the program is: the checker, and ONNX Runtime against torch at several sizes.

The error against float64 may be four times that of torch in the program's own dtypes against it, and no less than a
few roundings of a number as large as the output's largest. Where it is more, torch's error at inputs a rounding or two
away counts as well, up to a limit: in one call it may be small by luck. Where ONNX Runtime has no kernel for something
that the standard has, onnx's own reference implementation runs the file. A quantized model runs without ONNX Runtime's
optimizer: that one rounds biases and activations to integers by itself, so that the file's own numbers cannot be seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import onnx
import torch

from ingot.errors import OnnxError, OnnxMismatch, OnnxUnavailable, format_error
from ingot.onnx.convert import Exported

ALLOWED = 4.0
ROUNDINGS = 8
# How many times smaller than elsewhere torch's error may be by luck. Beyond that a decision went the other way there,
# and says nothing about what is right here.
LUCK = 8.0
# Of the largest value, what torch's error in float64, which nothing more exact tells, is taken for at most: what has
# gone through 32 bits is some thousands of times further off.
COARSEST = 2.0**-40
EPSILON = {torch.float32: 2.0**-24, torch.float64: 2.0**-53, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}

Array: TypeAlias = "np.ndarray[Any, Any]"
Run: TypeAlias = "Callable[[Mapping[str, Array]], list[Any]]"


@dataclass(frozen=True, slots=True)
class ExampleCall:
    """What one call of the program is: values by placeholder, and what each output should be, in both precisions.

    `label` says which call it is: "batch = 2, seq = 8". `near` returns what outputs should be, in both precisions, for
    arguments a few roundings away; it is asked where torch's error in this call may have been small by luck.
    """

    label: str
    arguments: Mapping[str, Any]
    own: Sequence[Any]
    exact: Sequence[Any]
    near: Callable[[], Iterable[tuple[Sequence[Any], Sequence[Any]]]] = tuple


@dataclass(frozen=True, slots=True)
class CallDifference:
    """How one call compared: the largest error of any output, absolute and in units of torch's own (4 is allowed)."""

    label: str
    error: float
    ratio: float

    def __str__(self) -> str:
        return f"{self.label or 'the example'}: largest difference {self.error:.2g}, {self.ratio:.2f} of torch's own"


def check_file(path: Path) -> None:
    """Raises OnnxMismatch if onnx's checker, with shape inference, finds something wrong."""
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise OnnxMismatch(format_error(f"The ONNX checker rejects the model: {error}.", fix=_REPORT)) from error


_REPORT = "this is a bug in Ingot: please report it with the model; verify=False writes the file anyway"


def compare(path: Path, exported: Exported, calls: Sequence[ExampleCall]) -> tuple[str, list[CallDifference]]:
    """Runs the file on every call. Returns what ran it and the differences; raises OnnxMismatch for one too large."""
    runner, run = _runner(path)
    found = []
    for call in calls:
        feeds = feeds_of(exported, call.arguments)
        try:
            results = [_tensor(value) for value in run(feeds)]
        except Exception as error:  # either runner raises what it likes
            if runner == _REFERENCE or not _lacks_kernel(error):
                raise OnnxMismatch(
                    format_error(
                        f"{runner} does not run the model ({call.label or 'the example'}).", why=str(error), fix=_REPORT
                    )
                ) from error
            runner, run = _REFERENCE, _reference(path)
            results = [_tensor(value) for value in run(feeds)]
        found.append(_difference(exported, call, results))
    return runner, found


# ---------------------------------------------------------------------- running

_RUNTIME, _REFERENCE = "ONNX Runtime", "onnx.reference"


def _runner(path: Path) -> tuple[str, Run]:
    try:
        session = _session(str(path), optimized=not _is_quantized(path))
    except Exception as error:  # of several classes, all of them ONNX Runtime's
        if isinstance(error, OnnxError):
            raise
        if _lacks_kernel(error):
            return _REFERENCE, _reference(path)
        raise OnnxMismatch(
            format_error("ONNX Runtime does not load the model.", why=str(error), fix=_REPORT)
        ) from error
    return _RUNTIME, lambda feeds: _run(session, feeds)


def run_session(model: bytes, feeds: Mapping[str, Array]) -> list[Any]:
    """A model in memory, run once in ONNX Runtime."""
    return _run(_session(model), feeds)


def _is_quantized(path: Path) -> bool:
    nodes = onnx.load(path, load_external_data=False).graph.node
    return any(node.op_type == "DequantizeLinear" for node in nodes)


def _session(model: str | bytes, *, optimized: bool = True) -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise OnnxUnavailable(
            format_error(
                "ONNX Runtime is not installed, so the exported model cannot be verified.",
                fix="pip install 'ingot[onnx]', or export with verify=False",
            )
        ) from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what matters is raised as well
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # others may want the core
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _run(session: Any, feeds: Mapping[str, Array]) -> list[Any]:
    import onnxruntime

    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in _plain(feeds).items()}
    for name, array in feeds.items():
        if name not in values:
            values[name] = _ort_bfloat16(onnxruntime, array)
    names = [output.name for output in session.get_outputs()]
    return [_from_ort(value) for value in session.run_with_ort_values(names, values)]


def feeds_of(exported: Exported, arguments: Mapping[str, Any]) -> dict[str, Array]:
    """The arguments of a call, by placeholder, as the model's inputs."""
    return {name: _array(arguments[placeholder]) for name, placeholder in exported.inputs}


def _plain(feeds: Mapping[str, Array]) -> dict[str, Array]:
    return {name: array for name, array in feeds.items() if array.dtype.name != "bfloat16"}


def _ort_bfloat16(runtime: Any, array: Array) -> Any:
    return runtime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), onnx.TensorProto.BFLOAT16)


def _from_ort(value: Any) -> Any:
    """numpy has no bfloat16 of its own: it comes through DLPack."""
    if value.data_type() == "tensor(bfloat16)":
        return torch.utils.dlpack.from_dlpack(value._ortvalue.to_dlpack()).clone()
    return value.numpy()


def _reference(path: Path) -> Run:
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(str(path))
    return lambda feeds: list(evaluator.run(None, dict(feeds)))


def _lacks_kernel(error: Exception) -> bool:
    return "NOT_IMPLEMENTED" in str(error) or "NotImplemented" in type(error).__name__


def _array(value: Any) -> Array:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().contiguous()
        if value.dtype is torch.bfloat16:
            bits: Array = value.view(torch.uint16).numpy()
            return bits.view(ml_dtypes.bfloat16)
        plain: Array = value.numpy()
        return plain
    dtype = np.bool_ if isinstance(value, bool) else np.float64 if isinstance(value, float) else np.int64
    return np.array(value, dtype)


def _tensor(value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    array = np.asarray(value)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(np.ascontiguousarray(array).view(np.uint16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array, order="C"))


# ---------------------------------------------------------------------- comparing


def _difference(exported: Exported, call: ExampleCall, results: Sequence[torch.Tensor]) -> CallDifference:
    worst = CallDifference(call.label, 0.0, 0.0)
    for place, ((name, *_), mine) in enumerate(zip(exported.outputs, results, strict=True)):
        own, exact = call.own[place], call.exact[place]
        problem, error, ratio = difference(mine, own, exact, random=exported.draws)
        if problem is not None and ratio > ALLOWED:  # a number; else it is something that no luck explains
            besides = max((_error(a[place], b[place]) for a, b in call.near()), default=0.0)
            problem, error, ratio = difference(mine, own, exact, besides=besides)
        if problem is not None:
            raise OnnxMismatch(
                format_error(
                    f"The exported model does not match torch: output {name} {problem}.",
                    where=call.label or "at the example's sizes",
                    fix=_REPORT,
                )
            )
        worst = CallDifference(call.label, max(worst.error, error), max(worst.ratio, ratio))
    return worst


def _error(own: Any, exact: Any) -> float:
    """How far one is from the other, where both are numbers."""
    if not isinstance(own, torch.Tensor) or not own.numel():
        return 0.0
    away = (own.double() - exact.double()).abs()
    return float(away[away.isfinite()].max()) if away.isfinite().any() else 0.0


def difference(
    mine: torch.Tensor, own: Any, exact: Any, *, random: bool = False, besides: float = 0.0
) -> tuple[str | None, float, float]:
    """What is wrong with an output, or None; its error, and that in units of torch's own.

    `besides` is what is known of torch's error from elsewhere.
    """
    own, exact = (x if isinstance(x, torch.Tensor) else torch.tensor(x, dtype=mine.dtype) for x in (own, exact))
    if mine.dtype != own.dtype or mine.shape != own.shape:
        return f"is {mine.dtype}{[*mine.shape]} instead of {own.dtype}{[*own.shape]}", 0.0, 0.0
    if random or not own.numel():
        return None, 0.0, 0.0
    if not own.is_floating_point():
        wrong = int((mine != own).sum())
        return (f"differs in {wrong} of {own.numel()} places" if wrong else None), float(wrong), 0.0
    mine, single, double = mine.double(), own.double(), exact.double()
    for mask, what in ((torch.isnan, "nan"), (torch.isposinf, "inf"), (torch.isneginf, "-inf")):
        if not torch.equal(mask(mine), mask(single)):
            return f"has {int(mask(mine).sum())} {what} instead of {int(mask(single).sum())}", math.nan, math.nan
    known = single.isfinite() & double.isfinite()
    if not known.any():
        return None, 0.0, 0.0
    mine, single, double = mine[known], single[known], double[known]
    largest = max(float(double.abs().max()), 1e-30)
    floor = ROUNDINGS * EPSILON[own.dtype] * largest
    error = float((mine - double).abs().max())
    least = max(float((single - double).abs().max()), floor / ALLOWED)
    most = COARSEST * largest if own.dtype is torch.float64 else LUCK * least
    allowed = max(least, min(besides, most))
    ratio = error / allowed
    if ratio > ALLOWED:
        return f"is off by {error:.3g}, torch itself by {allowed:.3g}, its largest value is {largest:.3g}", error, ratio
    return None, error, ratio
