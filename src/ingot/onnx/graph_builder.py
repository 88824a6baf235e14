"""The graph that an export writes: nodes, constants, initializers and names, in onnx-ir's words.

Rules call this to make their nodes: `ex.op("Relu", x)`, `ex.reshape(x, sizes)`, `ex.number(2, torch.float32)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import sympy
import torch
from onnx_ir.tensor_adapters import TorchTensor
from torch import fx

from ingot.ir import symbolic_dims
from ingot.ir.metadata import module_path_of, source_of
from ingot.ir.program import Program
from ingot.onnx.dtypes import TO_ONNX, WIDER, name_of
from ingot.onnx.node_builder import attribute, find_fixed_type, list_allowed_types, onnx_shape, schema_of
from ingot.onnx.registry import OnnxUnsupported
from ingot.onnx.symbolic_sizes import SymbolicSizes
from ingot.onnx.values import Number, OnnxValue, Size


@dataclass(slots=True)
class GraphScope:
    """A graph that is being written: its nodes, and what they have computed of sizes and constants."""

    nodes: list[ir.Node] = field(default_factory=list)
    memo: dict[Any, OnnxValue] = field(default_factory=dict)


class OnnxGraphBuilder:
    """Nodes and initializers so far, in the name of the FX node that is being exported."""

    def __init__(self, program: Program, opset: int) -> None:
        self.program = program
        self.node: fx.Node = next(iter(program.graph.nodes))
        self.opset = opset
        self.initializers: list[ir.Value] = []
        self.sizes = SymbolicSizes(self)
        self.bounds: dict[ir.Value, tuple[float, float] | None] = {}  # what value_ranges.py found
        self.written: set[ir.Value] = set()  # stored values that calls write to
        self._scopes = [GraphScope()]
        self._constants: dict[Any, OnnxValue] = {}
        self._taken: dict[str, int] = {}
        self._origin: tuple[fx.Node, dict[str, str]] | None = None

    # ------------------------------------------------------------------ graphs

    @property
    def scope(self) -> GraphScope:
        return self._scopes[-1]

    @property
    def memo(self) -> dict[Any, OnnxValue]:
        return self.scope.memo

    @contextmanager
    def inner_scope(self) -> Iterator[GraphScope]:
        """Nodes written inside go to a graph of their own, which sees all that is known outside."""
        self._scopes.append(GraphScope(memo=dict(self.memo)))
        try:
            yield self.scope
        finally:
            self._scopes.pop()

    # ------------------------------------------------------------------ making

    def unique(self, name: str) -> str:
        """`name`, or `name_1` … where it is taken; names are unique in the whole file."""
        count = self._taken.get(name)
        if count is None:
            self._taken[name] = 0
            return name
        while True:
            count += 1
            candidate = f"{name}_{count}"
            if candidate not in self._taken:
                self._taken[name] = count
                self._taken[candidate] = 0
                return candidate

    def op(
        self, kind: str, *inputs: OnnxValue | None, dtype: torch.dtype | None = None, **attributes: Any
    ) -> OnnxValue:
        """One node with one result. `dtype` is the result's where the schema leaves it open.

        A type that the operator or its kernels lack is computed in a wider one.
        """
        return self.several(kind, 1, *inputs, dtype=dtype, **attributes)[0]

    def several(
        self, kind: str, count: int, *inputs: OnnxValue | None, dtype: torch.dtype | None = None, **attributes: Any
    ) -> list[OnnxValue]:
        """One node with several results."""
        schema = schema_of(kind, self.opset)
        typed, bound, narrow = self._typed(kind, schema, inputs)
        results = []
        for place in range(count):
            spec = schema.outputs[min(place, len(schema.outputs) - 1)]
            results.append(bound.get(spec.type_str) or dtype or find_fixed_type(kind, self.opset, spec.type_str))
        values = self._node(kind, typed, results, attributes)
        shape = inputs[0].shape if kind in _SAME_SHAPE and inputs[0] is not None else None
        made = [OnnxValue(value, kind_, shape) for value, kind_ in zip(values, results, strict=True)]
        return [
            self.cast(part, narrow[spec.type_str]) if spec.type_str in narrow else part
            for part, spec in zip(
                made, (schema.outputs[min(p, len(schema.outputs) - 1)] for p in range(count)), strict=True
            )
        ]

    def _typed(
        self, kind: str, schema: onnx.defs.OpSchema, inputs: Sequence[OnnxValue | None]
    ) -> tuple[list[OnnxValue | None], dict[str, torch.dtype], dict[str, torch.dtype]]:
        """Inputs in types that can be computed; what each type variable is, and what it was before it was widened."""
        bound: dict[str, torch.dtype] = {}
        narrow: dict[str, torch.dtype] = {}
        typed: list[OnnxValue | None] = []
        for place, given in enumerate(inputs):
            if given is None:
                typed.append(None)
                continue
            variable = schema.inputs[min(place, len(schema.inputs) - 1)].type_str
            if variable not in bound:
                bound[variable] = given.dtype
                legal, kernels = list_allowed_types(kind, self.opset, variable)
                if legal and given.dtype not in kernels:
                    wider = next((d for d in WIDER.get(given.dtype, ()) if d in kernels), None)
                    if wider is not None:
                        bound[variable], narrow[variable] = wider, given.dtype
                    elif given.dtype not in legal:
                        raise OnnxUnsupported(f"ONNX's {kind} takes no {name_of(given.dtype)}")
            homogeneous = not variable.startswith("tensor(") and kind not in _MIXED
            typed.append(self.cast(given, bound[variable]) if homogeneous and variable in narrow else given)
            assert not homogeneous or typed[-1].dtype is bound[variable], (  # type: ignore[union-attr]
                f"{kind}: {given.dtype} beside {bound[variable]} for {self.node}"
            )
        return typed, bound, narrow

    def _node(
        self,
        kind: str,
        inputs: Sequence[OnnxValue | None],
        results: Sequence[torch.dtype],
        attributes: Mapping[str, Any],
    ) -> list[ir.Value]:
        path = module_path_of(self.node)
        name = self.unique(f"{path}/{kind}" if path else kind)
        values = [
            ir.Value(name=self.unique(f"{self.node.name}:{kind}"), type=ir.TensorType(TO_ONNX[dtype]))
            for dtype in results
        ]
        node = ir.Node(
            "",
            kind,
            [None if given is None else given.value for given in inputs],
            [attribute(key.rstrip("_"), value) for key, value in attributes.items() if value is not None],
            outputs=values,
            name=name,
            metadata_props=self._metadata(),
        )
        self.scope.nodes.append(node)
        return values

    def plain(
        self, kind: str, inputs: Sequence[OnnxValue | None], results: Sequence[torch.dtype], **attributes: Any
    ) -> list[OnnxValue]:
        """One node with inputs as they are and results of these types: those who hold graphs, or integers of 4 bits."""
        values = self._node(kind, inputs, results, attributes)
        return [OnnxValue(value, dtype) for value, dtype in zip(values, results, strict=True)]

    def _metadata(self) -> dict[str, str]:
        """Where a node comes from, for Netron and for people: the operator, the module and the user's line."""
        if self._origin is None or self._origin[0] is not self.node:
            source, path = source_of(self.node), module_path_of(self.node)
            made = {"aten": str(self.node.target)}
            if path:
                made["module"] = path
            if source is not None:  # the end of the path: the same bytes in another folder
                made["source"] = f"{'/'.join(source.file.replace(chr(92), '/').split('/')[-2:])}:{source.line}"
            self._origin = (self.node, made)
        return dict(self._origin[1])

    def cast(self, x: OnnxValue, dtype: torch.dtype) -> OnnxValue:
        """The tensor in another type, as torch casts."""
        if x.dtype is dtype:
            return x
        if dtype not in TO_ONNX:
            raise OnnxUnsupported(f"ONNX has no {name_of(dtype)}")
        key = ("cast", x.value, dtype)
        if key not in self.memo:
            (value,) = self._node("Cast", [x], [dtype], {"to": TO_ONNX[dtype].value})
            self.memo[key] = OnnxValue(value, dtype, x.shape)
        return self.memo[key]

    def constant(self, tensor: torch.Tensor) -> OnnxValue:
        """A small tensor that is part of the model, once for each value."""
        assert tensor.dtype in TO_ONNX
        key = (tensor.dtype, tuple(tensor.shape), tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        if key not in self._constants:
            self._constants[key] = self.initializer("constant", tensor)
        return self._constants[key]

    def initializer(self, name: str, tensor: torch.Tensor) -> OnnxValue:
        name = self.unique(name)
        if tensor.dtype not in TO_ONNX:
            raise OnnxUnsupported(f"ONNX has no {name_of(tensor.dtype)}")
        value = ir.Value(
            name=name,
            type=ir.TensorType(TO_ONNX[tensor.dtype]),
            shape=ir.Shape(tensor.shape),
            const_value=TorchTensor(tensor.detach(), name=name),
        )
        self.initializers.append(value)
        return OnnxValue(value, tensor.dtype, tuple(tensor.shape))

    def nibbles(self, name: str, tensor: torch.Tensor) -> OnnxValue:
        """An initializer of integers of 4 bits, -8 to 7; who reads it must know: it is int8 to us."""
        name, flat = self.unique(name), tensor.reshape(-1).to(torch.int8)
        flat = torch.nn.functional.pad(flat, (0, flat.numel() % 2)) & 15
        packed = (flat[::2] | flat[1::2] << 4).view(torch.uint8).numpy()
        kept = ir.PackedTensor(packed, ir.DataType.INT4, shape=ir.Shape(tensor.shape), name=name)
        value = ir.Value(name=name, type=ir.TensorType(ir.DataType.INT4), shape=kept.shape, const_value=kept)
        self.initializers.append(value)
        return OnnxValue(value, torch.int8, tuple(tensor.shape))

    def known(self, x: OnnxValue) -> torch.Tensor | None:
        """The numbers of a tensor that is part of the model and stays as it is."""
        return self.stored(x.value)

    def stored(self, value: ir.Value) -> torch.Tensor | None:
        kept = value.const_value
        return kept.raw if isinstance(kept, TorchTensor) and value not in self.written else None

    def number(self, value: Number, dtype: torch.dtype) -> OnnxValue:
        """A constant of rank 0."""
        if not dtype.is_floating_point and isinstance(value, float) and not math.isfinite(value):
            raise OnnxUnsupported(f"{value} as {name_of(dtype)} has no meaning")
        return self.constant(torch.tensor(value, dtype=dtype))

    def ints(self, values: Sequence[int]) -> OnnxValue:
        """A constant vector of int64."""
        return self.constant(torch.tensor(list(values), dtype=torch.int64))

    def says(self, dtype: torch.dtype, *numbers: float) -> bool:
        """Whether attributes of a node, which have 32 bits, give these numbers as exactly as a tensor of the dtype."""
        return dtype is not torch.float64 or all(float(np.float32(number)) == number for number in numbers)

    def factor(self, value: Any, dtype: torch.dtype, shape: Sequence[Size]) -> OnnxValue:
        """What a tensor is multiplied or divided by, for a result of this shape.

        A single number beside a matrix product ONNX Runtime takes into it as an attribute, so one that an attribute
        does not hold is there once for each column, or row.
        """
        wide = [dim for dim, size in enumerate(shape) if size != 1]
        if not isinstance(value, int | float) or not wide or self.says(dtype, value):
            return self.operand(value, dtype)
        last = wide[-1]
        return self.full([shape[last], *([1] * (len(shape) - last - 1))], value, dtype)

    def operand(self, x: Any, dtype: torch.dtype) -> OnnxValue:
        """A tensor, a size or a number as a tensor of this type."""
        if isinstance(x, OnnxValue):
            return self.cast(x, dtype)
        if isinstance(x, sympy.Basic):
            return self.cast(self.sizes.scalar(x), dtype)
        return self.number(x, dtype)

    def once(self, key: Any, make: Callable[[], OnnxValue]) -> OnnxValue:
        """What `make` gives, computed once in each scope."""
        if key not in self.memo:
            self.memo[key] = make()
        return self.memo[key]

    def named_input(self, name: str, dtype: torch.dtype, shape: Sequence[Size]) -> OnnxValue:
        """A value that a graph is given."""
        if dtype not in TO_ONNX:
            raise OnnxUnsupported(f"ONNX has no {name_of(dtype)}")
        value = ir.Value(name=self.unique(name), type=ir.TensorType(TO_ONNX[dtype]), shape=onnx_shape(shape))
        return OnnxValue(value, dtype, tuple(shape))

    def renamed(self, x: OnnxValue, name: str) -> OnnxValue:
        """The same value under a name of its own, by a node that does nothing."""
        (value,) = self._node("Identity", [x], [x.dtype], {})
        value.name = self.unique(name)
        if x.shape is not None:
            value.shape = onnx_shape(x.shape)
        return OnnxValue(value, x.dtype, x.shape)

    # ------------------------------------------------------------------ what nearly every rule needs

    def reshape(self, x: OnnxValue, sizes: Sequence[Size]) -> OnnxValue:
        """The elements in another shape. One size that is not a number is inferred by ONNX."""
        if x.shape is not None and tuple(sizes) == x.shape:
            return x
        unknown = [size for size in sizes if not isinstance(size, int)]
        if not unknown:
            zero = 1 if 0 in sizes else None
            made = self.op("Reshape", x, self.ints([int(s) for s in sizes]), allowzero=zero)
        elif 0 in sizes:
            made = self.op("Reshape", x, self.sizes.vector(sizes), allowzero=1)
        else:
            made = self.op("Reshape", x, self._target(x, sizes))
        return OnnxValue(made.value, made.dtype, tuple(sizes))

    def _target(self, x: OnnxValue, sizes: Sequence[Size]) -> OnnxValue:
        """The shape as a constant where ONNX's own marks say it: 0 is the input's size there, -1 what is left."""
        before = x.shape or ()
        marks: list[int | None] = []
        for place, size in enumerate(sizes):
            if isinstance(size, int):
                marks.append(size)
            else:
                marks.append(0 if place < len(before) and before[place] == size else None)
        if marks.count(None) == 1:
            # With no elements at all, what is left is nothing only if nothing else can be zero.
            copied = [size for size, mark in zip(sizes, marks, strict=True) if mark == 0]
            if not any(may_be_zero(self.program, size) for size in copied):
                return self.ints([-1 if m is None else m for m in marks])
        if None not in marks:
            return self.ints([m for m in marks if m is not None])
        return self.sizes.vector(sizes)

    def expand(self, x: OnnxValue, sizes: Sequence[Size]) -> OnnxValue:
        """The tensor repeated along dims of size 1 and along new leading ones."""
        if x.shape is not None and tuple(sizes) == x.shape:
            return x
        made = self.op("Expand", x, self.sizes.vector(sizes))
        return OnnxValue(made.value, made.dtype, tuple(sizes))

    def transpose(self, x: OnnxValue, order: Sequence[int]) -> OnnxValue:
        if list(order) == list(range(len(order))):
            return x
        made = self.op("Transpose", x, perm=list(order))
        return OnnxValue(made.value, made.dtype, tuple(x.shape[d] for d in order) if x.shape is not None else None)

    def slice(self, x: OnnxValue, dim: int, start: Size, end: Size | None, step: int = 1) -> OnnxValue:
        """x[start:end:step] along a dim."""
        last = self.ints([2**63 - 1]) if end is None else self.sizes.one(end)
        return self.op("Slice", x, self.sizes.one(start), last, self.ints([dim]), self.ints([step]))

    def unsqueeze(self, x: OnnxValue, *dims_: int) -> OnnxValue:
        return self.op("Unsqueeze", x, self.ints(dims_))

    def squeeze(self, x: OnnxValue, *dims_: int) -> OnnxValue:
        return self.op("Squeeze", x, self.ints(dims_))

    def full(self, sizes: Sequence[Size], value: Any, dtype: torch.dtype) -> OnnxValue:
        """A tensor of one number."""
        filling = self.operand(value, dtype)
        if not sizes:
            return OnnxValue(filling.value, dtype, ())
        return self.expand(OnnxValue(filling.value, dtype, ()), sizes)

    def range(self, count: Size) -> OnnxValue:
        """0, 1, … below a size."""
        if isinstance(count, int) and count <= 64:
            return self.ints(list(range(count)))
        zero, one = self.number(0, torch.int64), self.number(1, torch.int64)
        made = self.once(("range", count), lambda: self.op("Range", zero, self.sizes.scalar(count), one))
        return OnnxValue(made.value, torch.int64, (count,))


# Operators of one input whose result is as large.
_SAME_SHAPE = frozenset(
    ("Abs", "Exp", "Floor", "IsInf", "IsNaN", "Log", "Neg", "Not", "Reciprocal", "Sigmoid", "Sign", "Sqrt", "Tanh")
)
# Operators of which several inputs share a variable without sharing a type.
_MIXED = frozenset({"Loop", "Scan", "If"})


def may_be_zero(program: Program, size: Size) -> bool:
    """Whether a size may be zero, as far as the ranges of the program's dims show."""
    if isinstance(size, int):
        return size == 0
    low = {dim.name: dim.low for dim in program.dims}
    return not isinstance(size, sympy.Symbol) or low.get(symbolic_dims.name_of(size), 0) < 1
