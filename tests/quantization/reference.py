"""What a converted program means, in integers: products are sums of int32, written in numpy.

    results, numbers = reference.run(program, x)

`results` are the program's results as numpy arrays; `numbers` maps each quantize node to its integers. What stands
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
from ingot.ir import execution
from ingot.quantization.quantizable_ops import KEEPING
from tests.quantization import integer_reference

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
    leaves = [leaf for leaf in execution.check_call(program, args, kwargs) if isinstance(leaf, torch.Tensor)]
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


_PAIRS = (aten.matmul.default, aten.bmm.default, aten.mm.default)
_CONVOLUTIONS = {getattr(aten, f"conv{n}d").default for n in (1, 2, 3)} | {
    getattr(aten, f"conv{n}d").padding for n in (1, 2, 3)
}
_TRANSPOSED = (aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input)
_PRODUCTS = {aten.linear.default, *_PAIRS, *_CONVOLUTIONS, *_TRANSPOSED}


def _product(target: Any, args: Any) -> torch.Tensor:
    """Sums of products of integers, by numpy, times both scales; then the bias."""
    x, w = args[0].counts.numpy(), args[1].counts.numpy()
    bias = args[2] if len(args) > 2 else None
    scale = args[1].scale
    if target in _PAIRS:
        return torch.from_numpy(integer_reference.multiplied(x, w)) * (args[0].scale * scale)
    if target is aten.linear.default:
        sums, tail = integer_reference.multiplied(x, w.T), ()
        scale = scale.flatten() if scale.dim() else scale
    else:
        given, defaults = list(args[3:]), [1, 0, 0, 1, 1] if target in _TRANSPOSED else [1, 0, 1, 1]
        options = given + defaults[len(given) :]
        sums = (integer_reference.spread if target in _TRANSPOSED else integer_reference.convolved)(x, w, *options)
        tail = (1,) * (sums.ndim - 2)
        if scale.dim():  # of a transposed convolution, the results of each group have the same scales
            scale = scale.flatten().repeat(sums.shape[1] // scale.numel()).view(-1, *tail)
    made = torch.from_numpy(sums) * (args[0].scale * scale)
    return made if bias is None else made + bias.view(-1, *tail)


def integers_of(program: ingot.Program, *args: Any) -> dict[str, np.ndarray]:
    """The integers that the program itself computes, by quantize node."""
    recorder = _Recorder(program.graph_module)
    leaves = [leaf for leaf in execution.check_call(program, args, {}) if isinstance(leaf, torch.Tensor)]
    with torch.no_grad():
        recorder.run(*(program.state_of(i) for i in program.signature.state_inputs), *leaves)
    return recorder.numbers


class _Recorder(_Integers):
    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        return fx.Interpreter.call_function(self, target, args, kwargs)
