"""The only file that touches `node.meta`.

    value_of(node)         the fake tensor, SymInt or tuple that the node computes; None for a node with no value
    source_of(node)        the user's file, line and function
    module_stack_of(node)  the module calls the node is inside, outermost first
    module_path_of(node)   the path of the innermost of them
    inferred_type_of(node) what shape analysis knows, where it is not what the value says

The keys are torch.export's own, so torch's tools read our graphs and ours read theirs.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ingot import torch_internals as internals

_VALUE, _TRACE, _STACK, _BINDINGS = "val", "stack_trace", "nn_module_stack", "unbacked_bindings"
_TYPE = "ingot_type"
_CUSTOM = "custom"
_ANNOTATION, _FUNCTION = "quantization_annotation", "torch_fn"
_FRAME = re.compile(r'File "(?P<file>[^"]*)", line (?P<line>\d+), in (?P<function>\S+)')


@dataclass(frozen=True, slots=True)
class Source:
    """A line of the user's code."""

    file: str
    line: int
    function: str

    @property
    def text(self) -> str:
        """The line itself, or nothing where the file is not at hand."""
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class ModuleFrame:
    """One module call: `call` distinguishes repeated calls ("fc@1"), `path` is the module's name, `type` its class."""

    call: str
    path: str
    type: str


ModuleStack = tuple[ModuleFrame, ...]


def value_of(node: fx.Node) -> Any:
    return node.meta.get(_VALUE)


def has_value(node: fx.Node) -> bool:
    return _VALUE in node.meta


def set_value(node: fx.Node, value: Any) -> None:
    node.meta[_VALUE] = value


def source_of(node: fx.Node) -> Source | None:
    """The innermost line of the user's code that the node comes from."""
    trace = node.meta.get(_TRACE)
    frames = _FRAME.findall(trace) if trace else ()
    if not frames:
        return None
    file, line, function = frames[-1]
    return Source(file, int(line), function)


def set_source(node: fx.Node, source: Source | None) -> None:
    if source is None:
        node.meta.pop(_TRACE, None)
    else:
        node.meta[_TRACE] = trace_text(source.file, source.line, source.function)


def trace_text(file: str, line: int, function: str) -> str:
    return f'  File "{file}", line {line}, in {function}\n'


def set_trace(node: fx.Node, trace: str) -> None:
    node.meta[_TRACE] = trace


def set_custom(node: fx.Node, annotation: dict[str, Any]) -> None:
    """What the user's code said about its nodes; torch's tools read it."""
    if annotation:
        node.meta[_CUSTOM] = annotation


def module_stack_of(node: fx.Node) -> ModuleStack:
    stack = node.meta.get(_STACK) or {}
    return tuple(ModuleFrame(call, path, _type_name(kind)) for call, (path, kind) in stack.items())


def set_module_stack(node: fx.Node, stack: Iterable[ModuleFrame]) -> None:
    node.meta[_STACK] = stack_entry(stack)


def stack_entry(stack: Iterable[ModuleFrame]) -> dict[str, tuple[str, str]]:
    """A module stack as nodes hold it; nodes of one call may share the dict, which is never changed in place."""
    return {frame.call: (frame.path, frame.type) for frame in stack}


def share_module_stack(node: fx.Node, entry: Mapping[str, tuple[str, str]]) -> None:
    node.meta[_STACK] = entry


def module_path_of(node: fx.Node) -> str:
    stack = node.meta.get(_STACK)
    return str(next(reversed(stack.values()))[0]) if stack else ""


def set_bindings(node: fx.Node, bindings: Any) -> None:
    """Which symbols, unknown until the program runs, the node's value makes known (torch.export's own record)."""
    if bindings:
        node.meta[_BINDINGS] = bindings


def bindings_of(node: fx.Node) -> Any:
    return node.meta.get(_BINDINGS)


def set_inferred_type(node: fx.Node, found: Any) -> None:
    """What shape analysis knows of the node, where that is not what its value says; None forgets it."""
    if found is None:
        node.meta.pop(_TYPE, None)
    else:
        node.meta[_TYPE] = found


def inferred_type_of(node: fx.Node) -> Any:
    return node.meta.get(_TYPE)


def annotation_of(node: fx.Node) -> Any:
    """What a quantizer of torchao wrote about a node, or None."""
    return node.meta.get(_ANNOTATION)


def set_function(node: fx.Node, name: str) -> None:
    """The torch function that the node comes from, as torch.export records it: quantizers look for it."""
    node.meta[_FUNCTION] = (node.name, f"function.{name}")


def copy_metadata(source: fx.Node, target: fx.Node) -> None:
    """Everything that is known of `source`, its value included, becomes known of `target`."""
    known = source.meta  # which may be the target's own
    if target.meta is not known:
        target.meta.clear()  # setting an attribute of a node costs ten times as much
        target.meta.update(known)


def inherit_origin(target: fx.Node, source: fx.Node) -> None:
    """`target` takes the place in the user's code and module of `source`, not its value."""
    for key in (_TRACE, _STACK, _CUSTOM):
        if key in source.meta:
            target.meta[key] = source.meta[key]


def strip(node: fx.Node) -> None:
    """Leaves the keys above and drops what else torch wrote."""
    kept = (_VALUE, _TRACE, _STACK, _BINDINGS, _TYPE, _CUSTOM)
    node.meta = {key: node.meta[key] for key in kept if key in node.meta}


def where(node: fx.Node) -> str:
    """The node's origin in one phrase for an error message."""
    source, path = source_of(node), module_path_of(node)
    parts = [f"node {node.name}"]
    if path:
        parts.append(f"module {path}")
    if source is not None:
        parts.append(f"{source}" + (f": {source.text}" if source.text else ""))
    return ", ".join(parts)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors of a node's value."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in tensors_in(item)]
    return []


def fake_mode_of(nodes: Iterable[fx.Node]) -> internals.FakeTensorMode:
    """The mode of the fake tensors that nodes have as values; a new one where they have none."""
    modes = (internals.fake_mode_of(tensor) for node in nodes for tensor in tensors_in(value_of(node)))
    return next((mode for mode in modes if mode is not None), None) or internals.new_fake_mode()[0]


def is_complex(node: fx.Node) -> bool:
    """Whether a node gives complex numbers."""
    return any(tensor.dtype.is_complex for tensor in tensors_in(value_of(node)))


def touches_complex(node: fx.Node) -> bool:
    """Whether a node takes or gives complex numbers."""
    return is_complex(node) or any(map(is_complex, node.all_input_nodes))


def _type_name(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind, type) else str(kind)
