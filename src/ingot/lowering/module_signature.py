"""A program's inputs and outputs as arguments of its module: buffers, the sizes that they bind, mutations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sympy
import torch
from torch import fx

from ingot.ir import symbolic_dims
from ingot.ir.metadata import value_of
from ingot.ir.program import Program
from ingot.ir.signature import MUTATION_KINDS, STATE_KINDS, OutputKind
from ingot.lowering.builder import LoopBuilder
from ingot.lowering.index_expr import Expr
from ingot.lowering.loop_ir import Buffer
from ingot.lowering.loop_module import Argument, PackedWeight, SymbolSource
from ingot.lowering.tensor_views import Strided, TensorValue, contiguous_strides
from ingot.lowering.unsupported import SUPPORTED, dtype_name, unsupported_error


@dataclass
class Interface:
    """`inputs` comes first and sets the placeholders' `values`; `symbols` are then the sizes that inputs bind."""

    low: LoopBuilder
    program: Program
    values: dict[fx.Node, Any]
    symbols: dict[str, SymbolSource] = field(default_factory=dict)

    def inputs(self) -> list[Argument]:
        inputs: list[Argument] = []
        nodes = [n for n in self.program.graph.nodes if n.op == "placeholder"]
        state_targets, argument_targets = set(), set()
        for output in self.program.signature.outputs:
            if output.kind is OutputKind.ARGUMENT_MUTATION:
                argument_targets.add(output.target)
            elif output.kind in MUTATION_KINDS:
                state_targets.add(output.target)
        given = zip(self.program.signature.placeholders, nodes, strict=True)
        self._bind_input_symbols([value_of(node) for spec, node in given if spec.kind not in STATE_KINDS])
        for spec, node in zip(self.program.signature.placeholders, nodes, strict=True):
            value = value_of(node)
            if spec.kind in STATE_KINDS:
                kind = "state" if spec.target in state_targets else "weight"
                self.values[node] = self._state(spec, node, kind)
            elif isinstance(value, torch.Tensor):
                shape, dtype = self.low.shape_of(value), dtype_name(value.dtype)
                if dtype not in SUPPORTED:
                    raise unsupported_error([(node, f"dtype {dtype} is not supported")])
                name = self.low.buffer("input", dtype, shape).name
                inputs.append(Argument(name, spec.name, dtype, shape, spec.name in argument_targets))
                self.values[node] = TensorValue(shape, dtype, Strided(name, 0, contiguous_strides(shape)))
            else:
                inputs.append(self._scalar_input(node, spec.name, value))
        return inputs

    def _state(self, spec: Any, node: fx.Node, kind: str) -> TensorValue:
        value = value_of(node)
        shape = tuple(int(size) for size in value.shape)
        name = self.low.buffer(kind, dtype_name(value.dtype), shape).name
        self.low.weights[name] = PackedWeight(name, spec.target)
        return TensorValue(shape, dtype_name(value.dtype), Strided(name, 0, contiguous_strides(shape)))

    def _bind_input_symbols(self, values: Sequence[Any]) -> None:
        """Which input binds a symbol: one that has it as a dim, or else in a dim that is a line of it, 2·n + 1."""
        found: list[tuple[torch.SymInt, int, int]] = []
        for place, value in enumerate(values):
            sizes = list(enumerate(value.shape)) if isinstance(value, torch.Tensor) else [(-1, value)]
            found += [(size, place, dim) for dim, size in sizes if isinstance(size, torch.SymInt)]
        for size, place, dim in sorted(found, key=lambda one: not one[0].node.expr.is_Symbol):
            line = symbolic_dims.line_of(size.node.expr)
            if line is None or (dim < 0 and not size.node.expr.is_Symbol):
                continue
            s, slope, offset = line
            hint = (int(size.node.hint) - offset) // slope if dim >= 0 and size.node.has_hint() else None
            name = self.low.symbol_of(s, hint)
            self.symbols.setdefault(name, replace(self._make_symbol_source(s, place, dim), slope=slope, offset=offset))

    def _scalar_input(self, node: fx.Node, name: str, value: Any) -> Argument:
        dtype = (
            "float64"
            if isinstance(value, (float, torch.SymFloat))
            else "bool"
            if isinstance(value, (bool, torch.SymBool))
            else "int64"
        )
        buffer = self.low.buffer("input", dtype, ()).name
        tensor = TensorValue((), dtype, Strided(buffer, 0, ()))
        if isinstance(value, torch.SymInt) and isinstance(value.node.expr, sympy.Symbol):
            self.values[node] = self.low.symbolic(value)
        else:
            self.values[node] = tensor
            if isinstance(value, torch.SymFloat) and isinstance(value.node.expr, sympy.Symbol):
                self.low.numbers[value.node.expr] = tensor
        return Argument(buffer, name, dtype, (), scalar=True)

    def _make_symbol_source(self, s: sympy.Symbol, place: int, dim: int) -> SymbolSource:
        name = symbolic_dims.name_of(s)
        found = next((d for d in self.program.dims if d.name == name), None)
        if found is None:
            return SymbolSource(place, dim, name)
        return SymbolSource(place, dim, name, max(found.low, 0), found.high)

    def outputs(self, values: Sequence[Any]) -> list[Argument]:
        specs = self.program.signature.graph_outputs
        outputs: list[Argument] = []
        taken: set[str] = set()
        writes: list[tuple[fx.Node, str, TensorValue]] = []
        by_target = {w.source: w.buffer for w in self.low.weights.values()}
        nodes = next(n for n in reversed(self.program.graph.nodes) if n.op == "output").args[0]
        for spec, value, node in zip(specs, values, nodes, strict=True):
            if spec.kind is OutputKind.TOKEN:
                continue
            tensor = value if isinstance(value, TensorValue) else self.low.scalar(value)
            if spec.kind is OutputKind.RESULT:
                self._check_known(tensor, node)
                with self.low.attribute_steps(node):
                    buffer = self._output_buffer(tensor, taken)
                taken.add(buffer)
                is_tensor = isinstance(node, fx.Node) and isinstance(value_of(node), torch.Tensor)
                outputs.append(Argument(buffer, spec.name, tensor.dtype, tensor.shape, scalar=not is_tensor))
            else:
                target = (
                    by_target[str(spec.target)]
                    if spec.kind is not OutputKind.ARGUMENT_MUTATION
                    else self._input_buffer(str(spec.target))
                )
                if self.low.buffers[target].shape != tensor.shape:
                    why = f"it changes the shape of {spec.target}, which native code cannot do to a caller's tensor"
                    raise unsupported_error([(node, why)])
                with self.low.attribute_steps(node):
                    writes.append((node, target, self.low.realize(tensor)))
        # All results are in memory before any state is overwritten: they may read the state as it was.
        copied: list[tuple[fx.Node, str, TensorValue]] = []
        for node, target, tensor in writes:
            with self.low.attribute_steps(node):
                copied.append((node, target, self.low.copy(tensor)))
        for node, target, tensor in copied:
            with self.low.attribute_steps(node):
                self.low.realize(self.low.lazy_copy(tensor), into=target)
        return outputs

    def _check_known(self, tensor: TensorValue, node: fx.Node) -> None:
        """The caller makes the memory of results, from the sizes of the arguments alone."""
        for size in tensor.shape:
            if isinstance(size, Expr) and not {s.name for s in size.symbols} <= self.symbols.keys():
                raise unsupported_error([(node, "it is a result of the model, but its size is data-dependent")])

    def _input_buffer(self, placeholder: str) -> str:
        node = next(n for n in self.program.graph.nodes if n.op == "placeholder" and n.name == placeholder)
        return str(self.values[node].data.buffer)

    def _output_buffer(self, tensor: TensorValue, taken: set[str]) -> str:
        """The buffer of a result: the one it was realized in, if it is alone there, or a copy."""
        data = tensor.data
        if isinstance(data, Strided):
            buffer = self.low.buffers[data.buffer]
            whole = (
                data.offset == 0 and data.strides == contiguous_strides(tensor.shape) and buffer.size == tensor.numel
            )
            if whole and buffer.kind == "temporary" and data.buffer not in taken:
                self.low.buffers[data.buffer] = Buffer(buffer.name, buffer.dtype, tensor.shape, "output")
                return data.buffer
            tensor = self.low.lazy_copy(tensor)
        name = self.low.buffer("output", tensor.dtype, tensor.shape).name
        self.low.realize(tensor, into=name)
        return name
