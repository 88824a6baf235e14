"""A Program becomes an ONNX model: one rule per operator, from ATen's to ONNX's.

    @exports(aten.relu.default)
    def relu(ex, x): return ex.op("Relu", x)

A rule is given the Exporter and the node's arguments as OnnxValues, Sizes and plain Python values; it returns
OnnxValues. The node being exported is `ex.node`, its type `ex.out`. What a rule returns is cast to the type that torch
gives it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import sympy
import torch
from torch import fx

from ingot.analysis.graph_interpreter import SYMBOLIC, GraphInterpreter
from ingot.ir.metadata import value_of
from ingot.ir.program import Program
from ingot.onnx.dtypes import TO_ONNX, name_of
from ingot.onnx.graph_builder import OnnxGraphBuilder
from ingot.onnx.node_builder import onnx_shape
from ingot.onnx.registry import TAKES, OnnxUnsupported, moves_data, rule_for, rule_of, unsupported_error
from ingot.onnx.symbolic_sizes import SizeNotComputed
from ingot.onnx.values import OnnxValue, Size, size_of, sizes_of


class Exporter(OnnxGraphBuilder, GraphInterpreter):
    """One export: what rules are given."""

    refusals = (OnnxUnsupported, SizeNotComputed)

    def __init__(self, program: Program, opset: int) -> None:
        OnnxGraphBuilder.__init__(self, program, opset)
        GraphInterpreter.__init__(self, program)
        self.draws = False  # whether the model draws random numbers
        self.dropped: list[tuple[fx.Node, str]] = []  # assertions, which ONNX has none of, with what they say
        self._computes = False  # whether the rule at work computes, or moves elements alone

    def explain_rule(self, node: fx.Node) -> str | None:
        if rule_for(node) is not None:
            return None
        return "there is no rule for it" if rule_of(node.target) is None else "there is no rule for complex numbers"

    def explain_tensor(self, tensor: torch.Tensor) -> str | None:
        if tensor.dtype not in TO_ONNX and tensor.dtype not in (torch.complex64, torch.complex128):
            return f"ONNX has no {name_of(tensor.dtype)}"
        return f"ONNX has no {tensor.layout} tensors" if tensor.layout is not torch.strided else None

    def unsupported_error(self, found: Sequence[tuple[fx.Node, str]]) -> Exception:
        return unsupported_error(found)

    def evaluate(self, node: fx.Node) -> Any:
        value = value_of(node)
        if isinstance(value, int | float | bool):
            return value
        rule = rule_for(node)
        if isinstance(value, SYMBOLIC):
            made = rule(self, *map(self.argument, node.args)) if rule is not None else None
            if isinstance(made, OnnxValue):
                self._learn_number(value, made)
            return self.symbolic(value)
        assert rule is not None, node.target
        if node.target in TAKES and not TAKES[node.target](node):
            raise OnnxUnsupported("there is no rule for it with these arguments")
        self._computes = not moves_data(node)
        args = [self._widen(self.argument(given)) for given in node.args]
        result = rule(self, *args, **{k: self._widen(self.argument(v)) for k, v in node.kwargs.items()})
        if isinstance(value, tuple | list):
            assert isinstance(result, tuple | list) and len(result) == len(value), (
                f"{node.target}: {len(value)} results"
            )
            several = len(value) > 1
            return [
                self._finalize_result(part, fake, f"{node.name}.{place}" if several else node.name)
                for place, (part, fake) in enumerate(zip(result, value, strict=True))
            ]
        return self._finalize_result(result, value, node.name)

    def _finalize_result(self, part: Any, fake: Any, name: str) -> Any:
        """A result with torch's type and shape, under the node's name if it was made for it."""
        if isinstance(fake, SYMBOLIC):
            if isinstance(part, OnnxValue):
                self._learn_number(fake, part)
            return self.symbolic(fake)
        if not isinstance(part, OnnxValue) or not isinstance(fake, torch.Tensor):
            return fake if isinstance(fake, int | float | bool) else part
        part = part if fake.dtype.is_complex else self.cast(part, fake.dtype)
        made = OnnxValue(part.value, fake.dtype, sizes_of(fake.shape))
        producer = part.value.producer()
        if producer is not None and part.value.shape is None:
            part.value.shape = onnx_shape((*made.sizes, 2) if fake.dtype.is_complex else made.sizes)
            part.value.name = self.unique(name)
        for dim, size in enumerate(made.sizes):
            self.sizes.learn(size, made, dim)
        return made

    def _widen(self, value: Any) -> Any:
        """An argument of a rule that computes: bfloat16 as float32, so that only the result is rounded, as by torch."""
        if isinstance(value, list | tuple):
            return [self._widen(item) for item in value]
        if self._computes and isinstance(value, OnnxValue) and value.dtype is torch.bfloat16:
            return self.cast(value, torch.float32)
        return value

    def _learn_number(self, value: Any, made: OnnxValue) -> None:
        expr = value.node.expr
        if isinstance(value, torch.SymBool) and len(expr.free_symbols) == 1 and not expr.is_Symbol:
            made = self.cast(made, torch.int64)  # torch writes the truth of a tensor as a number that is 1
            (expr,) = expr.free_symbols
        self.sizes.learn(expr, made, None)

    def stand_in(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            made = OnnxValue(ir.Value(name=self.unique("refused")), value.dtype, sizes_of(value.shape))
            for dim, size in enumerate(made.sizes):
                self.sizes.learn(size, made, dim)
            return made
        if isinstance(value, torch.SymInt):
            self.sizes.learn(value.node.expr, OnnxValue(ir.Value(name=self.unique("refused")), torch.int64, ()), None)
            return self.symbolic(value)
        if isinstance(value, torch.SymFloat | torch.SymBool):
            dtype = torch.float64 if isinstance(value, torch.SymFloat) else torch.bool
            return OnnxValue(ir.Value(name=self.unique("refused")), dtype, ())
        return value

    def symbolic(self, value: Any) -> Any:
        """A symbolic number as a Size; a float or a bool as an OnnxValue of rank 0."""
        if isinstance(value, torch.SymInt):
            return size_of(value)
        expr = value.node.expr
        if expr.is_number or expr in (sympy.true, sympy.false):
            return float(expr) if isinstance(value, torch.SymFloat) else bool(expr)
        dtype = torch.float64 if isinstance(value, torch.SymFloat) else torch.bool
        made = self.sizes.compute_scalar(expr, dtype)
        if made.value.shape is None:  # it may be a result of the model
            made.value.shape = onnx_shape(())
        return OnnxValue(made.value, dtype, ())

    # ------------------------------------------------------------------ the node being exported

    @property
    def out(self) -> torch.Tensor:
        """The type of the node being exported, or of its first result."""
        value = value_of(self.node)
        made: torch.Tensor = value[0] if isinstance(value, tuple | list) else value
        return made

    @property
    def dtype(self) -> torch.dtype:
        """The result's type, or the one that it is computed in and rounded from."""
        return torch.float32 if self._computes and self.out.dtype is torch.bfloat16 else self.out.dtype

    @property
    def shape(self) -> tuple[Size, ...]:
        return sizes_of(self.out.shape)
