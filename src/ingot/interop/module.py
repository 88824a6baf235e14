"""A Program as an nn.Module: parameters under their own names, trainable, with lossless train() and eval()."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from ingot import torch_internals as internals
from ingot.analysis.side_effects import explain_assertions
from ingot.interop.train_eval import switch_mode
from ingot.ir import execution
from ingot.ir.signature import InputKind

if TYPE_CHECKING:
    from ingot.ir.program import Program


class ProgramModule(nn.Module):
    """Runs a program with its state held as parameters and buffers. The state is shared with the program."""

    program: Program
    _graphs: dict[bool, fx.GraphModule]
    _targets: list[str]

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.training = program.training
        plain = vars(self)  # not through nn.Module: neither graph nor program is a submodule
        plain["program"] = program
        plain["_graphs"] = {program.training: program.graph_module}
        plain["_targets"] = [str(i.target) for i in program.signature.state_inputs]
        attach_state(self, program)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        program = self.program
        leaves = execution.check_call(program, args, kwargs, dtypes=False)
        specs = program.signature.user_inputs
        arguments = {i.name: leaf for i, leaf in zip(specs, leaves, strict=True) if i.kind is InputKind.ARGUMENT}
        state = [tensor_at(self, name) for name in self._targets]
        with explain_assertions(), internals.restore_modes():
            values = self.graph_module(*execution.tokens_of(program), *state, *arguments.values())
        return execution.finish(program, list(values), arguments, lambda name: tensor_at(self, name))

    @property
    def graph_module(self) -> fx.GraphModule:
        """The graph in the module's present mode."""
        if self.training not in self._graphs:
            targets = {i.name: str(i.target) for i in self.program.signature.state_inputs}
            self._graphs[self.training] = switch_mode(self.program.graph_module, targets, self.training)
        return self._graphs[self.training]


def attach_state(root: nn.Module, program: Program) -> None:
    """Registers a program's tensors on `root` and on containers below it, under the names of the captured model."""
    persistent = {str(i.target): i.persistent for i in program.signature.state_inputs}
    for name, tensor in (*program.state_dict.items(), *program.constants.items()):
        owner, key = container_of(root, name)
        if isinstance(tensor, nn.Parameter):
            owner.register_parameter(key, tensor)
        else:
            owner.register_buffer(key, tensor, persistent.get(name, True) and name in program.state_dict)


def container_of(root: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The module that holds the tensor of a dotted name, made where it is missing, and the tensor's own key."""
    *path, key = name.split(".")
    return module_at(root, path), key


def module_at(root: nn.Module, path: Iterable[str]) -> nn.Module:
    """The submodule at a path; plain containers are made on the way."""
    owner = root
    for step in path:
        child = owner._modules.get(step)
        if child is None:
            child = nn.Module()
            child.training = root.training
            owner.add_module(step, child)
        owner = child
    return owner


def tensor_at(root: nn.Module, name: str) -> torch.Tensor:
    """The tensor that hangs under a dotted name now: a parametrization or a swap may have changed it."""
    *path, key = name.split(".")
    owner: Any = root
    for step in path:
        owner = getattr(owner, step)
    tensor = getattr(owner, key)
    assert isinstance(tensor, torch.Tensor)
    return tensor
