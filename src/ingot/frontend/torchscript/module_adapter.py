"""A ScriptModule as a tree of nn.Modules: the same names, the same tensors, and methods that the interpreter runs.

What is a parameter, what a buffer and what a plain attribute, the script itself says; which of them are one tensor is
identified by identity, never by value.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from ingot.frontend.torchscript.runtime_values import containers_in
from ingot.torch_internals import torchscript as ts

if TYPE_CHECKING:
    from ingot.frontend.torchscript.interpreter import TorchScriptInterpreter

MANGLED = re.compile(r"___torch_mangle_\d+\.")


class ScriptModuleAdapter(nn.Module):
    """One module of a script. Its `forward` is the script's.

    The script and the interpreter are attributes of the class, one per part; the module holds its state.
    """

    called: ClassVar[str]  # the method that a call of the part runs
    _script: ClassVar[Any]
    _machine: ClassVar[TorchScriptInterpreter]

    def __init__(self) -> None:
        super().__init__()
        self.training = bool(self._script.training) if ts.has_attribute(self._script, "training") else False

    def run(self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> Any:
        """Calls a method of the script on this part."""
        found = ts.method_of(self._script, method)
        given = bind_arguments(found.schema, args, kwargs or {}, skip_self=True)
        return self._machine.call(found.graph, (self, *given), method)

    def run_with_hooks(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """A call of the whole script; inside one, the graph of the caller runs the hooks of what it calls."""
        before, after = ts.hooks_of(self._script)
        given = bind_arguments(ts.method_of(self._script, "forward").schema, args, kwargs, skip_self=True)
        for hook in before:
            changed = self._machine.call(hook.graph, (self, given), hook.name)
            if changed is not None:
                given = changed if isinstance(changed, tuple) else (changed,)
        out = self.run("forward", given)
        for hook in after:
            changed = self._machine.call(hook.graph, (self, given, out), hook.name)
            out = out if changed is None else changed
        return out

    def attribute(self, name: str) -> Any:
        """What the script calls `self.name`."""
        for table in (self._parameters, self._buffers, self._modules, vars(self)):
            if name in table:
                return table[name]
        value = vars(self)[name] = ts.attribute(self._script, name)
        self._machine.attributes.extend((name, container) for container in containers_in([value]))
        return value


def build(script: Any, machine: TorchScriptInterpreter, method: str = "forward") -> ScriptModuleAdapter:
    """The tree of a script's modules. Calling it runs `method`, whatever that is called."""
    seen: dict[tuple[Any, ...], torch.Tensor] = {}

    def one(tensor: torch.Tensor, kind: type = torch.Tensor) -> Any:
        """The first tensor met that is the same one: a file may bring it back as two that share their memory."""
        place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.device)
        if not isinstance(tensor, kind):  # what comes from a file is a parameter by its place alone
            tensor = kind(tensor.detach(), tensor.requires_grad)
        return seen.setdefault((kind, *(place if tensor.numel() else (id(tensor),))), tensor)

    def make(piece: Any, method: str, outermost: bool = False) -> ScriptModuleAdapter:
        part = _class_of(piece, machine, method, outermost)()
        for name, tensor in ts.parameters(piece):
            part.register_parameter(name, one(tensor, nn.Parameter))
        for name, tensor in ts.buffers(piece):
            part.register_buffer(name, one(tensor))
        for name, child in ts.children(piece):
            if child is not None:
                part.add_module(name, make(child, "forward"))
        return part

    return make(script, method, outermost=True)


def _class_of(script: Any, machine: TorchScriptInterpreter, method: str, outermost: bool) -> type[ScriptModuleAdapter]:
    """A class named as the script's own, whose forward has the signature of `method`."""
    home, _, name = MANGLED.sub("", ts.qualified_name(script)).removeprefix("__torch__.").rpartition(".")

    def forward(self: ScriptModuleAdapter, *args: Any, **kwargs: Any) -> Any:
        if not outermost:
            return self.run(method, args, kwargs)
        call = self.run_with_hooks if method == "forward" else functools.partial(self.run, method)
        return machine.outermost(lambda: call(args, kwargs))

    members: dict[str, Any] = {"__module__": home or "__torch__", "__qualname__": name}
    members |= {"called": method, "_script": script, "_machine": machine}
    if ts.has_method(script, method):
        schema = ts.method_of(script, method).schema
        forward.__signature__ = signature(schema)  # type: ignore[attr-defined]
        members["forward"] = forward
    return type(name, (ScriptModuleAdapter,), members)


def signature(schema: Any) -> inspect.Signature:
    """A schema as Python sees it."""
    parameters: list[inspect.Parameter] = []
    for argument in schema.arguments:
        kind = inspect.Parameter.KEYWORD_ONLY if argument.kwarg_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
        has_default = argument.has_default_value() if hasattr(argument, "has_default_value") else False
        default = argument.default_value if has_default else inspect.Parameter.empty
        name = argument.name if argument.name.isidentifier() else f"arg{len(parameters)}"
        parameters.append(inspect.Parameter(name, kind, default=default))
    return inspect.Signature(parameters)


def bind_arguments(
    schema: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, skip_self: bool
) -> tuple[Any, ...]:
    """The values of every argument of a schema, in order."""
    arguments = signature(schema)
    if skip_self:
        arguments = arguments.replace(parameters=list(arguments.parameters.values())[1:])
    given = arguments.bind(*args, **kwargs)
    given.apply_defaults()
    return tuple(given.arguments.values())


def is_state(part: ScriptModuleAdapter, name: str) -> bool:
    """Whether an attribute is a tensor that a Program keeps from call to call."""
    return name in part._buffers or name in part._parameters


__all__ = ["MANGLED", "ScriptModuleAdapter", "bind_arguments", "build", "is_state", "signature"]
