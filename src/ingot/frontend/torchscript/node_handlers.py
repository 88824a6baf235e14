"""What each node of a TorchScript graph does.

prim::…                         a rule of its own, here
aten::… that the dispatcher has torch's operator, called on the values as they are
aten::… of the interpreter      Python's own meaning of it: numbers in `scalar_ops.py`, lists, dicts and text in
                                `container_ops.py`
"""

from __future__ import annotations

import functools
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import torch

from ingot import torch_internals as internals
from ingot.errors import EagerError, StateError, format_error
from ingot.frontend.torchscript import (
    cond,
    container_ops,
    dynamic_lists,
    mkldnn_ops,
    quantized_layers,
    quantized_ops,
    scalar_ops,
    while_loop,
)
from ingot.frontend.torchscript.interpreter import Environment, TorchScriptInterpreter
from ingot.frontend.torchscript.module_adapter import MANGLED, ScriptModuleAdapter, is_state
from ingot.frontend.torchscript.runtime_values import (
    UNSET,
    Instance,
    RuntimeScalar,
    RuntimeString,
    as_tensor,
    is_number,
    number,
    numbers,
)
from ingot.ir import pytree
from ingot.registry import Registry
from ingot.torch_internals import torchscript as ts

Rule = Callable[[TorchScriptInterpreter, ts.Node, list[Any]], Any]
# What nodes of a kind do.
_RULES: Registry[str, Rule] = Registry("rule")
rule = _RULES.register


def run(machine: TorchScriptInterpreter, node: ts.Node, env: Environment, name: str) -> Any:
    """The value of a node with one output, or a sequence of the values of its outputs."""
    kind = node.kind()
    if kind == "prim::If":
        return cond.branch(machine, node, env, name)
    if kind == "prim::Loop":
        return while_loop.loop(machine, node, env, name)
    inputs = [env[value.debugName()] for value in node.inputs()]
    if kind not in _SPEAKING and any(type(value) is RuntimeString for value in inputs):
        machine.unspoken(inputs)
    if dynamic_lists.handles(kind, inputs):
        return dynamic_lists.run(machine, kind, inputs, lambda: _general(machine, node, inputs))
    return _general(machine, node, inputs)


def _general(machine: TorchScriptInterpreter, node: ts.Node, inputs: list[Any]) -> Any:
    found = _RULES.get(node.kind())
    return found(machine, node, inputs) if found is not None else _operator(machine, node, inputs)


# What may be done with text that contains a data-dependent value.
_SPEAKING = frozenset(
    (
        *("prim::Print", "prim::RaiseException", "prim::ListConstruct", "prim::TupleConstruct", "prim::unchecked_cast"),
        *("aten::warn", "aten::format", "aten::percentFormat", "aten::add", "aten::str", "aten::join"),
    )
)


# ---------------------------------------------------------------------- torch's operators


def _operator(machine: TorchScriptInterpreter, node: ts.Node, inputs: list[Any]) -> Any:
    schema = node.schema()
    qualified = schema.partition("(")[0] if "(" in schema else node.kind()
    base, _, overload = qualified.partition(".")
    namespace, _, name = base.partition("::")
    if quantized_ops.handles(base, inputs):
        return quantized_ops.run(machine, base, overload, inputs, lambda plain: _operator(machine, node, plain))
    if overload.endswith("hacked_twin"):  # the same operator, for a list in which there is no None
        overload = overload.removesuffix("hacked_twin").rstrip("_")
        qualified = f"{base}.{overload}" if overload else base
    if name in container_ops.WRITING:
        for attribute, container in machine.attributes:
            if container is inputs[0]:
                raise _changed_attribute_error(machine, attribute)
    if name in scalar_ops.RULES and (not ts.has_kernel(qualified) or scalar_ops.wins(name, inputs)):
        out = scalar_ops.RULES[name](machine, *inputs)
        machine.record_allocation(out, inputs)
        return scalar_ops.cast_to_kind(machine, out, str(node.output().type())) if node.outputsSize() == 1 else out
    found = internals.operator_named(namespace, name, overload or "default")
    if found is None:
        raise machine.unsupported_error(f"The TorchScript operator {qualified} is unknown.")
    if ts.has_kernel(qualified):
        return call(machine, found, inputs)
    if internals.mutated_positions(found):
        raise machine.unsupported_error(
            f"The TorchScript operator {qualified} has no rule.",
            why="it is the TorchScript interpreter's own and writes to what it is given",
            fix="make a new value instead",
        )
    if any(
        isinstance(leaf, torch.Tensor | RuntimeScalar) or internals.is_symbolic(leaf)
        for leaf in scalar_ops.leaves(inputs)
    ):
        raise machine.unsupported_error(
            f"The TorchScript operator {qualified} does not support data-dependent values.",
            why="it is the TorchScript interpreter's own and works on plain values",
            fix="compute this with tensors",
        )
    return found(*inputs)


def call(machine: TorchScriptInterpreter, func: internals.OpOverload, inputs: list[Any]) -> Any:
    """An operator on values as a TorchScript graph hands them over: by position, dtypes as numbers."""
    if scalar_ops.leaves(inputs, ts.ScriptObject):
        raise machine.unsupported_error(
            f"The operator {func} takes an opaque object of torch.",
            why="a Program holds tensors and plain values, not weights packed for one kernel",
            fix="leave this module as it was before it was quantized, and quantize the program: ingot.quantize",
        )
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for argument, value in zip(func._schema.arguments, inputs, strict=True):
        value = _as_taken(argument, value)
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    return machine.operate(func, tuple(args), kwargs)


def _as_taken(argument: Any, value: Any) -> Any:
    kind = str(argument.real_type)
    if kind in ("Tensor", "Optional[Tensor]") and is_number(value):
        return as_tensor(value)
    if type(value) is int:
        for mark, convert in _COUNTED.items():
            if mark in kind:
                return convert(value)
    if kind == "List[Tensor]" or kind == "List[Optional[Tensor]]":
        return [as_tensor(item) if is_number(item) else item for item in value]
    return numbers(value)


_COUNTED: dict[str, Callable[[int], Any]] = {
    "ScalarType": ts.dtype_of_number,
    "Layout": ts.layout_of_number,
    "MemoryFormat": ts.memory_format_of_number,
}


# ---------------------------------------------------------------------- values


@rule("prim::Constant")
def _constant(machine: TorchScriptInterpreter, node: ts.Node, inputs: list[Any]) -> Any:
    return node if ts.is_function(node.output()) else machine.constant(node)


@rule("prim::Uninitialized")
def _make_uninitialized(machine: TorchScriptInterpreter, node: ts.Node, inputs: list[Any]) -> Any:
    return UNSET


@rule("prim::ListConstruct")
def _list(machine: TorchScriptInterpreter, node: ts.Node, inputs: list[Any]) -> Any:
    return list(inputs)


@rule("prim::TupleConstruct")
def _tuple(machine: TorchScriptInterpreter, node: ts.Node, inputs: list[Any]) -> Any:
    kind = node.output().type()
    names = ts.field_names(kind)
    if not names or not kind.annotation_str.startswith("__torch__."):  # the result of torch.max has names, but no class
        return tuple(inputs)
    return _namedtuple_class(kind.annotation_str, tuple(names))(*inputs)


@functools.cache
def _namedtuple_class(written: str, fields: tuple[str, ...]) -> Any:
    """The user's own class of a NamedTuple where it is imported, one of the same fields where it is not."""
    home, _, title = MANGLED.sub("", written).removeprefix("__torch__.").rpartition(".")
    found: Any = pytree.class_named("namedtuple", f"{home}:{title}")
    if found is not None and found._fields == fields:
        return found
    make: Any = namedtuple  # a class of fields that are only known now is nothing that a type checker knows
    return make(title if title.isidentifier() else "NamedTuple", fields)


@rule("prim::DictConstruct")
def _dict(machine: TorchScriptInterpreter, node: ts.Node, inputs: list[Any]) -> Any:
    return dict(zip(inputs[::2], inputs[1::2], strict=True))


@rule("prim::ListUnpack", "prim::TupleUnpack")
def _unpack(machine: TorchScriptInterpreter, node: ts.Node, inputs: list[Any]) -> Any:
    (whole,) = inputs
    if len(whole) != node.outputsSize():
        raise EagerError(
            format_error(f"Provided list of {len(whole)} items, expected {node.outputsSize()}.", where=machine.place)
        )
    return whole[0] if node.outputsSize() == 1 else list(whole)


@rule("prim::ConstantChunk")
def _chunk(machine: TorchScriptInterpreter, node: ts.Node, inputs: list[Any]) -> Any:
    out = machine.operate(torch.ops.aten.chunk.default, (inputs[0], node.i("chunks"), node.i("dim")), {})
    return out[0] if node.outputsSize() == 1 else out


@rule("prim::VarStack", "prim::VarConcat")
def _join(machine: TorchScriptInterpreter, node: ts.Node, inputs: list[Any]) -> Any:
    func = torch.ops.aten.stack.default if node.kind() == "prim::VarStack" else torch.ops.aten.cat.default
    return machine.operate(func, (inputs[:-1], inputs[-1]), {})


@rule("aten::_convolution")
def _convolution(machine: TorchScriptInterpreter, node: ts.Node, inputs: list[Any]) -> Any:
    """What a trace writes for a convolution; the cuDNN flags are ignored."""
    return call(machine, torch.ops.aten.convolution.default, inputs[:9])


@rule("prim::TupleIndex")
def _tuple_index(machine: TorchScriptInterpreter, node: ts.Node, inputs: list[Any]) -> Any:
    return inputs[0][inputs[1]]


@rule("prim::TupleSlice")
def _tuple_slice(machine: TorchScriptInterpreter, node: ts.Node, inputs: list[Any]) -> Any:
    return inputs[0][node.i("beg") : node.i("end")]


@rule("prim::unchecked_cast", "prim::unchecked_unwrap_optional", "aten::_unwrap_optional", "aten::wait", "prim::data")
def _same(machine: TorchScriptInterpreter, node: ts.Node, inputs: list[Any]) -> Any:
    return inputs[0]


@rule("prim::NumToTensor")
def _number_to_tensor(machine: TorchScriptInterpreter, node: ts.Node, inputs: list[Any]) -> Any:
    """A traced size stays a size until it is needed as a tensor."""
    return inputs[0] if internals.is_symbolic(inputs[0]) else as_tensor(inputs[0])


@rule("prim::Print", "aten::warn")
def _ignore_message(machine: TorchScriptInterpreter, node: ts.Node, inputs: list[Any]) -> Any:
    return ()


@rule("prim::PythonOp", "prim::IgnoredPythonOp")
def _python(machine: TorchScriptInterpreter, node: ts.Node, inputs: list[Any]) -> Any:
    raise machine.unsupported_error(
        f"The script calls {ts.python_name(node)}, a Python function that it does not contain.",
        why="@torch.jit.ignore leaves a function to Python, and neither a graph nor a file can hold it",
        fix="script the function too, take it off this path, or give the nn.Module itself to ingot.capture",
    )


@rule("prim::RaiseException")
def _raise(machine: TorchScriptInterpreter, node: ts.Node, inputs: list[Any]) -> Any:
    raise EagerError(
        format_error(
            f"The script raises an exception on this path: {inputs[0]}",
            where=machine.place,
            fix="give arguments that the script runs with",
        )
    )


# ---------------------------------------------------------------------- modules, objects, functions


@rule("prim::GetAttr")
def _get(machine: TorchScriptInterpreter, node: ts.Node, inputs: list[Any]) -> Any:
    (owner,), name = inputs, node.s("name")
    if isinstance(owner, ScriptModuleAdapter):
        return owner.attribute(name)
    if isinstance(owner, Instance):
        return owner.attributes[name]
    return ts.object_attribute(owner, name) if isinstance(owner, ts.ScriptObject) else getattr(owner, name)


@rule("prim::SetAttr")
def _set(machine: TorchScriptInterpreter, node: ts.Node, inputs: list[Any]) -> Any:
    (owner, value), name = inputs, node.s("name")
    if isinstance(owner, Instance):
        owner.attributes[name] = value
    elif isinstance(owner, ScriptModuleAdapter) and is_state(owner, name) and isinstance(value, torch.Tensor):
        if machine.scopes:
            # In a branch or a loop, what is put into a buffer is written to it: nothing else can go out of there.
            machine.operate(torch.ops.aten.copy_.default, (owner.attribute(name), value), {})
        else:
            setattr(owner, name, value)
    elif not (isinstance(owner, ScriptModuleAdapter) and _is_unchanged(owner.attribute(name), value)):
        raise _changed_attribute_error(machine, name)
    return ()


def _changed_attribute_error(machine: TorchScriptInterpreter, name: str) -> StateError:
    return StateError(
        format_error(
            f"The script changes its attribute {name}, which a Program cannot keep.",
            where=machine.place,
            why="only buffers carry state from one call to the next",
            fix="make it a buffer that holds a tensor",
        )
    )


def _is_unchanged(before: Any, now: Any) -> bool:
    return before is now or (
        type(before) is type(now) and not scalar_ops.leaves([before, now], torch.Tensor) and before == now
    )


@rule("prim::CreateObject")
def _create(machine: TorchScriptInterpreter, node: ts.Node, inputs: list[Any]) -> Any:
    return Instance(node.output().type(), {})


@rule("prim::CallMethod")
def _call_method(machine: TorchScriptInterpreter, node: ts.Node, inputs: list[Any]) -> Any:
    owner, *args = inputs
    name = node.s("name")
    if not isinstance(owner, ScriptModuleAdapter):
        custom = ts.custom_class_of(next(node.inputs()))
        if custom:
            raise machine.unsupported_error(
                f"The method {name} of {custom}, a class that is written in C++, cannot be captured.",
                "TorchScript runs it where capture cannot see into it, and a Program holds tensors and plain values",
                "do not keep that object in the model, or do its work with operators on tensors",
            )
        return machine.call(ts.body_of_call(node), inputs, name)
    # Calling a part is what its module is recorded by; the whole script's stands for the method that is imported.
    return owner(*args) if name == owner.called == "forward" else owner.run(name, tuple(args))


@rule("prim::CallFunction")
def _call_function(machine: TorchScriptInterpreter, node: ts.Node, inputs: list[Any]) -> Any:
    return machine.call(ts.body_of_call(node), inputs[1:], ts.called_name(node))


@rule("prim::Enter", "prim::Exit")
def _context(machine: TorchScriptInterpreter, node: ts.Node, inputs: list[Any]) -> Any:
    (owner,) = inputs
    entering = node.kind() == "prim::Enter"
    if ts.is_autocast(owner.kind):
        return _autocast(machine, owner, entering)
    extra = () if entering else (None, None, None)
    graph = ts.body_of_method(owner.kind, "__enter__" if entering else "__exit__", 1 + len(extra))
    return machine.call(graph, (owner, *extra), "with")


def _autocast(machine: TorchScriptInterpreter, owner: Instance, entering: bool) -> Any:
    """The interpreter casts by a pass over the whole graph; what it casts is what torch's own context does."""
    if machine.scopes:
        raise machine.unsupported_error(
            "An autocast region lies inside a data-dependent branch or loop.",
            fix="put the branch or the loop into the region",
        )
    if entering:
        settings = owner.attributes
        dtype = None if settings["fast_dtype"] is None else ts.dtype_of_number(settings["fast_dtype"])
        region = torch.autocast(settings["device"], dtype=dtype, enabled=settings["_enabled"])
        settings[""] = region  # no attribute of a script has no name
        return region.__enter__()
    owner.attributes.pop("").__exit__(None, None, None)
    return None


@rule("prim::fork")
def _fork(machine: TorchScriptInterpreter, node: ts.Node, inputs: list[Any]) -> Any:
    return machine.call(ts.fork_subgraph(node), inputs, "fork")


@rule("prim::isinstance")
def _isinstance(machine: TorchScriptInterpreter, node: ts.Node, inputs: list[Any]) -> Any:
    (value,) = inputs
    return any(scalar_ops.is_of_type(value, str(kind)) for kind in node.tys("types"))


# ---------------------------------------------------------------------- questions about a tensor


def _asks(attribute: str) -> Rule:
    def answer(machine: TorchScriptInterpreter, node: ts.Node, inputs: list[Any]) -> Any:
        (value,) = inputs
        if isinstance(value, quantized_ops.QuantizedTensor):
            if attribute in ("dtype", "is_quantized"):
                return ts.number_of_dtype(value.dtype) if attribute == "dtype" else True
            value = value.values
        found = getattr(as_tensor(value) if is_number(value) else value, attribute)
        return ts.number_of_dtype(found) if isinstance(found, torch.dtype) else found

    return answer


for _name in (
    *("dtype", "device", "requires_grad", "is_cuda", "is_quantized", "is_sparse", "is_mkldnn", "is_meta", "is_cpu"),
    *("is_nested", "is_sparse_csr", "is_xla", "is_mps", "is_vulkan", "is_ipu", "is_maia", "is_xpu", "is_leaf"),
):
    rule(f"prim::{_name}")(_asks(_name))


@rule("prim::layout")
def _layout(machine: TorchScriptInterpreter, node: ts.Node, inputs: list[Any]) -> Any:
    return 0


for _kind, _function in mkldnn_ops.RULES.items():
    rule(_kind)(_function)


@rule("prim::shape")
def _shape(machine: TorchScriptInterpreter, node: ts.Node, inputs: list[Any]) -> Any:
    return list(inputs[0].shape)


@rule("prim::min", "prim::max")
def _extreme(machine: TorchScriptInterpreter, node: ts.Node, inputs: list[Any]) -> Any:
    items = list(inputs[0]) if isinstance(inputs[0], list) else inputs
    found = items[0]
    for item in items[1:]:
        found = scalar_ops.extreme(node.kind() == "prim::max", found, item)
    return found


@rule("prim::rangelist")
def _range_list(machine: TorchScriptInterpreter, node: ts.Node, inputs: list[Any]) -> Any:
    return list(range(scalar_ops.index(machine, inputs[0])))


@rule("prim::tolist")
def _to_list(machine: TorchScriptInterpreter, node: ts.Node, inputs: list[Any]) -> Any:
    tensor = inputs[0]
    kind = {torch.bool: bool}.get(tensor.dtype, float if tensor.dtype.is_floating_point else int)

    def nest(part: torch.Tensor) -> Any:
        if part.dim() == 0:
            return RuntimeScalar.read(kind, part)
        return [nest(part.select(0, position)) for position in range(scalar_ops.index(machine, part.shape[0]))]

    return nest(tensor)


__all__ = ["call", "container_ops", "number", "quantized_layers", "rule", "run"]
