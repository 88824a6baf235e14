"""What a converted program means, in whole numbers: products are sums of int32, written in numpy.

    results, numbers = reference.run(program, x)

`results` are the program's results as numpy arrays; `numbers` maps each quantize node to its whole numbers. What stands
between dequantize and quantize is computed from the integers themselves: a product as the sum of products of integers,
then one multiplication in float64; what keeps values, on the integers. Everything else is torch's, in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import fx

import ingot
from ingot import torch_internals as internals
from ingot.program import calling
from ingot.quantize.operators import KEEPING

aten = torch.ops.aten


@dataclass(frozen=True)
class Numbers:
    """Integers without their zero point, and the scale that they are multiplied with."""

    counts: torch.Tensor  # int64
    scale: torch.Tensor  # float64, in a shape that broadcasts against the counts

    def floats(self) -> torch.Tensor:
        return self.counts.double() * self.scale


def run(program: ingot.Program, *args: Any, **kwargs: Any) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    interpreter = _Integers(program.graph_module)
    leaves = [leaf for leaf in calling.check_call(program, args, kwargs) if isinstance(leaf, torch.Tensor)]
    state = [program.state_of(i).detach() for i in program.signature.state_inputs]
    values = [t.double() if t.is_floating_point() else t for t in (*state, *leaves)]
    made = interpreter.run(*values, enable_io_processing=False)
    return [_floats(v).numpy() for v in made], interpreter.numbers


def _floats(value: Any) -> Any:
    return value.floats() if isinstance(value, Numbers) else value


class _Integers(fx.Interpreter):
    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.numbers: dict[str, np.ndarray] = {}

    def run_node(self, n: fx.Node) -> Any:
        made = super().run_node(n)
        if str(n.target).startswith("quantized_decomposed.quantize"):
            self.numbers[n.name] = made.numpy()
        return made

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        name = str(target)
        if name.startswith("quantized_decomposed."):
            return getattr(self, "_" + name.split(".")[1])(*args, **kwargs)
        held = [a for a in args if isinstance(a, Numbers)]
        if target in KEEPING:
            return self._kept(target, args, kwargs)
        if target in _PRODUCTS and len(held) == 2:
            return _product(target, args)
        plain = fx.node.map_aggregate(args, _floats)
        return super().call_function(target, plain, kwargs)

    @staticmethod
    def _kept(target: Any, args: Any, kwargs: Any) -> Any:
        held = [a for a in fx.node.map_aggregate(list(args), lambda a: a) if isinstance(a, Numbers)]
        held += [b for a in args if isinstance(a, list | tuple) for b in a if isinstance(b, Numbers)]
        if not held or any(h.scale.numel() > 1 or not torch.equal(h.scale, held[0].scale) for h in held):
            return target(*fx.node.map_aggregate(args, _floats), **kwargs)
        # torch pools floats alone; those up to 2**53 are as good as integers
        counts = fx.node.map_aggregate(args, lambda a: a.counts.double() if isinstance(a, Numbers) else a)
        made = target(*counts, **kwargs)
        return Numbers(made.round().long(), held[0].scale)

    # ------------------------------------------------------------------ torch's operators, by name

    @staticmethod
    def _quantize_per_tensor(x: Any, scale: Any, zero: Any, low: int, high: int, dtype: torch.dtype) -> torch.Tensor:
        scale = torch.as_tensor(scale, dtype=torch.float64)
        if isinstance(x, Numbers) and torch.equal(x.scale, scale):
            return (x.counts + zero).clamp(low, high).to(dtype)
        inverse = (1.0 / scale.float()).double()
        return (torch.round(_floats(x).double() * inverse) + zero).clamp(low, high).to(dtype)

    @staticmethod
    def _dequantize_per_tensor(
        x: torch.Tensor, scale: Any, zero: Any, low: int, high: int, dtype: torch.dtype, **_: Any
    ) -> Numbers:
        return Numbers(x.long() - zero, torch.as_tensor(scale, dtype=torch.float64))

    @staticmethod
    def _dequantize_per_channel(
        x: torch.Tensor, scales: Any, zeros: Any, axis: int, low: int, high: int, dtype: torch.dtype, **_: Any
    ) -> Numbers:
        shape = [1] * x.dim()
        shape[axis] = -1
        return Numbers(x.long() - (0 if zeros is None else zeros.view(shape)), scales.view(shape))

    @staticmethod
    def _dequantize_per_channel_group(
        x: torch.Tensor, scales: Any, zeros: Any, low: int, high: int, dtype: torch.dtype, size: int, out: Any
    ) -> torch.Tensor:
        parts = x.unflatten(-1, (-1, size)).long() - (0 if zeros is None else zeros[..., None])
        return (parts.double() * scales[..., None]).flatten(-2)

    @staticmethod
    def _choose_qparams(x: Any, low: int, high: int, eps: float, dtype: torch.dtype) -> Any:
        chosen = internals.quantized_operator("choose_qparams", "tensor")
        return chosen(_floats(x).float(), low, high, eps, dtype)


_PRODUCTS = {aten.linear.default, aten.matmul.default, aten.bmm.default, aten.mm.default} | {
    overload
    for n in (1, 2, 3)
    for overload in (
        getattr(aten, f"conv{n}d").default,
        getattr(aten, f"conv{n}d").padding,
        aten.conv_transpose1d.default if n == 1 else getattr(aten, f"conv_transpose{n}d").input,
    )
}


def _product(target: Any, args: Any) -> torch.Tensor:
    """Sums of products of integers, which int32 must hold, times both scales; then the bias."""
    x, w, *rest = args
    bias = rest.pop(0) if rest and isinstance(rest[0], torch.Tensor) else None
    if rest and bias is None and target is not aten.linear.default:
        rest.pop(0)
    none = () if target in (aten.matmul.default, aten.bmm.default, aten.mm.default) else (None,)
    # float64 holds every integer that an int32 does, and torch has a product for it at each rank
    sums = target(x.counts.double(), w.counts.double(), *none, *rest).round()
    assert float(sums.abs().max()) < 2**31, "an int32 does not hold the sum"
    scale = w.scale
    if scale.dim():
        axis = next((i for i, n in enumerate(scale.shape) if n > 1), 0)
        scale = scale.flatten()
        if target is not aten.linear.default:
            groups = sums.shape[1] // scale.numel() if axis == 1 else 1
            scale = scale.repeat(groups).view(-1, *[1] * (sums.dim() - 2))
    made = sums * (x.scale * scale)
    if bias is None:
        return made
    return made + (bias if target is aten.linear.default else bias.view(-1, *[1] * (sums.dim() - 2)))


def integers_of(program: ingot.Program, *args: Any) -> dict[str, np.ndarray]:
    """The whole numbers that the program itself computes, by quantize node."""
    recorder = _Recorder(program.graph_module)
    leaves = [leaf for leaf in calling.check_call(program, args, {}) if isinstance(leaf, torch.Tensor)]
    with torch.no_grad():
        recorder.run(*(program.state_of(i) for i in program.signature.state_inputs), *leaves)
    return recorder.numbers


class _Recorder(_Integers):
    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        return fx.Interpreter.call_function(self, target, args, kwargs)
