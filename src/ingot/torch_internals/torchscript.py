"""What torch does not document about TorchScript: its graphs, and the passes that we let run over a copy of one.

Part of `torch_internals`: when a torch release moves something, only this file needs to change.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import torch

from ingot.torch_internals.isolation import ignore_warnings
from ingot.torch_internals.quantized import quantized_operators

# torch describes these to type checkers in part, and in part wrongly.
Graph: TypeAlias = Any
Node: TypeAlias = Any
Value: TypeAlias = Any
Block: TypeAlias = Any
Type: TypeAlias = Any

TensorType: Any = torch._C.TensorType
ScriptObject: Any = torch._C.ScriptObject
ScriptModule: Any = torch.jit.ScriptModule
ScriptFunction: Any = torch.jit.ScriptFunction

FOREVER = 2**63 - 1  # the trip count of a loop that only its condition ends


def method_of(script: Any, name: str) -> Any:
    """A method of a ScriptModule, with `.graph` and `.schema`."""
    return script._c._get_method(name)


def method_names(script: Any) -> list[str]:
    return list(script._c._method_names())


def has_method(script: Any, name: str) -> bool:
    return bool(script._c._has_method(name))


def hooks_of(script: Any) -> tuple[list[Any], list[Any]]:
    """The hooks that a module's call runs before and after `forward`."""
    return list(script._c._get_forward_pre_hooks()), list(script._c._get_forward_hooks())


def qualified_name(script: Any) -> str:
    return str(script._c._type().qualified_name())


def children(script: Any) -> list[tuple[str, Any]]:
    return list(script._modules.items())


def parameters(script: Any) -> list[tuple[str, torch.Tensor]]:
    """The parameters of this module itself."""
    table: Any = torch._C.ParameterDict(script._c)
    return list(table.items())


def buffers(script: Any) -> list[tuple[str, torch.Tensor]]:
    """The buffers of this module itself."""
    table: Any = torch._C.BufferDict(script._c)
    return list(table.items())


def attribute(script: Any, name: str) -> Any:
    """An attribute that is neither a parameter, a buffer nor a module."""
    return script._c.getattr(name)


def has_attribute(script: Any, name: str) -> bool:
    return bool(script._c.hasattr(name))


def object_attribute(value: Any, name: str) -> Any:
    """An attribute of an instance of a TorchScript class."""
    return value.__getattr__(name)


def custom_class_of(value: Value) -> str:
    """The name of the C++ class (a TorchBind class) that a value is an instance of; nothing for another value."""
    text = str(value.type())
    return text if text.startswith("__torch__.torch.classes.") else ""


def body_of_call(node: Node) -> Graph:
    """What a CallFunction or CallMethod node calls, as a graph whose inputs are those of the call.

    Everything that the callee calls in its turn is inlined into it.
    """
    graph: Any = torch._C.Graph()
    inputs = list(node.inputs())
    given: list[Value] = []
    if node.kind() == "prim::CallFunction":
        constant = graph.create("prim::Constant")
        constant.copyAttributes(inputs[0].node())
        constant.output().setType(inputs[0].type())
        graph.appendNode(constant)
        given.append(constant.output())
        inputs = inputs[1:]
    for value in inputs:
        taken = graph.addInput()
        taken.setType(value.type())
        given.append(taken)
    call = graph.create(node.kind(), given, node.outputsSize())
    call.copyAttributes(node)
    graph.appendNode(call)
    for made, wanted in zip(call.outputs(), node.outputs(), strict=True):
        made.setType(wanted.type())
        graph.registerOutput(made)
    torch._C._jit_pass_inline(graph)
    return graph


def body_of_method(kind: Type, name: str, inputs: int) -> Graph:
    """A method of a TorchScript class as a graph of its own; the first of its inputs is the instance."""
    graph: Any = torch._C.Graph()
    given = [graph.addInput() for _ in range(inputs)]
    given[0].setType(kind)
    call = graph.create("prim::CallMethod", given, 1)
    call.s_("name", name)
    graph.appendNode(call)
    for made in call.outputs():
        graph.registerOutput(made)
    torch._C._jit_pass_inline(graph)
    return graph


def is_autocast(kind: Type) -> bool:
    """Whether a TorchScript class is torch.autocast, under any of its names."""
    return str(kind.qualified_name()).startswith("__torch__.torch.") and kind.name() == "autocast"


def fork_subgraph(node: Node) -> Graph:
    """What a fork runs."""
    return node.g("Subgraph")


def has_kernel(name: str) -> bool:
    """Whether an operator is the dispatcher's, so that modes see it; others are the TorchScript interpreter's own."""
    return bool(torch._C._dispatch_has_kernel(name))


def constant_of(node: Node) -> Any:
    """What a prim::Constant node holds."""
    return node.output().toIValue()


def tensor_in(node: Node, name: str) -> torch.Tensor:
    """A tensor attribute of a node."""
    held: torch.Tensor = node.t(name)
    return held


def number_in(node: Node, name: str) -> float:
    """A number attribute of a node."""
    return float(node.f(name) if node.kindOf(name) == "f" else node.i(name))


def is_function(value: Value) -> bool:
    return str(value.type().kind()) == "FunctionType"


def field_names(kind: Type) -> list[str]:
    """The names of a NamedTuple's fields; none of a plain tuple."""
    text = kind.str()
    if not text.startswith("NamedTuple("):
        return []
    inner, names, depth, start = text[len("NamedTuple(") : -1], [], 0, 0
    for index, letter in enumerate([*inner, ","]):
        depth += letter in "(["
        depth -= letter in ")]"
        if letter == "," and depth == 0:
            names.append(inner[start:index].split(" : ")[0].strip())
            start = index + 1
    return names


def dtype_of_number(number: int) -> torch.dtype:
    """TorchScript counts dtypes; this is the table that it counts in."""
    return _DTYPES[number]


def number_of_dtype(dtype: torch.dtype) -> int:
    return next(number for number, known in _DTYPES.items() if known is dtype)


def layout_of_number(number: int) -> torch.layout:
    return _LAYOUTS[number]


def memory_format_of_number(number: int) -> torch.memory_format:
    return _MEMORY_FORMATS[number]


def _tables() -> Iterator[tuple[int, torch.dtype]]:
    names = (
        "uint8 int8 int16 int32 int64 float16 float32 float64 complex32 complex64 complex128 bool qint8 quint8 qint32 "
        "bfloat16 quint4x2 quint2x4 bits1x8 bits2x4 bits4x2 bits8 bits16 float8_e5m2 float8_e4m3fn float8_e5m2fnuz "
        "float8_e4m3fnuz uint16 uint32 uint64"
    )
    for number, name in enumerate(names.split()):
        yield number, getattr(torch, name)


_DTYPES = dict(_tables())
_LAYOUTS = {0: torch.strided, 1: torch.sparse_coo}
_MEMORY_FORMATS = {
    0: torch.contiguous_format,
    1: torch.preserve_format,
    2: torch.channels_last,
    3: torch.channels_last_3d,
}


def called_name(node: Node) -> str:
    """The name of the function that a CallFunction node calls."""
    return str(next(iter(node.inputs())).node().s("name"))


def python_name(node: Node) -> str:
    """The name of the Python function that a PythonOp node calls."""
    return str(node.pyname()) if node.kind() == "prim::PythonOp" else "a Python function"


def load(path: Any) -> Any:
    """A script from a file, on the CPU."""
    with _quietly():
        return torch.jit.load(path if hasattr(path, "read") else str(path), map_location="cpu")


def is_quantized(module: torch.nn.Module) -> bool:
    """Whether a module is one of torch's quantized ones, whose weights are packed for kernels, or holds one."""
    return any(
        hasattr(part, "_packed_params") or type(part).__module__.startswith("torch.ao.nn.quantized.")
        for part in module.modules()
    )


def trace_module(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """torch's trace of a module. What it warns of is what any trace does: it follows one path."""
    with ignore_warnings():
        return torch.jit.trace(module, args, example_kwarg_inputs=kwargs or None, check_trace=False)


def _quietly() -> ignore_warnings:
    """Inside, torch does not warn that TorchScript is deprecated."""
    return ignore_warnings(".*deprecated")


# ---------------------------------------------------------------------- quantized modules


def quantize(x: torch.Tensor, scale: Any, zero: Any, low: int, high: int, dtype: torch.dtype) -> torch.Tensor:
    """Quantizes floats to integers of a dtype."""
    operator = quantized_operators().quantize_per_tensor
    return (operator.tensor if isinstance(scale, torch.Tensor) else operator.default)(x, scale, zero, low, high, dtype)


def dequantize(x: torch.Tensor, scale: Any, zero: Any, low: int, high: int, dtype: torch.dtype) -> torch.Tensor:
    """Dequantizes integers to floats."""
    operator = quantized_operators().dequantize_per_tensor
    return (operator.tensor if isinstance(scale, torch.Tensor) else operator.default)(x, scale, zero, low, high, dtype)


def dequantize_channels(
    x: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, axis: int, low: int, high: int, dtype: torch.dtype
) -> torch.Tensor:
    return quantized_operators().dequantize_per_channel.default(x, scales, zeros, axis, low, high, dtype)


def quantize_by_range(x: torch.Tensor, low: int, high: int, dtype: torch.dtype) -> torch.Tensor:
    """Floats as dynamic quantization rounds them: the scale follows from the tensor's values."""
    smallest = float(torch.finfo(torch.float32).eps)
    scale, zero = quantized_operators().choose_qparams.tensor(x, low, high, smallest, dtype)
    return dequantize(quantize(x, scale, zero, low, high, dtype), scale, zero, low, high, dtype)


def unpack_weight(operator: str, packed: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The quantized weight and the bias in an object that a kernel's weights are packed in."""
    weight, bias = getattr(torch.ops.quantized, operator)(packed)
    return weight, bias


def convolution_settings(packed: Any, dims: int) -> tuple[list[int], list[int], list[int], int]:
    """Stride, padding, dilation and groups of a packed convolution."""
    prefix = f"conv{dims}d" if dims > 1 else "conv2d"
    asked = [
        list(getattr(torch.ops.quantized, f"{prefix}_{name}")(packed)) for name in ("stride", "padding", "dilation")
    ]
    stride, padding, dilation = (values[-1:] if dims == 1 else values for values in asked)
    return stride, padding, dilation, int(getattr(torch.ops.quantized, f"{prefix}_groups")(packed))
