"""torchao beside us: one model, one quantizer, the same data, both ways, and how far the results lie apart.

torchao captures some 120 patterns anew for every model. They do not depend on the model, so `captures_kept` lets it
capture each of them once; what it does with them is its own.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from types import FunctionType
from typing import Any

import torch
from torch import fx, nn

import ingot
from ingot.quantization.quantization_plan import modules_by_path
from ingot.quantize import PreparedProgram, calibrate, convert, prepare, prepare_qat

RATE = 0.1
_CAPTURE = "_get_aten_graph_module_for_pattern"
_kept: dict[Any, fx.GraphModule] = {}


@contextlib.contextmanager
def captures_kept() -> Iterator[None]:
    """torchao without its warnings, and with every pattern captured once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchao.quantization.pt2e import qat_utils, utils
        from torchao.testing.pt2e import _xnnpack_quantizer_utils as xnnpack

        capture = getattr(utils, _CAPTURE)

        def kept(pattern: Any, inputs: tuple[Any, ...], is_cuda: bool = False, **words: Any) -> fx.GraphModule:
            key = (_described(pattern), *map(_described, inputs), is_cuda, *map(_described, words.items()))
            if key not in _kept:
                _kept[key] = capture(pattern, inputs, is_cuda, **words)
            return copy.deepcopy(_kept[key])

        holders = (utils, qat_utils, xnnpack)
        for holder in holders:
            setattr(holder, _CAPTURE, kept)
        try:
            yield
        finally:
            for holder in holders:
                setattr(holder, _CAPTURE, capture)


def _described(value: Any) -> Any:
    """What tells a pattern, or something that it is captured with, from another."""
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), value.dtype)
    if isinstance(value, nn.Module):
        return _described(value.fn)
    if isinstance(value, tuple):
        return tuple(map(_described, value))
    if isinstance(value, FunctionType):
        cells = tuple(_described(cell.cell_contents) for cell in value.__closure__ or ())
        return (value.__module__, value.__qualname__, value.__code__.co_firstlineno, cells)
    return value if isinstance(value, bool | int | float | str | None) else repr(value)


@dataclass(frozen=True)
class Compared:
    """Differences between torchao and us; the last four in steps of the result.

    `training` is the largest difference of a result in training, `scales` that of the scales and zero points in the
    converted programs, relative to the larger scale. `own` and `theirs_own` are between a converted program and the
    module that it was made of, in eval mode.
    """

    training: float
    scales: float
    pairs: tuple[int, int]  # of quantize and dequantize, ours and theirs
    converted: float
    differing: float  # the share of a result's values that is more than half a step off
    own: float
    theirs_own: float

    def record(self) -> dict[str, Any]:
        return asdict(self)


def descend(module: nn.Module, batches: Sequence[Any]) -> list[torch.Tensor]:
    """Plain gradient descent; returns what the module gave at each step."""
    results = []
    for batch in batches:
        result = module(*batch)
        results.append(result.detach())
        module.zero_grad()
        result.square().mean().backward()
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.grad is not None:
                    parameter -= RATE * parameter.grad
    return results


@dataclass(frozen=True)
class Both:
    """What came of a model on either side: what it gave in training, the module, and the converted program."""

    ours: PreparedProgram
    made: ingot.Program
    theirs: Any
    converted: Any
    training: list[tuple[torch.Tensor, torch.Tensor]]


def trained(model: nn.Module, quantizer: Callable[[], Any], batches: Sequence[tuple[Any, ...]]) -> Both:
    """Quantization-aware training on both sides; both modules are in eval mode after it."""
    from torchao.quantization.pt2e import move_exported_model_to_eval
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_qat_pt2e

    with captures_kept():
        twin = copy.deepcopy(model.train())
        theirs: Any = prepare_qat_pt2e(torch.export.export(twin, batches[0]).module(), quantizer())
        ours = prepare_qat(ingot.capture(model, batches[0]), quantizer())
        training = list(zip(descend(ours, batches), descend(theirs, batches), strict=True))
        move_exported_model_to_eval(theirs)
        evaluated = copy.deepcopy(theirs)  # for convert changes what it is given
        for module in evaluated.modules():
            if hasattr(module, "disable_observer"):  # theirs go on to learn in eval mode
                module.disable_observer()
        return Both(ours.eval(), convert(ours), evaluated, convert_pt2e(theirs), training)


def calibrated(model: nn.Module, quantizer: Callable[[], Any], batches: Sequence[tuple[Any, ...]]) -> Both:
    """Quantization after training, on both sides."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    with captures_kept(), torch.no_grad():
        twin = copy.deepcopy(model.eval())
        theirs: Any = prepare_pt2e(torch.export.export(twin, batches[0]).module(), quantizer())
        for batch in batches:
            theirs(*batch)
        ours = prepare(ingot.capture(model, batches[0]), quantizer())
        calibrate(ours, batches, progress=False)
        evaluated = copy.deepcopy(theirs)
        return Both(ours, convert(ours), evaluated, convert_pt2e(theirs), [])


def compare(both: Both, batch: tuple[Any, ...]) -> Compared:
    """How far both sides lie apart on a batch. The module of a model that did not train computes floats."""
    both.made.verify()
    with torch.no_grad():
        result, expected = both.made(*batch), both.converted(*batch)
        simulated, theirs = both.ours(*batch), both.theirs(*batch)
    step = step_of(both.made, expected)
    off = (result - expected).abs() / step
    mine, other = parameters_in(both.made.graph_module), parameters_in(both.converted)
    return Compared(
        training=max((float((a - b).abs().max()) for a, b in both.training), default=0.0),
        scales=_apart(mine, other),
        pairs=(len(mine), len(other)),
        converted=float(off.max()),
        differing=float((off > 0.5).float().mean()),
        own=float((result - simulated).abs().max()) / step,
        theirs_own=float((expected - theirs).abs().max()) / step,
    )


def parameters_in(module: fx.GraphModule) -> list[tuple[float, int]]:
    """Scale and zero point of every quantize with literals, in the order of the program."""
    nodes: list[Any] = [n for m in modules_by_path(module).values() for n in m.graph.nodes]
    found = [n for n in nodes if str(n.target).startswith("quantized_decomposed.quantize_per_tensor")]
    return [(n.args[1], n.args[2]) for n in found if isinstance(n.args[1], float)]


def _apart(mine: list[tuple[float, int]], other: list[tuple[float, int]]) -> float:
    """The largest relative difference of scales, each paired with the nearest; infinite where a zero point differs."""
    if not mine or not other:
        return 0.0 if len(mine) == len(other) else float("inf")

    def distance(a: tuple[float, int], b: tuple[float, int]) -> float:
        return abs(a[0] - b[0]) / max(a[0], b[0]) if a[1] == b[1] else float("inf")

    return max(max(min(distance(a, b) for b in y) for a in x) for x, y in ((mine, other), (other, mine)))


def step_of(program: ingot.Program, result: torch.Tensor) -> float:
    """The scale of a program's first result; where that is a float, the 255th part of its range."""
    output: Any = next(n for n in program.graph.nodes if n.op == "output").args[0][0]
    if str(output.target).startswith("quantized_decomposed.dequantize_per_tensor"):
        return float(output.args[1])
    return float(result.max() - result.min()) / 255
